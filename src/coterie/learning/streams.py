"""Samples that stay on the host: what stands for them in a program, and how a function runs group by group.

A method hands `clients.train` to `peers.each` as always. Where that is `Streamed`, the clients are taken in groups: the
samples of each are fetched by a callback while the program runs, and only those of one group are on the device.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from coterie.data.buckets import Split
from coterie.data.streams import Reader
from coterie.errors import CoterieError
from coterie.numerics.tree import count_of, is_same, of_clients

__all__ = ["ALL", "Streamed", "group_by_group", "group_of", "groups_of", "streamed_of"]

Tree = Any
ALL = (
    "needs the samples of all clients on the device at once; leave out run.memory (--memory), or choose another method"
)


@jax.tree_util.register_pytree_node_class
class Streamed:
    """Stands for one part of every client's data, which a reader has: `rows [C]` are the clients, `count [C]` as in a
    `Split`."""

    def __init__(self, rows: Any, count: Any, reader: Reader):
        self.rows, self.count, self.reader = rows, count, reader

    @property
    def x(self) -> Any:
        """Refused: the samples are not on the device."""
        raise CoterieError(f"this method {ALL}")

    @property
    def y(self) -> Any:
        """Refused, as `x`."""
        raise CoterieError(f"this method {ALL}")

    def tree_flatten(self) -> tuple[tuple[Any, Any], Reader]:
        """See `jax.tree_util`."""
        return (self.rows, self.count), self.reader

    @classmethod
    def tree_unflatten(cls, reader: Reader, children: tuple[Any, Any]) -> "Streamed":
        """See `jax.tree_util`."""
        return cls(*children, reader)

    def fetched(self, upcoming: Any) -> Split:
        """Return the samples of these clients, inside a program; `upcoming [C]` are those that will be wanted next."""
        part, here = self.reader.part, self.rows.shape[0]
        like = tuple(
            jax.ShapeDtypeStruct((here, *a.shape[1:]), jax.dtypes.canonicalize_dtype(a.dtype)) for a in (part.x, part.y)
        )

        def fetch(rows: Any, upcoming: Any) -> Any:
            return tuple(
                a.astype(s.dtype, copy=False) for a, s in zip(self.reader.fetch(rows, upcoming), like, strict=True)
            )

        x, y = jax.pure_callback(fetch, like, self.rows, upcoming, vmap_method="sequential")
        return Split(x, y, self.count)


def _is_streamed(node: Any) -> bool:
    return isinstance(node, Streamed)


def streamed_of(stacked: Tree) -> Streamed | None:
    """Return the first `Streamed` in a tree."""
    return next(filter(_is_streamed, jax.tree.leaves(stacked, is_leaf=_is_streamed)), None)


def groups_of(stacked: Tree, count: int) -> jax.Array:
    """Return the places of the clients in groups `[groups, size]`; the last one is repeated until all are full."""
    streamed = streamed_of(stacked)
    assert streamed is not None
    size = min(streamed.reader.group, count)
    groups = -(-count // size)
    return jnp.minimum(jnp.arange(groups * size), count - 1).reshape(groups, size)


def group_of(stacked: Tree, places: jax.Array, number: Any) -> Tree:
    """Return the rows of one group, its samples fetched."""
    after = places[(number + 1) % places.shape[0]]

    def rows(node: Any) -> Any:
        if _is_streamed(node):
            there = Streamed(node.rows[places[number]], node.count[places[number]], node.reader)
            return there.fetched(node.rows[after])
        return of_clients(lambda a: a[places[number]], node)

    return jax.tree.map(rows, stacked, is_leaf=lambda node: _is_streamed(node) or is_same(node))


def group_by_group(run: Callable[..., Tree], *stacked: Tree) -> Tree:
    """Return `run(*stacked)` for a function whose results have the clients as their first axis."""
    if streamed_of(stacked) is None:
        return run(*stacked)
    count = count_of(stacked)
    places = groups_of(stacked, count)
    done = lax.map(lambda number: run(*group_of(stacked, places, number)), jnp.arange(places.shape[0]))
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:count], done)
