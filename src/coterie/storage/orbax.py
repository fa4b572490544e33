"""Orbax, which writes checkpoints of several processes: not installed with coterie itself, and its errors are long."""

import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError

__all__ = ["errors_of_the_system", "orbax"]

NUMBER = re.compile(r"os_error_code='(\d+)'")
LATE = "Event loop is closed"  # what its writers still find when one of them has failed


def orbax() -> Any:
    """Return Orbax."""
    try:
        import orbax.checkpoint
    except ImportError:
        raise CoterieError("checkpoints of several processes need Orbax: pip install 'coterie[mesh]'") from None
    return orbax.checkpoint


@contextlib.contextmanager
def errors_of_the_system(path: Path) -> Iterator[None]:
    """Raise what a full disk and the like are to Orbax as OSError, and print nothing of its own besides."""
    logger = logging.getLogger("absl")
    level, usual = logger.level, sys.unraisablehook
    logger.setLevel(logging.CRITICAL + 1)

    def hook(what: Any) -> None:
        if LATE not in str(what.exc_value):
            usual(what)

    sys.unraisablehook = hook  # stays after a failure, since its writers end when they like
    try:
        yield
    except Exception as error:
        number = NUMBER.search(str(error))
        if isinstance(error, OSError) or number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    else:
        sys.unraisablehook = usual
    finally:
        logger.setLevel(level)
