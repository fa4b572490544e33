"""Hyper-gradients of your own bilevel problem over a network, without running a method of coterie.

Clients share x* = argmin_x sum_k f_k(x, lambda_k); each chooses its own lambda_i (a regularisation weight, the weights
of an ensemble, the scaling of its inputs) to minimise the sum of all outer costs F_s(x*, lambda_s) (Terashita and Hara
2023).

    >>> import jax.numpy as jnp
    >>> from coterie.bilevel import Problem, hypergradient
    >>> from coterie.graphs.graph import Graph
    >>> problem = Problem(
    ...     inner=lambda x, lam, data, key: 0.5 * data["h"] * x**2 - data["b"] * x + lam * x,
    ...     outer=lambda x, lam, data: 0.5 * x**2,
    ... )
    >>> data = {"h": jnp.array([1.0, 3.0]), "b": jnp.array([2.0, 2.0])}
    >>> estimate = hypergradient(problem, jnp.ones(2), jnp.zeros(2), data, Graph.complete(2))
    >>> print(estimate.value.round(4))
    [-0.5 -0.5]

`hypergradients.py` has the estimators, for methods of your own that run inside `coterie run`; `checks.py` has the
checks before and after an estimate, which need all clients at once.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from coterie.bilevel.checks import (
    check_curvature,
    check_end,
    check_network,
    check_settings,
    check_shapes,
    require_graph,
    require_mutual,
)
from coterie.bilevel.hypergradients import Estimator, Hypergradient, Settings, Statistics, estimate, safe_damping
from coterie.consensus.pushsum import Order
from coterie.consensus.pushsum import network as verbs
from coterie.graphs.directed import expected_weights, perron
from coterie.graphs.graph import Graph
from coterie.peers.records import Tables
from coterie.peers.unmetered import Unmetered

__all__ = ["Problem", "expected_statistics", "gossip_steps", "hypergradient"]

Tree = Any

NEUMANN_TARGET = 0.01  # the averages of `neumann` must reduce disagreement by this factor
TRACKING_TARGET = 0.3  # and an iteration of `tracking` by this one, to be stable with the default damping


@dataclasses.dataclass(frozen=True)
class Problem:
    """A bilevel problem, written for one client.

    Attributes:
        inner: `f(x, lam, data, key)`, a number; each iteration has a new key, for a minibatch.
        outer: `F(x, lam, data)`, a number.
    """

    inner: Callable[[Tree, Tree, Tree, jax.Array], jax.Array]
    outer: Callable[[Tree, Tree, Tree], jax.Array]


def hypergradient(
    problem: Problem,
    x: Tree,
    lam: Tree,
    data: Tree,
    network: Graph,
    *,
    estimator: Estimator = "tracking",
    depth: int = 100,
    damping: float | Literal["auto"] = "auto",
    gossip: int | Literal["auto"] = "auto",
    order: Order = "before",
    statistics: Statistics | None = None,
    key: jax.Array | int = 0,
    check: bool = True,
) -> Hypergradient:
    """Estimate each client's d_lambda_i sum_s F_s over a network whose clients are simulated here.

    Args:
        problem: the inner loss and the outer cost of one client.
        x: each client's solution of the inner problem, a tree of arrays `[K, ...]`.
        lam: each client's personal parameters, `[K, ...]`.
        data: each client's data for both losses, `[K, ...]`; `()` for none.
        network: the graph of links, which may be random (`Graph.from_probabilities`) or scheduled.
        estimator: `tracking` (exact in the limit), `neumann`, `hgp` (Terashita and Hara's) or `local`; see
            `hypergradients.py`.
        depth: number of iterations, each of one Hessian-vector product per client.
        damping: the step size of the iteration; auto: 1 / the largest curvature of any client. For `hgp` it is the
            learning rate with which x was computed, and must be given.
        gossip: push-sum steps in each iteration; auto: as many as the network needs (`gossip_steps`).
        order: of the gradient push that computed x, for `hgp`.
        statistics: each client's statistics of its links, for `hgp`; None: their exact expectations.
        key: of the links and minibatches; a number or a JAX key.
        check: refuse a flat or indefinite average Hessian, and an iteration that diverged or whose residual is more
            than half of the start. It costs as many Hessian-vector products as a few iterations.

    Returns:
        The estimate `value [K, ...]`, and the residual norm of the iteration at its start and end.
    """
    x, lam, data = jax.tree.map(jnp.asarray, (x, lam, data))
    key = jax.random.key(key) if isinstance(key, int | np.integer) else key
    require_graph(network)
    check_shapes(problem.inner, problem.outer, x, lam, data, network.clients, key)
    check_settings(estimator, depth, damping, gossip, order)
    check_network(network, estimator)
    dtype = jnp.result_type(*jax.tree.leaves(x))
    if estimator == "hgp" and statistics is None:
        statistics = expected_statistics(network, dtype)
    if gossip == "auto":
        gossip = gossip_steps(network, estimator)
    if check and estimator != "local":
        step = None if damping == "auto" or estimator == "hgp" else damping
        check_curvature(problem.inner, x, lam, data, key, step)
    numbers = (depth, None if damping == "auto" else jnp.asarray(damping, dtype), gossip)
    result = _run(problem, (estimator, order), verbs(network, dtype).tables, x, lam, data, key, numbers, statistics)
    if check and estimator != "local":
        check_end(result, problem.outer, x, lam, data, estimator, depth)
    return result


@partial(jax.jit, static_argnums=(0, 1))
def _run(
    problem: Problem,
    words: tuple[Estimator, Order],
    tables: Tables,
    x: Tree,
    lam: Tree,
    data: Tree,
    key: jax.Array,
    numbers: tuple[Any, Any, Any],
    statistics: Statistics | None,
) -> Hypergradient:
    """Estimate; a new depth, damping or gossip does not recompile."""
    (estimator, order), (depth, damping, gossip), peers = words, numbers, Unmetered(tables)
    if damping is None and estimator != "local":
        damping = safe_damping(peers, problem.inner, x, lam, data, key)
    settings = Settings(estimator, depth, damping, gossip, order)
    return estimate(peers, problem.inner, problem.outer, x, lam, data, key, settings, statistics)


# -- expectations of a network ----------------------------------------------------------------------------------------


def expected_statistics(network: Graph, dtype: Any = jnp.float32) -> Statistics:
    """Return the exact expectations of what clients observe of their links (see `directed.expected_weights`)."""
    require_mutual(network)
    expected = expected_weights(network)
    # Listeners are neighbours, in the same slots: the share that a client sends is read at the other end of the link.
    sent = np.where(network.present, expected.slots[network.neighbours, network.back], 0)
    arrived = network.present.astype(float)
    if network.probability is not None:
        arrived = network.probability
    elif network.schedule is not None:
        arrived = network.schedule.mean(0)
    weight = perron(expected.matrix()) if network.clients > 1 else np.ones(1)
    return Statistics(*(jnp.asarray(a, dtype) for a in (sent, expected.own, arrived, weight)))


def gossip_steps(network: Graph, estimator: Estimator) -> int:
    """Return how many push-sum steps an iteration needs on this network to reduce disagreement enough.

    The second eigenvalue of E[P] is the factor by which a step reduces it on average: on a dense graph a few steps
    suffice, on a long ring it takes hundreds.
    """
    if estimator in ("hgp", "local") or network.clients == 1:
        return 1
    expected = expected_weights(network)
    mean = network.to_sparse(expected.slots[network.present])
    vector = np.random.default_rng(0).normal(size=network.clients)
    vector -= vector.mean()  # columns sum to one, so that the sum stays zero: only disagreement remains
    sizes = []
    for _ in range(200):
        vector = mean @ vector + expected.own * vector
        sizes.append(np.linalg.norm(vector))
        if sizes[-1] < 1e-30:
            return _least_gossip(estimator)
        vector = (vector - vector.mean()) / sizes[-1]
    rate = np.exp(np.mean(np.log(sizes[100:])))  # the mean, since complex eigenvalues make the sizes oscillate
    target = NEUMANN_TARGET if estimator == "neumann" else TRACKING_TARGET
    return max(_least_gossip(estimator), int(np.ceil(np.log(target) / np.log(min(rate, 1 - 1e-9)))))


def _least_gossip(estimator: Estimator) -> int:
    return 5 if estimator == "neumann" else 1
