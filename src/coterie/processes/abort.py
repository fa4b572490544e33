"""Sentences where JAX's C++ code ends a process by itself: it aborts with a trace, and no Python code can prevent that.

The handler of that signal is called by the thread that aborts, so it is one of C, not of Python's `signal`.
"""

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from coterie.processes.signals import ENDING

__all__ = ["before_abort", "sentences_for"]

_handlers: list[Any] = []  # C does not keep them alive


def before_abort(sentence: Callable[[], str], status: int, stream: int = 2) -> Any:
    """Write a sentence instead of an abort, and end with a status; returns the handler that was there before."""

    def end(number: int) -> None:
        _end(stream, sentence(), status)

    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(end)
    _handlers.append(handler)
    return _handle_abort(ctypes.cast(handler, ctypes.c_void_p))


def _handle_abort(handler: Any) -> Any:
    """Set the handler of C, and return the one before; a system without such a library keeps JAX's own end."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # TypeError: Windows
        set_handler = ctypes.CDLL(None).signal
        set_handler.argtypes, set_handler.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
        return set_handler(int(signal.SIGABRT), handler)
    return None


@contextlib.contextmanager
def sentences_for(patience: float, late: str, refused: str) -> Iterator[None]:
    """End the process with a sentence if what is inside takes longer than `patience` (`late`), or aborts (`refused`).

    What C++ code prints to standard error meanwhile is dropped. Signals end the process at once: Python's handlers
    would have to wait for the C++ code, and there is nothing to save yet.
    """
    kept = os.dup(2)
    timer = threading.Timer(patience, _end, (kept, late, 2))
    timer.daemon = True
    former = before_abort(lambda: refused, 2, kept)
    try:
        timer.start()
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        with _signals_end_it():
            yield
    finally:
        timer.cancel()
        _handle_abort(former)
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def _signals_end_it() -> Iterator[None]:
    """Leave signals to the system; only the main thread can, elsewhere nothing changes."""
    former: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        former = {number: signal.signal(number, signal.SIG_DFL) for number in ENDING if not _ignored(number)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _ignored(number: int) -> bool:
    return signal.getsignal(number) in (signal.SIG_IGN, None)  # None: somebody else's, of C


def _end(stream: int, sentence: str, status: int) -> None:
    os.write(stream, f"coterie: {sentence}\n".encode())
    os._exit(status)
