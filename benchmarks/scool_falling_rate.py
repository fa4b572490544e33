"""Learning rates of SCooL and Ditto on images that are hard to tell apart, constant and falling, by validation score.

    python benchmarks/scool_falling_rate.py --setting groups --device gpu      # two minutes on an H200
    python benchmarks/scool_falling_rate.py --setting groups --tries 3 9       # two of `TRIES`, hours on a CPU

Fashion-MNIST cluttered with parts of other images, shifted and flipped, stands in for photographs: 100 clients with two
classes each (`classes`) or in five groups (`groups`), 450 training and 50 validation images each, crops and flips, 40
rounds of 5 epochs. Test images are not looked at. A falling rate shrinks in every round of the second half.
"""

import argparse
import dataclasses
import time
from typing import Any

import common
import numpy as np
from scool_images import SETTINGS

from coterie.data import load
from coterie.data.public import FashionMnist
from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.learning.task import Task
from coterie.methods.ditto import Ditto
from coterie.methods.scool_attention import ScoolAttention
from coterie.methods.scool_sbm import ScoolSBM
from coterie.models.augment import Augment
from coterie.models.cnn import Cnn

SIDE = 28
CLASSES = {"scool-attention": ScoolAttention, "scool-sbm": ScoolSBM, "ditto": Ditto}
TRIES: tuple[tuple[str, float, bool, dict[str, Any]], ...] = (
    ("scool-attention", 0.01, False, {}),
    ("scool-attention", 0.05, False, {}),
    ("scool-attention", 0.05, True, {}),
    ("scool-attention", 0.1, True, {}),
    ("scool-attention", 0.05, True, {"temperature": 1.0}),
    ("scool-sbm", 0.05, True, {}),
    ("scool-sbm", 0.1, True, {}),
    ("scool-sbm", 0.05, True, {"temperature": 1.0}),
    ("scool-sbm", 0.05, True, {"sparsify_after": 4}),
    ("scool-attention", 0.1, True, {"memory": 0.0}),
    ("scool-sbm", 0.1, True, {"memory": 0.0}),
    ("ditto", 0.05, True, {}),
    ("ditto", 0.1, True, {}),
)


def cluttered(images: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Move every image a little, lay a darker other one behind it, and add noise."""
    count = len(images)

    def shifted(images: np.ndarray, most: int) -> np.ndarray:
        down, right = random.integers(-most, most + 1, (2, count))
        rows, columns = (np.arange(SIDE)[None] - down[:, None]) % SIDE, (np.arange(SIDE)[None] - right[:, None]) % SIDE
        moved: np.ndarray = images[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
        mirrored = random.random(count) < 0.5
        moved[mirrored] = moved[mirrored, :, ::-1]
        return moved

    plain = images.reshape(count, SIDE, SIDE).astype(np.float32) / 255
    front = shifted(plain, 4) * random.uniform(0.6, 1, (count, 1, 1))
    behind = shifted(plain[random.permutation(count)], 10) * random.uniform(0.3, 0.8, (count, 1, 1))
    mixed = np.maximum(front, behind) + 0.08 * random.standard_normal(front.shape)
    return (255 * np.clip(mixed, 0, 1)).astype(np.uint8).reshape(images.shape)


def accuracy(engine: Engine, method: Any, rounds: int) -> float:
    """Train on all clients; return the validation accuracy of the last round in per cent."""
    training, state = common.trained(engine, method, rounds, every=rounds)
    return round(100 * float(training.evaluate(state, rounds)["validation_score"].mean()), 2)


def main() -> None:
    """Train with every learning rate and write a result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", choices=SETTINGS, default="groups")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--tries", type=int, nargs="*", default=range(len(TRIES)), help="numbers of TRIES, from 0")
    parser.add_argument("--serve", default="mixture", help="of SCooL: mixture or validated")
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args()
    device, random, pool = choose_device(asked.device), np.random.default_rng(7), FashionMnist().load()
    pool = dataclasses.replace(pool, x=cluttered(pool.x, random))
    federation = load(
        pool,
        asked.setting,
        clients=asked.clients,
        seed=0,
        samples=asked.samples,
        validation=0.1,
        **SETTINGS[asked.setting],
    )
    federation = dataclasses.replace(federation, test=federation.validation)
    engine = Engine(Task.of(federation, Cnn(), augment=Augment(crop=4, flip=True)), federation, device)
    rows, half = [], max(1, asked.rounds // 2)
    for name, rate, falls, own in (TRIES[number] for number in asked.tries):
        own = own if name == "ditto" else own | {"serve": asked.serve}
        schedule = {"decay": 0.04 ** (1 / half), "decay_after": half} if falls else {}
        started = time.perf_counter()
        method = CLASSES[name](lr=rate, epochs=5, batch_size=10, weight_decay=5e-4, **schedule, **own)
        row = {"method": name, "lr": rate, "falls": falls, **own, "validation": accuracy(engine, method, asked.rounds)}
        rows.append(row)
        print(f"{row} {time.perf_counter() - started:.0f} s", flush=True)
    common.publish(f"scool-falling-rate-{asked.setting}", device.label, {"rows": rows})


if __name__ == "__main__":
    main()
