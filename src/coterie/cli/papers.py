"""`coterie reproduce`: run a paper's experiment and lay its figures beside ours."""

from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.training import Json, Out, Preallocate, Rounds, Where, run_comparison
from coterie.errors import CoterieError

__all__ = ["chosen", "papers", "reproduce"]

papers = typer.Typer(
    name="reproduce",
    help="Run a paper's experiment and lay its figures beside ours.",
    epilog="Every method and seed is a run of its own; a second call does what is missing.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Seeds = Annotated[int, typer.Option(help="Runs of each method.")]
Methods = Annotated[str | None, typer.Option(help="Methods with commas between; default: the paper's table.")]
ClientCount = Annotated[int | None, typer.Option("--clients", help="Another number of clients than the paper's.")]


@papers.command("scool")
def scool_command(
    dataset: Annotated[str, typer.Option(help="digits, mnist, fashion-mnist, cifar10, cifar100.")] = "digits",
    setting: Annotated[
        str, typer.Option(help="noniid (N classes per client) or sbm (groups share classes).")
    ] = "noniid",
    methods: Methods = None,
    seeds: Seeds = 5,
    budgets: Annotated[str, typer.Option(help="Also these percentages of neighbours, e.g. 2,5,8,10.")] = "",
    rounds: Rounds = None,
    clients: ClientCount = None,
    out: Out = None,
    where: Where = "auto",
    preallocate: Preallocate = False,
    as_json: Json = False,
) -> None:
    """Learned cooperation graphs (Li, Zhou, Tian, Tao 2024): clients with few classes each, and who helps whom."""
    from coterie.reproduce import scool

    shares = tuple(_percentage(text) for text in budgets.split(",") if text.strip())
    found = scool.reproduction(dataset, setting, chosen(methods, scool.METHODS), seeds, rounds, clients, shares)
    reproduce(found, out or Path(f"reproduce-scool-{dataset}-{setting}"), where, preallocate, as_json)


@papers.command("spdb")
def spdb_command(
    dataset: Annotated[str, typer.Option(help="mnist, fashion-mnist, digits.")] = "mnist",
    setting: Annotated[str, typer.Option(help="limited (128 samples a learner) or all.")] = "limited",
    test: Annotated[str, typer.Option(help="Labels of the test sets: own (as in training) or all.")] = "own",
    speech: Annotated[
        Path | None, typer.Option(help="The speech experiment instead, on an .npz file with x, y and client.")
    ] = None,
    methods: Methods = None,
    seeds: Seeds = 5,
    rounds: Rounds = None,
    clients: ClientCount = None,
    out: Out = None,
    where: Where = "auto",
    preallocate: Preallocate = False,
    as_json: Json = False,
) -> None:
    """Personal layers without a hub (Lu, Cui, Squillante, Kingsbury, Horesh 2022): one label each, or one speaker."""
    from coterie.reproduce import spdb

    names = chosen(methods, spdb.METHODS)
    if speech is not None:
        found, label = spdb.speech(speech, names, seeds, rounds, clients), "speech"
    else:
        found = spdb.reproduction(dataset, setting, names, seeds, rounds, clients, test)
        label = f"{dataset}-{setting}" + ("" if test == "own" else "-all-labels")
    reproduce(found, out or Path(f"reproduce-spdb-{label}"), where, preallocate, as_json)


@papers.command("pdbo")
def pdbo_command(
    dataset: Annotated[
        str, typer.Option(help="digits, mnist, fashion-mnist, emnist, cifar10, cifar100, shakespeare.")
    ] = "digits",
    methods: Methods = None,
    seeds: Seeds = 3,
    restart: Annotated[
        bool, typer.Option("--restart", help="Solve the inner problem anew in every round, as the paper's program.")
    ] = False,
    rounds: Rounds = None,
    clients: ClientCount = None,
    out: Out = None,
    where: Where = "auto",
    preallocate: Preallocate = False,
    as_json: Json = False,
) -> None:
    """Common predictors, personal weights (Terashita and Hara 2023): clients on a random directed network."""
    from coterie.reproduce import pdbo

    found = pdbo.reproduction(dataset, chosen(methods, pdbo.METHODS), seeds, rounds, clients, restart)
    label = dataset + ("-restart" if restart else "")
    reproduce(found, out or Path(f"reproduce-pdbo-{label}"), where, preallocate, as_json)


def chosen(methods: str | None, table: tuple[str, ...]) -> tuple[str, ...]:
    """Return the methods a user names with commas between, or those of the paper's table."""
    return table if methods is None else tuple(name.strip() for name in methods.split(",") if name.strip())


def reproduce(found: Any, folder: Path, where: str, preallocate: bool, as_json: bool) -> None:
    """Run what a `Reproduction` lays out, and print our figures beside the paper's."""
    from coterie.comparison.lineup import Lineup

    comparison, console = run_comparison(Lineup.from_dict(found.tables), folder, where, preallocate, as_json)
    if not as_json:
        _beside(comparison, found, console)


def _percentage(text: str) -> float:
    try:
        share = float(text) / 100
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise CoterieError(f"--budgets {text!r}: write percentages with commas between, for example 2,5,8,10")
    return share


def _beside(comparison: Any, found: Any, console: Any) -> None:
    """Print our figures, the paper's, and the paired difference to training alone over seeds."""
    from rich import box
    from rich.table import Table

    table = Table(title=found.title, caption=found.note, box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    paper = ["paper"] if found.paper else []
    for column in ("method", "ours", "worst", "own classes", *paper, "over alone"):
        table.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    for row in paired_rows(comparison):
        gain = "-" if row["gain"] is None else f"{row['gain']:+.2f}"
        gain += "" if row["error"] is None else f" ± {row['error']:.2f}"
        figures = [f"{row['mean']:.2f} ± {row['spread']:.2f}", f"{row['worst']:.2f}", f"{row['own']:.2f}"]
        theirs = [f"{found.paper[row['method']]:.2f}" if row["method"] in found.paper else "-"] if paper else []
        table.add_row(row["method"], *figures, *theirs, gain)
    console.print(table)


def paired_rows(comparison: Any) -> list[dict[str, Any]]:
    """Return accuracy in percent, its spread over seeds, and the gain over training alone, paired by seed."""
    import numpy as np

    means = {
        label: np.array([100 * result.final["test_score"].mean() for result in results])
        for label, results in comparison.results.items()
    }
    alone = means.get("local")
    rows = []
    for label, values in means.items():
        own = np.mean([100 * result.final["test_own_score"].mean() for result in comparison.results[label]])
        low = np.mean([100 * result.summary()["worst"] for result in comparison.results[label]])
        gaps = None if alone is None or label == "local" else values - alone
        error = None if gaps is None or len(gaps) < 2 else float(gaps.std(ddof=1) / np.sqrt(len(gaps)))
        gain = None if gaps is None else float(gaps.mean())
        spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
        rows.append(
            {
                "method": label,
                "mean": float(values.mean()),
                "spread": spread,
                "own": float(own),
                "worst": float(low),
                "gain": gain,
                "error": error,
            }
        )
    return sorted(rows, key=lambda row: -row["mean"])
