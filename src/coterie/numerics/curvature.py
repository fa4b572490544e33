"""The extreme eigenvalues of the Hessian of a client's loss, from Hessian-vector products.

Step sizes and probabilities of methods with a theory depend on the smoothness L and the convexity mu of the losses.
Lanczos' recurrence finds both ends of the spectrum from a few Hessian-vector products (derivatives of the gradient
along a vector: the Hessian is never formed). For least squares these are the constants of the theory; for other losses
they are the curvatures where training starts, and only a guess.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

__all__ = ["extreme_curvature", "lanczos"]

STEPS = 20  # Hessian-vector products; the error of both ends is then at most a few per cent


def lanczos(product: Callable[[jax.Array], jax.Array], start: jax.Array, steps: int) -> tuple[jax.Array, jax.Array]:
    """Return estimates of the smallest and the largest eigenvalue of a symmetric matrix.

    Args:
        product: multiplies a vector `[d]` with the matrix.
        start: a random vector.
        steps: how many products; with d of them the answer is exact up to rounding.
    """

    def step(carry: tuple, _: None) -> tuple[tuple, tuple]:
        before, vector, link, alive = carry
        image = product(vector)
        diagonal = vector @ image
        rest = image - diagonal * vector - link * before
        rest = rest - (rest @ vector) * vector  # again, to remove what rounding brought back
        length = jnp.sqrt(rest @ rest)
        # With no new direction left the space is exhausted: further steps are rounding noise and add no eigenvalue.
        goes_on = alive & (length > scale * 100 * jnp.finfo(start.dtype).eps * jnp.maximum(jnp.abs(diagonal), 1e-30))
        following = jnp.where(goes_on, rest / jnp.where(goes_on, length, 1), 0)
        return (vector, following, jnp.where(goes_on, length, 0), goes_on), (diagonal, length, alive, goes_on)

    scale = jnp.sqrt(jnp.asarray(start.size, start.dtype))
    first = start / jnp.sqrt(start @ start)
    begin = (jnp.zeros_like(first), first, jnp.zeros((), start.dtype), jnp.asarray(True))
    _, (diagonal, link, alive, linked) = lax.scan(step, begin, None, length=min(steps, start.size))
    # Steps after the end repeat the first diagonal entry, which lies between the extremes.
    diagonal = jnp.where(alive, diagonal, diagonal[0])
    return _ends(diagonal, jnp.where(linked, link, 0))


def _ends(diagonal: jax.Array, link: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the extreme eigenvalues of a symmetric tridiagonal matrix by bisection; `link[i]` joins i and i + 1.

    LAPACK's solver hangs inside a program that several CPU devices share. The number of eigenvalues below x is the
    number of negative pivots of the matrix minus x (Sturm).
    """
    before = jnp.concatenate([jnp.zeros(1, link.dtype), link[:-1]])
    reach = jnp.max(jnp.abs(diagonal) + before + link)  # Gershgorin's bound on the eigenvalues
    least = jnp.finfo(diagonal.dtype).tiny ** 0.5

    def below(x: jax.Array) -> jax.Array:
        def pivot(last: jax.Array, entry: tuple) -> tuple[jax.Array, jax.Array]:
            here = entry[0] - x - entry[1] * entry[1] / last
            here = jnp.where(jnp.abs(here) < least, -least, here)
            return here, here < 0

        return lax.scan(pivot, jnp.ones_like(x), (diagonal, before))[1].sum()

    def halve(count: int) -> jax.Array:
        """Find where the number of eigenvalues below reaches `count`."""

        def step(_: Any, bracket: tuple) -> tuple:
            low, high = bracket
            middle = (low + high) / 2
            reached = below(middle) >= count
            return jnp.where(reached, low, middle), jnp.where(reached, middle, high)

        low, high = lax.fori_loop(0, 64, step, (-reach - least, reach + least))
        middle = (low + high) / 2
        return jnp.where(jnp.abs(middle) <= 2 * least, 0, middle)  # smaller pivots count as zero

    return halve(1), halve(diagonal.size)


def extreme_curvature(gradient: Callable[[Any], Any], at: Any, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the smallest and the largest curvature, at a pytree of parameters, of the function with this gradient."""
    flat, build = ravel_pytree(at)
    start = jax.random.normal(key, flat.shape, flat.dtype)

    def product(vector: jax.Array) -> jax.Array:
        return jax.jvp(lambda v: ravel_pytree(gradient(build(v)))[0], (flat,), (vector,))[1]

    return lanczos(product, start, STEPS)
