"""Proximal operators: of norms, which make similar clients equal, and of the fused term of gradients.

The proximal operator of a convex function h at a is argmin_x h(x) + 1/2 |x - a|^2. For t times a norm it sets a short
vector exactly to zero, which is why clients with similar personal parts end up with *equal* ones (Zhao et al.,
section 2).

The fused term of a gradient is sum_i |q_i - q_{i+1}| with q_{d+1} = 0: its operator makes long runs of equal elements,
which cost few bytes. Algorithm 4 of Zhao et al. approximates it by ADMM (and diverges as printed); here it is computed
exactly, in time proportional to d, in compiled code on the host (`kernels/fused.py`).
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie.errors import CoterieError
from coterie.numerics.host import compiled, in_program, over_rows

__all__ = ["dual_ball", "fused", "fused_in_program", "norm_prox"]


def fused(g: Any, gamma: Any) -> np.ndarray:
    """Return argmin_q 1/2 |q - g|^2 + gamma (sum_{i<d} |q_i - q_{i+1}| + |q_d|), exactly.

    Elements of one segment are equal to the last bit, and the result of a row does not depend on the others. Needs
    Numba: `pip install 'coterie[numba]'`.

    Args:
        g: `[d]` or `[N, d]`, finite; float32 and float64 keep their type (both are computed in float64), all other
            numbers become float64.
        gamma: at least 0, a number or `[N]`; 0 returns g.
    """
    kernel = _kernel()
    g, gamma = _rows(g, gamma)
    q = np.empty_like(g, order="C")
    _fused(g, gamma, q, kernel)
    if np.isnan(q[..., :1]).any():  # all elements of a row are NaN, or none
        raise CoterieError("g must be finite, but has elements (or sums) that are NaN or infinite")
    return q


def fused_in_program(g: jax.Array, gamma: Any) -> jax.Array:
    """Return `fused(g, gamma)` inside a JAX program, by one call to the host for all clients.

    Invalid values (a negative gamma, a row that is not finite) cannot raise inside a program: they give a row of NaN.
    Works under `jit`, `scan` and `vmap`; it has no derivative. In a program that several devices share each device
    makes its own call: for all rows, or in a `shard_map` for its own.

    Args:
        g: `[N, d]`, or any leading axes.
        gamma: `[N]`, or anything that broadcasts to the leading axes of g.
    """
    kernel = _kernel()  # here, since the callback cannot raise
    real = g.dtype if g.dtype in (jnp.float32, jnp.float64) else jnp.float32
    gamma = jnp.broadcast_to(jnp.asarray(gamma, real), g.shape[:-1])
    return in_program(lambda q, g, gamma: _fused(g, gamma, q, kernel), g.astype(real), gamma).astype(g.dtype)


def norm_prox(a: Any, t: Any, p: Any, axis: int = -1, xp: Any = np) -> Any:
    """Return the proximal operator of t |.|_p along an axis: argmin_x t |x|_p + 1/2 |x - a|^2.

    p = 1 moves every entry by t towards zero, p = 2 shortens the vector by t, p = "inf" clips the largest entries so
    that they lose t in total. (Zhao et al. print one formula with the dual norm for all three; it is right for p = 2.)
    Entries that become zero are exactly zero, and clipped entries are exactly equal in size.

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
    """Return |a|_2, with 1 in place of 0 so that neither it nor its derivative is NaN, and where it is 0."""
    square = xp.sum(a * a, axis=axis, keepdims=True)
    zero = square == 0
    return xp.sqrt(xp.where(zero, 1, square)), zero


def _level(a: Any, t: Any, axis: int, xp: Any) -> Any:
    """Return the level with sum_i max(|a_i| - level, 0) = t, or 0 if |a|_1 < t.

    The k largest entries alone would give (their sum - t) / k, and the maximum over k is the level (after Held, Wolfe
    and Crowder 1974, who search for the k).
    """
    if a.shape[axis] == 0:
        return xp.zeros_like(xp.sum(a, axis=axis, keepdims=True))
    if xp is jnp:
        return _level_in_program(jnp.abs(a), t, axis)
    largest_first = -xp.sort(-xp.abs(a), axis=axis)
    shape = [1] * a.ndim
    shape[axis] = -1
    count = xp.arange(1, a.shape[axis] + 1, dtype=a.dtype).reshape(shape)
    levels = (xp.cumsum(largest_first, axis=axis) - t) / count
    return xp.maximum(xp.max(levels, axis=axis, keepdims=True), 0)


def _level_in_program(size: jax.Array, t: jax.Array, axis: int) -> jax.Array:
    """Return `_level` by Michelot's rule, five times as fast as XLA's sort on a CPU.

    The entries above a level that is too low give a higher one, which is again at most the right one; it stops changing
    after about ten iterations.
    """

    def level_of(above: jax.Array, size: jax.Array, t: jax.Array) -> jax.Array:
        count = jnp.maximum(above.sum(axis, keepdims=True), 1).astype(size.dtype)
        return (jnp.where(above, size, 0).sum(axis, keepdims=True) - t) / count

    def raised(carry: tuple) -> tuple:
        level, _ = carry
        new = jnp.maximum(level_of(entries > level, entries, amount), level)
        return new, jnp.any(new > level)

    entries, amount = jax.lax.stop_gradient((size, t))
    most = entries.max(axis, keepdims=True)
    low = jnp.maximum(jnp.maximum(level_of(entries >= 0, entries, amount), most - amount), 0)
    level = jnp.minimum(jax.lax.while_loop(lambda carry: carry[1], raised, (low, jnp.ones((), bool)))[0], most)
    return jnp.where(level > 0, level_of(size >= level, size, t), 0)  # again, since a loop has no derivative


def _checked(a: Any, t: Any, p: Any, axis: int, xp: Any, name: str) -> tuple[Any, Any, Any]:
    """Return the arguments as arrays of one floating-point type, or raise an error."""
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
    if isinstance(t, np.ndarray) and not np.all(t >= 0):  # inside a program values are unknown
        raise CoterieError(f"{name} must be at least 0")
    return a, t, p


def _kernel() -> Any:
    return compiled("coterie.numerics.kernels.fused", "the fused operator")


def _fused(g: np.ndarray, gamma: np.ndarray, q: np.ndarray, kernel: Any) -> None:
    """Fill `q [..., d]` with the results for `g [..., d]` and `gamma [...]`; the rows are divided among the cores."""
    if g.size == 0:
        return
    size = g.shape[-1]
    source, target = np.ascontiguousarray(g).reshape(-1, size), q.reshape(-1, size)
    weight = np.ascontiguousarray(gamma, np.float64).reshape(-1)

    def work() -> Any:
        arrays = kernel.workspace(size)
        return lambda rows: kernel.solve(source[rows], weight[rows], target[rows], *arrays)

    over_rows(work, len(source), size)


def _rows(g: Any, gamma: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return `g [d]` or `[N, d]`, and gamma `[]` or `[N]`, or raise an error."""
    g, gamma = np.asarray(g), np.asarray(gamma, np.float64)
    g = g if g.dtype in (np.float32, np.float64) else g.astype(np.float64)
    if g.ndim not in (1, 2):
        raise CoterieError(f"g has shape {g.shape}, but must be [d], or [N, d] with one row per client")
    if gamma.shape not in ((), g.shape[:-1]):
        raise CoterieError(f"gamma has shape {gamma.shape}, but must be one number, or one per row of g")
    if not np.all((gamma >= 0) & (gamma < np.inf)):
        raise CoterieError("gamma must be at least 0, and finite")
    return g, np.broadcast_to(gamma, g.shape[:-1])
