"""The arithmetic of the verbs: sums that do not depend on where clients live, and the size of a message."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from coterie.codecs.frame import frame_bytes
from coterie.numerics.tree import count_of, divide, divisor, of_clients, product, times
from coterie.peers import EXCHANGE

__all__ = [
    "LARGEST_NUMBER",
    "add_clients",
    "divided",
    "fold_clients",
    "fold_slots",
    "in_chunks",
    "message_bytes",
    "no_clients",
    "product_averages",
    "share_bytes",
    "usable",
    "wide_averages",
]

Tree = Any
# What is not finite does not arrive, and neither does a number larger than this, whose square is not finite any more
# after a few additions: one client that has diverged, or lies, must not take the others with it.
LARGEST_NUMBER = 1e18


def usable(x: Any, axes: tuple[int, ...] | None = None) -> Any:
    """Say whether all numbers of an array (or those along some axes) may be sent: finite, and not too large."""
    if x.size == 0:
        return (x == x).all(axes)
    # What is not a number is its own minimum and maximum, and no larger or smaller than anything.
    return (x.max(axes) <= LARGEST_NUMBER) & (x.min(axes) >= -LARGEST_NUMBER)


def message_bytes(x: Tree, leading: int = 1) -> int:
    """Return the size of one client's message: the arrays without their first `leading` axes."""
    return frame_bytes([jax.ShapeDtypeStruct(a.shape[leading:], a.dtype) for a in jax.tree.leaves(x)])


def share_bytes(x: Tree, clients: int) -> int:
    """Return the size of the table that `share` sends down: everyone's values, and whose are missing."""
    whole = [jax.ShapeDtypeStruct((clients, *a.shape[1:]), a.dtype) for a in jax.tree.leaves(x)]
    return frame_bytes([*whole, jax.ShapeDtypeStruct((clients,), jnp.bool_)])


def fold_slots(
    slots: int, slot: Callable[[Any], Tree], weights: jax.Array, start: Tree, seal: Callable[[Tree], Tree]
) -> Tree:
    """Add `weights[:, k] * slot(k)`, slot after slot: the same order on every carrier makes results bit-equal."""

    def add(k: Any, total: Tree) -> Tree:
        return jax.tree.map(lambda t, other: t + seal(times(weights[:, k], other)), total, slot(k))

    return lax.fori_loop(0, slots, add, start) if slots else start


def fold_clients(
    x: Tree, weight: jax.Array, label: jax.Array, groups: int, seal: Callable[[Tree], Tree]
) -> tuple[Tree, jax.Array]:
    """Average `x [K, ...]` within each group, one client after another; returns `[G, ...]` and the weight `[G]`."""
    return divided(add_clients(no_clients(x, weight, groups), x, weight, label, seal))


def no_clients(x: Tree, weight: jax.Array, groups: int) -> tuple[Tree, jax.Array]:
    """Return the sums over no clients: `[G, ...]` and the weight `[G]`."""
    return jax.tree.map(lambda a: jnp.zeros((groups, *a.shape[1:]), a.dtype), x), jnp.zeros(groups, weight.dtype)


@jax.named_scope(EXCHANGE)
def add_clients(
    sums: tuple[Tree, jax.Array], x: Tree, weight: jax.Array, label: jax.Array, seal: Callable[[Tree], Tree]
) -> tuple[Tree, jax.Array]:
    """Add `weight * x` of some clients to the sums of their groups, in their type, one client after another."""

    def add(k: Any, carry: tuple) -> tuple:
        total, mass = carry
        total = jax.tree.map(lambda t, a: t.at[label[k]].add(seal(weight[k].astype(t.dtype) * a[k])), total, x)
        return total, mass.at[label[k]].add(weight[k])

    return lax.fori_loop(0, weight.shape[0], add, sums)


@jax.named_scope(EXCHANGE)
def divided(sums: tuple[Tree, jax.Array]) -> tuple[Tree, jax.Array]:
    """Return means and the weight behind them from sums."""
    total, mass = sums
    return divide(total, divisor(mass)), mass


def product_averages(x: Tree, weight: jax.Array, label: jax.Array, groups: int) -> tuple[Tree, jax.Array]:
    """Average `x [K, ...]` within each group by one matrix product: `[G, ...]`, and the weight behind it `[G]`."""
    matrix = jax.nn.one_hot(label, groups, axis=0, dtype=weight.dtype) * weight  # [G, K]
    mass = matrix.sum(1)
    matrix = matrix / divisor(mass)[:, None]
    return jax.tree.map(lambda a: product(matrix.astype(a.dtype), a), x), mass


@jax.named_scope(EXCHANGE)
def wide_averages(
    x: Tree, weight: jax.Array, label: jax.Array, groups: int, together: Callable[[Tree], Tree] = lambda sums: sums
) -> tuple[Tree, jax.Array]:
    """Average `x [K, ...]` within each group, added up in float64 and rounded once: hardly any order changes a bit.

    So each device may add up its own clients, and `together` the sums of all devices, where methods magnify rounding: a
    hub with momentum, say. One client after another is fast on a CPU only, where it costs as much as reading `x`.
    """
    with jax.enable_x64(True):
        wide, mass = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, jnp.float64), (x, weight))
        sums = together(add_clients(no_clients(wide, mass, groups), x, weight, label, seal=lambda term: term))
        return jax.tree.map(lambda a, like: a.astype(like.dtype), divided(sums), (x, weight))


def in_chunks(run: Callable[..., tuple[Tree, Tree]], size: int, *stacked: Tree) -> tuple[Tree, Tree]:
    """Add the first results of `run(*rows)`, `[1, ...]`, over chunks of `size` rows; join the second, `[n, ...]`."""
    count = count_of(stacked)
    whole = count // size * size

    def rows(start: Any, length: int) -> Tree:
        return of_clients(lambda a: lax.dynamic_slice_in_dim(a, start, length), stacked)

    def step(sums: Tree, start: Any) -> tuple[Tree, Tree]:
        some, beside = run(*rows(start, size))
        return jax.tree.map(jnp.add, sums, some), beside

    none = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(lambda: run(*rows(0, size)))[0])
    sums, beside = lax.scan(step, none, jnp.arange(0, whole, size))
    beside = jax.tree.map(lambda a: a.reshape(whole, *a.shape[2:]), beside)
    if whole == count:
        return sums, beside
    some, rest = run(*rows(whole, count - whole))
    return jax.tree.map(jnp.add, sums, some), jax.tree.map(lambda *parts: jnp.concatenate(parts), beside, rest)
