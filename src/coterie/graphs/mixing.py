"""Mixing weights for a graph, and checks whether a method is stable with them.

W has one weight per slot and one for the client itself. The weights are those of Xiao and Boyd 2004 (Metropolis,
Laplacian). Stability: a mode of a primal-dual method (SPDB of Lu et al. 2022, D2) with eigenvalue w of W and
curvature a = learning rate x curvature of the loss follows t^2 - (2w - a) t + (w - a) = 0, whose roots lie inside the
unit circle iff w > -1/3 and a < (1 + 3w) / 2; plain gossip x <- W x only needs w > -1.
"""

from typing import Any, Literal

import numpy as np

from coterie.errors import CoterieError
from coterie.graphs.graph import Graph

__all__ = [
    "LIMITS",
    "Rule",
    "check_stable",
    "laplacian",
    "lazy_metropolis",
    "metropolis",
    "spectrum",
    "stabilised",
    "weight_matrix",
]

Rule = Literal["gossip", "primal-dual"]
LIMITS: dict[Rule, tuple[float, str]] = {  # what all eigenvalues of W must be above, also as text
    "gossip": (-1.0, "-1"),
    "primal-dual": (-1 / 3, "-1/3"),
}
Weights = tuple[np.ndarray, np.ndarray]  # one weight per slot [K, D], and one for the client itself [K]

DENSE_UP_TO = 1000  # clients; above it eigenvalues come from a Lanczos iteration on the sparse matrix
LANCZOS_TOLERANCE = 1e-4  # finer takes minutes for a large ring, whose eigenvalues lie close together


def metropolis(graph: Graph) -> Weights:
    """Weight every edge by 1 / (1 + the larger degree of its two ends); the rest is the client's own weight."""
    _require_symmetric(graph)
    larger = np.maximum(graph.degree[:, None], graph.degree[graph.neighbours])
    slots = graph.present / (1.0 + larger)
    return slots, 1.0 - slots.sum(1)


def lazy_metropolis(graph: Graph) -> Weights:
    """Return (I + W) / 2 of the Metropolis weights W: no negative eigenvalue, so stable for every method."""
    slots, own = metropolis(graph)
    return slots / 2, (1.0 + own) / 2


def laplacian(graph: Graph, step: float | None = None) -> Weights:
    """Return I - step L, L = the graph's Laplacian; by default step = min(0.2, 1 / its largest eigenvalue)."""
    _require_symmetric(graph)
    if step is None:
        L = weight_matrix(-graph.present.astype(float), graph.degree, graph)
        step = 1.0 / max(5.0, _eigenvalue(L, "LA"))
    if not 0 < step < np.inf:
        raise CoterieError(f"step must be a number greater than 0, not {step:g}")
    return graph.present * float(step), 1.0 - step * graph.degree


def weight_matrix(slot_weights: np.ndarray, self_weight: np.ndarray, graph: Graph) -> Any:
    """Return the weights as a SciPy sparse `[K, K]` matrix W."""
    import scipy.sparse

    values = np.asarray(slot_weights, float)[graph.present]
    return (graph.to_sparse(values) + scipy.sparse.diags_array(np.asarray(self_weight, float))).tocsr()


def spectrum(slot_weights: np.ndarray, self_weight: np.ndarray, graph: Graph) -> tuple[float, float]:
    """Return the smallest eigenvalue of W, and the factor by which one mixing shrinks disagreement.

    The factor is the largest modulus of an eigenvalue other than the 1 of agreement: the second largest modulus, for
    weights that are not negative. Both are exact up to 1,000 clients and right to about 1e-5 above.
    """
    W = weight_matrix(slot_weights, self_weight, graph)
    if abs(W - W.T).max() > 1e-9:
        raise CoterieError("the mixing weights must be symmetric; use Metropolis or Laplacian weights")
    if np.abs(W.sum(1) - 1.0).max() > 1e-9:
        raise CoterieError("the slot weights of a client and its own weight must sum to one; use Metropolis weights")
    return _eigenvalue(W, "SA"), abs(_eigenvalue(W, "LM", disagreement=True))


def check_stable(
    slot_weights: np.ndarray,
    self_weight: np.ndarray,
    graph: Graph,
    rule: Rule = "primal-dual",
) -> float:
    """Return the smallest eigenvalue of W, or refuse weights with which the method would diverge at any step size.

    Args:
        slot_weights: `[K, D]`, as `metropolis` and `laplacian` return them.
        self_weight: `[K]`.
        graph: the graph they belong to.
        rule: `gossip` (D-PSGD, DSGD) needs eigenvalues above -1, `primal-dual` (SPDB, D2) above -1/3.
    """
    smallest, _ = spectrum(slot_weights, self_weight, graph)
    limit, written = LIMITS[rule]
    margin = 1e-9 if graph.clients <= DENSE_UP_TO else LANCZOS_TOLERANCE
    if smallest <= limit + margin:
        raise CoterieError(
            f"these weights make a {rule} method diverge: their smallest eigenvalue, {smallest:.4g}, must be above "
            f"{written}; use lazy Metropolis weights, or Laplacian weights with their default step"
        )
    return smallest


def stabilised(slot_weights: np.ndarray, self_weight: np.ndarray, graph: Graph, rule: Rule) -> tuple[Weights, float]:
    """Return weights with which a method of this rule is stable, and the smallest eigenvalue of the given weights.

    Stable weights are returned unchanged. Others are replaced by (I + W) / 2, whose eigenvalues lie half-way between
    those of W and 1: not negative if W's are above -1. The graph and the limit of mixing stay the same.
    """
    smallest, _ = spectrum(slot_weights, self_weight, graph)
    try:
        check_stable(slot_weights, self_weight, graph, rule)
    except CoterieError:
        lazy = slot_weights / 2, (1.0 + self_weight) / 2
        check_stable(*lazy, graph, rule)  # this does not help weights with an eigenvalue of -1 or less
        return lazy, smallest
    return (slot_weights, self_weight), smallest


def _require_symmetric(graph: Graph) -> None:
    if not graph.symmetric:
        raise CoterieError(
            "mixing weights need an undirected graph; add the missing directions, so that two clients hear each other"
        )


def _eigenvalue(matrix: Any, which: Literal["SA", "LA", "LM"], disagreement: bool = False) -> float:
    """Return the smallest (SA), largest (LA) or largest-in-modulus (LM) eigenvalue of a symmetric sparse matrix.

    With `disagreement`, only on vectors that sum to zero: the constant vector, an eigenvector, is projected out.
    """
    clients = matrix.shape[0]
    if clients <= DENSE_UP_TO:
        values = np.linalg.eigvalsh(matrix.toarray() - (1.0 / clients if disagreement else 0.0))
        return float({"SA": values[0], "LA": values[-1], "LM": max(values, key=abs)}[which])
    from scipy.sparse.linalg import LinearOperator, eigsh

    start = np.random.default_rng(0).normal(size=clients)  # ARPACK's own start would differ from run to run
    operator = matrix
    if disagreement:
        start -= start.mean()
        operator = LinearOperator(matrix.shape, lambda x: matrix @ x - x.mean(), dtype=float)
    values = eigsh(operator, 1, which=which, v0=start, tol=LANCZOS_TOLERANCE, ncv=40, return_eigenvectors=False)
    return float(values[0])
