"""Errors of the hyper-gradient on random directed networks: the table in docs/methods/bilevel.md.

    python benchmarks/hypergradient_networks.py        # ten seconds

Five clients with quadratic losses whose mean has curvatures from 0.8 to 1.8, so that linear algebra gives the answer;
links are drawn anew in each step with a probability from U[0.4, 0.8]. Median of the relative error, least and largest
over networks.
"""

import argparse

import jax
import numpy as np
from common import publish

from coterie.bilevel import Problem, hypergradient
from coterie.experiment.device import choose_device
from coterie.graphs.directed import RandomDirected

PROBLEM = Problem(
    inner=lambda x, lam, data, key: 0.5 * x @ data["H"] @ x - data["b"] @ x + lam @ data["C"] @ x,
    outer=lambda x, lam, data: 0.5 * ((x - data["goal"]) ** 2).sum() + 0.5 * (lam**2).sum(),
)
# Estimator, damping, iterations and pushes of an average.
TRIED = [("neumann", 0.1, 100, gossip) for gossip in (1, 2, 5, 10)]
TRIED += [("tracking", 0.2, depth, 1) for depth in (50, 100, 200)]


def quadratics(clients: int = 5, size: int = 3, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Draw the clients' losses, and their lambda `[clients, 2]`."""
    random = np.random.default_rng(seed)
    root = random.normal(size=(clients, size, size))
    H = root @ root.transpose(0, 2, 1) / size + 0.5 * np.eye(size)
    b, goal = random.normal(size=(2, clients, size))
    C = random.normal(size=(clients, 2, size))
    return {"H": H, "b": b, "C": C, "goal": goal}, 0.3 * random.normal(size=(clients, 2))


def main() -> None:
    """Print the errors, and write them to a dated file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=20)
    asked = parser.parse_args()
    device = choose_device("cpu")
    jax.config.update("jax_enable_x64", True)
    data, lam = quadratics()
    clients, total = len(lam), data["H"].sum(0)
    best = np.linalg.solve(total, (data["b"] - np.einsum("il,ild->id", lam, data["C"])).sum(0))
    truth = lam - data["C"] @ np.linalg.solve(total, (best - data["goal"]).sum(0))
    x, rows = np.tile(best, (clients, 1)), []
    for estimator, damping, depth, gossip in TRIED:
        errors = []
        for seed in range(asked.networks):
            settings = {"estimator": estimator, "damping": damping, "depth": depth, "gossip": gossip, "check": False}
            value = hypergradient(PROBLEM, x, lam, data, RandomDirected().build(clients, seed), **settings).value
            errors.append(float(np.linalg.norm(value - truth) / np.linalg.norm(truth)))
        figures = {"median": float(np.median(errors)), "least": min(errors), "largest": max(errors)}
        rows.append({"estimator": estimator, "damping": damping, "depth": depth, "gossip": gossip} | figures)
        print(rows[-1], flush=True)
    curvatures = np.linalg.eigvalsh(data["H"].mean(0))
    publish(
        "hypergradient-networks",
        device.label,
        {"networks": asked.networks, "curvatures": curvatures.tolist(), "rows": rows},
    )


if __name__ == "__main__":
    main()
