"""SCooL at the size of its paper: 100 clients, CIFAR's shape, 100 rounds of 5 epochs, batches of 10.

    python benchmarks/scool.py --device gpu
    python benchmarks/scool.py --device gpu --methods scool-sbm
    python benchmarks/scool.py --device gpu --e-step          # the SBM's E-step for 1,000 clients and 10 blocks

As in `coterie reproduce scool --dataset cifar10`, a client has 450 images to train on (225 steps a round), 50 for
validation and 2,000 to be tested on, and is evaluated every 5 rounds. Wall time of a whole run, evaluations included:
`cold` with nothing compiled before, `warm` with the programs of the first run; `compile` is the time in which the run
waits for programs, most of which are compiled in threads (`--in-turn`: none). Training alone for as many steps shows
what learning the graph costs. Data are random: only time is measured. (The authors state about a day for the
experiment on a GTX 1080 Ti.)
"""

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import best_of, federation, publish, trained

from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.experiment.training import Training
from coterie.learning.task import Task
from coterie.methods.local import Local
from coterie.methods.scool_attention import ScoolAttention
from coterie.methods.scool_sbm import ScoolSBM
from coterie.models.cnn import Cnn
from coterie.numerics.blocks import sbm

EVERY = 5  # rounds between two evaluations
METHODS = {"scool-sbm": ScoolSBM, "scool-attention": ScoolAttention, "local": Local}


def whole_run(engine: Engine, method: Any, rounds: int) -> dict[str, Any]:
    """Train as `coterie run` does, from the start to the last evaluation."""
    before, start, evaluations = dict(engine.seconds), time.perf_counter(), 0.0
    after = [before["program"]]

    def evaluate(training: Training, state: Any, done: int, block: Any) -> None:
        nonlocal evaluations
        if done % EVERY == 0:
            so_far = engine.seconds["program"]
            training.evaluate(state, done)
            evaluations += engine.seconds["program"] - so_far
        after.append(engine.seconds["program"])

    trained(engine, method, rounds, every=EVERY, after=evaluate)
    spent = {name: round(engine.seconds[name] - before[name], 1) for name in ("compile", "program")}
    whole = {"seconds": round(time.perf_counter() - start, 1), **spent, "of which evaluation": round(evaluations, 1)}
    return whole | {"blocks": np.diff(after).round(2).tolist()}  # the first one with the first models


def e_step(clients: int, blocks: int) -> float:
    """Time one inference with default sweeps."""
    random = np.random.default_rng(0)
    group = random.integers(0, blocks, clients)
    losses = np.where(group[:, None] == group, 0.3, 3.0) + 0.1 * random.random((clients, clients))
    ell = jnp.asarray(1.0 - losses, jnp.float32)
    known = jnp.asarray(~np.eye(clients, dtype=bool))
    infer = jax.jit(lambda ell, known, key: sbm.infer(ell, known, blocks, key))
    return best_of(10, lambda: jax.block_until_ready(infer(ell, known, jax.random.key(0))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--methods", nargs="*", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--e-step", action="store_true", help="only the SBM's E-step")
    parser.add_argument("--in-turn", action="store_true", help="compile every program when it is needed, none ahead")
    args = parser.parse_args()
    if args.in_turn:
        Engine.compiles_aside = property(lambda self: False)
    device = choose_device(args.device)
    figures: dict[str, Any] = {}
    with jax.default_device(device.devices[0]):
        figures["e_step_ms_1000_clients_10_blocks"] = round(1e3 * e_step(1000, 10), 2)
    if not args.e_step:
        data = federation(args.clients, 450, (3, 32, 32), 10, held_out=(50, 2000))
        engine = Engine(Task.of(data, Cnn()), data, device)
        for name in args.methods:
            method = METHODS[name](lr=0.01, batch_size=10, epochs=5, weight_decay=5e-4)
            figures[name] = {which: whole_run(engine, method, args.rounds) for which in ("cold", "warm")}
            print(name, figures[name], flush=True)
    publish("scool", device.label, figures)


if __name__ == "__main__":
    main()
