"""Signals that end a run: SIGTERM and SIGHUP end it as Ctrl-C does, and none of them loses the rounds just trained.

Only the main thread of a program can set handlers of signals; elsewhere everything here does nothing.

An exception must not be raised just anywhere: Python drops those inside callbacks of its garbage collector, and an
extension module (jaxlib is one) may crash if its import is broken off. There the signal is sent again a little later.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from coterie.processes.signals import ENDING

__all__ = ["Terminated", "held_back", "termination"]

PAUSE = 0.01  # seconds


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
    """Raise `Terminated`, or KeyboardInterrupt, inside when the process is asked to end.

    A signal that is ignored, or has a handler of somebody else, stays so.
    """
    usual = (signal.SIG_DFL, signal.default_int_handler)
    with _handlers(lambda number, handler: _end if handler in usual else None), _nothing_dropped():
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


def _end(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return _send_again(number)
        frame = frame.f_back
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)


def _send_again(number: int) -> None:
    threading.Timer(PAUSE, os.kill, (os.getpid(), number)).start()


@contextlib.contextmanager
def _nothing_dropped() -> Iterator[None]:
    """Send a signal again whose exception Python has dropped."""
    usual = sys.unraisablehook

    def dropped(what: Any) -> None:
        if issubclass(what.exc_type, KeyboardInterrupt):
            _send_again(getattr(what.exc_value, "number", signal.SIGINT))
        else:
            usual(what)

    sys.unraisablehook = dropped
    try:
        yield
    finally:
        if sys.unraisablehook is dropped:  # a later one of somebody else stays
            sys.unraisablehook = usual


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
