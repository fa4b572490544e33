"""What went in: the task, the columns, the clients and what to be careful about, for the screen and the report."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.clients import Federation
from coterie.data.samples import Samples
from coterie.data.tables.columns import Column
from coterie.errors import CoterieError, printable

if TYPE_CHECKING:
    from coterie.data.tables.preparation import Preparation

__all__ = ["Intake", "describe"]

MANY = 12  # columns of one kind from which they share a line on the screen
STATISTICS = {
    "federated": "numbers are scaled with the mean and deviation of all sites' training rows; a missing number becomes "
    "the weighted median of the sites' medians",
    "local": "numbers are scaled and filled with the statistics of each site's own training rows",
    "none": "numbers are used as they are; a missing number becomes the weighted median of the sites' medians",
}


@dataclasses.dataclass(frozen=True)
class Intake:
    """What went in.

    Attributes:
        source: what the data are.
        task: what is predicted and why.
        rows: number of samples.
        inputs: number of inputs of the model (of one sample, for arrays).
        columns: of a table, one record per column: name, kind, note, missing, becomes (names of inputs).
        clients: one record per client: name, train, validation, test (before a division only `train`: all its rows).
        warnings: sentences a person should read.
        statistics: how numbers are scaled and filled, in a sentence.
        bytes_per_client: what it cost a client to agree on the inputs.
    """

    source: str
    task: str
    rows: int
    inputs: int
    columns: tuple[dict[str, Any], ...] = ()
    clients: tuple[dict[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()
    statistics: str = ""
    bytes_per_client: float = 0.0

    @classmethod
    def of_preparation(cls, preparation: "Preparation") -> "Intake":
        """Describe a table."""
        sent = [a + b for a, b in preparation.sent_bytes.values()]
        return cls(
            source=preparation.source,
            task=preparation.task,
            rows=preparation.rows,
            inputs=len(preparation.features),
            columns=tuple(_record(column) for column in preparation.columns),
            clients=tuple(_client(*record) for record in preparation.clients),
            warnings=preparation.warnings,
            statistics=STATISTICS[preparation.standardise],
            bytes_per_client=float(np.mean(sent)) if sent else 0.0,
        )

    @classmethod
    def of_federation(cls, federation: Federation) -> "Intake":
        """Describe a federation: of a table, or of arrays."""
        if federation.preparation is not None:
            return dataclasses.replace(cls.of_preparation(federation.preparation), source=federation.about)
        parts = [np.asarray(split.count).tolist() for split in _splits(federation)]
        return cls(
            source=federation.about,
            task=task_of(federation),
            rows=int(sum(map(sum, parts))),
            inputs=int(np.prod(federation.sample_shape, dtype=np.int64)),
            clients=tuple(_client(*record) for record in zip(federation.names, *parts, strict=True)),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return dataclasses.asdict(self)

    def lines(self) -> list[str]:
        """Return the text of the screen, one line each: the task, the columns by kind, the clients."""
        said = [f"{self.source}: {self.rows:,} rows, {self.inputs:,} inputs", self.task]
        for kind, title in TITLES.items():
            records = [record for record in self.columns if record["kind"] == kind]
            if records:
                said.append(f"{title}: {', '.join(map(_spoken, records[:MANY]))}" + _more(len(records) - MANY))
        said.append(_clients_line(self.clients))
        return [line for line in said if line] + ([self.statistics] if self.columns else [])

    def __str__(self) -> str:
        return "\n".join([*self.lines(), *(f"careful: {warning}" for warning in self.warnings)])

    def __rich__(self) -> Any:
        from rich.box import SIMPLE_HEAD
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        parts: list[Any] = [Text(f"{self.source}: {self.rows:,} rows, {self.inputs:,} inputs", style="bold")]
        parts.append(Text(self.task))
        if self.columns:
            table = Table(box=SIMPLE_HEAD, pad_edge=False)
            for title, where in (
                ("column", "left"),
                ("is", "left"),
                ("missing", "right"),
                ("inputs", "right"),
                ("", "left"),
            ):
                table.add_column(title, justify=where)  # type: ignore[arg-type]
            for record in self.columns[: 5 * MANY]:
                used = str(len(record["becomes"])) if record["becomes"] else "left out"
                missing = _share(record["missing"])
                cells = (record["name"], record["kind"], missing, used, record["note"])
                table.add_row(*(Text(printable(cell)) for cell in cells))
            parts += [table, Text(_more(len(self.columns) - 5 * MANY).strip())]
        parts.append(Text(_clients_line(self.clients)))
        parts += [Text(self.statistics, style="dim")] if self.columns else []
        parts += [Text(f"careful: {printable(warning)}", style="yellow") for warning in self.warnings]
        return Group(*(part for part in parts if not isinstance(part, Text) or part.plain))

    def _repr_html_(self) -> str:
        from html import escape

        head = f"<p><b>{escape(self.source)}</b>: {self.rows:,} rows, {self.inputs:,} inputs<br>{escape(self.task)}</p>"
        rows = "".join(
            f"<tr><td>{escape(r['name'])}</td><td>{r['kind']}</td><td>{escape(_share(r['missing']))}</td>"
            f"<td>{len(r['becomes']) or 'left out'}</td><td>{escape(r['note'])}</td></tr>"
            for r in self.columns
        )
        titles = "<tr><th>column</th><th>is</th><th>missing</th><th>inputs</th><th></th></tr>"
        notes = "".join(f"<li>{escape(warning)}</li>" for warning in self.warnings)
        return head + (f"<table>{titles}{rows}</table>" if rows else "") + (f"<ul>{notes}</ul>" if notes else "")


TITLES = {
    "number": "numbers",
    "words": "words",
    "date": "dates",
    "identifier": "identifiers, left out",
    "constant": "constant, left out",
    "dropped": "dropped",
}


def describe(data: Federation | Samples) -> Intake:
    """Say what went in: of a federation, or of a table that is not divided yet."""
    if isinstance(data, Federation):
        return Intake.of_federation(data)
    if getattr(data, "table", None) is not None:
        return Intake.of_preparation(data.table.preparation())
    if isinstance(data, Samples):
        return Intake(data.about, task_of(data), len(data), int(np.prod(data.x.shape[1:], dtype=np.int64)))
    raise CoterieError(f"describe takes a federation or samples, not {type(data).__name__}")


def task_of(data: Any) -> str:
    """Say in one sentence what is predicted."""
    if data.kind == "regression":
        return "regression" if data.classes == 1 else f"regression, {data.classes} outputs"
    if data.kind == "next-character":
        return f"next character out of {data.classes}"
    names = ", ".join(data.class_names[:10]) + (", ..." if len(data.class_names) > 10 else "")
    return f"classification, {data.classes} classes" + (f": {names}" if names else "")


def _splits(federation: Federation) -> list[Any]:
    return [federation.train, federation.validation, federation.test]


def _record(column: Column) -> dict[str, Any]:
    becomes = list(column.features) if column.used else []
    note = column.note
    if column.kind == "words":
        shown = ", ".join(column.levels[:5]) + (", ..." if len(column.levels) > 5 else "")
        note = f"{note}: {shown}" if column.levels else note
    if column.kind == "date":
        note = f"{note}: {', '.join(column.parts)}"
    return {"name": column.name, "kind": column.kind, "note": note, "missing": column.missing, "becomes": becomes}


def _client(name: str, train: int, validation: int, test: int) -> dict[str, Any]:
    return {"name": name, "train": int(train), "validation": int(validation), "test": int(test)}


def _clients_line(clients: tuple[dict[str, Any], ...]) -> str:
    if not clients:
        return ""
    if not any(record["test"] for record in clients):
        sizes = sorted(record["train"] for record in clients)
        return f"{len(clients):,} clients with {sizes[0]:,} to {sizes[-1]:,} rows"
    parts = {part: [record[part] for record in clients] for part in ("train", "validation", "test")}
    each = ", ".join(f"{sum(v):,} {part} ({min(v):,} to {max(v):,})" for part, v in parts.items())
    return f"{len(clients):,} clients; rows in all (least to most per client): {each}"


def _spoken(record: dict[str, Any]) -> str:
    missing = f"{_share(record['missing'])} missing" if record["missing"] else ""
    inside = "; ".join(part for part in (record["note"], missing) if part)
    return printable(f"{record['name']} ({inside})" if inside else record["name"])


def _share(missing: float) -> str:
    """Write the share of missing values; nothing for none."""
    return "" if missing == 0 else "< 1 %" if missing < 0.01 else f"{100 * missing:.0f} %"


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""
