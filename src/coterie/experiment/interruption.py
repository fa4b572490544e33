"""Signals that end a run: SIGTERM and SIGHUP end it as Ctrl-C does, and none of them loses the rounds just trained.

Only the main thread of a program can set handlers of signals; elsewhere everything here does nothing.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Terminated", "held_back", "termination"]

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Terminated(KeyboardInterrupt):
    """The process was asked to end by another signal than Ctrl-C.

    Attributes:
        number: that of the signal.
    """

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


class _Waiting:
    """The handlers that are in force, and the signal that came while it was held back."""

    def __init__(self, former: dict[int, Callable]):
        self.former, self.number = former, 0

    def __call__(self, number: int, frame: Any) -> None:
        if self.number:  # asked twice: now
            self.former[number](number, frame)
        self.number = number


@contextlib.contextmanager
def termination() -> Iterator[None]:
    """Raise `Terminated` inside when the process is asked to end; a signal that is ignored or handled stays so."""
    with _handlers(lambda number, handler: _terminate if handler is signal.SIG_DFL else None):
        yield


@contextlib.contextmanager
def held_back(wanted: bool = True) -> Iterator[Callable[[], bool]]:
    """Let what is inside come to its end before a signal ends the run; a second signal does so at once.

    Yields a function that says whether a signal waits.
    """
    waiting = _Waiting({number: handler for number in ENDING if callable(handler := signal.getsignal(number))})
    with _handlers(lambda number, _: waiting if wanted and number in waiting.former else None):
        yield lambda: bool(waiting.number)
    if waiting.number:
        waiting.former[waiting.number](waiting.number, None)


def _terminate(number: int, _: Any) -> None:
    raise Terminated(number)


@contextlib.contextmanager
def _handlers(choose: Callable[[int, Any], Callable | None]) -> Iterator[None]:
    """Replace handlers by those that `choose(signal, handler)` returns, and put the former ones back."""
    former = {}
    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            handler = signal.getsignal(number)
            if handler is not None and (new := choose(number, handler)) is not None:
                former[number] = handler
                signal.signal(number, new)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
