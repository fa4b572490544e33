"""The gradient of an outer cost through the solution of an inner problem: implicit differentiation.

For F(x) = f(x, y*(x)) with y*(x) = argmin_y g(x, y) (the lower level of Lu et al. 2022, one client's own problem):

    grad F = grad_x f - [d2_xy g] [d2_yy g]^{-1} grad_y f,

at (x, y*(x)). Only Hessian-vector products are computed (`jax.jvp` of a gradient), never a Hessian; the inverse is
applied by conjugate gradients or by a Neumann series. It works on any pytrees, without peers.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from coterie.errors import CoterieError
from coterie.numerics.tree import divisor, dot

__all__ = ["Solved", "Solver", "hypergradient", "solve"]

Tree = Any
Solver = Literal["cg", "neumann", "none"]

POWER_STEPS = 20  # Hessian-vector products that estimate the largest curvature for a Neumann series
STUCK = 0.01  # a larger residual of conjugate gradients means that the system cannot be solved
HEADROOM = 1.2  # since a power iteration approaches the largest curvature from below


class Solved(NamedTuple):
    """The outcome of solving H v = b."""

    iterations: jax.Array  # Hessian-vector products of the solver
    residual: jax.Array  # |b - H v| / |b|
    curvature: jax.Array  # smallest p'Hp / p'p over the directions p that were tried
    singular: jax.Array  # whether H is singular: no positive curvature, or no convergence after enough directions


def hypergradient(
    outer: Callable[[Tree, Tree], jax.Array],
    inner: Callable[[Tree, Tree], jax.Array],
    x: Tree,
    y: Tree,
    *,
    solver: Solver = "cg",
    terms: int = 50,
    tolerance: float = 1e-6,
    damping: Any = 0.0,
    step: Any = None,
) -> tuple[Tree, Solved]:
    """Return the gradient in x of outer(x, y*(x)), where y*(x) minimises inner(x, .) and y is (near) y*(x).

    Args:
        outer: the cost f(x, y), a number.
        inner: the loss g(x, y) that y*(x) minimises, a number.
        x, y: pytrees of floating-point arrays.
        solver: how the inverse Hessian is applied: "cg", conjugate gradients; "neumann", a series of `terms` terms,
            sum_q e (I - e H)^q; "none" leaves the term out, which is right only if grad_y f = 0 (f = g).
        terms: the maximum number of Hessian-vector products.
        tolerance: conjugate gradients stop at |H v - b| <= tolerance |b|.
        damping: added to the diagonal of the Hessian.
        step: e of the Neumann series, at most 1 / (largest curvature); None estimates it.

    Returns:
        The gradient, and the outcome of the solver. A singular Hessian (or a y that is no minimum) is an error; inside
        `jit`, which cannot raise, `singular` is true and the gradient is finite, from the directions tried before.
    """
    grad_x, grad_y = jax.grad(outer, (0, 1))(x, y)
    if solver == "none":
        zero = jnp.zeros((), jnp.result_type(*jax.tree.leaves(grad_y)))
        return grad_x, Solved(jnp.int32(0), zero, zero, jnp.asarray(False))
    slope = jax.grad(inner, 1)

    def product(v: Tree) -> Tree:
        return _add(jax.jvp(lambda y: slope(x, y), (y,), (v,))[1], damping, v)

    v, solved = solve(product, grad_y, solver=solver, terms=terms, tolerance=tolerance, step=step)
    # d2_xy g v: the gradient in x of <grad_y g(x, y), v>, one reverse pass
    (cross,) = jax.vjp(lambda x: slope(x, y), x)[1](v)
    return jax.tree.map(jnp.subtract, grad_x, cross), solved


def solve(
    product: Callable[[Tree], Tree],
    b: Tree,
    *,
    solver: Literal["cg", "neumann"] = "cg",
    terms: int = 50,
    tolerance: float = 1e-6,
    step: Any = None,
) -> tuple[Tree, Solved]:
    """Solve H v = b for a symmetric positive definite H that is given as `product(v) = H v`; see `hypergradient`."""
    if terms < 1:
        raise CoterieError(f"terms must be at least 1, not {terms}")
    if solver == "neumann":
        v, solved = _neumann(product, b, terms, step)
    elif solver == "cg":
        v, solved = _conjugate_gradients(product, b, terms, tolerance)
    else:
        raise CoterieError(f"solver must be cg, neumann or none, not {solver!r}")
    if not isinstance(solved.singular, jax.core.Tracer) and bool(solved.singular):
        raise CoterieError(
            f"the inner Hessian is singular or not positive definite (curvature {float(solved.curvature):.3g} in some "
            "direction), so that the inner problem has no unique solution to differentiate; add a penalty on y to the "
            "inner loss, or damping"
        )
    return v, solved


def _conjugate_gradients(product: Callable[[Tree], Tree], b: Tree, terms: int, tolerance: float) -> tuple[Tree, Solved]:
    """Hestenes and Stiefel 1952, stopped at the first direction that has no curvature to divide by.

    With as many directions as unknowns a positive definite system is solved, up to rounding; a system that is not
    solved after twice as many counts as singular, too. A consistent singular system (b in the range) is solved.
    """
    norm = dot(b, b)
    # Smaller curvatures, relative to the largest one so far, are zero up to rounding: H p is then noise.
    flat = 10 * jnp.finfo(norm.dtype).eps

    class Carry(NamedTuple):
        v: Tree
        residual: Tree
        direction: Tree
        square: jax.Array  # |residual|^2
        largest: jax.Array
        smallest: jax.Array
        iterations: jax.Array
        singular: jax.Array

    def going(c: Carry) -> jax.Array:
        return (c.iterations < terms) & (c.square > (tolerance**2) * norm) & ~c.singular

    def one(c: Carry) -> Carry:
        image = product(c.direction)
        length = dot(c.direction, c.direction)
        curvature = dot(c.direction, image) / length
        largest = jnp.maximum(c.largest, jnp.sqrt(dot(image, image) / length))
        singular = ~(curvature > flat * largest)  # also if it is NaN
        along = jnp.where(singular, 0, c.square / jnp.where(singular, 1, curvature * length))
        v = _add(c.v, along, c.direction)
        residual = _add(c.residual, -along, jax.tree.map(lambda a: jnp.where(singular, 0, a), image))
        square = dot(residual, residual)
        direction = _add(residual, square / c.square, c.direction)
        smallest = jnp.minimum(c.smallest, jnp.where(jnp.isfinite(curvature), curvature, 0))
        return Carry(v, residual, direction, square, largest, smallest, c.iterations + 1, singular)

    zero = jax.tree.map(jnp.zeros_like, b)
    nothing = jnp.zeros_like(norm)
    first = Carry(zero, b, b, norm, nothing, nothing + jnp.inf, jnp.int32(0), jnp.asarray(False))
    last = lax.while_loop(going, one, first)
    residual = jnp.sqrt(last.square / divisor(norm))
    stuck = (last.iterations >= 2 * sum(a.size for a in jax.tree.leaves(b))) & (residual > STUCK)
    return last.v, Solved(last.iterations, residual, last.smallest, last.singular | stuck)


def _neumann(product: Callable[[Tree], Tree], b: Tree, terms: int, step: Any) -> tuple[Tree, Solved]:
    """Sum e (I - e H)^q b for q < terms; it converges to the solution if 0 < e H < 2."""
    norm = dot(b, b)
    if step is None:
        step = _safe_step(product, b)

    def one(_: Any, carry: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        v, power = carry
        return _add(v, step, power), _add(power, -step, product(power))

    v, power = lax.fori_loop(0, terms, one, (jax.tree.map(jnp.zeros_like, b), b))
    left = dot(power, power)  # (I - e H)^terms b is the residual b - H v
    residual = jnp.sqrt(left / divisor(norm))
    curvature = dot(power, product(power)) / divisor(left)
    # After many terms the residual is an eigenvector of the smallest eigenvalue; it grows only if that is not positive.
    singular = (residual > 1) | ~jnp.isfinite(residual)
    v = jax.tree.map(lambda a: jnp.where(jnp.isfinite(a), a, 0), v)
    return v, Solved(jnp.int32(terms), residual, curvature, singular)


def _safe_step(product: Callable[[Tree], Tree], start: Tree) -> jax.Array:
    """Return a little less than 1 / (largest curvature), by power iteration."""

    def one(_: Any, carry: tuple[Tree, jax.Array]) -> tuple[Tree, jax.Array]:
        v, _ = carry
        image = product(v)
        size = jnp.sqrt(dot(image, image))
        return jax.tree.map(lambda a: a / divisor(size), image), size

    length = jnp.sqrt(dot(start, start))
    unit = jax.tree.map(lambda a: a / divisor(length), start)
    _, size = lax.fori_loop(0, POWER_STEPS, one, (unit, length))
    return 1 / (HEADROOM * divisor(size))


def _add(a: Tree, factor: Any, b: Tree) -> Tree:
    """Return a + factor b, in the type of a."""
    return jax.tree.map(lambda u, v: (u + factor * v).astype(u.dtype), a, b)
