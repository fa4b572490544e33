"""What goes wrong, in words: every error that a user can cause or mend is one sentence and exit status 2.

An error in a file of the user's own is shown with its traceback, from the first line of that file on. Any other error
is ours, and its traceback is for a bug report.
"""

import contextlib
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperGroup

from coterie.cli.terminal import lasting_output, say
from coterie.errors import CoterieError, CoterieWarning

__all__ = ["Guarded"]

LONGEST = 1_000  # letters of each half of a sentence, which may quote what a user or a file gave
TOO_LITTLE_MEMORY = (
    "there is not enough memory for this: lower partition.clients, the sizes in [model] or method.batch_size, or set "
    "run.chunk"
)


class Guarded(TyperGroup):
    """Prints the errors of a user as sentences."""

    def make_context(self, *words: Any, **options: Any) -> Any:
        """Read the words of the command."""
        with _stops():  # reading them imports for a tenth of a second
            return super().make_context(*words, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with _stops(), lasting_output():
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("always", CoterieWarning)
                    warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's, of numbers too large to add up
                    warnings.showwarning = _show_warning  # type: ignore[assignment]
                    return super().invoke(ctx)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                sentence = _sentence(error)
                if sentence is None:
                    raise
                line = " ".join(sentence.splitlines())
                line = line if len(line) <= 2 * LONGEST else f"{line[:LONGEST]} ... {line[-LONGEST:]}"
                say(f"coterie: {line}{_own_traceback(error)}", to_errors=True)
                raise typer.Exit(2) from error


@contextlib.contextmanager
def _stops() -> Iterator[None]:
    """Answer Ctrl-C, and a signal that asks the process to end."""
    try:
        yield
    except KeyboardInterrupt as stop:
        say("stopped; start it again", to_errors=True)
        raise typer.Exit(128 + getattr(stop, "number", signal.SIGINT)) from None


def _show_warning(message: Any, *_: Any) -> None:
    """Print a warning as one sentence, without the line of code that raised it."""
    say(f"coterie: {message}", to_errors=True)


def _sentence(error: BaseException) -> str | None:
    """Say what went wrong; None where it is not the user's or the machine's doing."""
    if isinstance(error, CoterieError):
        return str(error)
    own = _own_frames(error)
    if own is not None:
        return f"{own.tb_frame.f_code.co_filename} stopped with {type(error).__name__}: {error}"
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        return TOO_LITTLE_MEMORY
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename} cannot be used: {error.strerror}" if error.filename else error.strerror
    return None


def _own_traceback(error: BaseException) -> str:
    """Return the traceback of an error in the user's own code, from its first line there on; empty for other errors."""
    cause = error.__cause__ if isinstance(error, CoterieError) else error
    own = None if cause is None else _own_frames(cause)
    if cause is None or own is None:
        return ""
    return "\n" + "".join(traceback.format_exception(type(cause), cause, own, chain=False)).rstrip()


def _own_frames(error: BaseException) -> Any:
    if "coterie.registry" not in sys.modules:
        return None
    from coterie.registry import own_frames

    return own_frames(error)
