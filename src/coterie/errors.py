"""The errors a user may see, each one sentence that names the field and the fix; and text that is safe to show."""

import unicodedata
from typing import Any

__all__ = ["CoterieError", "CoterieWarning", "Diverged", "StorageError", "printable", "shown"]

JOINERS = "\u200c\u200d"  # inside words of some scripts and inside emoji
LONGEST = 80  # letters of a value that a sentence quotes


class CoterieError(Exception):
    """Input that cannot be used. The command line prints the message and exits with status 2."""


class Diverged(CoterieError):  # noqa: N818 - reads better than DivergedError
    """Training produced a number that is not finite; the message names the client and the round."""


class StorageError(CoterieError):
    """The run folder could not be written (the disk is full, say); the run can be resumed from its last checkpoint."""


class CoterieWarning(UserWarning):
    """Something was changed so that the run can go on; the message says what, and how to set it yourself."""


def printable(text: str, keep: str = "") -> str:
    """Return text that can only be read: characters that steer a terminal, or cannot be encoded, become escapes.

    Args:
        text: whatever came from data, files or the command line.
        keep: control characters that are meant, a line break for example.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter in keep or _is_plain(letter) else _escape(letter) for letter in text)


def _is_plain(letter: str) -> bool:
    return letter.isprintable() or letter in JOINERS or unicodedata.category(letter) == "Zs"


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def shown(value: Any) -> str:
    """Return a value as a sentence quotes it: short, and printable, whatever it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of very many digits, a list of very many levels
        return f"a value of type {type(value).__name__} that is too long to be shown"
    return printable(text if len(text) <= LONGEST else f"{text[:LONGEST]}...")
