"""`coterie reproduce component`: Fig. 6 and codecs at equal bytes, planted groups along the path, personal models."""

from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.options import Json, Out, Preallocate, Rounds, Where
from coterie.cli.outcome import names_in, print_records, publish, text_table
from coterie.cli.terminal import console_for
from coterie.errors import CoterieError
from coterie.spec import nearest

__all__ = ["component_command"]

ALL = "all"
DEFAULTS = {"part": ALL, "data": "digits", "local": "gradient", "model": "mlp"}


def component_command(
    part: Annotated[str, typer.Option(help="codecs, groups, personal, or all of them.")] = ALL,
    data: Annotated[
        str,
        typer.Option(help="digits, covtype, covtype-binary, covtype-soil, human-activity, human-activity-mlp, a9a."),
    ] = "digits",
    local: Annotated[
        str, typer.Option(help="For codecs: what is sent, a full gradient or the change of an epoch.")
    ] = "gradient",
    codecs: Annotated[str | None, typer.Option(help="Families of codecs with commas between; default: all.")] = None,
    model: Annotated[str, typer.Option(help="For personal: mlp or linear.")] = "mlp",
    methods: Annotated[str | None, typer.Option(help="For personal: methods with commas between.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Draws; default: 3, and 5 of the groups.")] = None,
    rounds: Rounds = None,
    out: Out = None,
    where: Where = "auto",
    preallocate: Preallocate = False,
    as_json: Json = False,
) -> None:
    """A shared and a personal component, and few bits (Zhao, Liu, Jiang, He): Fig. 6 of the draft, and our experiments.

    The draft announces experiments on medical images and tables, and ends before them; only its Fig. 6 can be repeated,
    with --data covtype-binary. Writes figures.json, CSV tables for pandas, component.html, and reproduce-figure6.json
    and reproduce-codecs.json; a second call does what is missing.
    """
    from coterie.reproduce.component import layout

    chosen = _parts(part, data)
    families, names = names_in(codecs, tuple(layout.CODECS)), names_in(methods, layout.METHODS)
    if "codecs" in chosen:  # mistakes are found before anything runs
        layout.codecs(data, local, families, rounds)
    if "personal" in chosen:
        layout.personal(data, model, names, rounds)
    console = console_for(as_json)
    folder = out or Path("-".join(["reproduce-component", *([] if part == ALL else [part]), data]))
    from coterie.experiment.device import choose_device

    device = choose_device(where, preallocate=preallocate)  # before JAX is used: it counts the cores
    console.print(f"device: {device.label}", markup=False, soft_wrap=True)
    from coterie.experiment.screen import MANY_RUNS, Screen
    from coterie.reproduce.component import runs
    from coterie.reproduce.record import repeat, write_record

    several = 3 if seeds is None else seeds
    outcomes: dict[str, Any] = {}
    for each in chosen:
        with Screen(console, MANY_RUNS + 1) as screen:
            more: dict[str, Any] = {"device": device, "progress": screen.update}
            if each == "codecs":
                more["out"] = folder / f"codecs-{local}"
                outcomes[each] = runs.run_codecs(data, local, families, several, rounds, **more)
            elif each == "groups":
                values = None if rounds is None else max(1, rounds // 20)
                outcomes[each] = runs.run_groups(
                    seeds=5 if seeds is None else seeds, values=values, out=folder / each, **more
                )
            else:
                more["out"] = folder / f"personal-{model}"
                outcomes[each] = runs.run_personal(data, model, names, several, rounds, **more)
    figures = {each: outcome.figures for each, outcome in outcomes.items()}
    options: dict[str, Any] = {
        "part": part,
        "data": data,
        "local": local,
        "codecs": codecs,
        "model": model,
        "methods": methods,
    }
    options |= {"seeds": seeds, "rounds": rounds}
    given = {name: value for name, value in options.items() if value is not None and value != DEFAULTS.get(name)}
    records = _records(figures, repeat("component", given), device.label)
    written = [write_record(folder, record, f"reproduce-{name}.json") for name, record in records.items()]
    tables = {name: rows for outcome in outcomes.values() for name, rows in outcome.tables.items()}

    def show() -> None:
        printers = {"codecs": _print_codecs, "groups": _print_groups, "personal": _print_personal}
        print_records(records.values(), console)
        for each, figure in figures.items():
            printers[each](figure, console)

    page = ("component.html", lambda: _page(figures, tables))
    publish(folder, figures, tables, page, show, console, as_json, written)


def _records(figures: dict[str, Any], command: str, device: str) -> dict[str, Any]:
    """Return what stands beside the draft: Fig. 6 where the data are its own, and training with such gradients."""
    from coterie.reproduce.component.records import codecs_record, figure6_record

    records: dict[str, Any] = {}
    if "codecs" in figures:
        if figures["codecs"]["data"] == "covtype-binary":
            records["figure6"] = figure6_record(figures["codecs"]["figure6"], command, device)
        trained = codecs_record(figures["codecs"], command, device)
        records |= {} if trained is None else {"codecs": trained}
    return records


def _page(figures: dict[str, Any], tables: dict[str, Any]) -> str:
    from coterie.pages import plotly_javascript
    from coterie.reproduce.component.page import page

    codecs, personal = ([figures[each]] if each in figures else [] for each in ("codecs", "personal"))
    groups = (figures["groups"], tables["groups"]) if "groups" in figures else None
    return page(codecs, groups, personal, plotly_javascript())


def _parts(part: str, data: str) -> list[str]:
    """Return the chosen parts that have these data; refuse data that none of them has."""
    from coterie.reproduce.component.layout import CODED, PARTS, PERSONAL

    if part not in (*PARTS, ALL):
        words = (*PARTS, ALL)
        raise CoterieError(f"--part must be one of {', '.join(words)}, not {part!r}{nearest(part, words)}")
    knows = {"codecs": CODED, "personal": PERSONAL}
    chosen = [each for each in PARTS if part in (each, ALL) and data in knows.get(each, (data,))]
    if part == ALL and chosen != ["groups"]:
        return chosen
    known = tuple(dict.fromkeys([*CODED, *PERSONAL])) if part == ALL else tuple(knows.get(part, (data,)))
    if data not in known:
        raise CoterieError(f"--data must be one of {', '.join(known)}, not {data!r}{nearest(data, known)}")
    return chosen


def _print_codecs(figure: dict[str, Any], console: Any) -> None:
    """Print what every setting costs after all rounds, and what each codec needs to match uncompressed training."""
    whole = figure["uncompressed"]
    what = f"{figure['data']}, {figure['model']} model of {figure['parameters']:,} numbers, {figure['clients']} clients"
    note = f"uplink; bare: without the {figure['header']} header bytes per message; k: centres; ef: error feedback"
    heads = ("codec", "B/round", "fewer", "bare", "accuracy", "points")
    table = text_table(f"{what}, {figure['rounds']} rounds", heads, note)
    for row in figure["settings"]:
        score = f"{100 * row['test']:.2f} ± {100 * row['spread']:.2f}"
        fewer = (f"{row['fewer']:.1f}x", f"{row['fewer_bare']:.1f}x")
        table.add_row(row["label"], f"{row['up'] / row['round']:.0f}", *fewer, score, f"{100 * row['gap']:+.2f}")
    console.print(table)
    note = "the first round with enough validation accuracy; fewer bytes than uncompressed to there, and in total"
    title = f"to within 0.5 points of uncompressed training ({100 * whole['test']:.2f} %)"
    table = text_table(title, ("codec", "setting", "round", "kB", "fewer", "in total", "accuracy", "points"), note)
    for family, at in figure["reach"].items():
        if at is None:
            table.add_row(family, "never", *["-"] * 6)
            continue
        times = (f"{at['fewer_same']:.1f}x", f"{at['fewer']:.1f}x")
        figures = (str(at["round"]), f"{at['up'] / 1e3:.1f}", *times, f"{100 * at['test']:.2f}")
        table.add_row(family, at["label"], *figures, f"{100 * at['gap']:+.2f}")
    console.print(table)
    for row in figure["equal"]:
        if row["winner"] is not None:
            best, share = row["families"][row["winner"]], "all" if row["share"] == 1 else f"1/{1 / row['share']:.0f}"
            where = f"{best['label']} in round {best['round']}"
            console.print(f"best with {share} of its bytes: {where}, {100 * best['test']:.2f} %", markup=False)


def _print_groups(figure: dict[str, Any], console: Any) -> None:
    note = "k: neighbours a client asks for, of 9 in its group; lam: chosen on validation samples"
    heads = ("network", "found exactly", "lam where all draws are", "best ARI", "accuracy")
    table = text_table("planted groups along the path: 40 clients in 4 groups", heads, note)
    for row in figure["networks"]:
        always = "-" if row["always"] is None else f"{row['always'][0]:.3g} to {row['always'][1]:.3g}"
        best = f"{sum(row['best_ari']) / len(row['best_ari']):.3f}"
        where = f"{row['found']} of {figure['draws']}"
        table.add_row(f"k = {row['neighbours']}", where, always, best, f"{100 * row['chosen_test']:.1f} %")
    console.print(table)


def _print_personal(figure: dict[str, Any], console: Any) -> None:
    note = "chosen on validation samples; worst: decile of clients, or client; ±: sd over draws, of a gain its error"
    heads = ("method", "setting", "round", "accuracy", "worst", "over alone", "kB")
    title = f"personal models: {figure['data']}, {figure['clients']} clients, {figure['model']}"
    table = text_table(title, heads, note)
    for row in figure["methods"]:
        error = "" if row["gain_error"] is None else f"±{100 * row['gain_error']:.1f}"
        gain = "-" if row["gain"] is None else f"{100 * row['gain']:+.1f}{error}"
        score = f"{100 * row['test']:.1f}±{100 * row['spread']:.1f}"
        setting = row["label"].removeprefix(f"{row['method']}-")
        cells = (str(row["round"]), score, f"{100 * row['worst']:.1f}", gain, f"{row['total'] / 1e3:,.0f}")
        table.add_row(row["method"], setting, *cells)
    console.print(table)
