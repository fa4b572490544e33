"""The commented `experiment.toml` of `coterie init`: the table as it was understood, ready to be changed."""

from collections.abc import Sequence
from typing import Any

from coterie.data.samples import Samples
from coterie.data.tables.intake import describe
from coterie.data.tables.source import Table
from coterie.errors import printable
from coterie.storage.toml import toml_value

__all__ = ["init_toml"]


def init_toml(path: str | Sequence[str], target: str, client: str | None = None, **settings: Any) -> str:
    """Read a table and return an experiment for it as a TOML file whose comments say what each column becomes.

    Args:
        path: a file, a pattern, a folder or a list of files.
        target: the column that is predicted.
        client: the column with the client of each row; without it, a site's file is the client.
        **settings: other settings of the table, as in the `[data]` section.
    """
    table = Table(path=path if isinstance(path, str) else tuple(path), target=target, client=client, **settings)
    samples = table.load()
    chosen = {"path": table.path, "target": target} | ({} if client is None else {"client": client}) | settings
    lines = ["# An experiment of coterie. Look at it with `coterie check experiment.toml`, start it with", "#"]
    lines[-1] += "     coterie compare experiment.toml"
    lines += ["#", *(f"# {line}" for line in describe(samples).lines())]
    lines += [f"# careful: {warning}" for warning in samples.table.warnings]
    lines += ["", "format = 1", "", "[data]", 'name = "table"']
    lines += [f"{key} = {toml_value(value)}" for key, value in chosen.items()]
    lines += _other_settings(samples, table, chosen)
    natural = samples.owner is not None
    lines += ["", "[partition]", f'name = "{"natural" if natural else "iid"}"']
    lines += [] if natural else ["clients = 5                 # these data do not say whose row it is"]
    lines += ["test = 0.2                  # share of a client's rows for testing", "validation = 0.1"]
    lines += ["", "[model]", 'name = "mlp"                # or "linear": coterie list models', "hidden = [64]"]
    lines += ["", "[run]", "rounds = 50                 # communication rounds", ""]
    return "\n".join(_one_line(line) for line in lines)


def _other_settings(samples: Samples, table: Table, chosen: dict[str, Any]) -> list[str]:
    """Return the settings that were left out, as comments with what they do."""
    kind = samples.kind
    left_out = [c.name for c in samples.table.columns if c.kind == "identifier"]
    comments = {
        "kind": (kind, f"found; the other is {'regression' if kind == 'classification' else 'classification'}"),
        "missing": (table.missing, "or drop-rows, refuse"),
        "standardise": (table.standardise, "or local (nothing about numbers is shared), none"),
        "drop": ([], "columns that are not used"),
        "keep": (left_out, "left out as identifiers; named here they are inputs")
        if left_out
        else ([], "inputs anyway"),
    }
    return [
        f"# {key} = {toml_value(value)}".ljust(40) + f"  # {about}"
        for key, (value, about) in comments.items()
        if key not in chosen
    ]


def _one_line(line: str) -> str:
    """A comment must not break out of its line, whatever a column is called."""
    return printable(line)
