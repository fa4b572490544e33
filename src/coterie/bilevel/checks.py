"""Checks of `bilevel.hypergradient` before and after its estimate: whether a hyper-gradient exists and was computed.

A flat direction of the average inner loss leaves x undetermined, and the series diverges; a client without listeners
has no part in averages; with a damping above 2 / (the largest curvature) the series diverges. Each has its own error.
"""

import typing
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from coterie.bilevel.hypergradients import Estimator, Hypergradient, Inner, Outer, products
from coterie.consensus.pushsum import Order
from coterie.errors import CoterieError
from coterie.graphs.graph import Graph, require_connected
from coterie.numerics.curvature import lanczos

__all__ = [
    "check_curvature",
    "check_end",
    "check_network",
    "check_settings",
    "check_shapes",
    "require_graph",
    "require_mutual",
]

Tree = Any

LANCZOS_STEPS = 60  # Hessian-vector products of the check; exact for problems with at most as many parameters


def check_curvature(
    inner: Inner, x: Tree, lam: Tree, data: Tree, key: jax.Array, damping: float | None = None
) -> tuple[float, float]:
    """Return the smallest and largest curvature of the average inner loss at x; refuse a loss without unique minimum.

    By Lanczos' recurrence on Hessian-vector products: exact for up to 60 parameters; for more the smallest is an upper
    bound, so that a flat direction may be missed (`check_end` then reports that the iteration did not converge).
    """
    smallest, largest = (float(a) for a in _extremes(inner, x, lam, data, key, True))
    if not np.isfinite(smallest + largest):
        raise CoterieError("the inner Hessian is not finite at x; look for a division by zero or a square root of zero")
    noise = 100 * float(jnp.finfo(jnp.result_type(*jax.tree.leaves(x))).eps)
    if smallest <= noise * abs(largest):
        each = np.asarray(_extremes(inner, x, lam, data, key, False)[0])
        worst = int(each.argmin())
        spectrum = f"its smallest eigenvalue is {smallest:.3g}, its largest {largest:.3g}"
        if smallest < -noise * abs(largest):
            raise CoterieError(
                f"the average inner Hessian is indefinite at x ({spectrum}; most of all that of client {worst}, "
                f"{each[worst]:.3g}), so that x is no minimum; solve the inner problem further, or add weight decay to "
                "the inner loss"
            )
        raise CoterieError(
            f"the average inner Hessian is singular ({spectrum}): all inner losses are flat in some direction, and x "
            "is not determined; add weight decay, such as 0.001 / 2 |x|^2, to the inner loss"
        )
    if damping is not None and not 0 < damping < 2 / largest:
        raise CoterieError(
            f"damping must lie between 0 and 2 / (the largest eigenvalue of the average inner Hessian) = "
            f"{2 / largest:.3g} (estimated by Lanczos with Hessian-vector products), not {damping:g}; use 'auto'"
        )
    return smallest, largest


@partial(jax.jit, static_argnums=(0, 5))
def _extremes(inner: Inner, x: Tree, lam: Tree, data: Tree, key: jax.Array, together: bool) -> Any:
    """Return the extreme curvatures of the average inner loss, or those of each client's `[K]`."""
    flat, build = ravel_pytree(jax.tree.map(lambda a: a[0], x))
    start = jax.random.normal(key, flat.shape, flat.dtype)
    steps = min(LANCZOS_STEPS, flat.size)

    def product(vector: jax.Array, x: Tree, lam: Tree, data: Tree) -> jax.Array:
        return ravel_pytree(products(inner, x, lam, data, key, build(vector))[0])[0]

    def average(vector: jax.Array) -> jax.Array:
        return jax.vmap(lambda *client: product(vector, *client))(x, lam, data).mean(0)

    if together:
        return lanczos(average, start, steps)
    return jax.vmap(lambda *client: lanczos(lambda vector: product(vector, *client), start, steps))(x, lam, data)


def check_end(
    result: Hypergradient, outer: Outer, x: Tree, lam: Tree, data: Tree, estimator: Estimator, depth: int
) -> None:
    """Refuse an iteration that diverged or (but for `hgp`, which is noisy) kept more than half of its residual."""
    first, last = (float(jnp.linalg.norm(a)) for a in (result.first, result.last))
    if not np.isfinite(last) or last > 10 * max(first, 1e-30):
        fix = "compute x with a smaller learning rate" if estimator == "hgp" else "use less damping, or more gossip"
        raise CoterieError(f"the {estimator} iteration grows instead of shrinking; {fix}")
    # Gossip alone reduces differences between clients' slopes; the series must reduce their average.
    average = jax.tree.map(lambda a: a.mean(0), jax.vmap(jax.grad(outer))(x, lam, data))
    common = float(jnp.linalg.norm(ravel_pytree(average)[0])) * np.sqrt(len(result.first))
    if estimator != "hgp" and last > max(0.5 * common, 1e-3 * first):
        raise CoterieError(
            f"after depth = {depth} iterations the residual of the {estimator} iteration is "
            f"{100 * last / max(common, 1e-30):.0f} % of its start: the average inner Hessian is nearly flat there, or "
            "depth too small; add weight decay to the inner loss, use more depth, or check=False to take the sum"
        )


def require_graph(network: Any) -> None:
    """Refuse anything but a graph, such as a topology that was not built for these clients."""
    if not isinstance(network, Graph):
        raise CoterieError(
            f"network must be a Graph, such as RandomDirected().build(clients) or Graph.from_probabilities(matrix), "
            f"not {type(network).__name__}"
        )


def check_network(network: Graph, estimator: Estimator) -> None:
    """Refuse a network that is not strongly connected over time."""
    if network.clients == 1 or estimator == "local":
        return
    unheard = np.flatnonzero(~network.listeners[1].any(1))
    if unheard.size:
        raise CoterieError(f"network: client {unheard[0]} has no listener; add a link from it to another client")
    require_connected(network, "a hyper-gradient")
    if estimator == "hgp":
        require_mutual(network)


def require_mutual(network: Graph) -> None:
    """Refuse a network with a link that has no link in the other direction."""
    if not network.symmetric:
        raise CoterieError(
            "the estimator hgp also sends against the direction of links, so every link of the network must exist in "
            "both directions; add the missing directions, or use the tracking or neumann estimator"
        )


def check_settings(estimator: str, depth: int, damping: Any, gossip: Any, order: str) -> None:
    """Refuse unknown strings and numbers out of range."""
    for name, value, kind in (("estimator", estimator, Estimator), ("order", order, Order)):
        words = typing.get_args(kind)
        if value not in words:
            raise CoterieError(f"{name} must be one of {', '.join(words)}, not {value!r}")
    for name, count, least in (("depth", depth, 0), ("gossip", gossip, 1)):
        if count != "auto" and (isinstance(count, bool) or not isinstance(count, int) or count < least):
            raise CoterieError(f"{name} must be an integer of at least {least}, not {count!r}")
    if damping == "auto":
        if estimator == "hgp":
            raise CoterieError("the estimator hgp needs damping: give the learning rate of the gradient push for x")
    elif damping is None or isinstance(damping, str) or not 0 < damping < np.inf:
        raise CoterieError(f"damping must be 'auto' or a number greater than 0, not {damping!r}")


def check_shapes(inner: Inner, outer: Outer, x: Tree, lam: Tree, data: Tree, clients: int, key: jax.Array) -> None:
    """Refuse values without one row per client, and losses that do not return one number."""
    for name, value in (("x", x), ("lam", lam), ("data", data)):
        for leaf in jax.tree.leaves(value):
            if leaf.ndim == 0 or leaf.shape[0] != clients:
                raise CoterieError(f"{name} must have one row for each of {clients} clients, not shape {leaf.shape}")
            if name != "data" and not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise CoterieError(f"{name} must hold floating-point numbers, not {leaf.dtype}")
        if name != "data" and not jax.tree.leaves(value):
            raise CoterieError(f"{name} must contain at least one array, but has none")
    one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), (x, lam, data))
    for name, loss, arguments in (
        ("inner(x, lam, data, key)", inner, (*one, key)),
        ("outer(x, lam, data)", outer, one),
    ):
        result = jax.eval_shape(loss, *arguments)
        if getattr(result, "shape", None) != ():
            raise CoterieError(f"{name} must return one number for one client, not {result}")
    try:
        jax.eval_shape(lambda x, lam, data: products(inner, x, lam, data, key, x), *one)
    except (TypeError, NotImplementedError) as error:
        raise CoterieError(
            f"inner must be differentiable in forward mode, which a function with a custom_vjp is not ({error})"
        ) from error
