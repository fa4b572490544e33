"""The fused operator for all clients: from NumPy, inside a compiled program, and against the paper's ADMM.

    python benchmarks/fused_prox.py                                    # 100 clients x 1,000,000 elements, 3 GiB
    python benchmarks/fused_prox.py --clients 10 --size 100000

Gradients are standard normal float32; the time of the operator depends on gamma, so there are several, and `segments`
is the number of runs of equal elements per million. `program` is one `jit` on one device, `shared` one over all virtual
CPU devices in which each makes the call for its own clients, as `peers.each` does; both include a product before and a
sum after the operator, so that its arrays are made and used inside.

It is compared with Algorithm 4 of Zhao et al. with its errors corrected (`tests/support/fused_rivals.py`; as printed it
diverges), in float64 on one core as the operator is then: one factorisation, banded solves by LAPACK, and the best rho
of a grid. It knows the exact answer and stops as soon as every element is within 1e-8; it is timed without that test.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from common import best_of, publish
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from coterie.experiment.device import choose_device
from coterie.numerics.codebook import codebook_in_program
from coterie.numerics.prox import fused, fused_in_program

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.fused_rivals import fused_admm, fused_kkt

GAMMAS = (0.1, 1.0, 10.0)
RIVAL_GAMMAS = (0.1, 1.0, 3.0)  # at 10 the ADMM takes 10,000 iterations
RHOS = (3.0, 10.0, 1.0, 0.3)
MOST = 20_000  # iterations of the ADMM


def operator(args: argparse.Namespace, devices: tuple) -> dict[str, Any]:
    """Time the operator for all clients, from NumPy and inside programs."""
    g = np.random.default_rng(0).standard_normal((args.clients, args.size), np.float32)
    one = jax.device_put(g, devices[0])
    sharers = len(devices) if args.clients % len(devices) == 0 else 1
    mesh, rows = Mesh(np.array(devices[:sharers]), ("clients",)), PartitionSpec("clients")
    split = jax.device_put(g, NamedSharding(mesh, rows))

    def work(g: jax.Array, gamma: jax.Array) -> jax.Array:
        return fused_in_program(g * 1.5, gamma).sum(1)

    alone = jax.jit(work)
    shared = jax.jit(jax.shard_map(work, mesh=mesh, in_specs=(rows, rows), out_specs=rows, check_vma=False))
    seconds = {}
    for gamma in GAMMAS:
        weights = np.full(args.clients, gamma, np.float32)
        q = fused(g[0], gamma)
        seconds[str(gamma)] = {
            "segments_in_a_million": round(1e6 * (1 + np.count_nonzero(np.diff(q))) / args.size),
            "numpy": round(best_of(args.repeats, lambda w=weights: fused(g, w)), 3),
            "program": round(best_of(args.repeats, lambda w=weights: jax.block_until_ready(alone(one, w))), 3),
            "shared": round(best_of(args.repeats, lambda w=weights: jax.block_until_ready(shared(split, w))), 3),
        }
    return {"clients": args.clients, "size": args.size, "devices": sharers, "seconds_by_gamma": seconds}


def rival(size: int, repeats: int, accuracy: float = 1e-8) -> dict[str, Any]:
    """Time one vector: the operator, and the corrected ADMM until it reaches the accuracy."""
    g, by_gamma = np.random.default_rng(1).normal(size=size), {}
    for gamma in RIVAL_GAMMAS:
        q = fused(g, gamma)
        exact = best_of(repeats, lambda gamma=gamma: fused(g, gamma))
        best, fewest, error = RHOS[0], MOST, np.inf
        for rho in RHOS:  # another rho need not run longer than the best so far
            near, taken = fused_admm(g, gamma, rho, fewest, tolerance=accuracy, truth=q)
            if np.abs(near - q).max() < error:
                best, fewest, error = rho, taken, max(np.abs(near - q).max(), accuracy)
        seconds = best_of(1, lambda gamma=gamma, rho=best, steps=fewest: fused_admm(g, gamma, rho, steps))
        by_gamma[str(gamma)] = {
            "operator_seconds": round(exact, 5),
            "operator_kkt": fused_kkt(g, q, gamma),
            "admm_seconds": round(seconds, 3),
            "admm_iterations": fewest,
            "admm_rho": best,
            "admm_error": float(error),
            "times_faster": round(seconds / exact),
        }
    return {"size": size, "accuracy": accuracy, "by_gamma": by_gamma}


def codebooks(clients: int, size: int, repeats: int) -> dict[str, Any]:
    """Time 16 centres for every client, of gradients with runs from the operator, in a program."""
    q = jax.numpy.asarray(fused(np.random.default_rng(2).standard_normal((clients, size), np.float32), 1.0))
    program = jax.jit(lambda q: codebook_in_program(q, 16).sum(1))
    seconds = best_of(repeats, lambda: jax.block_until_ready(program(q)))
    return {"clients": clients, "size": size, "centres": 16, "seconds": round(seconds, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--size", type=int, default=1_000_000, help="elements of a client's gradient")
    parser.add_argument("--rival-size", type=int, default=100_000, help="elements where the ADMM is compared")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    device = choose_device("cpu")
    figures = {
        "load": round(os.getloadavg()[0], 1),
        "operator": operator(args, device.devices),
        "rival": rival(args.rival_size, args.repeats),
        "codebook": codebooks(args.clients, args.size // 10, args.repeats),
    }
    publish("fused-prox", device.label, figures)


if __name__ == "__main__":
    main()
