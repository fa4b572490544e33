"""The processes of a federation on this machine: what they report, and how they end."""

import queue
import sys
import threading

from coterie.sites.local import LocalFederation
from support.peer_runs import write_federation

NAMES = ("north", "south")


class Late(queue.Queue):
    """Reports, of which the end of a process comes only after somebody has looked for it."""

    def __init__(self, looked):
        super().__init__()
        self.looked = looked

    def put(self, event):
        if event.exit is not None:
            self.looked.wait(60)
        super().put(event)

    def get(self, timeout):
        self.looked.set()
        return super().get(timeout=timeout)

    def empty(self):
        found = super().empty()
        self.looked.set()
        return found


class Quick(LocalFederation):
    """Members that say one thing and fail; everyone follows them only when they have ended."""

    def command(self, name):
        return [sys.executable, "-c", 'print(\'{"event": "note"}\'); raise SystemExit(3)']


def test_no_end_is_missed(tmp_path):
    looked = threading.Event()
    with Quick(write_federation(tmp_path, NAMES), tmp_path / "peers") as local:
        local._events = Late(looked)
        local.start()
        for process in local.processes.values():
            process.wait(60)
        events = list(local.events(60))
    assert {event.name: event.exit for event in events if event.exit is not None} == dict.fromkeys(NAMES, 3)
    assert sum(event.report == {"event": "note"} for event in events) == 2
