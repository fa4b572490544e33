"""Kill real runs at random moments, hundreds of times, and fill their disk, to see whether anything is lost.

    python benchmarks/soak_kill.py                 # 200 kills, about 15 minutes on 2 cores
    python benchmarks/soak_kill.py --kills 20 --seed 7

Each run is killed several times and resumed to its end, and must then equal an undisturbed run: models, metrics, graph
and ledger byte for byte. As root, one more run fills a small file system and continues once there is room.
"""

import argparse
import concurrent.futures
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from common import publish

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.killing import CASES, ROUNDS, Moment, Run, differences, rounds_of

IN_A_ROW = 6
TMPFS = 400  # kilobytes: full long before the end


def moment(chance: random.Random, length: float) -> Moment:
    """Draw when to kill: at any time, between two rounds, or near the end."""
    kind = chance.random()
    if kind < 0.3:
        return Moment(0, chance.uniform(0, length))
    if kind < 0.85:
        return Moment(chance.randint(1, ROUNDS), chance.uniform(0, 0.1))
    return Moment(ROUNDS, chance.uniform(0, 0.5))


def progress(run: Run) -> str:
    """Describe how far a run had come when it was killed, from the files it left."""
    if not (run.folder / "config.toml").exists():
        return "before its folder was made"
    if (run.folder / "summary.json").exists():
        return "after its end, before the report"
    steps = [int(file.stem[5:]) for file in (run.folder / "checkpoints").glob("step-*.safetensors")]
    if not steps:
        return "before the first checkpoint"
    return "after the last checkpoint" if max(steps) == ROUNDS else "between two checkpoints"


def one_run(case: str, place: Path, cache: Path, seed: str, kills: int, length: float) -> tuple[Run, Counter]:
    """Kill a run up to `kills` times, then let it end; returns it and its progress at every kill."""
    run, chance, hits = Run(case, place, cache), random.Random(seed), Counter()
    while hits.total() < kills and not (run.folder / "summary.json").exists():
        if run.kill(moment(chance, length)):
            hits[progress(run)] += 1
    run.finish()
    return run, hits


def full_disk(place: Path, cache: Path, expected: dict[str, bytes]) -> str:
    """Run on a file system that fills up, then enlarge it and continue."""
    case = next(iter(CASES))
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o"]
    if os.geteuid() or subprocess.run([*mount, f"size={TMPFS}k", "tmpfs", place], capture_output=True).returncode:
        return "not tried: mounting a tmpfs needs root"
    try:
        run = Run(case, place, cache)
        with run.start() as process:
            _, errors = process.communicate()
        sentence = errors.startswith("coterie: the disk is full while writing") and errors.count("\n") == 1
        if process.returncode != 2 or not sentence:
            return f"FAILED: exit status {process.returncode}: {errors}"
        subprocess.run([*mount, "remount,size=64m", place], check=True)
        first = rounds_of(run.finish())[0]
        wrong = differences(run.contents(), expected)
        return f"FAILED: {wrong} differ" if wrong else f"stopped with one sentence, went on in round {first}: identical"
    finally:
        subprocess.run(["umount", place], check=True)


def commit() -> str:
    """Return the version of the source."""
    words = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=os.cpu_count(), help="runs at the same time")
    args = parser.parse_args()
    began, hits, ended, lost = time.monotonic(), Counter(), 0, []
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(args.at_once) as pool:
        place, cache = Path(folder), Path(folder) / "programs"
        expected, length = {}, 0.0
        for case in CASES:
            undisturbed = Run(case, place / case, cache)
            undisturbed.finish()
            expected[case] = undisturbed.contents()
            start = time.monotonic()
            again = Run(case, place / f"{case}-again", cache)
            again.finish()
            length = max(length, time.monotonic() - start)
            lost += [f"{case} repeated: {name}" for name in differences(again.contents(), expected[case])]
        print(f"a run of {ROUNDS} rounds takes {length:.1f} s; {args.kills} kills follow", flush=True)
        while hits.total() < args.kills:
            left = args.kills - hits.total()
            plan = []
            for number in range(ended, ended + args.at_once):
                seed = f"{args.seed}-{number}"
                count = min(1 + random.Random(seed).randrange(IN_A_ROW), left)
                left -= count
                if count:
                    case = list(CASES)[number % len(CASES)]
                    plan.append(pool.submit(one_run, case, place / str(number), cache, seed, count, length))
            for future in plan:
                run, kills = future.result()
                case = list(CASES)[ended % len(CASES)]
                lost += [f"{case} {run.folder}: {name}" for name in differences(run.contents(), expected[case])]
                hits += kills
                ended += 1
            print(f"{hits.total()} kills, {ended} runs ended, {len(lost)} files differ", flush=True)
        disk = full_disk(place / "small", cache, expected[next(iter(CASES))])
        device = json.loads((undisturbed.folder / "summary.json").read_text())["device"]
    figures = {
        "commit": commit(),
        "kills": hits.total(),
        "killed": dict(hits.most_common()),
        "runs_compared": ended,
        "files_compared_each": {case: len(files) for case, files in expected.items()},
        "files_that_differ": lost,
        "full_disk": disk,
        "seconds": round(time.monotonic() - began),
    }
    publish("soak-kill", device, figures)
    sys.exit(1 if lost or disk.startswith("FAILED") else 0)


if __name__ == "__main__":
    main()
