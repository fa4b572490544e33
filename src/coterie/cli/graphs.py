"""`coterie graph`: the cooperation weights of a run or a comparison, or a graph by name for some clients."""

from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.options import Set, changed
from coterie.cli.terminal import say
from coterie.errors import CoterieError
from coterie.spec import nearest

__all__ = ["graph"]


def graph(
    what: Annotated[
        str, typer.Argument(metavar="DIR|NAME", help="The folder of a run or a comparison, or a graph by name.")
    ],
    number: Annotated[
        int | None, typer.Option("--round", help="Of a run: after which round; default: the last evaluation.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A .csv (who learns from whom), .graphml or .npy file; default: graph.graphml in the folder."
        ),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Of a comparison: this method; default: the best that learned a graph.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="By name: between the clients of this data set.")] = None,
    partition: Annotated[str | None, typer.Option(help="By name: a partition (coterie list partitions).")] = None,
    clients: Annotated[int | None, typer.Option(help="By name: number of clients.")] = None,
    changes: Set = None,
) -> None:
    """Write who learns from whom in a run or a comparison; or describe a graph by name, say that of similar clients.

    coterie graph comparison --out who.csv

    coterie graph runs/mine --out weights.graphml

    coterie graph similarity --data planted-groups --set graph.k=3
    """
    from coterie import registry
    from coterie.experiment.config import Experiment

    known = [row.name for row in registry.rows("graphs")]
    named = not Path(what).exists() and (":" in what or what in known)
    if not named and not Path(what).exists() and nearest(what, known):
        raise CoterieError(f"there is neither a folder nor a graph called {what}{nearest(what, known)}")
    flags = {"--data": data, "--partition": partition, "--clients": clients, "--set": changes}
    if not named:
        for flag, value in flags.items():
            if value is not None:
                raise CoterieError(f"{flag} is for a graph by name (coterie list graphs), and {what} is none")
        _of_folder(Path(what), out, number, method)
        return
    if method is not None:
        raise CoterieError(f"--method is for the folder of a comparison, and {what} is the name of a graph")
    if number is not None:
        raise CoterieError(f"--round is for the folder of a run, and {what} is the name of a graph")
    asked = (("data", "name", data), ("partition", "name", partition), ("partition", "clients", clients))
    given: dict[str, dict[str, Any]] = {"graph": {"name": what}}
    for section, key, value in asked:
        if value is not None:
            given.setdefault(section, {})[key] = value
    _by_name(what, Experiment.from_dict(changed({}, given, changes)), out)


def _of_folder(folder: Path, out: Path | None, number: int | None, method: str | None) -> None:
    """Write the weights of a run, or of a method of a comparison, and say which groups they form."""
    from coterie.comparison.comparison import Comparison
    from coterie.comparison.folder import ComparisonFolder
    from coterie.comparison.who import best_learner, groups_found, write_who
    from coterie.experiment.result import Result

    path = out or folder / "graph.graphml"
    table = path.suffix == ".csv"
    if path.suffix not in (".csv", ".graphml", ".npy"):
        raise CoterieError(f"{path}: partners are written as .csv, weights as .graphml or .npy; choose one of these")
    if table and number is not None:
        raise CoterieError("--round is for .graphml and .npy; a .csv has the weights of the models that were kept")
    if not ComparisonFolder(folder).exists():
        if method is not None:
            raise CoterieError(f"--method is for the folder of a comparison, and {folder} is none")
        result = Result.read(folder)
        say(f"graph: {write_who(result, path) if table else result.save_graph(path, number)}")
        return
    if number is not None:
        raise CoterieError(f"--round is for the folder of a run; those of {folder} are in METHOD/seed-N")
    comparison = Comparison.read([folder])
    found = groups_found(comparison, method)  # refuses a method that learned nothing
    label = method or best_learner(comparison)
    first = comparison.results[str(label)][0]
    say(f"{label}: {found.sentence}")
    say(f"graph: {write_who(comparison, path, method) if table else first.save_graph(path)}")


def _by_name(name: str, experiment: Any, out: Path | None) -> None:
    """Build a graph for the clients of an experiment, describe it, and write it to a file if there is one."""
    import numpy as np

    from coterie.experiment.job import load_federation, make_task
    from coterie.graphs.quality import true_groups

    federation, part = load_federation(experiment), experiment.graph
    measured = None
    if hasattr(part.spec, "build_from"):
        task = make_task(experiment, federation) if getattr(part.spec, "space", "model") == "model" else None
        measured = part.spec.build_from(federation, part.common.seed, task=task)
    built = measured.graph if measured is not None else part.spec.build(len(federation), part.common.seed)
    degree = built.degree
    apart = "connected" if built.connected else f"in {built.components} parts"
    links = f"{built.edges() // 2:,} edges" if built.symmetric else f"{built.edges():,} directed edges"
    say(f"{name}: {len(federation):,} clients, {links}, {degree.min()} to {degree.max()} neighbours each, {apart}")
    groups = true_groups(federation.groups, federation.label_counts())
    if groups is not None:
        rows, slots = np.nonzero(built.present)
        within = (groups[rows] == groups[built.neighbours[rows, slots]]).mean()
        sizes = np.bincount(groups)
        chance = (sizes * (sizes - 1)).sum() / (len(groups) * (len(groups) - 1))
        say(f"within groups of similar clients: {within:.0%} of the edges; of random edges: {chance:.0%}")
    if measured is not None:
        up, down = measured.sent.up_bytes.mean(), measured.sent.down_bytes.mean()
        say(f"cost: each client sends {up:,.0f} bytes and receives {down:,.0f}, once")
    if out is not None:
        say(f"graph: {_write(out, built, measured, federation.names)}")


def _write(path: Path, built: Any, measured: Any, names: tuple[str, ...]) -> Path:
    """Write a graph as GraphML with the clients' names, or as a matrix; measured edges have their lengths."""
    import numpy as np

    from coterie.graphs.export import graphml
    from coterie.storage.durable import durable_write, storage_errors

    weights = built.present.astype(float) if measured is None else measured.by_slot(measured.weights)
    if path.suffix == ".npy":
        with storage_errors(path.parent), open(path, "wb") as stream:
            np.save(stream, built.to_sparse(weights[built.present]).toarray())
        return path
    if path.suffix != ".graphml":
        raise CoterieError(f"{path}: the graph is written as .graphml or .npy; choose one of these endings")
    import networkx

    drawn = built.to_networkx(weights)
    if measured is not None:
        drawn = drawn.to_undirected()
        for (one, other), length in zip(measured.edges.tolist(), measured.lengths.tolist(), strict=True):
            drawn.edges[one, other]["length"] = length
    durable_write(path, graphml(networkx.relabel_nodes(drawn, dict(enumerate(names)))))
    return path
