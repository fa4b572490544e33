"""Eight members for an hour: memory, open files and threads of each."""

import tempfile
import time
from pathlib import Path

from coterie.sites.local import LocalFederation
from soak_rows import START, names
from support.peer_runs import Watch, write_federation

__all__ = ["figures", "run"]

GROWTH = 0.05  # of memory, from a fifth of the time to its end
WINDOW = 3  # looks at a process


def run(args):
    """Watch a federation; returns one entry, with the looks at its processes."""
    everybody, samples = names(args.members or 8), []
    with tempfile.TemporaryDirectory() as folder:
        path = write_federation(Path(folder), everybody, federation={"start_deadline": START},
                                run={"rounds": 100_000_000, "evaluate_every": 1000})  # fmt: skip
        with LocalFederation(path, Path(folder) / "peers", options=["--pace", str(args.pace)]) as local:
            watch = Watch(local)
            local.start()
            started = watch.until(lambda w: all(w.round(name) >= 20 for name in everybody), START)[0]
            began = time.monotonic()
            while started and time.monotonic() < began + 60 * args.minutes and not watch.exits:
                samples.append({name: of_process(local.processes[name].pid) for name in everybody})
                watch.follow(min(30.0, 60 * args.minutes / 20))
            minutes = (time.monotonic() - began) / 60
            rounds, exits = min(watch.round(name) for name in everybody), dict(watch.exits)
    return {
        str(args.first): {"minutes": minutes, "pace": args.pace, "rounds": rounds, "exits": exits, **grown(samples)}
    }


def grown(samples):
    """Return how much memory the processes have more than after a fifth of the time, and what was left open."""
    if len(samples) < 2 * WINDOW:
        return {"growth": {}, "leaks": ["too few looks at the processes"], "first": {}, "last": {}}
    early, late = samples[len(samples) // 5 :][:WINDOW], samples[-WINDOW:]  # a file may be open at one moment
    warm = early[0]
    leaks = [
        f"{what} of {name}"
        for name in warm
        for what in ("files", "threads")
        if min(one[name][what] for one in late) > max(one[name][what] for one in early)
    ]
    growth = {name: samples[-1][name]["memory"] / warm[name]["memory"] - 1 for name in warm}
    return {"growth": growth, "leaks": leaks, "first": warm, "last": samples[-1]}


def of_process(number):
    """Return memory in bytes, and how many files and threads a process has."""
    root = Path(f"/proc/{number}")
    return {
        "memory": int((root / "statm").read_text().split()[1]) * 4096,
        "files": len(list((root / "fd").iterdir())),
        "threads": len(list((root / "task").iterdir())),
    }


def figures(each):
    """Sum up; of several runs each must be long enough by itself."""
    failed = []
    for one in each.values():
        failed += one["leaks"] + [f"{name} ended" for name in one["exits"]]
        failed += [f"memory of {name}: {share:+.1%}" for name, share in one["growth"].items() if share > GROWTH]
    summed = {
        "members": max((len(one["growth"]) for one in each.values()), default=0),
        "minutes": {number: round(one["minutes"], 1) for number, one in each.items()},
        "rounds": {number: one["rounds"] for number, one in each.items()},
        "growth of memory": max((share for one in each.values() for share in one["growth"].values()), default=None),
        "failed": failed,
    }
    return summed, bool(each) and not failed
