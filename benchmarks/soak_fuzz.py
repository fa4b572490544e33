"""Damage every kind of file and message at random, and see whether a reader ever answers with anything but a sentence.

    python benchmarks/soak_fuzz.py                        # an hour
    python benchmarks/soak_fuzz.py --minutes 2 --seed 7
    python benchmarks/soak_fuzz.py --inputs 100000        # so many for each reader, however long it takes
    python benchmarks/soak_fuzz.py --processes 16         # side by side, each with a seed of its own
    python benchmarks/soak_fuzz.py --inputs 100000 --add benchmarks/results/2026-11-16-soak-fuzz-cpu.json --seed 200
    python benchmarks/soak_fuzz.py --only parquet

A reader returns, or raises `CoterieError` with one sentence. Any other exception, a hang, a file outside of the working
folder, a program that is started or code of the folder that is run is a failure: the result file has the first input
of every kind of failure. Where Atheris is installed, `--atheris READER` lets it guide the damage by coverage instead.
"""

import argparse
import gc
import json
import math
import multiprocessing
import os
import sys
import tempfile
import time
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

from common import publish

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.fuzzing import Edit, Guard, Reader, damaged, draw_edits
from support.readers import every_reader, trained

MEMORY = 3 << 30  # bytes that readers may take: asking for more is a failure, not the end of the machine


class Tally:
    """What the readers answered.

    Attributes:
        inputs: how many inputs each reader has had.
        failures: how many failures of each kind.
        first: the first failure of each kind, with the input that shows it.
    """

    def __init__(self) -> None:
        self.inputs: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def add(self, reader: Reader, seed: int, edits: list[Edit], failure: str | None) -> None:
        """Count an answer; of the first failure of its kind, the number of the seed and the edits are kept."""
        self.inputs[reader.name] += 1
        if failure is not None:
            kind = f"{reader.name}: {failure.partition(': ')[0]}"
            self.failures[kind] += 1
            if kind not in self.first:
                self.first[kind] = f"{failure} | seed {seed}, edits {edits}"
                print(f"{kind}: {failure}", flush=True)

    def update(self, other: "Tally") -> None:
        """Add what another process has counted."""
        self.inputs.update(other.inputs)
        self.failures.update(other.failures)
        self.first = other.first | self.first


def soak(
    readers: list[Reader], guard: Guard, random: Random, asked: Callable[[Reader], float], seconds: float
) -> Tally:
    """Give readers damaged inputs in turn, until each had all of them, or the time is over."""
    tally, began, shown = Tally(), time.monotonic(), time.monotonic()
    while True:
        todo = [reader for reader in readers if tally.inputs[reader.name] < asked(reader)]
        if not todo or time.monotonic() - began > seconds:
            return tally
        for reader in todo:
            for _ in range(max(1, round(20 * reader.weight))):
                seed, edits = random.randrange(len(reader.seeds)), draw_edits(random)
                data = reader.wrap(damaged(reader.seeds[seed], edits))
                tally.add(reader, seed, edits, guard.failure(reader, data))
        if time.monotonic() - shown > 60:
            shown = time.monotonic()
            print(f"{tally.inputs.total()} inputs, {len(tally.failures)} kinds of failures", flush=True)


def guided(reader: Reader, guard: Guard, seconds: float) -> None:
    """Let Atheris damage the seeds of a reader, guided by what code they reach; it ends at the first failure."""
    import atheris

    def once(data: bytes) -> None:
        failure = guard.failure(reader, reader.wrap(data))
        if failure is not None:
            raise AssertionError(failure)

    for function in gc.get_objects():  # ours only: all of JAX and pandas would take minutes
        if isinstance(function, types.FunctionType) and str(function.__module__).startswith("coterie"):
            atheris.instrument_func(function)
    atheris.Setup([sys.argv[0], f"-max_total_time={round(seconds)}"], once)
    atheris.Fuzz()


def _limit_memory() -> None:
    """Limit what readers may take; what JAX has reserved by now depends on the number of cores."""
    pages = Path("/proc/self/statm")
    if pages.exists():
        import resource

        taken = int(pages.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


def fuzz(args: argparse.Namespace, seed: int, earlier: dict[str, int]) -> Tally:
    """Train a small comparison in a temporary folder, and give every reader damaged inputs there."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "folder"
        folder.mkdir()
        os.chdir(folder)
        wanted = (args.atheris,) if args.atheris else tuple(args.only.split(","))
        readers = [reader for reader in every_reader(trained(Path(place))) if reader.name.startswith(wanted)]
        _limit_memory()
        guard = Guard(folder)
        broken = {
            reader.name: guard.failure(reader, reader.wrap(whole)) for reader in readers for whole in reader.seeds
        }
        if any(broken.values()):
            sys.exit(f"inputs that are whole are not read: {broken}")
        if args.atheris:
            guided(readers[0], guard, 60 * (args.minutes or 60))

        def asked(reader: Reader) -> float:
            each = math.inf if args.inputs is None else args.inputs * reader.weight
            return (each - earlier.get(reader.name, 0)) / args.processes

        minutes = args.minutes or (60 if args.inputs is None else math.inf)
        return soak(readers, guard, Random(seed), asked, 60 * minutes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, help="an hour, or as long as --inputs take")
    parser.add_argument("--inputs", type=int, help="for each reader (fewer for slow ones, see the table of readers)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--add", type=Path, help="a result file whose inputs count, too: give another seed than there")
    parser.add_argument("--only", default="", help="readers whose name begins with one of these, with commas between")
    parser.add_argument("--atheris", metavar="READER")
    args = parser.parse_args()
    began, tally = time.monotonic(), Tally()
    earlier = json.loads(args.add.read_text()) if args.add else {"seeds": [], "inputs": {}}
    seeds = list(range(args.seed, args.seed + args.processes))
    if set(seeds) & set(earlier["seeds"]):
        sys.exit(f"--seed: {args.add} has had some of the seeds {seeds}, so these inputs would not be new")
    tasks = [(args, seed, earlier["inputs"]) for seed in seeds]
    if len(tasks) == 1:
        tally = fuzz(*tasks[0])
    else:
        with multiprocessing.get_context("spawn").Pool(len(tasks)) as pool:
            for part in pool.starmap(fuzz, tasks, chunksize=1):
                tally.update(part)
    tally.inputs.update(earlier["inputs"])
    figures = {
        "seeds": earlier["seeds"] + seeds,
        "inputs": dict(tally.inputs),
        "failures": {kind: [count, tally.first[kind]] for kind, count in tally.failures.most_common()},
        "seconds": round(time.monotonic() - began),
    }
    publish("soak-fuzz", "cpu", figures)
    sys.exit(1 if tally.failures else 0)


if __name__ == "__main__":
    main()
