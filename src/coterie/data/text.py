"""Plays as character sequences: the speech of each speaker, cut into windows to predict the next character."""

from pathlib import Path

import numpy as np

from coterie.data.unpack import BROKEN, first_line, opened, read_bytes
from coterie.errors import CoterieError

__all__ = ["ALPHABET", "plays_by_speaker", "read_text", "speeches", "windows"]

# The 80 characters of the LEAF benchmark (Caldas et al. 2018); any other character is read as the last one, as there.
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"


def speeches(text: str) -> dict[str, str]:
    """Collect the speech of each speaker from a text of blocks "NAME:", then lines, then an empty line."""
    speech: dict[str, list[str]] = {}
    speaker = None
    for block in text.replace("\r\n", "\n").split("\n\n"):
        first, _, rest = block.strip("\n").partition("\n")
        if first.endswith(":"):
            speaker, block = first[:-1], rest
        if speaker is not None and block.strip():
            speech.setdefault(speaker, []).append(block.strip("\n"))
    return {name: "\n".join(parts) for name, parts in speech.items()}


def plays_by_speaker(path: Path) -> dict[str, str]:
    """Collect the speech of each role "play/speaker" from a table with columns play, speaker and text.

    Speeches without a speaker (a prologue) are left out.
    """
    import pandas as pd

    try:
        with opened(path, per_byte=2) as stream:
            table = pd.read_csv(stream, keep_default_na=False, dtype=str)
    except (*BROKEN, ValueError) as error:
        raise CoterieError(f"{path} cannot be read ({first_line(error)}); get the file again") from error
    missing = [name for name in ("play", "speaker", "text") if name not in table.columns]
    if missing:
        raise CoterieError(f"{path} has no column {missing[0]!r}; it needs play, speaker and text")
    speech: dict[str, list[str]] = {}
    for play, speaker, text in zip(table["play"], table["speaker"], table["text"], strict=True):
        if speaker:
            speech.setdefault(f"{play}/{speaker}", []).append(text)
    return {name: "\n".join(parts) for name, parts in speech.items()}


def read_text(path: Path) -> str:
    """Read a text file, unpacked if need be."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CoterieError(f"{path} is not text in UTF-8 ({error.reason}); get the file again") from None


def windows(speech: dict[str, str], length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut every speaker's text into windows that do not overlap.

    Returns:
        characters `[N, length]`, the characters that follow them `[N, length]`, and the speaker of each window `[N]`.
        The end of a text that is too short for a window is not used.
    """
    table = np.full(0x110000, len(ALPHABET) - 1, np.int32)
    table[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))
    inputs, targets, owners = [], [], []
    for name, text in speech.items():
        codes = table[np.frombuffer(text.encode("utf-32-le"), np.uint32)]
        count = (len(codes) - 1) // length
        if count > 0:
            inputs.append(codes[: count * length].reshape(count, length))
            targets.append(codes[1 : count * length + 1].reshape(count, length))
            owners += [name] * count
    if not inputs:
        raise CoterieError(f"no speaker says more than length = {length} characters; use a smaller length")
    return np.concatenate(inputs), np.concatenate(targets), np.array(owners)
