"""`coterie list` and `coterie show`: what can be chosen, and what the settings of each mean."""

import dataclasses
import inspect
import json
import math
import re
import sys
from typing import Annotated, Any

import typer

from coterie import registry
from coterie.cli.terminal import console_for, say
from coterie.errors import CoterieError, shown
from coterie.spec import LARGEST, describe, nearest

__all__ = ["list_names", "show"]

IMAGE, TEXT = (1, 28, 28), (80,)
OUTPUTS = 10
Json = Annotated[bool, typer.Option("--json", help="Print JSON only, for scripts.")]


def list_names(
    kind: Annotated[str | None, typer.Argument(help="methods, datasets, partitions, models, graphs or codecs.")] = None,
    as_json: Json = False,
) -> None:
    """List what can be chosen by name."""
    kinds = list(registry.KINDS) if kind is None else [kind]
    lists = {kind: [_row(row) for row in registry.rows(kind)] for kind in kinds}
    if as_json:
        print(json.dumps(lists if kind is None else lists[kind], indent=1))
        return
    width = max(len(row["name"]) for rows in lists.values() for row in rows)
    for title, rows in lists.items():
        if kind is None:
            say(f"{title}:")
        for row in rows:
            paper = f" ({row['paper']})" if row["paper"] else ""
            say(f"{'  ' * (kind is None)}{row['name']:{width}}  {row['summary']}{paper}")


def _row(row: registry.Row) -> dict[str, str]:
    return {"name": row.name, "summary": row.summary, "paper": row.paper}


def show(
    name: Annotated[
        str, typer.Argument(help="A method, data set, partition, model, graph or codec, or FILE.py:CLASS.")
    ],
    shape: Annotated[str | None, typer.Option(help="For a model: the shape of a sample, for example 3,32,32.")] = None,
    as_json: Json = False,
) -> None:
    """Show the settings of a method, a data set, a partition, a model, a graph or a codec."""
    things = [_about(kind, name, shape) for kind in _kinds(name)]
    if as_json:
        print(json.dumps(things[0] if len(things) == 1 else things, indent=1))
        return
    for about in things:
        _print(about)


def _kinds(name: str) -> list[str]:
    """Return the lists in which a name occurs."""
    if ":" in name:
        return [registry.kind_of(registry.imported(name, name), name)]
    kinds = [kind for kind in registry.KINDS if any(row.name == name for row in registry.rows(kind))]
    if kinds:
        return kinds
    if name.lower() in registry.EXPLAINED:
        raise CoterieError(registry.EXPLAINED[name.lower()])
    everything = [row.name for kind in registry.KINDS for row in registry.rows(kind)]
    raise CoterieError(
        f"there is nothing called {shown(name)}{nearest(name, everything) or '; coterie list shows all names'}"
    )


def _about(kind: str, name: str, shape: str | None) -> dict[str, Any]:
    row = registry.find(kind, name)
    cls: type = registry.load(kind, name)
    common = registry.imported(registry.KINDS[kind].common, name) if registry.KINDS[kind].common else None
    own = describe(cls) if dataclasses.is_dataclass(cls) else []
    fields = own + (describe(common) if common else [])
    about: dict[str, Any] = {
        "name": name,
        "kind": kind.removesuffix("s"),
        "section": registry.KINDS[kind].section,
        "summary": row.summary,
        "paper": row.paper,
        "description": _description(cls, row.summary),
        "settings": [dataclasses.asdict(field) for field in fields],
    }
    if kind == "models":
        about |= _parameters(cls, shape)
    elif shape is not None:
        raise CoterieError(f"--shape is for models, and {name} is a {about['kind']}")
    return about


def _description(cls: Any, summary: str) -> str:
    """Return the documentation of a class; for methods and codecs with that of its file: paper, equations, changes."""
    own = inspect.getdoc(cls) or ""
    if own.startswith(f"{cls.__name__}(") or own.rstrip(".").lower() == summary.lower():
        own = ""  # written by dataclass, or a repetition
    has_file = hasattr(cls, "models") or hasattr(cls, "reduce")
    module = inspect.getdoc(sys.modules[cls.__module__]) or "" if has_file else ""
    return "\n\n".join(text for text in (module, own) if text)


def _flowing(text: str) -> str:
    """Join the lines of a paragraph, so that the terminal breaks them; lists and indented lines stay as they are."""
    return re.sub(r"(?<=\S)\n(?=[^\s-])(?!\d\. )", " ", text)


def _parameters(cls: Any, shape: str | None) -> dict[str, Any]:
    """Build a model for a sample shape, without computing anything, and name its parameters."""
    shapes = [_parse_shape(shape)] if shape else [IMAGE, TEXT]
    for tried in shapes:
        try:
            return {"shape": list(tried), "outputs": OUTPUTS, "parameters": _names(cls, tried)}
        except CoterieError:
            if tried == shapes[-1]:
                raise
    raise AssertionError("unreachable")


def _names(cls: Any, shape: tuple[int, ...]) -> dict[str, list[int]]:
    import equinox as eqx
    import jax

    from coterie.models.naming import names

    model = eqx.filter_eval_shape(lambda key: cls().build(shape, OUTPUTS, key), jax.random.key(0))
    if isinstance(model, tuple):  # with batch statistics: `eqx.nn.make_with_state`
        model = model[0]
    return {name: list(leaf.shape) for name, leaf in names(model)}


def _parse_shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in text.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1 or math.prod(shape) > LARGEST:
        raise CoterieError(
            f"--shape must be whole numbers with commas, for example 3,32,32, whose product is at most {LARGEST:,}, "
            f"not {shown(text)}"
        )
    return shape


def _print(about: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    console = console_for()
    console.print(f"[bold]{escape(about['name'])}[/bold] ({about['kind']}): {escape(about['summary'])}")
    if about["paper"]:
        console.print(f"From: {escape(about['paper'])}")
    if about["description"]:
        console.print(f"\n{escape(_flowing(about['description']))}")
    if about["settings"]:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("setting", no_wrap=True)  # a name that is broken cannot be copied
        for head in ("type", "default", "meaning"):
            table.add_column(head, overflow="fold")
        for field in about["settings"]:
            table.add_row(
                f"{about['section']}.{field['name']}", field["type"], _default(field["default"]), escape(field["help"])
            )
        console.print()
        console.print(table)
    else:
        console.print("\nIt has no settings.")
    if "parameters" in about:
        console.print(
            f"\nParameters for samples of shape {tuple(about['shape'])} and {about['outputs']} outputs:", markup=False
        )
        for name, size in about["parameters"].items():
            console.print(f"  {name}  {size}", markup=False)


def _default(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)
