"""Robust sums: a received value may differ from the receiver's own, or from the middle at the hub, only so far.

Between neighbours: clipping around one's own value (He, Karimireddy, Jaggi 2022, "Byzantine-robust decentralized
learning via ClippedGossip"). At a hub: centred clipping (Karimireddy, He, Jaggi 2021, "Learning from history for
Byzantine robust optimization"), around the median of every coordinate. The radius is not a setting: it is `MEDIANS`
times the median distance of what has just arrived, of an even number the lower middle one. As long as less than half of
what a client hears comes from attackers, the radius is at most `MEDIANS` times an honest distance. What is within the
radius is used as it is, to the last bit. A client that hears a single other one has nothing to compare it with.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from coterie.numerics.tree import column

__all__ = ["MEDIANS", "bounded_at_hub", "bounded_slots"]

Tree = Any
Each = Callable[..., Tree]  # runs a function for each client, in the mode of the run
Seal = Callable[[Tree], Tree]

MEDIANS = 2.0


class Bounded(NamedTuple):
    """Values whose distance is bounded, and which of them were too far away."""

    values: Any
    clipped: jax.Array


def bounded_slots(
    slot: Callable[[Any], Tree], arrived: jax.Array, own: Tree, medians: float, each: Each, seal: Seal
) -> Bounded:
    """Bound what arrived `[C, D]` through slots by its distance from each client's own value `[C, ...]`.

    Args:
        slot: gives what came through a slot, `[C, ...]`.
        arrived: where something did.
        own: the receiver's values.
        medians: the radius, in medians of the distances.
        each: runs a function client by client.
        seal: fixes a product before it is added to something.
    """
    slots = arrived.shape[1]
    if not slots:
        return Bounded(slot, arrived)
    away = lax.map(lambda k: each(_distance, slot(k), own), jnp.arange(slots)).T  # [C, D]
    radius = medians * _lower_median(away, arrived)[:, None]
    far, share = _excess(away, radius, arrived)

    def bounded(k: Any) -> Tree:
        return _drawn_near(slot(k), own, far[:, k], share[:, k], seal)

    return Bounded(bounded, far)


def bounded_at_hub(
    values: Tree, arrived: jax.Array, label: jax.Array, groups: int, medians: float, each: Each, seal: Seal
) -> Bounded:
    """Bound what arrived `[K]` at the hub by its distance from the middle of its group, `[K, ...]` each."""
    members = arrived & (label == jnp.arange(groups)[:, None])  # [G, K]
    middle = jax.tree.map(lambda a: lax.map(lambda of: _middle(a, of), members)[label], values)
    away = each(_distance, values, middle)  # [K]
    radius = medians * _lower_median(jnp.broadcast_to(away, members.shape), members)[label]
    far, share = _excess(away, radius, arrived)
    return Bounded(_drawn_near(values, middle, far, share, seal), far)


def _distance(a: Tree, b: Tree) -> jax.Array:
    """Return the Euclidean distance of two values of one client."""
    squares = [jnp.sum(jnp.square(u - v)) for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]
    return jnp.sqrt(jnp.asarray(sum(squares)))


def _excess(away: jax.Array, radius: jax.Array, arrived: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Say what is too far away, and which share of its difference is within the radius."""
    far = arrived & (away > radius)
    return far, jnp.where(far, radius / jnp.where(far, away, 1), 1)


def _drawn_near(values: Tree, centre: Tree, far: jax.Array, share: jax.Array, seal: Seal) -> Tree:
    """Move what is too far away to the edge of the radius."""

    def of_leaf(a: jax.Array, c: jax.Array) -> jax.Array:
        near = c + seal(column(share, a).astype(a.dtype) * (a - c))
        return jnp.where(column(far, a), near, a)

    return jax.tree.map(of_leaf, values, centre)


def _lower_median(values: jax.Array, known: jax.Array) -> jax.Array:
    """Return the median of the known values of each row, of an even number the lower middle one; 0 without any."""
    ordered = jnp.sort(jnp.where(known, values, jnp.inf), 1)
    count = known.sum(1)
    middle = jnp.take_along_axis(ordered, jnp.maximum(count - 1, 0)[:, None] // 2, 1)[:, 0]
    return jnp.where(count > 0, middle, 0)


def _middle(a: jax.Array, of: jax.Array) -> jax.Array:
    """Return the lower median of every coordinate of `a [K, ...]` over the clients in a group."""
    flat = a.reshape(a.shape[0], -1).T
    return _lower_median(flat, jnp.broadcast_to(of, flat.shape)).reshape(a.shape[1:]).astype(a.dtype)
