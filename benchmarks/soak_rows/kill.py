"""A third of the members is killed, half of those come back; as root also: the network is cut in two and healed.

One federation goes through all repeats: after each one the rest of the dead is started again, too. With --only cut or
--only kill a repeat does one of both: starting processes takes many cores, cutting a network takes root.
"""

import random
import signal
import statistics
import tempfile
from pathlib import Path

from coterie.sites.local import LocalFederation
from soak_rows import START, names
from support.namespaces import CutNetwork, can_cut
from support.peer_runs import Watch, write_federation

__all__ = ["figures", "level", "run"]

BEHIND = 3  # rounds within which a member must be back
CUT = 10.0  # seconds
DEADLINE = 10.0
BACK = 180.0  # seconds until all are together again


def run(args):
    """Return what came of each repeat; a federation that fails is replaced by another one."""
    each, cutting, killing = {}, args.only != "kill" and can_cut(), args.only != "cut"
    print(f"killing: {killing}; cutting the network: {cutting or 'no network namespaces here'}", flush=True)
    todo = list(range(args.first, args.first + args.repeats)) if cutting or killing else []
    while todo:
        with tempfile.TemporaryDirectory() as folder:
            done = until_failure(Path(folder), args.members or 12, todo, cutting, killing)
        each |= done
        todo = todo[len(done) :]
    return each


def until_failure(folder, members, todo, cutting, killing):
    """Start a federation and do repeats until one fails, or all are done."""
    everybody, each = names(members), {}
    path = write_federation(
        folder,
        everybody,
        federation={"deadline": DEADLINE, "start_deadline": START},
        run={"rounds": 1_000_000, "evaluate_every": 10},
        graph={"name": "exponential"},
    )
    with (CutNetwork if cutting else LocalFederation)(path, folder / "peers", options=["--pace", "1.0"]) as local:
        watch = Watch(local)
        local.start()
        started = watch.until(lambda w: all(w.round(name) >= 3 for name in everybody), START)[0]
        for repeat in todo:
            if started:
                row = one_repeat(local, watch, everybody, random.Random(repeat), cutting, killing)
            else:
                row = {"failed": f"no start: {[local.why(name) for name in everybody if watch.round(name) < 3]}"}
            name = str(repeat) if killing else f"cut {repeat}"
            each[name] = {"members": members, "killed": killing, "cut": cutting, **row}
            print(f"repeat {repeat}: {row}", flush=True)
            if row["failed"]:
                break
    return each


def one_repeat(local, watch, everybody, chance, cutting, killing):
    """Kill, restart, cut and heal once."""
    row = {"failed": "", "longest_wait": None, "rounds_behind": None, "seconds_to_heal": None}
    watch.longest = 0.0
    dead = chance.sample(everybody, len(everybody) // 3) if killing else []
    alive, back = [name for name in everybody if name not in dead], dead[: (len(dead) + 1) // 2]
    there = [*alive, *back]
    if killing:
        local.send(signal.SIGKILL, *dead)
        watch.follow(chance.uniform(1, 5))
        watch.forget(*dead)
        local.start(*back)
        row["rounds_behind"] = 0
        for name in back:
            if not watch.until(lambda w, name=name: w.round(name) >= 0, START)[0]:
                return row | {"failed": f"{name} did not come back: {local.why(name)}"}
            behind = statistics.median(watch.round(other) for other in alive) - watch.round(name)
            row["rounds_behind"] = max(row["rounds_behind"], behind)
        if row["rounds_behind"] > BEHIND or not watch.until(lambda w: level(w, there), BACK)[0]:
            return row | {"failed": f"behind: { {name: watch.round(name) for name in there} }"}
    if cutting:
        local.cut()
        watch.follow(CUT)
        local.heal()
        healed, seconds = watch.until(lambda w: level(w, there), BACK)
        row["seconds_to_heal"] = round(seconds, 1)
        if not healed:
            seen = {name: (watch.round(name), len(watch.connected(name))) for name in there}
            return row | {"failed": f"not healed: {seen}"}
    row["longest_wait"] = round(watch.longest, 2)
    if watch.longest > DEADLINE * 1.1 or watch.exits:
        return row | {"failed": f"waited {watch.longest:.1f} s in one round, ended: {watch.exits}"}
    if rest := dead[len(back) :]:
        local.start(*rest)
        if not watch.until(lambda w: level(w, everybody), START)[0]:
            return row | {"failed": f"not together again: { {name: watch.round(name) for name in everybody} }"}
    return row


def level(watch, there):
    """Say whether everybody sees everybody and nobody is more than three rounds behind."""
    rounds = [watch.round(name) for name in there]
    seen = all(set(there) - {name} <= set(watch.connected(name)) for name in there)
    return seen and min(rounds) >= 0 and max(rounds) - min(rounds) <= BEHIND


def figures(each):
    """Sum up."""
    good = [row for row in each.values() if not row["failed"]]
    kills, cuts = (sum(row[what] for row in each.values()) for what in ("killed", "cut"))
    members = max((row["members"] for row in each.values()), default=0)
    summed = {
        "members": members,
        "repeats": kills,
        "killed": members // 3,
        "restarted": (members // 3 + 1) // 2,
        "network cut": f"{CUT:g} s, {cuts} times" if cuts else "not tried: needs root and network namespaces",
        "deadline": DEADLINE,
        "failed": {repeat: row["failed"] for repeat, row in each.items() if row["failed"]},
    }
    for key in ("longest_wait", "rounds_behind", "seconds_to_heal"):
        values = [row[key] for row in good if row[key] is not None]
        summed[key] = {"median": statistics.median(values), "most": max(values)} if values else None
    return summed, bool(each) and len(good) == len(each)
