"""Members on one machine whose connections go through this process, which can cut them: no root is needed.

What others dial is a port here, which is open while the member's own one is. Bytes are passed on as they are, so TLS is
between the members. Who dials is found by the socket's number (Linux). `namespaces.py` cuts a network without a word,
which takes the engine longer to notice.
"""

import contextlib
import os
import socket
import threading
from pathlib import Path

from coterie.storage.toml import read_toml
from support.members import free_ports
from support.peer_runs import SmallDisk

__all__ = ["Cables"]

HOST = "127.0.0.1"
PAUSE = 0.2  # seconds between two looks
LISTENS = "0A"  # a state in /proc/net/tcp


class Cables(SmallDisk):
    """A federation whose network is cut between groups of members by `cut`, and made whole by `heal`."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._groups = []
        self._links = []  # (who dials, who is dialled, both sockets)
        self._lock = threading.Lock()

    def addresses(self):
        """Find a port for each member here, and one for the member itself."""
        ports = free_ports(2 * len(self.names))
        dialled = dict(zip(self.names, ports[::2], strict=True))
        self._listens = dict(zip(self.names, ports[1::2], strict=True))
        self._ended = threading.Event()
        self._stack.callback(self._ended.set)
        for name, port in dialled.items():
            threading.Thread(target=self._serve, args=(name, port), daemon=True).start()
        return [f"{HOST}:{port}" for port in dialled.values()]

    def _own(self, name):
        """Let members that are dialled listen on their own port."""
        dialled = {row["name"] for row in read_toml(self.path)["members"] if row.get("address")}
        listen = {"listen": f"{HOST}:{self._listens[name]}"} if name in dialled else {}
        return {**super()._own(name), "site": {"name": name, "out": str(self.folder(name)), **listen}}

    def cut(self, *groups):
        """Cut what connects these groups, and let nothing connect them."""
        with self._lock:
            self._groups = groups
            for dials, dialled, sockets in self._links:
                if self._is_cut(dials, dialled):
                    _close(*sockets)

    def heal(self):
        """Let everybody connect again."""
        self._groups = []

    def _is_cut(self, one, other):
        return any(one in group and other not in group for group in self._groups)

    def _serve(self, name, port):
        """Pass on what comes for a member, while it listens."""
        while not self._ended.wait(PAUSE):
            if not _listening(self._listens[name]):
                continue
            with socket.create_server((HOST, port)) as server:
                server.settimeout(PAUSE)
                while not self._ended.is_set() and _listening(self._listens[name]):
                    with contextlib.suppress(OSError):
                        self._connect(name, *server.accept())

    def _connect(self, name, ours, address):
        with self._lock:
            dials = self._who(address[1])
            theirs = None if self._is_cut(dials, name) else _connected(self._listens[name])
            if theirs is None:
                _close(ours)
                return
            self._links.append((dials, name, (ours, theirs)))
        for pair in ((ours, theirs), (theirs, ours)):
            threading.Thread(target=_pass_on, args=pair, daemon=True).start()

    def _who(self, port):
        """Return the member whose process has this port; None for one that has closed it already."""
        sockets = {f"socket:[{row[9]}]" for row in _rows(port)}
        for name, process in self.processes.items():
            with contextlib.suppress(OSError):
                if any(_target(file) in sockets for file in Path(f"/proc/{process.pid}/fd").iterdir()):
                    return name
        return None


def _rows(port):
    """Return what the system says about sockets with this port at their own end."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [row for row in rows if row[1].endswith(f":{port:04X}")]


def _listening(port):
    return any(row[3] == LISTENS for row in _rows(port))


def _target(file):
    with contextlib.suppress(OSError):
        return os.readlink(file)


def _connected(port):
    with contextlib.suppress(OSError):
        return socket.create_connection((HOST, port), 5)


def _pass_on(source, sink):
    with contextlib.suppress(OSError):
        source.settimeout(None)
        while data := source.recv(1 << 16):
            sink.sendall(data)
    _close(source, sink)


def _close(*sockets):
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
