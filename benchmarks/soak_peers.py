"""Real members of a federation on this machine: kill, cut, fault and watch them for a long time.

    python benchmarks/soak_peers.py                               # all rows, a few hours on 2 cores
    python benchmarks/soak_peers.py kill --repeats 3              # one row
    python benchmarks/soak_peers.py long --minutes 5
    COTERIE_BENCHMARKS=part-1 python benchmarks/soak_peers.py faults --first 0 --seeds 25     # side by side, or on
    COTERIE_BENCHMARKS=part-2 python benchmarks/soak_peers.py faults --first 25 --seeds 25    # two machines: then
    python benchmarks/soak_peers.py --join part-1/*faults*.json part-2/*faults*.json          # one result of both

Rows: equal (simulation = peers, 6 members, 10 rounds, every method), kill (a third of 12 members, half restarted; as
root also a network that is cut in two for 10 seconds), faults (20 % lost, late, twice and in another order, each run
replayed), long (8 members for an hour: memory, sockets, threads). Each row writes a dated result with what came of each
repeat; the exit status is 1 if one failed.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from common import publish
from soak_rows import equal, faults, kill, long

from coterie.experiment.device import choose_device
from coterie.experiment.interruption import termination

ROWS = {"equal": equal, "kill": kill, "faults": faults, "long": long}
PREFIX = "soak-peers-"


def joined(paths):
    """Put the repeats of several results of one row together; returns its name, the repeats and where they ran."""
    each, names, places, minutes = {}, set(), [], 0.0
    for path in paths:
        record = json.loads(path.read_text())
        names.add(record["benchmark"].removeprefix(PREFIX))
        if again := sorted(key for key in set(each) & set(record["each"]) if each[key] != record["each"][key]):
            sys.exit(f"{path} repeats {', '.join(again)}, with another outcome: give each part numbers of its own")
        each |= record["each"]
        places.append({key: record[key] for key in ("hardware", "command", "date", "minutes_taken")})
        minutes += record["minutes_taken"]
    if len(names) != 1:
        sys.exit(f"these are results of different rows: {', '.join(sorted(names))}")
    where = "; ".join(sorted({place["hardware"] for place in places}))
    about = {"hardware": where, "command": "benchmarks/soak_peers.py --join", "minutes_taken": round(minutes, 2)}
    return names.pop(), each, {**about, "parts": places}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"default: all of {', '.join(ROWS)}")
    parser.add_argument("--repeats", type=int, default=20, help="of kill")
    parser.add_argument("--seeds", type=int, default=50, help="of faults")
    parser.add_argument("--first", type=int, default=0, help="number of the first repeat, seed or method")
    parser.add_argument("--stride", type=int, default=1, help="of equal: from --first on, every so many methods")
    parser.add_argument("--methods", default="", help="of equal: some names instead of all methods")
    parser.add_argument("--rounds", type=int, default=10, help="of equal")
    parser.add_argument("--members", type=int, help="default: 6; 12 for kill, 8 for long")
    parser.add_argument("--only", choices=["kill", "cut"], help="of kill: members, or the network; default: both")
    parser.add_argument("--minutes", type=float, default=60, help="of long")
    parser.add_argument("--pace", type=float, default=0.2, help="seconds per round of long, at least")
    parser.add_argument("--join", nargs="+", type=Path, metavar="RESULT", help="join results of one row instead")
    args = parser.parse_args()
    if unknown := set(args.rows) - ROWS.keys():
        parser.error(f"unknown rows: {', '.join(unknown)}")
    device, all_good = choose_device("cpu", cores=1), True
    if args.join:
        name, each, about = joined(args.join)
        figures, all_good = ROWS[name].figures(each)
        publish(PREFIX + name, about["hardware"].partition(";")[0], {**about, **figures, "each": each})
        sys.exit(0 if all_good else 1)
    for name in args.rows or ROWS:
        began = time.monotonic()
        with termination():  # whatever ends this process, it takes its members with it
            each = ROWS[name].run(args)
        figures, good = ROWS[name].figures(each)
        minutes = round((time.monotonic() - began) / 60, 2)
        publish(PREFIX + name, device.label, {"minutes_taken": minutes, **figures, "each": each})
        all_good &= good
    sys.exit(0 if all_good else 1)


if __name__ == "__main__":
    main()
