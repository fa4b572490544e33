"""The error of PDBO-MTL's hyper-gradient estimates while the inner problem is still being solved.

    python benchmarks/hypergradient_accuracy.py --dataset shakespeare --more 150 --device gpu
    python benchmarks/hypergradient_accuracy.py --dataset fashion-mnist --more 300 --device gpu
    python benchmarks/hypergradient_accuracy.py --dataset digits --more 100 --device cpu

After each third of a run of PDBO-MTL (estimator local, outer cost on training samples, otherwise as in the tuned column
of `coterie reproduce pdbo`) the inner problem continues with fixed weights
for `--more` pushes, the last third of them with small steps. Then the mean slope of all clients' costs is nearly zero,
so that the derivative in the weights alone is the whole hyper-gradient: the target. It is computed twice, with other
minibatches and links, to estimate its noise. Reported are the relative error and the cosine to the target, over all
clients, without the component common to all weights of a client, which a softmax ignores.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import publish

from coterie.bilevel.hypergradients import Estimator, Settings, estimate
from coterie.comparison.config import ComparisonConfig, choice_of, with_method
from coterie.consensus.pushsum import frequencies
from coterie.experiment.device import Device, choose_device
from coterie.experiment.engine import Engine
from coterie.experiment.job import Job, load_federation, make_task
from coterie.experiment.plan import plan_for
from coterie.experiment.training import Training
from coterie.peers.local import LocalPeers
from coterie.reproduce import pdbo

GOSSIP = 3
FIXED = (0.03, 0.1, 0.3, 1.0)  # dampings tried with every learning rate; others are shares of it


class Bench:
    """A run of PDBO-MTL with the local estimate, and the programs that evaluate its state."""

    def __init__(self, args: argparse.Namespace, device: Device):
        reproduction = pdbo.reproduction(args.dataset, methods=("pdbo-mtl-local",), seeds=1, clients=args.clients)
        planned = ComparisonConfig.from_dict(reproduction.tuned)
        label, settings = planned.methods[0]
        experiment = with_method(planned.experiment, choice_of((label, settings | {"upper": "train"})))
        experiment = experiment.replace({"run": {"seed": args.seed}})
        data = load_federation(experiment)
        base = make_task(experiment, data)
        self.engine = Engine(base, data, device, plan_for(base, data, device))
        job = Job.of(experiment, data, base)
        self.method: Any = job.method
        self.training = Training(self.engine, job.method, job.graph, job.weights, args.seed)
        self.task = self.training.task
        self.longer = dataclasses.replace(self.method, pushes=args.more, settle=max(1, args.more // 3))
        self.solve, self.direct = jax.jit(self._solve), jax.jit(self._direct)
        self.estimators = {kind: jax.jit(self._estimator(kind)) for kind in ("neumann", "hgp")}

    def given(self) -> tuple[Any, Any]:
        """Return the tables and the data, as arguments of the programs, so that no data is compiled in."""
        return self.training._tables, self.engine.clients

    def _solve(self, state: Any, given: tuple, key: jax.Array) -> Any:
        """Continue the inner problem with the weights of the next round."""
        tables, clients = given
        data = (clients.train, clients.train)
        return self.longer._solve(self.task, state, LocalPeers(tables, self.engine.plan), data, key)[0]

    def _direct(self, state: Any, given: tuple) -> tuple[Any, jax.Array, jax.Array]:
        """Return d_lambda F_i, the length of the mean d_x F_i, and the mean of their lengths."""
        tables, clients = given
        x, peers = self.task.shared(state.variables.params), LocalPeers(tables, self.engine.plan)
        slope, direct = peers.each(jax.grad(self._outer, argnums=(0, 1)), x, state.weights, clients.train)
        leaves = jax.tree.leaves(slope)
        mean = jnp.sqrt(sum((a.mean(0) ** 2).sum() for a in leaves))
        return direct, mean, jnp.sqrt(sum((a.reshape(a.shape[0], -1) ** 2).sum(1) for a in leaves)).mean()

    def _outer(self, x: Any, lam: Any, data: Any) -> jax.Array:
        return self.method._outer_cost(self.task, x, lam, data)

    def _estimator(self, kind: Estimator) -> Callable:
        def program(state: Any, given: tuple, key: jax.Array, depth: Any, damping: Any, gossip: Any) -> Any:
            tables, clients = given
            return estimate(
                LocalPeers(tables, self.engine.plan),
                lambda x, lam, data, key: self.method._inner_loss(self.task, x, lam, data, key),
                self._outer,
                self.task.shared(state.variables.params),
                state.weights,
                clients.train,
                key,
                Settings(kind, depth, damping, gossip),
                frequencies(state.seen),
            ).value

        return program

    def errors(self, state: Any) -> dict[str, Any]:
        """Compare all estimates in one state with the target."""
        local, *slopes = self.direct(state, self.given())
        there = [self.direct(self.solve(state, self.given(), jax.random.key(100 + k)), self.given()) for k in (1, 2)]
        targets = [centred(direct) for direct, *_ in there]
        target, here = (targets[0] + targets[1]) / 2, centred(local)
        figures: dict[str, Any] = {
            "mean_slope": number(slopes[0]),
            "slope_of_a_client": number(slopes[1]),
            "mean_slope_at_target": number(there[1][1]),
            "slope_of_a_client_at_target": number(there[1][2]),
            "between_two_targets": compared(targets[0], targets[1]),
            "local": compared(here, target),
        }
        lr = float(self.method.lr)
        tried = [(5, damping) for damping in (*FIXED, 0.2 * lr, lr)] + [(20, 0.2 * lr), (20, lr)]
        for kind, cases in (("neumann", tried), ("hgp", [(5, FIXED[0]), (5, 0.2 * lr)])):
            for depth, damping in cases:
                numbers = (jnp.int32(depth), jnp.float32(damping), jnp.int32(GOSSIP))
                value = centred(self.estimators[kind](state, self.given(), jax.random.key(7), *numbers))
                correction = number(np.linalg.norm(value - here) / np.linalg.norm(here))
                label = f"{kind}, damping {damping:g}, depth {depth}"
                figures[label] = compared(value, target) | {"correction_over_local": correction}
        return figures


def centred(value: Any) -> np.ndarray:
    """Remove the component of each client's gradient that a softmax ignores."""
    array = np.asarray(jax.tree.leaves(value)[0], np.float64)
    return array - array.mean(1, keepdims=True)


def compared(value: np.ndarray, target: np.ndarray) -> dict[str, float]:
    """Return the relative error and the cosine, over all clients together."""
    sizes = np.linalg.norm(value), np.linalg.norm(target)
    error = np.linalg.norm(value - target) / sizes[1]
    return {"error": number(error), "cosine": number((value * target).sum() / sizes[0] / sizes[1])}


def number(value: Any) -> float:
    """Round to four digits."""
    return float(f"{float(value):.4g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", choices=list(pdbo.DATASETS), default="digits")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--clients", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=30, help="of the run; errors are computed after each third")
    parser.add_argument("--more", type=int, default=150, help="pushes to the target")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    device, began = choose_device(args.device), time.time()
    bench = Bench(args, device)
    state, _ = bench.training.init()
    figures: dict[str, Any] = {"dataset": args.dataset, "pushes_to_the_target": args.more, "lr": float(bench.method.lr)}
    every = max(1, args.rounds // 3)
    for first in range(1, 3 * every + 1, every):
        state, block = bench.training.advance(state, first, every)
        loss = {"training_loss": number(block.loss[-1].mean())}
        figures[f"after round {first + every - 1}"] = loss | bench.errors(state)
    figures["benchmark_seconds"] = round(time.time() - began, 1)
    publish(f"hypergradient-accuracy-{args.dataset}", device.label, figures)


if __name__ == "__main__":
    main()
