"""Small operations on pytrees with the client axis first, shared by methods and the engine."""

from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["broadcast", "minus", "plus", "scale", "where"]

Tree = Any


def plus(a: Tree, b: Tree) -> Tree:
    """Return a + b."""
    return jax.tree.map(jnp.add, a, b)


def minus(a: Tree, b: Tree) -> Tree:
    """Return a - b."""
    return jax.tree.map(jnp.subtract, a, b)


def scale(factor: Any, a: Tree) -> Tree:
    """Return factor * a for a number."""
    return jax.tree.map(lambda leaf: factor * leaf, a)


def where(mask: jax.Array, a: Tree, b: Tree) -> Tree:
    """Take `a` for the clients where `mask [C]` is true and `b` for the others."""
    return jax.tree.map(lambda u, v: jnp.where(mask.reshape(mask.shape + (1,) * (u.ndim - mask.ndim)), u, v), a, b)


def broadcast(a: Tree, clients: int) -> Tree:
    """Give each of `clients` clients the same value."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (clients, *jnp.shape(leaf))), a)
