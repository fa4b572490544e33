"""Control requests between members that are threads of one process: who is there is decided by the test."""

import threading

__all__ = ["Switchboard"]


class Switchboard:
    """All members' ends; `end(name)` is what a member's meeting gets."""

    def __init__(self):
        self.lock, self.answers, self.there = threading.Lock(), {}, set()

    def end(self, name):
        with self.lock:
            self.answers[name] = {}
            self.there.add(name)
        return _End(self, name)


class _End:
    def __init__(self, board, name):
        self.board, self.name, self.missed = board, name, {}

    def alive(self):
        with self.board.lock:
            return frozenset(self.board.there)

    def given_up(self):
        return dict(self.missed)

    def answer(self, topic, fn):
        self.board.answers[self.name][topic] = fn

    def request(self, name, topic, payload, seconds):
        if name not in self.alive() or self.name not in self.alive():
            return None
        return self.board.answers[name][topic](self.name, payload)

    def leave(self):
        with self.board.lock:
            self.board.there.discard(self.name)
