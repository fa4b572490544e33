"""Control requests between members that are threads of one process: who is there is decided by the test."""

import threading

__all__ = ["Switchboard"]


class Switchboard:
    """All members' ends; `end(name)` is what a member's meeting gets. Pairs in `apart` do not see each other."""

    def __init__(self):
        self.lock, self.answers, self.there, self.apart = threading.Lock(), {}, set(), set()

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
            there = frozenset(self.board.there)
            return there - {name for name in there if frozenset((self.name, name)) in self.board.apart}

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
