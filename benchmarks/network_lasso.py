"""The network lasso: seconds to a relative gap on a large problem, and against CVXPY on a small one, in the same run.

    python benchmarks/network_lasso.py
    python benchmarks/network_lasso.py --clients 200 --parameters 50 --small-clients 30 --small-parameters 10   # small

Rows are planted groups plus noise, the graph joins every client with its k nearest in another, noisier view of the
groups (symmetrised, each edge once). lam is given as a share of the least lam that makes all clients equal (by
bisection, to 2 %). The first call includes compilation and is reported separately: a run pays it once. Accuracy is the
value of the objective, computed in the same way for both: `above_best` is its relative distance from the better value.
"""

import argparse
import math
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from common import publish

from coterie.experiment.device import choose_device
from coterie.numerics.lasso.admm import Incidence, Solution, network_lasso, prepare


def planted(clients: int, neighbours: int, parameters: int, groups: int, seed: int = 0) -> tuple[np.ndarray, Incidence]:
    """Return rows `[N, d]` and the graph of nearest neighbours."""
    random = np.random.default_rng(seed)
    group = np.arange(clients) % groups
    view = 1.5 * random.normal(size=(groups, 10))[group] + random.normal(size=(clients, 10))
    distance = np.linalg.norm(view[:, None] - view, axis=2)
    np.fill_diagonal(distance, np.inf)
    nearest = np.argsort(distance, axis=1)[:, :neighbours]
    pairs = np.stack([np.repeat(np.arange(clients), neighbours), nearest.ravel()], axis=1)
    rows = random.normal(size=(groups, parameters))[group] + random.normal(size=(clients, parameters))
    return rows, prepare(np.unique(np.sort(pairs, axis=1), axis=0), clients=clients)


def timed(repeats: int, run: Any) -> tuple[float, Any]:
    """Return the shortest wall time of several calls, and the result of the last one."""
    times, result = [], None
    for _ in range(repeats):
        start = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - start)
    return min(times), result


def joining(solve: Callable[[float], Solution]) -> float:
    """Return the least lam that makes all connected clients equal, to 2 %, by bisection."""
    together = solve(math.inf).labels

    def joins(lam: float) -> bool:
        return bool((solve(lam).labels == together).all())

    low, high = 1.0, 2.0
    while not joins(high):
        low, high = high, 2 * high
    while joins(low):
        low, high = low / 2, low
    while high > 1.02 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if joins(middle) else (middle, high)
    return high


def objective(Z: np.ndarray, U: np.ndarray, graph: Incidence, lam: float, p: Any) -> float:
    apart = Z[graph.edges[:, 0]] - Z[graph.edges[:, 1]]
    lengths = np.linalg.norm(apart, {1: 1, 2: 2, "inf": np.inf}[p], axis=1)
    return float(lam * (graph.weight * lengths).sum() + ((Z - U) ** 2).sum() / 2)


def large(args: argparse.Namespace) -> dict[str, Any]:
    """Solve the large problem at several lam, each from a cold start."""
    U, graph = planted(args.clients, args.neighbours, args.parameters, args.groups)

    def solve(lam: float) -> Solution:
        return network_lasso(U, graph, lam, p=args.p, tolerance=args.tolerance)

    first, results = timed(1, lambda: solve(0.0))[0], {}
    most = joining(solve)
    for share in args.shares:
        seconds, solution = timed(args.repeats, lambda lam=share * most: solve(lam))
        results[str(share)] = {
            "seconds": round(seconds, 2),
            "iterations": int(solution.iterations),
            "relative_gap": float(f"{solution.relative:.1e}"),
            "clusters": len(np.unique(solution.labels)),
        }
    sizes = {"clients": args.clients, "edges": len(graph.edges), "parameters": args.parameters, "p": args.p}
    return {**sizes, "tolerance": args.tolerance, "first_call_seconds": round(first, 2), "at_share": results}


def small(args: argparse.Namespace) -> dict[str, Any]:
    """Solve a small problem by our solver and by CVXPY's default solver with its default accuracy, in turn."""
    import cvxpy as cp

    U, graph = planted(args.small_clients, args.neighbours, args.small_parameters, 5)
    edges, results = graph.edges, {}
    D = np.zeros((len(edges), len(U)))
    D[np.arange(len(edges)), edges[:, 0]], D[np.arange(len(edges)), edges[:, 1]] = 1, -1

    def rival(lam: float) -> tuple[np.ndarray, str]:
        Z = cp.Variable(U.shape)
        term = cp.sum(cp.norm(D @ Z, "inf" if args.p == "inf" else args.p, axis=1))
        stated = cp.Problem(cp.Minimize(lam * term + cp.sum_squares(Z - U) / 2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            stated.solve()
        return Z.value, stated.solver_stats.solver_name

    ours = lambda lam: network_lasso(U, graph, lam, p=args.p, tolerance=args.small_tolerance)  # noqa: E731
    first = timed(1, lambda: ours(0.0))[0]
    most = joining(ours)
    for share in args.shares:
        lam = share * most
        seconds, solution = timed(args.repeats, lambda lam=lam: ours(lam))
        theirs, (Z, name) = timed(1 if args.quick else 2, lambda lam=lam: rival(lam))
        values = objective(solution.Z, U, graph, lam, args.p), objective(Z, U, graph, lam, args.p)
        above = [float(f"{max(value / min(values) - 1, 0):.1e}") for value in values]
        results[str(share)] = {
            "coterie_seconds": round(seconds, 4),
            "cvxpy_seconds": round(theirs, 2),
            "times_faster": round(theirs / seconds, 1),
            "above_best": {"coterie": above[0], f"cvxpy ({name.lower()})": above[1]},
        }
    sizes = {"clients": len(U), "edges": len(edges), "parameters": U.shape[1], "p": args.p}
    return {**sizes, "first_call_seconds": round(first, 2), "at_share": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--parameters", type=int, default=1000)
    parser.add_argument("--neighbours", type=int, default=10)
    parser.add_argument("--groups", type=int, default=20)
    parser.add_argument("--small-clients", type=int, default=100)
    parser.add_argument("--small-parameters", type=int, default=50)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.1, 0.3, 0.6, 0.9], help="of the largest lam")
    parser.add_argument("--p", default=2, type=lambda text: text if text == "inf" else int(text))
    parser.add_argument("--tolerance", type=float, default=1e-6)
    parser.add_argument("--small-tolerance", type=float, default=1e-9)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one run of the rival")
    args = parser.parse_args()
    device = choose_device("cpu")
    with jax.default_device(jax.devices("cpu")[0]):
        figures = {"load": round(os.getloadavg()[0], 1), "large": large(args), "small": small(args)}
    publish("network-lasso", device.label, figures)


if __name__ == "__main__":
    main()
