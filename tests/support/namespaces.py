"""Members and processes in network namespaces of their own (Linux, as root).

`CutNetwork`: everybody hangs on one of two bridges, which a cable joins; without it the two halves do not reach each
other. `TwoHosts`: two machines, each with a name that it knows itself by, as Debian has it, at a loopback address.
"""

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

from coterie.sites.local import LocalFederation

__all__ = ["CutNetwork", "TwoHosts", "can_cut"]

PORT = 7447
FILES = Path("/etc/netns")  # what `ip netns exec` lays over /etc
PREFIX = "cot-"  # of the names of namespaces, then the number of the process that made them


def can_cut():
    """Whether this machine lets us make network namespaces."""
    if os.geteuid() or shutil.which("ip") is None:
        return False
    trial = f"{PREFIX}{os.getpid()}-trial"
    made = subprocess.run(["ip", "netns", "add", trial], capture_output=True).returncode == 0
    return made and _ip("netns", "del", trial) is None


def _ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _inside(space, *words):
    _ip("netns", "exec", space, *words)


class CutNetwork(LocalFederation):
    """A federation on such a network; `rate` limits every member's cable, in the words of `tc` ("20mbit")."""

    def __init__(self, *args, rate=None, **options):
        super().__init__(*args, **options)
        self.spaces, self.rate = [f"{PREFIX}{os.getpid()}-{i}" for i in range(len(self.names))], rate
        self._switch = f"{PREFIX}{os.getpid()}-switch"

    def __enter__(self):
        self._remove()  # also what a process that was killed has left
        self._stack.callback(self._remove)
        _ip("netns", "add", self._switch)
        for half in (0, 1):
            _inside(self._switch, "ip", "link", "add", f"half{half}", "type", "bridge")
        _inside(self._switch, "ip", "link", "add", "cable0", "type", "veth", "peer", "name", "cable1")
        for half in (0, 1):
            _inside(self._switch, "ip", "link", "set", f"cable{half}", "master", f"half{half}", "up")
            _inside(self._switch, "ip", "link", "set", f"half{half}", "up")
        for i, space in enumerate(self.spaces):
            _ip("netns", "add", space)
            _ip(
                "link", "add", f"plug{i}", "netns", self._switch, "type", "veth", "peer", "name", "eth0", "netns", space
            )
            _inside(self._switch, "ip", "link", "set", f"plug{i}", "master", f"half{self.half(i)}", "up")
            _inside(space, "ip", "addr", "add", f"{self._host(i)}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _inside(space, "ip", "link", "set", device, "up")
            if self.rate is not None:
                limit = ("rate", self.rate, "burst", "64kb", "latency", "200ms")
                _inside(space, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *limit)
        return super().__enter__()

    def half(self, number):
        """Return on which side of the cut a member is."""
        return int(number >= len(self.names) // 2)

    def cut(self):
        """Pull the cable between the two halves."""
        _inside(self._switch, "ip", "link", "set", "cable0", "down")

    def heal(self):
        """Plug it in again."""
        _inside(self._switch, "ip", "link", "set", "cable0", "up")

    def command(self, name):
        """Run a member inside its namespace."""
        return ["ip", "netns", "exec", self.spaces[self.names.index(name)], *super().command(name)]

    def addresses(self):
        """Everybody has a host of its own."""
        return [f"{self._host(i)}:{PORT}" for i in range(len(self.names))]

    def _host(self, number):
        return f"10.77.0.{number + 1}"

    def _remove(self):
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.splitlines()
        for space in [line.split()[0] for line in listed if line.startswith(PREFIX)]:
            owner = space.split("-")[1]
            if owner == str(os.getpid()) or not os.path.exists(f"/proc/{owner}"):
                with contextlib.suppress(subprocess.CalledProcessError):
                    _ip("netns", "del", space)


class TwoHosts:
    """Machines node-a and node-b with a cable between them; a context manager.

    A machine's own name is a loopback address in its /etc/hosts, as on Debian; the other one's is a real address.
    """

    names = ("node-a", "node-b")

    def __init__(self):
        self.spaces = [f"{PREFIX}{os.getpid()}-{name}" for name in self.names]

    def __enter__(self):
        a, b = self.spaces
        with contextlib.ExitStack() as stack:
            stack.callback(self._remove)
            for space in self.spaces:
                _ip("netns", "add", space)
            _ip("link", "add", "eth0", "netns", a, "type", "veth", "peer", "name", "eth0", "netns", b)
            for i, space in enumerate(self.spaces):
                _inside(space, "ip", "addr", "add", f"10.78.0.{i + 1}/24", "dev", "eth0")
                for device in ("eth0", "lo"):
                    _inside(space, "ip", "link", "set", device, "up")
                known = ["127.0.0.1 localhost", f"127.0.1.1 {self.names[i]}", f"10.78.0.{2 - i} {self.names[1 - i]}"]
                (FILES / space).mkdir(parents=True, exist_ok=True)
                (FILES / space / "hosts").write_text("\n".join(known) + "\n")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind, error, trace):
        self._stack.close()

    def command(self, host, words):
        """Return the words that run a command on one of the hosts, under its name."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', self.names[host], *map(str, words)]
        return ["ip", "netns", "exec", self.spaces[host], *named]

    def _remove(self):
        for space in self.spaces:
            shutil.rmtree(FILES / space, ignore_errors=True)
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", space)
