"""What reaches a terminal: text that cannot steer it, in any encoding. A run goes on where nothing can be written."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import typer

from coterie.errors import printable

__all__ = ["console_for", "lasting_output", "only_python_speaks", "say"]


def say(text: str, to_errors: bool = False) -> None:
    """Print a line for people; names in it may come from anybody."""
    print(printable(text, keep="\n"), file=sys.stderr if to_errors else sys.stdout)


def console_for(as_json: bool = False) -> Any:
    """Return where to print for people: standard output, or standard error where that is for JSON."""
    from rich.console import Console
    from rich.segment import Segment

    class SafeConsole(Console):
        """Draws what it is given, but escapes the control characters in it; styles become codes only after that."""

        def render_str(self, text: str, **options: Any) -> Any:  # before widths are measured
            return super().render_str(printable(text, keep="\n"), **options)

        def render(self, *args: Any, **options: Any) -> Any:  # texts that were made elsewhere
            for text, style, control in super().render(*args, **options):
                yield Segment(text if control else printable(text, keep="\n"), style, control)

    return SafeConsole(stderr=as_json, highlight=False)


class LastingStream:
    """A stream that does not end a run: after the first failure, what is written is dropped and `failure` says why."""

    def __init__(self, stream: Any):
        self.stream = stream or open(os.devnull, "w")  # noqa: SIM115 (a process may start without a standard output)
        self.failure: OSError | None = None
        with contextlib.suppress(AttributeError, ValueError):
            self.stream.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 shows every name

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write text, as far as that is possible."""
        if self.failure is None:
            with self._failures():
                self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Pass on what was written."""
        if self.failure is None:
            with self._failures():
                self.stream.flush()

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failure = error
            # What is still in Python's buffer would fail once more when the process ends.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())


@contextlib.contextmanager
def lasting_output() -> Iterator[None]:
    """Go on if standard output or standard error cannot be written; a reader that has left (`| head`) is no failure."""
    output, errors = LastingStream(sys.stdout), LastingStream(sys.stderr)
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        yield
        output.flush()
    if output.failure is not None and not isinstance(output.failure, BrokenPipeError):
        reason = output.failure.strerror
        errors.write(f"coterie: standard output cannot be written ({reason}); what was run is kept\n")
        raise typer.Exit(2)


def only_python_speaks() -> None:
    """Drop what libraries print past Python, as those that connect processes do, before they are imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # what they print to standard error; ours says who is gone
    if not isinstance(sys.stdout, LastingStream):
        return
    with contextlib.suppress(OSError, ValueError):  # there is no such file, or it is closed
        sys.stdout.flush()
        kept = os.dup(sys.stdout.fileno())
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        like = sys.stdout.stream
        sys.stdout.stream = open(kept, "w", buffering=1, encoding=like.encoding, errors=like.errors)  # noqa: SIM115
