"""Personal parameters of your own bilevel problem, over a network: hyper-gradients without the rest of coterie.

Clients share x* = argmin_x sum_k f_k(x, lambda_k); each wants its own lambda_i (a regularisation weight, the weights of
an ensemble, the scaling of its inputs) to lower the sum of all outer costs F_s(x*, lambda_s) (Terashita and Hara 2023).

    >>> import jax.numpy as jnp
    >>> from coterie.bilevel import Problem, hypergradient
    >>> from coterie.graphs.graph import Graph
    >>> problem = Problem(
    ...     inner=lambda x, lam, data, key: 0.5 * data["h"] * x**2 - data["b"] * x + lam * x,
    ...     outer=lambda x, lam, data: 0.5 * x**2,
    ... )
    >>> data = {"h": jnp.array([1.0, 3.0]), "b": jnp.array([2.0, 2.0])}
    >>> found = hypergradient(problem, jnp.ones(2), jnp.zeros(2), data, Graph.complete(2))
    >>> print(found.value.round(4))
    [-0.5 -0.5]

`hypergradients.py` holds the estimators, for methods of your own that run inside `coterie run`; `bilevel_checks.py` the
checks that a person wants before trusting a number, which need a look at all clients at once.
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

FADED = 0.01  # an average of `neumann` must bring disagreement down to this
HALVED = 0.3  # and one iteration of `tracking` to this, to be stable with the default damping


@dataclasses.dataclass(frozen=True)
class Problem:
    """A bilevel problem, written for one client.

    Attributes:
        inner: `f(x, lam, data, key)`, a number; the key is fresh in each iteration, for a minibatch.
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
        data: what each client's losses need, `[K, ...]`; `()` for nothing.
        network: who hears whom; links may be random (`Graph.from_probabilities`) or scheduled.
        estimator: `tracking` (exact in the limit), `neumann`, `hgp` (P1's) or `local`; see `hypergradients.py`.
        depth: how many iterations, each of one Hessian-vector product a client.
        damping: the step of the iteration; auto: 1 / the largest curvature of any client. For `hgp` it is the learning
            rate with which x was found, and must be given.
        gossip: push-sum steps in each iteration; auto: as many as the network needs (`gossip_steps`).
        order: of the gradient push that found x, for `hgp`.
        statistics: what each client knows of its links, for `hgp`; None: their exact expectations.
        key: of the links and minibatches; a number or a JAX key.
        check: refuse what has no answer (a flat or indefinite average Hessian) or was not found (an iteration that
            grew, or of which more than half is left). It costs as many Hessian-vector products as a few iterations.

    Returns:
        The estimate `value [K, ...]`, and the size of what drives the iteration at its start and end.
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
    found = _run(problem, (estimator, order), verbs(network, dtype).tables, x, lam, data, key, numbers, statistics)
    if check and estimator != "local":
        check_end(found, problem.outer, x, lam, data, estimator, depth)
    return found


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
    """Estimate; another depth, damping or gossip compiles nothing."""
    (estimator, order), (depth, damping, gossip), peers = words, numbers, Unmetered(tables)
    if damping is None and estimator != "local":
        damping = safe_damping(peers, problem.inner, x, lam, data, key)
    settings = Settings(estimator, depth, damping, gossip, order)
    return estimate(peers, problem.inner, problem.outer, x, lam, data, key, settings, statistics)


# -- what a network does on average -----------------------------------------------------------------------------------


def expected_statistics(network: Graph, dtype: Any = jnp.float32) -> Statistics:
    """Return what clients would observe of their links in the long run, exactly (see `networks.expected_weights`)."""
    require_mutual(network)
    expected = expected_weights(network)
    # Who hears a client is whom it hears, in the same slots: what it deals out is read from the other end of the link.
    sent = np.where(network.present, expected.slots[network.neighbours, network.back], 0)
    heard = network.present.astype(float)
    if network.probability is not None:
        heard = network.probability
    elif network.schedule is not None:
        heard = network.schedule.mean(0)
    weight = perron(expected.matrix()) if network.clients > 1 else np.ones(1)
    return Statistics(*(jnp.asarray(a, dtype) for a in (sent, expected.own, heard, weight)))


def gossip_steps(network: Graph, estimator: Estimator) -> int:
    """Return how many push-sum steps an iteration needs on this network: so many as bring disagreement down enough.

    The second eigenvalue of E[P] says by how much a step shrinks it on average: in a graph where everyone reaches most
    others a few steps do, on a long ring it takes hundreds.
    """
    if estimator in ("hgp", "local") or network.clients == 1:
        return 1
    expected = expected_weights(network)
    mean = network.to_sparse(expected.slots[network.present])
    vector = np.random.default_rng(0).normal(size=network.clients)
    vector -= vector.mean()  # columns sum to one: what sums to zero stays so, and only disagreement is left
    sizes = []
    for _ in range(200):
        vector = mean @ vector + expected.own * vector
        sizes.append(np.linalg.norm(vector))
        if sizes[-1] < 1e-30:
            return _least_gossip(estimator)
        vector = (vector - vector.mean()) / sizes[-1]
    rate = np.exp(np.mean(np.log(sizes[100:])))  # a mean: complex pairs of eigenvalues make the sizes swing
    wanted = FADED if estimator == "neumann" else HALVED
    return max(_least_gossip(estimator), int(np.ceil(np.log(wanted) / np.log(min(rate, 1 - 1e-9)))))


def _least_gossip(estimator: Estimator) -> int:
    return 5 if estimator == "neumann" else 1
