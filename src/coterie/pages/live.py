"""The report while it grows: `coterie compare --watch` serves a page on this computer, on which curves grow.

A small server of the standard library, on the loopback address only. The page asks for `/events` once and is sent the
whole state, some kilobytes, whenever something has happened (server-sent events). When the comparison has ended, the
page loads the finished report from the same address, and the server closes.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from coterie.errors import CoterieError
from coterie.pages.growing import Growing

__all__ = ["Live", "serve"]

ADDRESS = "127.0.0.1"
PAUSE = 0.25  # seconds between two messages to a page, at least
ALIVE = 15.0  # seconds after which a page is told that the server is still there
GRACE = 5.0  # seconds that open pages have to load the report before the server closes

Update = Callable[[str, int, str, int, int, dict[str, Any]], None]  # as `ComparisonProgress`


def serve(
    methods: Mapping[str, str], runs: int, folder: str | Path | None = None, metric: str | None = None, port: int = 0
) -> "Live":
    """Start the server of a page that shows the progress of a comparison; use it in a `with` statement.

    Args:
        methods: the label of each method and its role.
        runs: how many runs there are in all.
        folder: the folder of the comparison: what its first run has written about the clients is shown.
        metric: the name of the score; None is the default of the task.
        port: where to listen; 0 is any that is free.
    """
    growing = Growing(methods, runs, None if folder is None else Path(folder), metric)
    try:
        server = _Server((ADDRESS, port), _Handler)
    except (OSError, OverflowError) as error:
        raise CoterieError(f"--port {port} cannot be used ({error}); choose another, or leave it out") from None
    return Live(growing, server)


class Live:
    """The server of the page that grows: `update` takes what happens, `url` is where a browser finds it."""

    def __init__(self, growing: Growing, server: "_Server"):
        self.growing, self.port = growing, server.server_address[1]
        self.url = f"http://{ADDRESS}:{self.port}/"
        self.report: str | None = None
        self.ending: str | None = None  # what is said when the comparison has ended
        self.changed = threading.Condition()
        self.version = 0
        self._page = growing.page()
        self._watching = 0  # pages that are open and do not have the report yet
        self._server, server.live = server, self
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()

    def __enter__(self) -> "Live":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.ending is None:
            self.finish(None, "The comparison has stopped before its end." if error else "The comparison has ended.")
        self.close()

    def update(self, label: str, seed: int, stage: str, number: int, rounds: int, metrics: dict[str, Any]) -> None:
        """Take one event of a run (see `coterie.comparison.compare.ComparisonProgress`)."""
        with self.changed:
            self.growing.update(label, seed, stage, number, rounds, metrics)
            self._tell()

    def beside(self, other: Update) -> Update:
        """Return a function that passes every event to another one, and to the page."""

        def both(*event: Any) -> None:
            other(*event)
            self.update(*event)

        return both

    def finish(self, report: str | None, words: str = "The comparison has ended.") -> None:
        """Say that the comparison has ended; open pages load the report, as HTML, if there is one."""
        with self.changed:
            self.report, self.ending = report, words
            self._tell()

    def close(self) -> None:
        """Close the server, once every open page has what it needs; it waits for a few seconds at most."""
        with self.changed:
            self.changed.wait_for(lambda: not self._watching, GRACE)
        self._server.shutdown()
        self._server.server_close()

    def page(self) -> str:
        """Return what a browser gets: the growing page, and after the end the report."""
        if self.report is None:
            return self._page
        self.watch(-1)
        return self.report

    def watch(self, change: int) -> None:
        """Count a page that comes or goes."""
        with self.changed:
            self._watching = max(self._watching + change, 0)
            self.changed.notify_all()

    def _tell(self) -> None:
        self.version += 1
        self.changed.notify_all()


class _Server(ThreadingHTTPServer):
    """Listens on the loopback address; threads of open pages do not keep the process alive."""

    daemon_threads = True
    block_on_close = False
    live: Live


class _Handler(BaseHTTPRequestHandler):
    """Answers browsers on this computer."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "coterie", ""
    server: _Server

    def do_GET(self) -> None:
        """Send the page, or the events."""
        live = self.server.live
        # A page of another site that names this address under its own host name is not let in.
        if self.headers.get("Host") not in (f"{ADDRESS}:{live.port}", f"localhost:{live.port}"):
            self._send(403, "text/plain", "this page is only for a browser on the same computer")
        elif self.path == "/":
            self._send(200, "text/html", live.page())
        elif self.path == "/events":
            self._events(live)
        else:
            self._send(404, "text/plain", "there is only one page here: /")

    def _send(self, code: int, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(data)

    def _events(self, live: Live) -> None:
        """Send the state whenever it has changed, until the end or until the page is closed."""
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        live.watch(1)
        try:
            self._follow(live)
        except ConnectionError:
            live.watch(-1)  # the page was closed
        else:
            if live.report is None:
                live.watch(-1)  # there is nothing more to load

    def _follow(self, live: Live) -> None:
        seen = -1
        while True:
            with live.changed:
                news = live.version > seen or live.changed.wait(ALIVE)
                seen, ended = live.version, live.ending
                message = f"data: {json.dumps(live.growing.state())}\n\n" if news else ": still here\n\n"
            if ended is not None:
                end = json.dumps({"words": ended, "report": live.report is not None})
                message += f"event: end\ndata: {end}\n\n"
            self.wfile.write(message.encode())
            if ended is not None:
                return
            time.sleep(PAUSE)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal shows the progress."""
