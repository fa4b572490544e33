"""FedAvg through coterie, with its own choice of how clients are batched: rounds as `coterie run` does them."""

import tempfile
from pathlib import Path

import jax
import numpy as np
import workload
from safetensors.numpy import save_file

import coterie
from coterie.data.clients import Federation, stack
from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.experiment.training import Training
from coterie.graphs.graph import Graph
from coterie.learning.task import Task
from coterie.methods.fedavg import FedAvg
from coterie.models.cnn import Cnn
from coterie.models.mlp import Mlp
from coterie.models.naming import names
from coterie.models.start import starting_from
from coterie.numerics import tree

MLP_NAMES = {"fc1": "layers.0", "fc2": "layers.1"}


def training_of(work: workload.Workload, device: str, seed: int) -> Training:
    """Return the training of a workload, from its first weights."""
    place = choose_device(device)
    clients = range(work.clients)
    train = stack([(x, y.astype(np.int32)) for x, y in zip(work.x, work.y, strict=True)])
    # Scores are taken elsewhere, from the final weights, so one sample for the others will do.
    one = stack([(work.x_test[:1], work.y_test[:1].astype(np.int32)) for _ in clients])
    federation = Federation(tuple(f"client-{i}" for i in clients), train, one, one, "classification", workload.CLASSES)
    model = Cnn() if work.convolutional else Mlp(hidden=(64,))
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "first.safetensors"
        save_file({_ours(name, work): value for name, value in work.weights.items()}, first)
        build = starting_from(lambda key: model.build(work.x.shape[2:], workload.CLASSES, key), first)
        module = build(jax.random.key(0))
    engine = Engine(Task.of(federation, module), federation, place)
    method = FedAvg(lr=work.lr, batch_size=work.batch, epochs=work.epochs)
    return Training(engine, method, Graph.empty(work.clients), np.zeros((work.clients, 0)), seed)


def _ours(name: str, work: workload.Workload) -> str:
    layer, _, kind = name.partition(".")
    return name if work.convolutional else f"{MLP_NAMES[layer]}.{kind}"


def train(work: workload.Workload, device: str, clock: workload.Clock, seed: int = 0) -> dict[str, np.ndarray]:
    """Run all rounds, and return the final weights under the workload's names."""
    training = training_of(work, device, seed)
    state, _ = training.init()
    clock.mark()
    for block in range(work.blocks):
        state, _ = training.advance(state, 1 + block * work.block, work.block)
        jax.block_until_ready(state)
        clock.mark()
    models = tree.for_each(training.models(state, 1), work.clients)
    found = {name: np.asarray(value[0]) for name, value in names(models.params)}
    return {name: found[_ours(name, work)] for name in work.weights}


def main() -> None:
    args = workload.arguments(__doc__)
    software = f"coterie {coterie.__version__}, JAX {jax.__version__}"
    for file in args.workloads:
        work, clock = workload.read(file, args.block), workload.Clock()
        # Another order of the samples each time, as in the other programs: so accuracies show what chance does.
        weights = train(work, args.device, clock, seed=int(np.random.default_rng().integers(2**31)))
        hardware = choose_device(args.device).label
        workload.report(args, file, work, clock, weights, software=software, hardware=hardware)


if __name__ == "__main__":
    main()
