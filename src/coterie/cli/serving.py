"""`coterie predict`, `export` and `join-trained`: the models of a trained run in use, from its folder alone."""

from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.options import TrustCode
from coterie.cli.terminal import say
from coterie.errors import CoterieError

__all__ = ["export", "join_trained", "predict"]

Run = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a run, a comparison, or one client's model (export).")
]
MethodName = Annotated[str | None, typer.Option("--method", help="Of a comparison: which method; default: the best.")]


def predict(
    run: Run,
    rows: Annotated[Path, typer.Argument(metavar="NEW.csv", help="The rows to predict: CSV, Parquet; arrays: .npy.")],
    client: Annotated[
        str | None, typer.Option(help="Whose rows; without it, the client column says whose row each is.")
    ] = None,
    new_client: Annotated[
        bool, typer.Option("--new-client", help="The rows are of a client that took no part in training.")
    ] = False,
    labelled: Annotated[
        Path | None,
        typer.Option("--rows", help="Labelled rows of the new client, for methods that choose its model by them."),
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Of the new client: a known group, by number or by a client in it.")
    ] = None,
    level: Annotated[float, typer.Option(help="Of numbers: the share of rows that low to high covers.")] = 0.9,
    out: Annotated[Path | None, typer.Option(help="The CSV file to write; default: NEW.predictions.csv.")] = None,
    method: MethodName = None,
    trust_code: TrustCode = False,
) -> None:
    """Predict new rows with the models of a trained run. No data of the training are needed.

    coterie predict comparison --client clinic-3 new.csv --out predictions.csv

    coterie predict comparison new.csv                  (the client column says whose row each is)

    coterie predict comparison --new-client new.csv     (a client that took no part)

    Columns are found by name and may be in any order; others are ignored. A row is never left out: the column `note`
    says what was missing or was not seen in training.
    """
    from coterie.serving.opening import open as opened

    if client is not None and new_client:
        raise CoterieError("--client and --new-client exclude each other: a client either took part or did not")
    if (labelled is not None or group is not None) and not new_client:
        raise CoterieError("--rows and --group are for --new-client")
    path = out or rows.with_suffix(".predictions.csv")
    for read in (rows, labelled or rows):
        if path.exists() and read.exists() and path.samefile(read):
            raise CoterieError(f"--out {path} is the file with the rows, which would be lost; choose another name")
    trained = opened(run, method, trust_code=trust_code)
    frame = _read(rows, trained)
    if new_client:
        known = int(group) if group is not None and group.isdecimal() and len(group) < 10 else group
        given = None if labelled is None else _read(labelled, trained)
        table = trained.new_client(given, group=known).predict(frame, level)
    else:
        table = trained.predict(frame, level) if client is None else trained.model(client).predict(frame, level)
    _write(table, path)
    noted = int((table["note"] != "").sum())
    say(f"{len(table):,} rows predicted with {trained.config['method']['name']}: {path}")
    if noted:
        first = table["note"][table["note"] != ""].iloc[0]
        say(f"{noted:,} of them have a note, for example: {first}")


def export(
    run: Run,
    client: Annotated[str, typer.Option(help="Whose model.")],
    out: Annotated[Path | None, typer.Option(help="The folder to write; default: exports/CLIENT in the run's.")] = None,
    method: MethodName = None,
    trust_code: TrustCode = False,
) -> None:
    """Write a client's own model into a folder of its own, for the site that it belongs to.

    coterie export comparison --client clinic-3 --out clinic-3

    The folder has the parameters (model.safetensors), how columns become inputs (preparation.json), a NumPy program
    without coterie (predict.py), model.onnx, and nothing of any other client. `coterie predict clinic-3 new.csv` and
    `coterie.open("clinic-3")` use it.
    """
    from coterie.serving.exporting import export as write
    from coterie.serving.opening import open as opened

    folder, reason = write(opened(run, method, trust_code=trust_code), client, out)
    say(f"written: {folder}")
    if reason:
        say(reason)


def join_trained(
    run: Run,
    rows: Annotated[Path, typer.Argument(metavar="NEW-SITE.csv", help="Labelled rows of the new client.")],
    name: Annotated[str, typer.Option(help="How the new client is called.")],
    out: Annotated[Path | None, typer.Option(help="The folder to write; default: joined/NAME in the run's.")] = None,
    method: MethodName = None,
    trust_code: TrustCode = False,
) -> None:
    """Give a new client its personal model from a trained federation; the others do not train again.

    coterie join-trained comparison new-site.csv --name clinic-9

    It starts from the model, or mixture of models, that fits its rows best and trains a few passes; cross-validation
    over its rows decides, and also says if a fresh model would be better. `coterie predict FOLDER new.csv` uses it.
    """
    from coterie.serving.exporting import slug
    from coterie.serving.joining import join_trained as join
    from coterie.serving.opening import open as opened
    from coterie.storage.owned import inside

    trained = opened(run, method, trust_code=trust_code)
    folder = out or inside(trained.path, "joined", slug(name))
    member = join(trained, _read(rows, trained), name=name, out=folder)
    joined: Any = member.joined
    starts = {
        "shared": "the shared model",
        "nearest": "the model of the client that fits best",
        "mixture": "a mixture of the clients' models",
        "fresh": "a fresh model: those of the federation do not help here",
    }
    say(f"{name:.80} starts from {starts[joined['start']]}; passes over its rows: {joined['passes']}")
    weights = ", ".join(f"{client} {weight:.0%}" for client, weight in list(joined["weights"].items())[:5])
    if weights:
        say(f"most like it: {weights}")
    say(f"written: {folder}")


def _read(path: Path, trained: Any) -> Any:
    """Read rows: a table, or an array for models that were trained on arrays."""
    if not path.is_file():
        raise CoterieError(f"there is no file {path}")
    if path.suffix == ".npy":
        from coterie.data.formats import read_npy

        return read_npy(path)
    if path.suffix == ".npz":
        from coterie.data.formats import read_npz

        arrays = read_npz(path)
        if not {"x", "y"} <= set(arrays):
            raise CoterieError(f"{path} needs the arrays x and y")
        return arrays["x"], arrays["y"]
    from coterie.data.tables.read import read

    return read(str(path)).frame


def _write(table: Any, path: Path) -> None:
    from coterie.storage.csv_text import csv_bytes
    from coterie.storage.durable import durable_write

    durable_write(path, csv_bytes(table))
