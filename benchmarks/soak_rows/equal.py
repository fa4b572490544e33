"""Simulation = peers: every method, in turn in one group of processes; every number and byte must be the same.

Numbers may differ by `ROUNDING`; the result says for which methods. A site has one client; it gets a loop all the same
(`peers/turns.py`), so that the compiler does not join its operations with the code around. Where a method adds what it
has multiplied outside of such a loop, it seals the product (`Peers.seal`). Inside, a sum of two products (Adam's
moments, say) may still be rounded in two ways.
"""

import tempfile
from pathlib import Path

from coterie import registry
from coterie.experiment.device import choose_device
from soak_rows import START, names
from support.group import Group
from support.network_rows import SETTINGS, methods
from support.peer_runs import differences, simulate, write_federation

__all__ = ["figures", "run"]

ROUNDING = 1e-6  # relative
FIRST = 3  # differences that are kept
DEADLINE = 300.0  # seconds: nobody is away here, but a method with stages compiles again in the middle of a run
TWO_LAYERS = {"name": "mlp", "hidden": [8]}  # so that a method can keep one of them
PERSONAL = ["layers.1.weight", "layers.1.bias"]  # the last one, for methods that want its name


def run(args):
    """Run methods as processes and as a simulation; returns where they differ, by method."""
    chosen = args.methods.split(",") if args.methods else methods()
    chosen = chosen[args.first :: args.stride]
    each, device = {}, choose_device("cpu", cores=1)
    with tempfile.TemporaryDirectory() as keys, Group(keys, names(args.members or 6)) as group:
        for name in chosen:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    found = compare(Path(folder), name, group, args.rounds, device)
                except Exception as error:  # the others go on
                    found = {"wrong": [f"{type(error).__name__}: {error}"], "rounding": []}
            each[name] = {"members": len(group.names), "rounds": args.rounds, **found}
            print(f"{name}: {found['wrong'] or found['rounding'] or 'equal to the bit'}", flush=True)
    return each


def compare(folder, name, group, rounds, device):
    """Return where a method's numbers differ: by more than rounding, or by rounding only."""
    graph = {} if registry.load("methods", name).topology != "graph" else {"graph": {"name": "complete"}}
    settings = {"name": name, **SETTINGS.get(name, {})}
    if "personal" in settings:
        settings["personal"] = PERSONAL
    path = write_federation(
        folder,
        group.names,
        federation={"deadline": DEADLINE},
        method=settings,
        model=TWO_LAYERS,
        run={"rounds": rounds},
        **graph,
    )
    folders, wrong = group.run(path, folder / "peers", seconds=START)
    if wrong:
        return {"wrong": [f"{one}: {why}" for one, why in wrong.items()], "rounding": []}
    simulated = simulate(path, folder / "simulation", device)
    wrong = differences(folders, simulated, ROUNDING)
    return {"wrong": short(wrong), "rounding": [] if wrong else short(differences(folders, simulated))}


def short(found):
    """Return the first differences, and those of models."""
    return found[:FIRST] + [one for one in found[FIRST:] if not one.partition(" of ")[0].endswith(("loss", "score"))]


def figures(each):
    """Sum up."""
    failed = {name: one["wrong"] for name, one in each.items() if one["wrong"]}
    rounding = {name: one["rounding"] for name, one in each.items() if one["rounding"]}
    sizes = {key: sorted({one[key] for one in each.values()}) for key in ("members", "rounds")}
    exact = sum(not one["wrong"] and not one["rounding"] for one in each.values())
    counts = {"methods": len(each), "equal to the bit": exact, f"within {ROUNDING:g}": sorted(rounding)}
    return {**counts, **sizes, "failed": failed}, bool(each) and not failed
