"""Messages are lost, late, twice and in another order: nobody waits forever, nothing late is used, accuracy stays.

Every run is repeated in a simulation from the record of what arrived, and must give the same models.
"""

import statistics
import tempfile
from collections import Counter
from pathlib import Path

from coterie.experiment.result import Result
from coterie.sites.counting import read_counts
from coterie.sites.replay import replay
from soak_rows import START, names
from support.group import Group
from support.peer_runs import write_federation

__all__ = ["figures", "run"]

FAULTS = """seed = {seed}
[drop]
rate = 0.2
[delay]
rate = 0.2
late = 3
[duplicate]
rate = 1.0
[reorder]
rate = 1.0
"""
CLEAN, POINTS = "clean", 0.02  # accuracy that may be lost
ROUNDS = 30


def run(args):
    """Run a federation with other faults for every seed, and once without any."""
    each = {}
    with tempfile.TemporaryDirectory() as keys, Group(keys, names(args.members or 6)) as group:
        for seed in (CLEAN, *range(args.first, args.first + args.seeds)):
            with tempfile.TemporaryDirectory() as folder:
                each[str(seed)] = {"members": len(group.names), **one_run(Path(folder), group, seed)}
            print(f"seed {seed}: {each[str(seed)]}", flush=True)
    return each


def one_run(root, group, seed):
    """Return the mean accuracy of a run, how far its replay is from it, and what went wrong."""
    file = None
    if seed != CLEAN:
        file = root / "faults.toml"
        file.write_text(FAULTS.format(seed=seed))
    path = write_federation(root, group.names, federation={"deadline": 20.0}, run={"rounds": ROUNDS},
                            graph={"name": "exponential"})  # fmt: skip
    folders, wrong = group.run(path, root / "peers", faults=file, seconds=START)
    if wrong:
        return {"score": None, "replayed": None, "failed": f"ended: {wrong}"}
    scores = [float(Result.read(folder).final["test_score"][0]) for folder in folders]
    different = [agreement.difference for agreement in replay(folders)]
    refused = Counter()
    for folder in folders:
        refused.update({one["reason"]: one["messages"] for one in read_counts(folder)["refused"]})
    failed = "" if all(difference == 0.0 for difference in different) else f"the replay differs: {different}"
    return {
        "score": statistics.mean(scores),
        "replayed": max(different, default=None),
        "refused": dict(refused),  # what came late or once more was offered to the program, and not used
        "failed": failed,
    }


def figures(each):
    """Sum up: accuracy within two points of the run without faults, every replay equal to its run."""
    clean = each.get(CLEAN, {}).get("score")
    seeds = {seed: one for seed, one in each.items() if seed != CLEAN}
    wrong = [f"seed {seed}: {one['failed']}" for seed, one in seeds.items() if one["failed"]]
    scores = {seed: one["score"] for seed, one in seeds.items() if one["score"] is not None}
    if clean is not None:
        wrong += [
            f"seed {seed}: accuracy {score:.3f}, without faults {clean:.3f}"
            for seed, score in scores.items()
            if clean - score > POINTS
        ]
    summed = {
        "seeds": len(seeds),
        "members": max((one["members"] for one in each.values()), default=0),
        "rounds": ROUNDS,
        "clean": clean,
        "lowest": min(scores.values(), default=None),
        "replays equal": sum(one["replayed"] == 0.0 for one in seeds.values()),
        "refused": dict(sum((Counter(one.get("refused", {})) for one in seeds.values()), Counter())),
        "failed": wrong,
    }
    return summed, bool(seeds) and clean is not None and not wrong
