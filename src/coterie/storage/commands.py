"""Commands of ours as text that can be pasted into a shell, whatever the folders in them are called."""

import os
import shlex
from pathlib import Path

__all__ = ["command", "is_command"]


def command(*words: str | Path) -> str:
    """Return a command, quoted: `command("resume", Path("a b"))` is `coterie resume 'a b'`."""
    return " ".join(["coterie", *map(_quoted, words)])


def is_command(text: str) -> bool:
    """Whether a text is a command as `command` writes it: one of ours, and nothing after or inside it."""
    try:
        words = shlex.split(text)
    except ValueError:
        return False
    return words[:1] == ["coterie"] and text == command(*words[1:])


def _quoted(word: str | Path) -> str:
    text = str(word)
    if isinstance(word, Path) and text.startswith("-"):
        text = f"./{text}"  # or it would be taken for an option
    if text.isprintable():
        return shlex.quote(text)
    # Characters that steer a terminal, and bytes that are no text, as shells read them between $' and '.
    return "$'" + "".join(letter if letter.isprintable() else _bytes(letter) for letter in _escaped(text)) + "'"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _bytes(letter: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(letter))
