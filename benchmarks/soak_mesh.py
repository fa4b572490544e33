"""One device and a mesh of eight: does every method give the same models, losses, metrics and bytes?

    python benchmarks/soak_mesh.py                                # all methods, both modes, both precisions
    python benchmarks/soak_mesh.py --methods fedavg,scool-sbm --modes exact --precisions float32
    python benchmarks/soak_mesh.py --processes 2                  # the devices belong to two processes

Seven clients on eight virtual devices of a CPU (or on `--devices`), 10 rounds: one row of the mesh has no client.
Models, losses and metrics may differ by rounding: 1e-6 of the largest value in float32, 1e-12 in float64. (In
exact mode float32 has agreed to the last bit.) Bytes must be equal. Writes a dated result; the exit status is 1 if a
method failed.
"""

import argparse
import subprocess
import sys

import jax
import numpy as np
from common import publish
from jax.sharding import Mesh

from coterie import registry
from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.experiment.job import precision
from coterie.learning.task import Task
from coterie.methods.base import Solved
from coterie.peers.local import Plan
from coterie.processes.address import address_of, free_port
from coterie.processes.meeting import current, told
from coterie.testing.case import Case

ROUNDS, BLOCK = 10, 5
ALLOWED = {"float32": 1e-6, "float64": 1e-12}
SETTINGS = {"fedbn": {"personal": ("bias",)}}  # the small model has no normalisation layers


def outcome(case, engine):
    """Train; returns models, losses, metrics and what was sent."""
    training = case.training(engine=engine)
    state, opening = training.init()
    blocks, done = [opening], 0
    while done < ROUNDS:
        count = training.rounds_to_stage(done + 1, min(BLOCK, ROUNDS - done))
        state, block = training.advance(state, done + 1, count)
        blocks.append(block)
        done += count
        metrics = training.evaluate(state, done)
        state, _ = training.next_stage(state, done)
    models = engine.fetched(engine.place_kept(training.models(state, done)))
    losses = np.concatenate([block.loss for block in blocks])
    return (models, losses, metrics), [block.traffic for block in blocks]


def distance(ours, theirs):
    """Return the largest difference of two trees of arrays, relative to the largest value of each array.

    What is not finite must be the same in both (a metric that nobody has is NaN), or they are infinitely far apart.
    """
    largest = 0.0
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.shape == b.shape, f"an array is {a.shape} on the mesh and {b.shape} on one device"
        finite = np.isfinite(b)
        if not np.array_equal(finite, np.isfinite(a)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            return float("inf")
        if finite.any():
            largest = max(largest, float(np.abs(a - b)[finite].max() / max(np.abs(b)[finite].max(), 1e-30)))
    return largest


def compared(name, mode, dtype, device):
    """Return how far the mesh is from one device and whether both sent the same; None in all but the first process."""
    with precision(dtype):
        case = Case(name, **SETTINGS.get(name, {}))
        case.task = Task.of(case.federation, case.model, dtype=np.dtype(dtype))
        mesh = Mesh(np.array(device.devices), ("clients",))

        def under(plan):
            return Engine(case.task, case.federation, device, plan)

        ours, sent = outcome(case, under(Plan(mode, 0, mesh, spread=True)))
        if current() is not None and current().index:
            return None
        theirs, sent_by_one = outcome(case, under(Plan(mode)))
        same = all(map(np.array_equal, jax.tree.leaves(sent), jax.tree.leaves(sent_by_one)))
        return distance(ours, theirs), same


def start(processes):
    """Run this program in several processes, of which the first one speaks; returns its exit status."""
    meeting = f"127.0.0.1:{free_port()}"
    command = [sys.executable, *sys.argv, "--coordinator", meeting]
    others = [
        subprocess.Popen([*command, "--process", str(index)], stdout=subprocess.DEVNULL)
        for index in range(1, processes)
    ]
    status = subprocess.run([*command, "--process", "0"], check=False).returncode
    return max([status, *(other.wait(60) for other in others)])


def main():
    """Compare what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", help="with commas between; default all that train in rounds")
    parser.add_argument("--modes", default="exact,fast")
    parser.add_argument("--precisions", default="float32,float64")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--part", default="1/1", help="of the methods, for example 2/4")
    parser.add_argument("--coordinator", help=argparse.SUPPRESS)
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.processes > 1 and args.process is None:
        return start(args.processes)
    address = None if args.process is None else address_of(args.coordinator, args.processes, args.process)
    with told():
        return compare(args, choose_device("cpu", devices=args.devices, address=address))


def compare(args, device):
    """Compare one method after another; returns the exit status."""
    every = {row.name: registry.load("methods", row.name) for row in registry.rows("methods")}
    chosen = args.methods.split(",") if args.methods else [n for n, m in every.items() if not issubclass(m, Solved)]
    part, parts = map(int, args.part.split("/"))
    chosen = chosen[part - 1 :: parts]
    figures, failed = {}, []
    for name in chosen:
        for mode in args.modes.split(","):
            found = {dtype: compared(name, mode, dtype, device) for dtype in args.precisions.split(",")}
            if None in found.values():
                continue
            for dtype, (apart, same) in found.items():
                row = f"{name} {mode} {dtype}"
                if not same or apart > ALLOWED[dtype]:
                    failed.append(row)
                figures.setdefault(name, {})[f"{mode} {dtype}"] = apart
                print(f"{row}: {apart:.1e}, bytes {'equal' if same else 'differ'}", flush=True)
    if args.process:
        return 0
    counts = {"devices": args.devices, "processes": args.processes, "rounds": ROUNDS}
    name = "soak-mesh" if args.processes == 1 else f"soak-mesh-{args.processes}-processes"
    publish(name, device.label, {**counts, "distance": figures, "failed": failed})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
