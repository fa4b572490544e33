"""Rounds as one loop inside a program, of a length that is fixed or an argument."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["looped"]


def looped(one: Callable, state: Any, first: Any, rounds: Any, lost: Any, most: int) -> tuple[Any, Any]:
    """Run rounds; returns the state after them, and the report of each, of which those after the last are zero.

    Args:
        one: a round, `(state, (its number, what was lost in it)) -> (state, report)`.
        state: before the first.
        first: the number of the first.
        rounds: how many, a plain number; or an array, if nothing is lost: then one program serves blocks of any length.
        lost: what is lost, with the rounds as the first axis; None: nothing.
        most: places for reports.
    """
    if most == 1:  # without a loop, whose results would be written into a table of one row by a kernel each
        state, report = one(state, (first, jax.tree.map(lambda a: a[0], lost)))
        return state, jax.tree.map(lambda a: a[None], report)
    if isinstance(rounds, int):
        return lax.scan(one, state, (first + jnp.arange(rounds), lost))

    def next_one(place: Any, carry: tuple) -> tuple:
        state, reports = carry
        state, report = one(state, (first + place, None))
        return state, jax.tree.map(lambda all, a: all.at[place].set(a), reports, report)

    report = jax.eval_shape(one, state, (first, None))[1]
    nothing = jax.tree.map(lambda a: jnp.zeros((most, *a.shape), a.dtype), report)
    return lax.fori_loop(0, rounds, next_one, (state, nothing))
