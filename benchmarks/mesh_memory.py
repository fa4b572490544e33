"""How much memory does a device of a mesh need as devices are added? The compiler's own account of a program.

    python benchmarks/mesh_memory.py                       # 64 clients on 1, 2, 4 and 8 virtual devices
    python benchmarks/mesh_memory.py --methods scool-sbm

For each method: arguments (the models, the data, what the method remembers) and temporary values of one device, in
units of all clients' models. A cross-loss asks for other clients' data, a mix for their models: neither may bring all
of them together on one device.
"""

import argparse

import numpy as np
from common import publish
from jax.sharding import Mesh

from coterie import registry
from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.experiment.training import Training
from coterie.graphs.graph import Graph
from coterie.graphs.mixing import metropolis
from coterie.graphs.topologies import Ring
from coterie.learning.task import Task
from coterie.models.mlp import Mlp
from coterie.peers.local import Plan
from coterie.testing.small import small_federation

CLIENTS, DEVICES = 64, (1, 2, 4, 8)
METHODS = "gossip-sgd,fedavg,ditto,fomo,scool-sbm,scool-mmsbm,scool-attention,sgp,spdb"


def memory(name, count, task, federation, device):
    """Return arguments and temporary values of one device, in units of all models."""
    cls = registry.load("methods", name)
    graph = Ring(reach=2).build(CLIENTS, 0) if cls.topology == "graph" else Graph.empty(CLIENTS)
    weights = metropolis(graph)[0] if cls.topology == "graph" else np.zeros((CLIENTS, 0))
    plan = Plan("fast", 0, Mesh(np.array(device.devices[:count]), ("clients",)), spread=True)
    training = Training(Engine(task, federation, device, plan), cls(lr=0.1, batch_size=4), graph, weights, 0)
    program, label, inputs = training._rounds_program(training.outline(), 1, 3, None)
    always = (training.method, training._tables, training.engine.clients)
    account = training.engine.compile(program, label, *always, *inputs, donate=4)[0].memory_analysis()
    models = CLIENTS * task.size * 4
    return account.argument_size_in_bytes / models, account.temp_size_in_bytes / models


def main():
    """Account for the methods that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=METHODS, help="with commas between")
    args = parser.parse_args()
    device = choose_device("cpu", devices=max(DEVICES))
    federation = small_federation(CLIENTS, size=20)
    task = Task.of(federation, Mlp(hidden=(256, 256)))
    figures = {}
    for name in args.methods.split(","):
        found = {count: memory(name, count, task, federation, device) for count in DEVICES}
        figures[name] = {str(count): {"arguments": a, "temporary": t} for count, (a, t) in found.items()}
        print(name, ", ".join(f"{count}: {a + t:.2f}" for count, (a, t) in found.items()), flush=True)
    publish("mesh-memory", device.label, {"clients": CLIENTS, "unit": "all models", "memory of a device": figures})


if __name__ == "__main__":
    main()
