"""All members of a federation as processes of this machine: the way to try one, and to test one.

Each member runs `coterie join` with an address of its own on loopback and a throw-away certificate, exactly as it would
on a host of its own. The processes report what they do as lines of JSON.
"""

import contextlib
import json
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from coterie.errors import CoterieError, printable
from coterie.sites.federation import FederationFile
from coterie.sites.keys import throwaway
from coterie.sites.site import SiteFile
from coterie.storage.durable import storage_errors
from coterie.storage.toml import dump_toml, read_toml

__all__ = ["Event", "LocalFederation"]

LOOPBACK = "127.0.0.1"
GRACE = 20.0  # seconds that a process has to end after it was asked to
LAST_LINES = 3  # of what a process has said before it died


class Event(NamedTuple):
    """Something that a member reports: a line of JSON, or its exit status."""

    name: str
    report: dict[str, Any]
    exit: int | None = None


class LocalFederation:
    """The processes of a federation; use it as a context manager, which ends those that are left.

    Args:
        path: federation.toml. Its addresses are replaced by free ones on loopback.
        out: where each member gets the folder of its run.
        sites: the folder with NAME.site.toml (or NAME.toml) of each member, where each has its own data; None: that of
            federation.toml.
        options: further options for each `coterie join`.
    """

    def __init__(self, path: Path, out: Path, sites: Path | None = None, options: Sequence[str] = ()):
        self.path, self.out, self._sites, self._options = Path(path), Path(out).absolute(), sites, tuple(options)
        federation = FederationFile.read(path, trust_code="--trust-code" in options)
        self.names = federation.names
        if federation.contract is not None and sites is None:
            self._sites = self.path.parent
        self.processes: dict[str, subprocess.Popen] = {}
        self._events: queue.Queue[Event] = queue.Queue()
        self._listeners: list[threading.Thread] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with storage_errors(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
        self._work = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="coterie-peers-")))
        try:
            self._write_files()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            self._stack.close()

    def folder(self, name: str) -> Path:
        """Return the folder of a member's run."""
        return self.out / name

    def log(self, name: str) -> Path:
        """Return the file with what a member has said besides its reports."""
        return self.out / f"{name}.log"

    def start(self, *names: str) -> None:
        """Start some members, or all."""
        for name in names or self.names:
            with open(self.log(name), "ab") as log:
                # Ctrl-C in the terminal is for this process, which passes it on; the open input says that it lives.
                process = subprocess.Popen(
                    self.command(name),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
            self.processes[name] = process
            listener = threading.Thread(target=self._listen, args=(name, process), daemon=True)
            listener.start()
            self._listeners.append(listener)

    def command(self, name: str) -> list[str]:
        """Return the command that a member's process runs."""
        join = [sys.executable, "-m", "coterie", "join", str(self._work / "federation.toml")]
        return [*join, "--site", str(self._work / f"{name}.toml"), "--json", "--attached", *self._options]

    def addresses(self) -> list[str]:
        """Return an address for every member: free ones of this machine."""
        return [f"{LOOPBACK}:{port}" for port in free_ports(len(self.names))]

    def events(self, seconds: float | None = None) -> Iterator[Event]:
        """Yield what members report, until all of them have ended, or for some seconds."""
        end = None if seconds is None else time.monotonic() + seconds
        # Listeners, not processes: one that has ended is told of a moment later.
        while any(listener.is_alive() for listener in self._listeners) or not self._events.empty():
            left = 0.2 if end is None else min(0.2, end - time.monotonic())
            if left <= 0:
                return
            with contextlib.suppress(queue.Empty):
                yield self._events.get(timeout=left)

    @property
    def running(self) -> list[str]:
        """The members whose process has not ended."""
        return [name for name, process in self.processes.items() if process.poll() is None]

    def send(self, number: int, *names: str) -> None:
        """Send a signal to some members."""
        for name in names:
            if self.processes[name].poll() is None:
                self.processes[name].send_signal(number)

    def stop(self) -> None:
        """Ask everybody to leave, and end those who do not."""
        for number in (signal.SIGTERM, signal.SIGKILL):  # in the background of a shell SIGINT is ignored
            self.send(signal.SIGCONT, *self.running)
            self.send(number, *self.running)
            end = time.monotonic() + GRACE
            while self.running and time.monotonic() < end:
                time.sleep(0.05)
        for listener in self._listeners:
            listener.join(GRACE)

    def why(self, name: str) -> str:
        """Return the last words of a member."""
        with contextlib.suppress(OSError):
            lines = self.log(name).read_text(errors="replace").strip().splitlines()
            return printable(" ".join(lines[-LAST_LINES:]))[-500:]
        return ""

    def _listen(self, name: str, process: subprocess.Popen) -> None:
        with process:
            for line in process.stdout or ():
                with contextlib.suppress(ValueError):
                    report = json.loads(line)
                    if isinstance(report, dict):
                        self._events.put(Event(name, report))
        self._events.put(Event(name, {}, process.returncode))

    # -- the files of the members ----------------------------------------------------------------------------------

    def _write_files(self) -> None:
        """Write federation.toml with free addresses, and everybody's site.toml with a throw-away certificate."""
        tables, addresses = read_toml(self.path), self.addresses()
        hosts = sorted({address.rpartition(":")[0] for address in addresses})
        keys = throwaway(self._work / "keys", self.names, hosts)
        rows = [dict(row) for row in tables["members"]]
        for row, address in zip(rows, addresses, strict=True):
            if row.get("address") is not None:
                row["address"] = address
        section = {**tables.get("federation", {}), "tls": True}
        if "columns" in section:
            section["columns"] = str((self.path.parent / section["columns"]).absolute())
        changed = {**tables, "federation": section, "members": rows}
        (self._work / "federation.toml").write_text(dump_toml(changed))
        for name in self.names:
            files = keys[name]
            site: dict[str, Any] = {
                "site": {"name": name, "out": str(self.folder(name))},
                "tls": {"key": files.key, "certificate": files.certificate, "ca": files.ca},
                **self._own(name),
            }
            (self._work / f"{name}.toml").write_text(dump_toml(site))

    def _own(self, name: str) -> Mapping[str, Any]:
        """Return what a member's own file says about its data and limits."""
        if self._sites is None:
            return {}
        file = self._sites / f"{name}.site.toml"  # as `coterie init --federation` calls them
        file = file if file.exists() else self._sites / f"{name}.toml"
        tables, site = read_toml(file), SiteFile.read(file)
        if site.name != name:
            raise CoterieError(f"{file} is of {site.name}; name the file after its member")
        parts: dict[str, Any] = {key: dict(tables[key]) for key in ("data", "limits") if key in tables}
        if site.data is not None:
            parts["data"]["path"] = str(Path(site.data.path).absolute())
        return parts


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that nobody uses now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((LOOPBACK, 0))
        return [one.getsockname()[1] for one in sockets]
