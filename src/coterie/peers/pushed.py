"""The mean of many without a hub: numerators and weights go from partner to partner and are divided at the end.

Every client has two sums: of its value times its weight, and of the weights. In step t the clients i and i XOR 2^t
exchange both and add them, so that after log2 K steps each has the sums over everybody: the hypercube. With K not a
power of two, those beyond the largest power first hand their sums to a partner, and get the end result from it.

Push-sum (Kempe, Dobra, Gehrke 2003) keeps half and sends half; here both keep all, which is the same quotient. The
partners i + 2^t of the usual exponential graph would count some clients twice unless K is a power of two, so that the
mean were only near. Here it is exact up to rounding, and the same bits everywhere, since a + b = b + a. A member sends
at most log2 K + 1 messages, each as long as the one that it would send to a hub.

Where messages are lost, or members are gone, their part of the sums is missing. In any step the two sums are over
different clients, so whatever is lost, each client ends with the mean over some of the clients by their true weights,
none of them counted twice. These sums need not be the same for all clients then.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie.errors import CoterieError
from coterie.numerics.tree import column, divisor
from coterie.peers.arithmetic import message_bytes, usable
from coterie.peers.here import Tree
from coterie.peers.messages import Messages

__all__ = ["Pushed", "Step", "push_steps"]


class Step(NamedTuple):
    """Who sends to whom in one step, by id; -1: to nobody, from nobody."""

    number: int
    sends: np.ndarray  # [K] to whom
    hears: np.ndarray  # [K] from whom
    adds: bool  # whether the receiver adds what comes to what it has, or takes it in its place


@functools.cache
def push_steps(clients: int) -> tuple[Step, ...]:
    """Return the steps of a mean over so many clients."""
    ids, whole = np.arange(clients), 1 << (clients.bit_length() - 1)
    below, above = np.where(ids >= whole, ids - whole, -1), np.where(ids + whole < clients, ids + whole, -1)
    pairs = [np.where(ids < whole, ids ^ (1 << bit), -1) for bit in range(whole.bit_length() - 1)]
    ways = [(pair, pair, True) for pair in pairs]
    if whole < clients:
        ways = [(below, above, True), *ways, (above, below, False)]
    return tuple(Step(number, *way) for number, way in enumerate(ways))


class Pushed(Messages):
    """Adds the mean by pushes to what a carrier can do."""

    def _mean_by_pushes(
        self, x: Tree, weight: jax.Array, groups: tuple[jax.Array, int] | None
    ) -> tuple[Tree, jax.Array]:
        """Average as `Peers.mean` does; of groups every client passes on the sums of each."""
        self._refuse_pushes()
        label, count = (jnp.zeros(self.ids.shape, jnp.int32), 1) if groups is None else groups
        weighted = self.seal(jax.tree.map(lambda a: column(weight, a).astype(a.dtype) * a, self._whole(x)))
        good = weight > 0
        for a in jax.tree.leaves(weighted):  # who has diverged takes no part
            good = good & usable(a, tuple(range(1, a.ndim)))
        mine = good[:, None] & (label[:, None] == jnp.arange(count))  # [C, G]
        total = jax.tree.map(lambda a: jnp.where(_as_wide(mine, a), a[:, None], jnp.zeros((), a.dtype)), weighted)
        # One number for each group, not a vector of them: faults know weights by that.
        mass = tuple(jnp.where(mine[:, g], weight, 0) for g in range(count))
        for step in push_steps(self.clients):
            total, mass = self._take_step(step, total, mass)
        weights = jnp.stack(mass, 1)
        means = jax.tree.map(lambda t: t / _as_wide(divisor(weights).astype(t.dtype), t[:, 0]), total)
        means, weights = self.seal((means, weights))
        row = jnp.arange(label.shape[0])
        arrived = weights[row, label] > 0
        return jax.tree.map(lambda m, a: jnp.where(column(arrived, a), m[row, label], a), means, x), arrived

    def _take_step(self, step: Step, total: Tree, mass: tuple[jax.Array, ...]) -> tuple[Tree, tuple[jax.Array, ...]]:
        """Exchange the sums with one's partner; returns the new ones."""
        size = message_bytes((total, mass))
        self._charge("up", jnp.asarray(step.sends >= 0)[self.ids], size)
        (theirs, their_mass), came, arrived = self._pass_on(self._sent((total, mass)), step)
        self._charge("down", arrived, size)
        good = arrived & (jnp.stack(their_mass) >= 0).all(0)
        self._watch(hub_lost=self._by_sender(step, ~came), hub_refused=self._by_sender(step, came & ~good))

        def new(mine: jax.Array, other: jax.Array) -> jax.Array:
            return jnp.where(column(good, mine), mine + other if step.adds else other, mine)

        return jax.tree.map(new, total, theirs), jax.tree.map(new, mass, their_mass)

    def _by_sender(self, step: Step, which: jax.Array) -> jax.Array:
        """Count messages that the clients here were to get where `which [C]`: `[K]` by sender."""
        none, hears = jnp.zeros(self.clients, jnp.uint32), jnp.asarray(step.hears)[self.ids]
        return none.at[jnp.maximum(hears, 0)].add((which & (hears >= 0)).astype(jnp.uint32))

    def _refuse_pushes(self) -> None:
        """Refuse what needs every single value at one place, or again what it was the round before."""
        many = f"without a hub, the mean of more than {self._all_to_all} clients (run.all_to_all) goes through sums, "
        if self._coder is not None:
            raise CoterieError(
                many + "which are no change of what was sent before, so that a codec cannot encode them: set codec "
                "none, name a member as the hub, or raise run.all_to_all"
            )
        if self._robust is not None:
            raise CoterieError(
                many + "in which no single client's value can be seen and bounded: leave run.robust out, name a member "
                "as the hub, or raise run.all_to_all"
            )


def _as_wide(values: jax.Array, like: Any) -> jax.Array:
    """Return `[C, G]` with the axes of one client's value behind them, to fit `[C, G, ...]`; like is `[C, ...]`."""
    return values.reshape(*values.shape, *(1,) * (like.ndim - 1))
