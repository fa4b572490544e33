"""Simulation = peers: every method, in turn in one group of processes; every number and byte must be the same."""

import tempfile
from pathlib import Path

from coterie import registry
from coterie.experiment.device import choose_device
from soak_rows import START, names
from support.group import Group
from support.network_rows import SETTINGS, methods
from support.peer_runs import differences, simulate, write_federation

__all__ = ["figures", "run"]

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
                    wrong = compare(Path(folder), name, group, args.rounds, device)
                except Exception as error:  # the others go on
                    wrong = [f"{type(error).__name__}: {error}"]
            each[name] = {"members": len(group.names), "rounds": args.rounds, "wrong": wrong}
            print(f"{name}: {wrong or 'equal'}", flush=True)
    return each


def compare(folder, name, group, rounds, device):
    """Return where a method's numbers differ."""
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
        return [f"{one}: {why}" for one, why in wrong.items()]
    return differences(folders, simulate(path, folder / "simulation", device))


def figures(each):
    """Sum up."""
    failed = {name: one["wrong"] for name, one in each.items() if one["wrong"]}
    sizes = {key: sorted({one[key] for one in each.values()}) for key in ("members", "rounds")}
    return {"methods": len(each), **sizes, "failed": failed}, bool(each) and not failed
