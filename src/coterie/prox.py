"""Proximal operators: of norms, which make alike clients equal, and of the fused term, which shapes gradients.

The proximal operator of a convex function h at a is argmin_x h(x) + 1/2 |x - a|^2. For t times a norm it sets a short
vector exactly to zero, which is why clients whose personal parts are alike end up with *equal* ones (P2, section 2).
"""

import math
from typing import Any

import numpy as np

from coterie.errors import CoterieError

__all__ = ["dual_ball", "norm_prox"]


def norm_prox(a: Any, t: Any, p: Any, axis: int = -1, xp: Any = np) -> Any:
    """Return the proximal operator of t |.|_p along an axis: argmin_x t |x|_p + 1/2 |x - a|^2.

    p = 1 moves every entry by t towards zero, p = 2 shortens the vector by t, p = "inf" cuts its largest entries off
    where they have lost t together. (P2 prints one formula with the dual norm for all three; it is right for p = 2.)
    What becomes zero is exactly zero, and entries that are cut off are exactly equal in size.

    Args:
        a: any shape.
        t: at least 0; a number, or an array that broadcasts against `a` and has one entry along `axis`.
        p: 1, 2 or "inf".
        axis: along which the norm is taken.
        xp: `numpy`, or `jax.numpy` inside a program.
    """
    a, t, p = _checked(a, t, p, axis, xp, "t")
    if p == 1:
        return a - xp.clip(a, -t, t)
    if p == 2:
        length, zero = _length(a, axis, xp)
        return a * xp.where(zero | (length <= t), 0, (length - t) / length)
    level = _level(a, t, axis, xp)
    return xp.clip(a, -level, level)


def dual_ball(a: Any, radius: Any, p: Any, axis: int = -1, xp: Any = np) -> Any:
    """Return the nearest point of {x: |x|_q <= radius} along an axis, where q is the dual norm of p.

    The dual of p = 1 is "inf", of 2 is 2, of "inf" is 1. By Moreau, a = norm_prox(a, t, p) + dual_ball(a, t, p).

    Args:
        a: any shape.
        radius: at least 0; a number, or an array that broadcasts against `a` and has one entry along `axis`.
        p: 1, 2 or "inf"; the norm whose dual bounds the ball.
        axis: along which the norm is taken.
        xp: `numpy`, or `jax.numpy` inside a program.
    """
    a, radius, p = _checked(a, radius, p, axis, xp, "radius")
    if p == 1:
        return xp.clip(a, -radius, radius)
    if p == 2:
        length, zero = _length(a, axis, xp)
        return a * xp.where(zero | (length <= radius), 1, radius / length)
    return xp.sign(a) * xp.maximum(xp.abs(a) - _level(a, radius, axis, xp), 0)


def _length(a: Any, axis: int, xp: Any) -> tuple[Any, Any]:
    """Return |a|_2, and where it is zero; there the length is given as 1, so that neither it nor its slope is NaN."""
    square = xp.sum(a * a, axis=axis, keepdims=True)
    zero = square == 0
    return xp.sqrt(xp.where(zero, 1, square)), zero


def _level(a: Any, t: Any, axis: int, xp: Any) -> Any:
    """Return the level above which the entries of |a| hold t in all: sum_i max(|a_i| - level, 0) = t; 0 if they cannot.

    The k largest alone would give (their sum - t) / k, and the largest of these is the level (after Held, Wolfe and
    Crowder 1974, who look for the k).
    """
    if a.shape[axis] == 0:
        return xp.zeros_like(xp.sum(a, axis=axis, keepdims=True))
    largest_first = -xp.sort(-xp.abs(a), axis=axis)
    shape = [1] * a.ndim
    shape[axis] = -1
    count = xp.arange(1, a.shape[axis] + 1, dtype=a.dtype).reshape(shape)
    levels = (xp.cumsum(largest_first, axis=axis) - t) / count
    return xp.maximum(xp.max(levels, axis=axis, keepdims=True), 0)


def _checked(a: Any, t: Any, p: Any, axis: int, xp: Any, name: str) -> tuple[Any, Any, Any]:
    """Return the arguments as arrays of one floating type, or say what is wrong with them."""
    a = xp.asarray(a)
    a = a if xp.issubdtype(a.dtype, xp.floating) else a.astype(float)
    t = xp.asarray(t, dtype=a.dtype)
    if p not in (1, 2, "inf", math.inf):
        raise CoterieError(f'p must be 1, 2 or "inf", not {p!r}')
    if not -a.ndim <= axis < a.ndim:
        raise CoterieError(f"axis must be one of the {a.ndim} axes of the array, not {axis}")
    aligned = (1,) * (a.ndim - t.ndim) + t.shape
    if (
        len(aligned) > a.ndim
        or aligned[axis] != 1
        or any(m not in (1, n) for m, n in zip(aligned, a.shape, strict=True))
    ):
        raise CoterieError(
            f"{name} has shape {t.shape}, but must broadcast against {a.shape} with one entry along axis {axis}"
        )
    if isinstance(t, np.ndarray) and not np.all(t >= 0):  # inside a program the values are not known yet
        raise CoterieError(f"{name} must be at least 0")
    return a, t, p
