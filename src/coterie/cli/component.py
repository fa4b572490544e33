"""`coterie reproduce component`: codecs at equal bytes, planted groups along the path, personal models."""

import importlib.util
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.papers import chosen, papers
from coterie.cli.training import Json, Out, Preallocate, Rounds, Where
from coterie.errors import CoterieError
from coterie.spec import nearest

__all__ = ["component_command"]

ALL = "all"


@papers.command(
    "component",
    epilog="Writes figures.json, CSV tables for pandas and component.html; a second call does what is missing.",
)
def component_command(
    part: Annotated[str, typer.Option(help="codecs, groups, personal, or all of them.")] = ALL,
    data: Annotated[
        str,
        typer.Option(help="digits, covtype, covtype-binary, covtype-soil, human-activity, human-activity-mlp, a9a."),
    ] = "digits",
    local: Annotated[str, typer.Option(help="For codecs: what is sent, a full gradient or the change of an epoch.")] = (
        "gradient"
    ),
    codecs: Annotated[str | None, typer.Option(help="Families of codecs with commas between; default: all.")] = None,
    model: Annotated[str, typer.Option(help="For personal: mlp or linear.")] = "mlp",
    methods: Annotated[str | None, typer.Option(help="For personal: methods with commas between.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Draws; 3, and 5 of the groups, unless said otherwise.")] = None,
    rounds: Rounds = None,
    out: Out = None,
    where: Where = "auto",
    preallocate: Preallocate = False,
    as_json: Json = False,
) -> None:
    """A shared and a personal component, and few bits (Zhao, Liu, Jiang, He): the draft's missing experiments."""
    from rich.console import Console

    from coterie.reproduce.component import layout

    asked = _parts(part, data)
    families = chosen(codecs, tuple(layout.CODECS))
    names = chosen(methods, layout.METHODS)
    lays = {"codecs": lambda: layout.codecs(data, local, families, rounds)}
    lays["personal"] = lambda: layout.personal(data, model, names, rounds)
    for each in asked:
        lays.get(each, dict)()  # what cannot be run is refused before anything does
    console = Console(stderr=as_json, highlight=False)
    folder = out or Path("-".join(["reproduce-component", *([] if part == ALL else [part]), data]))
    from coterie.experiment.device import choose_device

    device = choose_device(where, preallocate=preallocate)  # before JAX is used: it counts the cores
    console.print(f"device: {device.label}", markup=False, soft_wrap=True)
    from coterie.reproduce.component.runs import run_codecs, run_groups, run_personal

    several = 3 if seeds is None else seeds
    outcomes: dict[str, Any] = {}
    for each in asked:
        with _screen(console) as screen:
            more = {"device": device, "progress": screen.tell}
            if each == "codecs":
                place = folder / f"codecs-{local}"
                outcomes[each] = run_codecs(data, local, families, several, rounds, place, **more)
            elif each == "groups":
                values = None if rounds is None else max(1, rounds // 20)
                place = folder / each
                outcomes[each] = run_groups(seeds=5 if seeds is None else seeds, values=values, out=place, **more)
            else:
                place = folder / f"personal-{model}"
                outcomes[each] = run_personal(data, model, names, several, rounds, place, **more)
    figures = {each: outcome.figures for each, outcome in outcomes.items()}
    written = _write(folder, outcomes, console)
    if as_json:
        print(json.dumps(figures | {"files": written}))
        return
    shown = {"codecs": _print_codecs, "groups": _print_groups, "personal": _print_personal}
    for each, found in figures.items():
        shown[each](found, console)
    console.print("written: " + ", ".join(written), markup=False, soft_wrap=True)


def _parts(part: str, data: str) -> list[str]:
    """Return the parts that are asked for and know the data; refuse what no part knows."""
    from coterie.reproduce.component.layout import CODED, PARTS, PERSONAL

    if part not in (*PARTS, ALL):
        words = (*PARTS, ALL)
        raise CoterieError(f"--part must be one of {', '.join(words)}, not {part!r}{nearest(part, words)}")
    knows = {"codecs": CODED, "personal": PERSONAL}
    asked = [each for each in PARTS if part in (each, ALL) and data in knows.get(each, (data,))]
    if part == ALL and asked != ["groups"]:
        return asked
    known = tuple(dict.fromkeys([*CODED, *PERSONAL])) if part == ALL else tuple(knows.get(part, (data,)))
    if data not in known:
        raise CoterieError(f"--data must be one of {', '.join(known)}, not {data!r}{nearest(data, known)}")
    return asked


def _screen(console: Any) -> Any:
    from coterie.cli.screen import MANY_RUNS, Screen

    return Screen(console, MANY_RUNS + 1)


def _write(folder: Path, outcomes: dict[str, Any], console: Any) -> list[str]:
    """Write figures, tables and the page; returns the files."""
    import pandas as pd

    from coterie.storage.durable import durable_write, storage_errors

    figures = {each: outcome.figures for each, outcome in outcomes.items()}
    files = {"figures.json": json.dumps(figures, indent=1)}
    for outcome in outcomes.values():
        files |= {f"{name}.csv": pd.DataFrame(rows).to_csv(index=False) for name, rows in outcome.tables.items()}
    if importlib.util.find_spec("plotly") is None:
        console.print("there is no component.html, which needs plotly: pip install 'coterie[report]'", markup=False)
    else:
        from coterie.pages import plotly_javascript
        from coterie.reproduce.component.page import page

        held = [[figures[each]] if each in figures else [] for each in ("codecs", "personal")]
        groups = (figures["groups"], outcomes["groups"].tables["groups"]) if "groups" in outcomes else None
        files["component.html"] = page(held[0], groups, held[1], plotly_javascript())
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        durable_write(folder / name, text.encode())
    return [str(folder / name) for name in files]


def _table(title: str, columns: tuple[str, ...], caption: str, words: int = 1) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for at, column in enumerate(columns):
        table.add_column(column, justify="left" if at < words else "right", no_wrap=True)
    return table


def _print_codecs(found: dict[str, Any], console: Any) -> None:
    """Print what every setting costs after all rounds, and who reaches uncompressed training with what."""
    whole = found["uncompressed"]
    what = f"{found['data']}, {found['model']} model of {found['parameters']:,} numbers, {found['clients']} clients"
    note = f"uplink; bare: without the {found['header']} bytes of header of a message; k: centres; ef: error feedback"
    heads = ("codec", "B/round", "fewer", "bare", "accuracy", "points")
    table = _table(f"{what}, {found['rounds']} rounds", heads, note)
    for row in found["settings"]:
        score = f"{100 * row['test']:.2f} ± {100 * row['spread']:.2f}"
        fewer = (f"{row['fewer']:.1f}x", f"{row['fewer_bare']:.1f}x")
        table.add_row(row["label"], f"{row['up'] / row['round']:.0f}", *fewer, score, f"{100 * row['gap']:+.2f}")
    console.print(table)
    note = "the first round that is good enough by validation accuracy; fewer bytes than uncompressed to there, in all"
    title = f"to within 0.5 points of uncompressed training ({100 * whole['test']:.2f} %)"
    table = _table(title, ("codec", "setting", "round", "kB", "fewer", "in all", "accuracy", "points"), note, 2)
    for family, at in found["reach"].items():
        if at is None:
            table.add_row(family, "never", *["-"] * 6)
            continue
        times = (f"{at['fewer_same']:.1f}x", f"{at['fewer']:.1f}x")
        figures = (str(at["round"]), f"{at['up'] / 1e3:.1f}", *times, f"{100 * at['test']:.2f}")
        table.add_row(family, at["label"], *figures, f"{100 * at['gap']:+.2f}")
    console.print(table)
    for row in found["equal"]:
        if row["winner"] is not None:
            best, share = row["families"][row["winner"]], "all" if row["share"] == 1 else f"1/{1 / row['share']:.0f}"
            where = f"{best['label']} in round {best['round']}"
            console.print(f"best with {share} of its bytes: {where}, {100 * best['test']:.2f} %", markup=False)


def _print_groups(found: dict[str, Any], console: Any) -> None:
    note = "k: neighbours a client asks for, of 9 in its group; lam: chosen on validation samples"
    heads = ("network", "found exactly", "lam where all draws are", "best ARI", "accuracy")
    table = _table("planted groups along the path: 40 clients in 4 groups", heads, note)
    for row in found["networks"]:
        always = "-" if row["always"] is None else f"{row['always'][0]:.3g} to {row['always'][1]:.3g}"
        best = f"{sum(row['best_ari']) / len(row['best_ari']):.3f}"
        where = f"{row['found']} of {found['draws']}"
        table.add_row(f"k = {row['neighbours']}", where, always, best, f"{100 * row['chosen_test']:.1f} %")
    console.print(table)


def _print_personal(found: dict[str, Any], console: Any) -> None:
    note = "chosen on validation samples; worst: decile of clients, or client; ±: sd over draws, of a gain its error"
    heads = ("method", "setting", "round", "accuracy", "worst", "over alone", "kB")
    title = f"personal models: {found['data']}, {found['clients']} clients, {found['model']}"
    table = _table(title, heads, note, 2)
    for row in found["methods"]:
        error = "" if row["gain_error"] is None else f"±{100 * row['gain_error']:.1f}"
        gain = "-" if row["gain"] is None else f"{100 * row['gain']:+.1f}{error}"
        score = f"{100 * row['test']:.1f}±{100 * row['spread']:.1f}"
        setting = row["label"].removeprefix(f"{row['method']}-")
        cells = (str(row["round"]), score, f"{100 * row['worst']:.1f}", gain, f"{row['total'] / 1e3:,.0f}")
        table.add_row(row["method"], setting, *cells)
    console.print(table)
