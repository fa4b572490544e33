"""What members tell each other about themselves: what they run, and how far they are.

Cards come from other members: they are checked before anything in them is used.
"""

import json
import secrets
import sys
from typing import NamedTuple

import jax

from coterie import __version__
from coterie.errors import printable
from coterie.peers.access import LONGEST_NOTE
from coterie.storage.schema import Mismatch, record

__all__ = ["Card", "differences"]

# What must be the same everywhere, and how it is called.
MUST_AGREE = {
    "hash": "the configuration (the hash of federation.toml, resolved)",
    "contract": "the column contract",
    "coterie": "the version of coterie",
    "jax": "the version of JAX",
    "python": "the version of Python",
}


class Card(NamedTuple):
    """One member, at one moment."""

    hash: str  # of the configuration
    contract: str  # digest of the column contract; empty where there is none
    coterie: str  # versions
    jax: str
    python: str
    processor: str  # another one may round otherwise, which is worth a warning only
    session: int  # a random number of the process
    ready: bool = False  # it has compiled its programs and waits for the others
    run: int = 0  # the number of the run it is in, or was in when it stopped; 0: of none yet
    lacks: list[str] = []  # noqa: RUF012  # whom it would have a connection with, and has not
    started: bool = False  # it is in this run now
    round: int = 0  # the one it is in
    first: int = 0  # the round with which those below began, who may be further now
    began: dict[str, int] = {}  # noqa: RUF012  # who began together: the sessions of their processes, by name
    given_up: dict[str, int] = {}  # noqa: RUF012  # the last round that went on without a member, by name

    @classmethod
    def of_this_process(cls, hash: str, contract: str, processor: str) -> "Card":
        """Return the card of what runs here."""
        python = ".".join(map(str, sys.version_info[:2]))
        return cls(hash, contract, __version__, jax.__version__, python, processor, secrets.randbits(62))

    def encode(self) -> bytes:
        """Return the card as bytes."""
        return json.dumps(self._asdict()).encode()

    @classmethod
    def decode(cls, data: bytes | None) -> "Card | None":
        """Read a card; None for anything else."""
        if data is None or len(data) > LONGEST_NOTE:  # before it takes memory: an answer may be as long as a model
            return None
        try:
            return cls(**_SCHEMA(json.loads(data)))
        except (ValueError, RecursionError, Mismatch):
            return None


_SCHEMA = record(Card)


def differences(mine: Card, theirs: Card, name: str) -> list[str]:
    """Say what keeps two members from running together, a few words for each."""
    pairs = {words: (getattr(theirs, field), getattr(mine, field)) for field, words in MUST_AGREE.items()}
    return [
        f"{words} is {_short(other)} at {name} and {_short(own)} here"
        for words, (other, own) in pairs.items()
        if other != own
    ]


def _short(value: str) -> str:
    return printable(value[:12]) or "none"
