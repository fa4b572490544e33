"""What the files of a run and of a comparison must hold, and how they are read. No JAX here.

Each file has one schema here (arrays: `tables.py`), and everything that opens a folder reads it by these functions: the
folder may be of an earlier version, damaged, or made by somebody else.
"""

import functools
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from coterie.data.clients import Kind
from coterie.data.tables.preparation import Preparation
from coterie.errors import shown
from coterie.learning.score import SCORES
from coterie.storage.owned import holds, read_file
from coterie.storage.schema import (
    Check,
    Mismatch,
    each,
    increasing,
    mapping,
    maybe,
    number,
    numbers,
    plain,
    read_json,
    read_lines,
    read_toml_text,
    record,
    table,
    text,
    truth,
    whole,
    word,
)

__all__ = [
    "COMPARISON", "CONFIG", "METRICS", "TIMING", "clients_schema", "preparation_schema", "read_clients",
    "read_comparison", "read_config", "read_intervals", "read_preparation", "read_profile", "read_rows", "read_summary",
]  # fmt: skip

METRICS, TIMING = "metrics.jsonl", "timing.jsonl"
RUNS = 100_000  # of a method in a comparison, at most
LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]*")  # of a method: also the name of a folder
ROLES = ("guess", "alone", "pooled", "cooperates", "ceiling")  # the last is what version 0.1 called "pooled"

MEASURED = ("test_loss", "test_score", "test_own_score", "validation_loss", "validation_score")
QUALITIES = ("graph_l1", "graph_auroc", "graph_ari")

KINDS = ("float", "int", "uint")  # of numbers in arrays
COUNT = whole(0)
FIGURE = number(finite=False)  # NaN: it has no meaning for these clients
SHARE = number(0, 1)
FORMAT = word(1)
NAMED = table({"name": text}, rest=plain)
SETTINGS = table({}, rest=plain)
METRIC = {"metric": maybe(word(*SCORES))}
SEED = table({"seed": COUNT}, METRIC, rest=plain)
CONFIG = table(
    {
        "data": NAMED,
        "model": NAMED,
        "method": NAMED,
        "run": table({"seed": COUNT, "rounds": whole(1)}, METRIC, rest=plain),
    },
    {"format": FORMAT, "partition": NAMED, "graph": NAMED, "codec": NAMED},
    rest=SETTINGS,
)
SECONDS = table({"wall": number(), "compile": number(), "program": number()}, rest=number())
SUMMARY = table(
    {"round": whole(1), "metric": word(*SCORES), "seconds": SECONDS, "device": text},
    {"role": word(*ROLES), "mean": number(), "learns_weights": truth},
    rest=plain,
)
PROFILE = table({"seconds": number(0), "parts": mapping(number(0)), "note": text}, rest=plain)
TIME = table({"round": whole(1), "wall": number(), "compile": number(), "program": number()}, rest=plain)
WIDTHS = {"rows": COUNT, "half_widths": each(each(maybe(number(0))))}
INTERVALS = table({"levels": each(SHARE, least=1), "pooled": table(WIDTHS), "clients": mapping(table(WIDTHS))})


def label(value: Any) -> str:
    """Check the label of a method, which is the name of its folder."""
    if not LABEL.fullmatch(text(value)):
        raise Mismatch("must have letters, digits, '-', '_' and '.' only")
    return value


COMPARISON = table(
    {
        "run": SEED,
        "data": NAMED,
        "compare": table(
            {"methods": each(label, least=1, distinct=True), "seeds": whole(1, RUNS)},
            {"splits": whole(1, RUNS), "tune": word(True, False, "score"), "command": text},
        ),
    },
    {"format": FORMAT, "methods": table({}, rest=SETTINGS)},
    rest=SETTINGS,
)


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.toml."""
    return read_toml_text(read_file(folder, "config.toml"), folder / "config.toml", CONFIG)


def read_comparison(folder: Path) -> dict[str, Any]:
    """Read comparison.toml; version 0.1 knew neither splits nor tuning."""
    file = folder / "comparison.toml"
    tables = read_toml_text(read_file(folder, file.name), file, COMPARISON)
    tables["compare"] = {"splits": 1, "tune": False, "command": ""} | tables["compare"]
    tables["methods"] = {name: {} for name in tables["compare"]["methods"]} | tables.get("methods", {})
    return tables


# -- clients ----------------------------------------------------------------------------------------------------------


def clients_schema(value: Any, full: bool = True) -> dict[str, Any]:
    """Check what is said about clients; with `full` all of them, as in clients.json, otherwise one of them."""
    names = table({"names": each(text, least=1, distinct=True)}, rest=lambda entry: entry)(value)["names"]
    per_client = {"groups": maybe(each(COUNT, len(names))), "label_counts": _label_counts(len(names)), "about": text}
    required: dict[str, Check] = {
        "names": lambda entry: entry,
        "kind": word(*get_args(Kind)),
        "classes": whole(1, 2**31),
        "sizes": table({part: each(COUNT, len(names)) for part in ("train", "validation", "test")}),
    }
    optional: dict[str, Check] = {
        "planted": truth,
        "class_names": _class_names(value),
        "sample_shape": _sample_shape,
        "mean": each(number()),
        "std": each(number(0)),
        "target_mean": number(),
        "target_std": number(0),
        "dtype": word("bool", "int8", "uint8", *(f"{kind}{bits}" for kind in KINDS for bits in (16, 32, 64))),
        "digest": text,
    }
    return table(required | (per_client if full else {}), optional | ({} if full else per_client), rest=plain)(value)


def _class_names(about: Any) -> Check:
    """Return the check of what classes are called: nothing is said, or a name for each."""
    classes = about.get("classes") if isinstance(about, dict) else None

    def check(value: Any) -> Any:
        return value if value == [] else each(text, classes if type(classes) is int else None)(value)

    return check


def _label_counts(clients: int) -> Check:
    """Return the check of how many samples each client has of each class; very many clients have none."""

    def check(value: Any) -> Any:
        if value == []:
            return value
        rows = each(each(COUNT), clients)(value)
        if len({len(row) for row in rows}) > 1:
            raise Mismatch("must have as many entries for each client")
        return value

    return check


def _sample_shape(value: Any) -> Any:
    if math.prod(each(whole(1, 2**31))(value)) > 2**28:
        raise Mismatch("is too large for a sample")
    return value


def read_clients(folder: Path) -> dict[str, Any]:
    """Read clients.json."""
    return read_json(folder, "clients.json", clients_schema)


# -- what a run has measured ------------------------------------------------------------------------------------------


def row_schema(clients: int) -> Check:
    """Return the check of a line of metrics.jsonl: numbers for each client, or one figure for all of them."""
    per_client = numbers(clients)

    def metric(value: Any) -> Any:
        return per_client(value) if isinstance(value, list) else FIGURE(value)

    required = {"round": whole(1), **dict.fromkeys(MEASURED, per_client)}
    sent = dict.fromkeys(("bytes_sent", "bytes_received"), per_client)
    without = table(required, dict.fromkeys(QUALITIES, FIGURE), rest=metric)
    full = table(required | sent, dict.fromkeys(QUALITIES, FIGURE), rest=metric)
    return lambda value: (full if isinstance(value, dict) and sent.keys() & value.keys() else without)(value)


def read_rows(folder: Path, file: str, clients: int) -> list[dict[str, Any]]:
    """Read metrics.jsonl or timing.jsonl; empty where there is none."""
    if not holds(folder, file):
        return []
    rows = read_lines(folder, file, row_schema(clients) if file == METRICS else TIME)
    increasing(rows, "round", folder / file)
    return rows


def read_summary(folder: Path) -> dict[str, Any]:
    """Read summary.json."""
    return read_json(folder, "summary.json", SUMMARY)


# -- what predictions need --------------------------------------------------------------------------------------------


def read_preparation(folder: Path, about: Mapping[str, Any] | None = None) -> Preparation | None:
    """Read how rows of a table become inputs; None where the data were no table.

    With `about`, what is said about the clients, inputs and targets must be those that the models take.
    """
    if not holds(folder, "preparation.json"):
        return None
    fits = functools.partial(preparation_schema, about=about)
    return Preparation.from_dict(read_json(folder, "preparation.json", fits))


def preparation_schema(value: Any, about: Mapping[str, Any] | None = None) -> Any:
    """Check how rows of a table become inputs; with `about`, against what the models take."""
    record(Preparation)(value)
    needed = {"statistics": plain, "sent": plain, "clients": each(_rows_of_client)}
    table(needed, {"standardise": word("federated", "local", "none")}, rest=plain)(value)
    preparation = Preparation.from_dict(value)
    columns, target = preparation.columns, preparation.target
    for column in columns:
        if column.kind == "date" and not column.parts:
            raise Mismatch("must not be empty", f"columns.{column.name}.parts")
    count = sum(len(column.numbers) for column in columns)
    for name, statistics in value["statistics"].items():
        for part, values in statistics.items():
            if len(values) != count:
                raise Mismatch(f"must have {count} entries, not {len(values)}", f"statistics.{name}.{part}")
        if not np.all(np.asarray(statistics["scale"]) != 0):
            raise Mismatch("must not have a zero", f"statistics.{name}.scale")
    if target.std == 0:
        raise Mismatch("must not be 0", "target.std")
    if about is not None:
        _meets_models(preparation, about)
    return value


def _meets_models(preparation: Preparation, about: Mapping[str, Any]) -> None:
    """Refuse columns that make other inputs, and a target that is another, than the models were trained with."""
    target, inputs, shape = preparation.target, len(preparation.features), about.get("sample_shape")
    if shape is not None and shape != [inputs]:
        raise Mismatch(f"must make samples of shape {shown(shape)}, as the models take, not of {[inputs]}", "columns")
    if target.kind != about["kind"]:
        raise Mismatch(f"must be {about['kind']}, as the models predict, not {target.kind}", "target.kind")
    if target.kind == "classification" and len(target.class_names) != about["classes"]:
        count = f"{about['classes']:,} entries, as the models know classes, not {len(target.class_names):,}"
        raise Mismatch(f"must have {count}", "target.class_names")


def _rows_of_client(value: Any) -> Any:
    """Check a client's name, and its rows for training, validation and testing."""
    name, *sizes = each(plain, 4)(value)
    text(name)
    return each(COUNT)(sizes)


def read_profile(root: Path) -> dict[str, Any] | None:
    """Return where the time of a run went; None where it was not profiled."""
    return read_json(root, "profile.json", PROFILE) if holds(root, "profile.json") else None


def read_intervals(folder: Path) -> dict[str, Any] | None:
    """Read how far predictions may be off; None where the run says nothing."""
    return read_json(folder, "intervals.json", _intervals_schema) if holds(folder, "intervals.json") else None


def _intervals_schema(value: Any) -> Any:
    INTERVALS(value)
    pooled = value["pooled"]["half_widths"]
    outputs = len(pooled[0]) if pooled else 0
    for name, entry in [("pooled", value["pooled"]), *value["clients"].items()]:
        try:
            each(each(plain, outputs), len(value["levels"]))(entry["half_widths"])
        except Mismatch as wrong:
            raise wrong.below(f"{name}.half_widths") from None
    return value
