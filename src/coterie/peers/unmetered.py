"""The verbs without a ledger, for mathematics on arrays of your own."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from coterie.peers.local import LocalPeers

__all__ = ["Unmetered"]

Tree = Any


class Unmetered(LocalPeers):
    """The verbs without a ledger: nothing is remembered between calls, so one object serves in many programs."""

    def _charge(self, link: str, messages: jax.Array, size: Any, together: Any = None) -> None:
        pass

    def _next_exchange(self) -> int:
        return 0

    def loop(self, times: int, body: Callable[[jax.Array, Tree], Tree], start: Tree) -> Tree:
        """Run `body(step, value)` that many times."""
        return lax.fori_loop(0, times, body, start)

    def choose(self, flag: jax.Array, yes: Callable[[Tree], Tree], no: Callable[[Tree], Tree], value: Tree) -> Tree:
        """Run `yes(value)` or `no(value)`."""
        return lax.cond(flag, yes, no, value)
