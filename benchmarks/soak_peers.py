"""Real members of a federation on this machine: kill, cut, fault and watch them for a long time.

    python benchmarks/soak_peers.py                        # all rows, about 5 hours on 2 cores
    python benchmarks/soak_peers.py kill --repeats 3       # one row
    python benchmarks/soak_peers.py long --minutes 5

Rows: equal (simulation = peers, 6 members, 10 rounds, every method), kill (a third of 12 members, half restarted;
as root also a network that is cut in two for 10 seconds), faults (20 % lost, late, twice and in another order), long (8
members for an hour: memory, sockets, threads). Each row writes a dated result; the exit status is 1 if one failed.
"""

import argparse
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from common import publish

from coterie import registry
from coterie.experiment.device import choose_device
from coterie.experiment.interruption import termination
from coterie.experiment.result import Result
from coterie.methods.base import Solved
from coterie.sites.local import LocalFederation

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.namespaces import CutNetwork, can_cut
from support.peer_runs import Watch, differences, simulate, write_federation

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
BEHIND = 3  # rounds within which a member must be back
CUT = 10.0  # seconds
DEADLINE = 10.0
WINDOW = 3  # looks at a process
START = 600.0  # seconds until 12 processes have compiled, on two busy cores


def names(count):
    """Return the names of some members."""
    return [f"site-{i}" for i in range(count)]


# -- simulation = peers ------------------------------------------------------------------------------------------------


def methods_on_a_network():
    """Return the names of all methods that send messages, not samples, in rounds."""
    found = []
    for row in registry.rows("methods"):
        method = registry.load("methods", row.name)
        if method.topology != "none" and method.role != "pooled" and not issubclass(method, Solved):
            found.append(row.name)
    return found


def equal(args, device):
    """Run methods as six processes and as a simulation; every number and byte must be the same."""
    chosen, wrong = args.methods.split(",") if args.methods else methods_on_a_network(), {}
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            try:
                wrong[name] = equal_method(Path(folder), name, device)
            except Exception as error:  # the others go on
                wrong[name] = [f"{type(error).__name__}: {error}"]
        print(f"{name}: {wrong[name] or 'equal'}", flush=True)
    failed = {name: what for name, what in wrong.items() if what}
    return {"methods": len(wrong), "members": 6, "rounds": 10, "failed": failed}, not failed


def equal_method(folder, name, device):
    """Return where a method's numbers differ."""
    graph = {} if registry.load("methods", name).topology != "graph" else {"graph": {"name": "complete"}}
    path = write_federation(folder, names(6), method={"name": name}, run={"rounds": 10}, **graph)
    with LocalFederation(path, folder / "peers") as local:
        local.start()
        watch = Watch(local)
        watch.until(lambda w: len(w.exits) == 6, START)
        failed = [f"{one}: {local.why(one)}" for one in local.names if watch.exits.get(one) != 0]
        folders = [local.folder(one) for one in local.names]
    return failed or differences(folders, simulate(path, folder / "simulation", device))


# -- members die, a network is cut -------------------------------------------------------------------------------------


def kill(args, device):
    """Kill a third of 12 members mid-run, restart half of them; cut the network in two, heal it."""
    rows, cutting = [], can_cut()
    for repeat in range(args.repeats):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(kill_once(Path(folder), random.Random(f"{args.seed}-{repeat}"), args.members, cutting))
        print(f"repeat {repeat}: {rows[-1]}", flush=True)
    good = [row for row in rows if not row["failed"]]
    figures = {
        "members": args.members,
        "killed": args.members // 3,
        "restarted": args.members // 6,
        "network cut": f"{CUT:g} s" if cutting else "not tried: needs root and network namespaces",
        "deadline": DEADLINE,
        "repeats": len(rows),
        "failed": [row["failed"] for row in rows if row["failed"]],
    }
    for key in ("longest_wait", "rounds_behind", "seconds_to_heal"):
        values = [row[key] for row in good if row[key] is not None]
        figures[key] = {"median": statistics.median(values), "most": max(values)} if values else None
    return figures, len(good) == len(rows)


def kill_once(folder, chance, members, cutting):
    """Return what came of one repeat."""
    everybody = names(members)
    settings = {"deadline": DEADLINE, "start_deadline": START}
    path = write_federation(folder, everybody, federation=settings, run={"rounds": 1_000_000, "evaluate_every": 10},
                            graph={"name": "exponential"})  # fmt: skip
    row = {"failed": "", "longest_wait": None, "rounds_behind": None, "seconds_to_heal": None}
    with (CutNetwork if cutting else LocalFederation)(path, folder / "peers", options=["--pace", "1.0"]) as local:
        watch = Waits(local)
        local.start()
        if not watch.until(lambda w: all(w.round(name) >= 3 for name in everybody), START)[0]:
            return row | {"failed": f"no start: {[local.why(name) for name in everybody if watch.round(name) < 3]}"}
        dead = chance.sample(everybody, members // 3)
        local.send(signal.SIGKILL, *dead)
        watch.follow(chance.uniform(1, 5))
        alive, back = [name for name in everybody if name not in dead], dead[: members // 6]
        watch.forget(*dead)
        local.start(*back)
        there = [*alive, *back]
        row["rounds_behind"] = 0
        for name in back:
            if not watch.until(lambda w, name=name: w.round(name) >= 0, START)[0]:
                return row | {"failed": f"{name} did not come back: {local.why(name)}"}
            behind = statistics.median(watch.round(other) for other in alive) - watch.round(name)
            row["rounds_behind"] = max(row["rounds_behind"], behind)
        if row["rounds_behind"] > BEHIND or not watch.until(lambda w: level(w, there), 60)[0]:
            return row | {"failed": f"behind: { {name: watch.round(name) for name in there} }"}
        if cutting:
            local.cut()
            watch.follow(CUT)
            local.heal()
            healed, seconds = watch.until(lambda w: level(w, there), 120)
            row["seconds_to_heal"] = round(seconds, 1)
            if not healed:
                seen = {name: (watch.round(name), len(watch.connected(name))) for name in there}
                return row | {"failed": f"not healed: {seen}"}
        row["longest_wait"] = round(watch.longest, 2)
        if watch.longest > DEADLINE * 1.1 or watch.exits:
            return row | {"failed": f"waited {watch.longest:.1f} s in one round, ended: {watch.exits}"}
    return row


class Waits(Watch):
    """Also notes the longest time that a member waited for others in one round, after its first ones."""

    longest = 0.0

    def _note(self, event):
        before = self.reports.get(event.name)
        super()._note(event)
        after = self.reports.get(event.name)
        if before is not None and after is not None and after is not before and before["round"] >= 3:
            rounds = max(1, after["round"] - before["round"])
            self.longest = max(self.longest, (after["waited"] - before["waited"]) / rounds)


def level(watch, there):
    """Say whether everybody sees everybody and nobody is more than three rounds behind."""
    rounds = [watch.round(name) for name in there]
    seen = all(set(there) - {name} <= set(watch.connected(name)) for name in there)
    return seen and min(rounds) >= 0 and max(rounds) - min(rounds) <= BEHIND


# -- faults ------------------------------------------------------------------------------------------------------------


def faults(args, device):
    """Lose, delay, repeat and reorder messages; nobody may wait forever, and accuracy stays within two points."""
    wrong, scores = [], []
    with tempfile.TemporaryDirectory() as folder:
        clean = faulty_score(Path(folder), None)
    for seed in range(args.seeds):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "faults.toml").write_text(FAULTS.format(seed=seed))
            score = faulty_score(root, root / "faults.toml")
        if isinstance(score, str):
            wrong.append(f"seed {seed}: {score}")
        else:
            scores.append(score)
            if clean - score > 0.02:
                wrong.append(f"seed {seed}: accuracy {score:.3f}, without faults {clean:.3f}")
        print(f"seed {seed}: {score}", flush=True)
    figures = {"seeds": args.seeds, "members": 6, "clean": clean, "failed": wrong}
    figures["lowest"] = min(scores, default=None)
    return figures, not wrong


def faulty_score(root, file):
    """Return the mean accuracy of a run with faults, or what went wrong."""
    options = ["--faults", str(file)] if file else []
    path = write_federation(root, names(6), federation={"deadline": 20.0}, run={"rounds": 30},
                            graph={"name": "exponential"})  # fmt: skip
    with LocalFederation(path, root / "peers", options=options) as local:
        local.start()
        watch = Watch(local)
        if not watch.until(lambda w: len(w.exits) == 6, START)[0]:
            return f"deadlock: {watch.reports}"
        failed = {name: local.why(name) for name in local.names if watch.exits[name]}
        if failed:
            return f"ended: {failed}"
        results = [Result.read(local.folder(name)) for name in local.names]
        return statistics.mean(float(result.final["test_score"][0]) for result in results)


# -- a long run --------------------------------------------------------------------------------------------------------


def long(args, device):
    """Watch memory, open files and threads of 8 members for an hour."""
    everybody, samples = names(8), []
    with tempfile.TemporaryDirectory() as folder:
        path = write_federation(Path(folder), everybody, federation={"start_deadline": START},
                                run={"rounds": 100_000_000, "evaluate_every": 1000})  # fmt: skip
        with LocalFederation(path, Path(folder) / "peers", options=["--pace", str(args.pace)]) as local:
            watch = Watch(local)
            local.start()
            started = watch.until(lambda w: all(w.round(name) >= 20 for name in everybody), START)[0]
            end = time.monotonic() + 60 * args.minutes
            while started and time.monotonic() < end and not watch.exits:
                samples.append({name: of_process(local.processes[name].pid) for name in everybody})
                watch.follow(min(30.0, 60 * args.minutes / 20))
            rounds, exits = min(watch.round(name) for name in everybody), dict(watch.exits)
    warm = samples[len(samples) // 5] if samples else {}  # a fifth of the time to fill caches
    growth = {name: samples[-1][name]["memory"] / warm[name]["memory"] - 1 for name in warm}
    early, late = samples[len(samples) // 5 :][:WINDOW], samples[-WINDOW:]  # a file may be open at one moment
    leaks = [
        f"{what} of {name}"
        for name in warm
        for what in ("files", "threads")
        if min(one[name][what] for one in late) > max(one[name][what] for one in early)
    ]
    failed = [name for name, share in growth.items() if share > 0.05] + leaks + list(exits)
    figures = {"members": 8, "minutes": args.minutes, "rounds": rounds, "pace": args.pace, "failed": failed}
    if samples:
        first, last = (one[everybody[0]] for one in (warm, samples[-1]))
        figures |= {"growth of memory": max(growth.values()), "one member, warm": first, "at the end": last}
    return figures, bool(samples) and not failed


def of_process(number):
    """Return memory in bytes, and how many files and threads a process has."""
    root = Path(f"/proc/{number}")
    memory = int((root / "statm").read_text().split()[1]) * 4096
    return {
        "memory": memory,
        "files": len(list((root / "fd").iterdir())),
        "threads": len(list((root / "task").iterdir())),
    }


ROWS = {"equal": equal, "kill": kill, "faults": faults, "long": long}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"default: all of {', '.join(ROWS)}")
    parser.add_argument("--repeats", type=int, default=20, help="of kill")
    parser.add_argument("--members", type=int, default=12, help="of kill")
    parser.add_argument("--seeds", type=int, default=50, help="of faults")
    parser.add_argument("--minutes", type=float, default=60, help="of long")
    parser.add_argument("--pace", type=float, default=0.2, help="seconds per round of long, at least")
    parser.add_argument("--methods", default="", help="of equal: some names instead of all methods")
    parser.add_argument("--seed", type=int, default=0, help="of kill")
    args = parser.parse_args()
    if unknown := set(args.rows) - ROWS.keys():
        parser.error(f"unknown rows: {', '.join(unknown)}")
    device, all_good = choose_device("cpu", cores=1), True
    for name in args.rows or ROWS:
        began = time.monotonic()
        with termination():  # whatever ends this process, it takes its members with it
            figures, good = ROWS[name](args, device)
        publish(f"soak-peers-{name}", device.label, {"minutes_taken": (time.monotonic() - began) / 60, **figures})
        all_good &= good
    sys.exit(0 if all_good else 1)


if __name__ == "__main__":
    main()
