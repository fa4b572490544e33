"""The command line.

Wrong input is answered with one sentence on standard error and exit status 2; Ctrl-C with the command that continues
the run and exit status 130. Importing this package imports next to nothing, so that `main` can answer a signal that
comes while everything else is being imported.
"""

import sys

TYPE_CHECKING = False  # not from typing, which takes longer to import than all of this
if TYPE_CHECKING:
    from coterie.cli.commands import app

__all__ = ["app", "main"]


def __getattr__(name: str) -> object:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from coterie.cli.commands import app

    return app


def main() -> None:
    """Run the command line; Ctrl-C, SIGTERM and SIGHUP end it without a traceback from its first moment on."""
    try:
        from coterie.experiment.interruption import termination

        with termination():
            from coterie.cli.commands import app

            app()
    except SystemExit as end:
        # Threads of the network engine, or of processes that share devices, may keep Python from taking itself apart.
        processes = sys.modules.get("coterie.processes.meeting")
        if "zenoh" in sys.modules or (processes is not None and processes.current() is not None):
            _exit_now(end.code)
        raise
    except KeyboardInterrupt as stop:
        print("stopped; start it again", file=sys.stderr)
        sys.exit(128 + getattr(stop, "number", 2))  # 2 is Ctrl-C
    finally:  # everything is on the disk: what comes while Python takes itself apart ends it at once
        import signal

        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _exit_now(code: object) -> None:
    """End the process; everything is on the disk."""
    import contextlib
    import os

    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))
