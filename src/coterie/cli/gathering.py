"""`coterie gather` and `coterie replay`: after a run on a network."""

import json
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.options import Json, Out, TrustCode, report_or_note
from coterie.cli.terminal import console_for

__all__ = ["gather", "replay"]

Folders = Annotated[
    list[Path],
    typer.Argument(
        metavar="DIR [DIR ...]",
        help="The folders of all sites of a run, or the one that holds them all (`coterie peers --local`).",
    ),
]


def gather(
    folders: Folders,
    out: Out = None,
    with_models: Annotated[bool, typer.Option("--with-models", help="Take the models along, too.")] = False,
    as_json: Json = False,
) -> None:
    """Join the folders of the sites of a run into one, with one report; never data, and models only if asked for."""
    from coterie.cli.screen import print_leaderboard
    from coterie.comparison.comparison import Comparison
    from coterie.sites.gather import gather as join
    from coterie.sites.network import read_network_record

    console = console_for(as_json)
    folder = join(folders, out or Path("runs") / "gathered", with_models)
    comparison, record = Comparison.read([folder]), read_network_record(folder)
    path = report_or_note(comparison, folder / "report.html", console)
    notes = [] if record is None else record["notes"]
    if as_json:
        print(json.dumps({"folder": str(folder), "report": path, "notes": notes}))
        return
    print_leaderboard(console, comparison.leaderboard())
    for line in [*notes, f"run: {folder}", *([] if path is None else [f"report: {path}"])]:
        console.print(line, markup=False, soft_wrap=True)


def replay(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR [DIR ...]", help="A gathered run, or all its sites, or the folder of them."),
    ],
    data: Annotated[
        str | None, typer.Option(help="The table of all clients, where it is not where the run had it.", metavar="PATH")
    ] = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Repeat what arrived in a run on a network in a simulation, and say whether the models agree."""
    from coterie.registry import names_from
    from coterie.sites.gather import site_folders
    from coterie.sites.replay import replay as repeat

    folders = site_folders(folders)
    with names_from(folders[0] / "config.toml", trust_code):
        found = repeat(folders, data)
    console = console_for(as_json)
    known = [one for one in found if one.difference is not None]
    agree = bool(known) and all(one.difference == 0 for one in known)
    if as_json:
        print(json.dumps({"agree": agree, "clients": [one._asdict() for one in found]}))
    else:
        for one in found:
            words = "the same, bit for bit"
            if one.difference != 0:
                gap = one.difference
                words = "no model to compare with" if gap is None else f"differs by {gap:.2g} (relative)"
            console.print(f"{one.name}: {words}", markup=False, soft_wrap=True)
        console.print(
            "the models agree" if agree else "the models do not agree to the last bit: see above", markup=False
        )
    if not agree:
        raise typer.Exit(1)
