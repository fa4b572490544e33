"""One iteration of a hyper-gradient estimator for all clients, against one gradient step of the same model.

    python benchmarks/hypergradient.py --device gpu                    # CNN and MLP, 100 clients, batch 10
    python benchmarks/hypergradient.py --model mlp --device cpu

Both run inside one loop of one program, with a new minibatch per turn and the plan that `coterie run` would choose.
On a graph without edges, and without gossip, an iteration is only computation: one product with both Jacobians. The
time of the exchange is the difference to the same iteration on the random directed network of Terashita and Hara 2023,
and is reported separately.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import best_of, federation, publish

from coterie.bilevel import expected_statistics, hypergradients
from coterie.bilevel.hypergradients import Settings, estimate
from coterie.experiment.device import Device, choose_device
from coterie.experiment.plan import plan_for
from coterie.graphs.directed import RandomDirected
from coterie.graphs.graph import Graph
from coterie.learning.task import Task
from coterie.models.cnn import Cnn
from coterie.models.mlp import Mlp
from coterie.numerics import tree
from coterie.peers.local import LocalPeers
from coterie.peers.tables import make_tables

SHAPES = {"cnn": (3, 32, 32), "mlp": (784,)}


class Bench:
    """A model on every client, a loss with a personal weight decay, and the programs to time."""

    def __init__(self, args: argparse.Namespace, name: str, device: Device):
        data = federation(args.clients, args.samples, SHAPES[name], 10)
        self.args, self.task = args, Task.of(data, {"cnn": Cnn(), "mlp": Mlp(hidden=(64,))}[name])
        self.plan, self.device = plan_for(self.task, data, device, "auto"), device.devices[0]
        place = self.device
        if self.plan.mesh is not None:
            place = jax.sharding.NamedSharding(self.plan.mesh, jax.sharding.PartitionSpec())
        split = data.train
        self.data = jax.device_put((split.x, split.y), place)
        self.x = jax.device_put(tree.broadcast(self.task.init(jax.random.key(0)).params, args.clients), place)
        self.lam = jax.device_put(np.full(args.clients, -5.0, np.float32), place)

    def inner(self, x: Any, lam: Any, data: Any, key: jax.Array) -> jax.Array:
        """Return the loss on a new minibatch plus a penalty with the client's own weight."""
        picked = jax.random.randint(key, (self.args.batch,), 0, self.args.samples)
        mask = jnp.ones(self.args.batch, bool)
        loss, _ = self.task.loss(x, (), data[0][picked], data[1][picked], mask, train=False)
        return loss + 0.5 * jnp.exp(lam) * sum(jnp.vdot(a, a) for a in jax.tree.leaves(x))

    def outer(self, x: Any, lam: Any, data: Any) -> jax.Array:
        """Return a linear cost, which takes no time."""
        return sum(a.sum() for a in jax.tree.leaves(x)) * 1e-3

    def time(self, graph: Graph, body: Callable[[LocalPeers, jax.Array, Any], Any]) -> float:
        """Return seconds for one turn of a loop that is `body(peers, turns, statistics)`.

        Two lengths are timed, and the difference in time is divided by the difference in turns, so that starting the
        program and the outer slope do not count.
        """
        tables = jax.tree.map(jnp.asarray, make_tables(graph, np.zeros(graph.neighbours.shape)))
        statistics = expected_statistics(graph) if graph.edges() else alone(self.args.clients)

        @jax.jit
        def run(turns: jax.Array, tables: Any, x: Any, lam: Any, data: Any) -> Any:
            return body(LocalPeers(tables, self.plan), turns, (x, lam, data, statistics))

        def seconds(turns: int) -> float:
            values = (tables, self.x, self.lam, self.data)
            return best_of(self.args.repeats, lambda: jax.block_until_ready(run(jnp.int32(turns), *values)))

        few = self.args.turns or (20 if self.device.platform == "gpu" else 2)
        return (seconds(4 * few) - seconds(few)) / (3 * few)

    def gradient_step(self) -> float:
        """Time plain SGD of every client on its own inner loss."""

        def body(peers: LocalPeers, turns: Any, values: Any) -> Any:
            x, lam, data, _ = values

            def step(t: Any, x: Any) -> Any:
                keys = peers.keys(jax.random.fold_in(jax.random.key(0), t))
                slope = peers.each(jax.grad(self.inner), x, lam, data, keys)
                return jax.tree.map(lambda a, g: a - 0.01 * g, x, slope)

            return peers.loop(turns, step, x)

        return self.time(Graph.empty(self.args.clients), body)

    def iteration(self, estimator: Any, graph: Graph) -> float:
        """Time one iteration of an estimator."""

        def body(peers: LocalPeers, turns: Any, values: Any) -> Any:
            x, lam, data, statistics = values
            settings = Settings(estimator, turns, 1e-3, self.args.gossip if graph.edges() else 0)
            return estimate(peers, self.inner, self.outer, x, lam, data, jax.random.key(0), settings, statistics)

        return self.time(graph, body)


def alone(clients: int) -> hypergradients.Statistics:
    """Return the statistics of clients without links, which keep all their mass."""
    none, one = jnp.zeros((clients, 0)), jnp.ones(clients)
    return hypergradients.Statistics(none, one, none, one)


def reverse_over_reverse(inner: Any, x: Any, lam: Any, data: Any, key: jax.Array, a: Any) -> Any:
    """Return both products as the vjp of a gradient, for comparison."""
    _, back = jax.vjp(lambda x, lam: jax.grad(inner)(x, lam, data, key), x, lam)
    return back(a)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=list(SHAPES), nargs="*", default=list(SHAPES))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--gossip", type=int, default=5, help="push-sum steps of a Neumann iteration")
    parser.add_argument("--turns", type=int, default=0, help="of the shorter loop; 0: 20 on a GPU, 2 on a CPU")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    device = choose_device(args.device)
    linked = RandomDirected().build(args.clients, seed=0)
    for name in args.model:
        began, bench = time.time(), Bench(args, name, device)
        step = bench.gradient_step()
        figures: dict[str, Any] = {"model": name, "clients": args.clients, "batch": args.batch, "mode": bench.plan.mode}
        figures["gradient_step_ms"] = round(1e3 * step, 3)
        for estimator in ("hgp", "neumann"):
            computed = bench.iteration(estimator, Graph.empty(args.clients))
            whole = bench.iteration(estimator, linked)
            figures[f"{estimator}_iteration_ms"] = round(1e3 * computed, 3)
            figures[f"{estimator}_exchange_ms"] = round(1e3 * (whole - computed), 3)
            figures[f"{estimator}_over_gradient_step"] = round(computed / step, 2)
        figures["neumann_gossip"] = args.gossip
        ours, hypergradients.products = hypergradients.products, reverse_over_reverse
        other = bench.iteration("hgp", Graph.empty(args.clients))
        hypergradients.products = ours
        figures["hgp_by_reverse_over_reverse_over_gradient_step"] = round(other / step, 2)
        figures["benchmark_seconds"] = round(time.time() - began, 1)
        publish(f"hypergradient-{name}", device.label, figures)


if __name__ == "__main__":
    main()
