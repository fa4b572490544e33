"""What a carrier offers besides frames."""

from collections.abc import Callable
from typing import Protocol

__all__ = ["Control"]


class Control(Protocol):
    """What a carrier offers besides frames: who is there, and small requests to other members."""

    def alive(self) -> frozenset[str]:
        """Return the members that are there."""

    def given_up(self) -> dict[str, int]:
        """Return the last round that went on without a member, by name."""

    def answer(self, topic: str, fn: Callable[[str, bytes], bytes]) -> None:
        """Answer requests about a topic with `fn(name of the sender, payload)`."""

    def request(self, name: str, topic: str, payload: bytes, seconds: float) -> bytes | None:
        """Ask a member; None if no answer came in time."""
