"""The `[sweep]` section: which settings vary over which values, and the combinations that follow. No JAX here.

    [sweep]
    method.lr = { from = 0.001, to = 0.1, steps = 5, scale = "log" }
    method.tie = [0.01, 0.1, 1.0]     # every value with every other: 5 x 3 candidates
    seed = [0, 1, 2]                  # the runs of each candidate, which is judged by their mean

    [[sweep.together]]                # the first value with the first, the second with the second, ...
    model.hidden = [[32], [64, 64]]
    method.batch_size = [10, 20]

A key is SECTION.KEY, as for `--set`; `method.name = ["ditto", "fedavg"]` varies the method. A section alone means its
name, if nothing else of it varies, and a setting of the run may be written without `run.`.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from coterie.errors import CoterieError, shown
from coterie.experiment.config import SECTIONS, RunSettings
from coterie.spec import build, nearest, param, spec

__all__ = ["SEED", "TOGETHER", "Axis", "Range", "combinations", "flat", "read_axes"]

TOGETHER = "together"
SEED = "run.seed"
DIGITS = 6  # significant ones of the values in a range
RUN = tuple(RunSettings.__dataclass_fields__)


@spec
class Range:
    """Values at equal distances, or on a logarithmic scale with equal ratios."""

    from_: float = param(help="the first value")
    to: float = param(help="the last value")
    steps: int = param(help="how many values", at_least=2, at_most=10_000)
    scale: str = param("linear", "linear or log")


class Axis(NamedTuple):
    """Settings that change together: `steps` has one value for each of the keys, at every step."""

    keys: tuple[str, ...]
    steps: tuple[tuple[Any, ...], ...]


def read_axes(table: Any) -> tuple[Axis, ...]:
    """Read the `[sweep]` section; every key is written SECTION.KEY afterwards."""
    if not isinstance(table, Mapping):
        raise CoterieError("sweep must be a section: write [sweep] and its keys below it")
    axes = [Axis((key,), tuple((value,) for value in values)) for key, values in _lists(table, "sweep").items()]
    bundles = table.get(TOGETHER, [])
    for bundle in [bundles] if isinstance(bundles, Mapping) else bundles:
        axes.append(_zipped(bundle))
    if not axes:
        raise CoterieError("sweep is empty; write what varies, for example method.lr = [0.01, 0.1]")
    seen: set[str] = set()
    for key in (key for axis in axes for key in axis.keys):
        if key in seen:
            raise CoterieError(f"sweep.{key} is given twice; leave one of them out")
        seen.add(key)
    return tuple(axes)


def combinations(axes: Sequence[Axis], most: int) -> list[dict[str, Any]]:
    """Return every combination of steps, the last axis fastest: for each the value of every key."""
    count = math.prod(len(axis.steps) for axis in axes)
    if count > most:
        raise CoterieError(f"sweep has {count:,} candidates, and at most {most:,} are run; take fewer values")
    combined = []
    for steps in itertools.product(*(axis.steps for axis in axes)):
        pairs = (zip(axis.keys, values, strict=True) for axis, values in zip(axes, steps, strict=True))
        combined.append(dict(itertools.chain.from_iterable(pairs)))
    return combined


def _zipped(bundle: Any) -> Axis:
    """Read settings that change together."""
    if not isinstance(bundle, Mapping):
        raise CoterieError("sweep.together must be a table of lists: write [[sweep.together]] and its keys below it")
    lists = _lists(bundle, f"sweep.{TOGETHER}", distinct=False)
    lengths = {key: len(values) for key, values in lists.items()}
    if len(set(lengths.values())) > 1:
        words = ", ".join(f"{key} has {count}" for key, count in lengths.items())
        raise CoterieError(f"sweep.together needs lists of the same length: {words}")
    if not lists:
        raise CoterieError("sweep.together is empty; write at least one key below it, or take it out")
    return Axis(tuple(lists), tuple(zip(*lists.values(), strict=True)))


def flat(table: Mapping[str, Any], where: str = "sweep") -> dict[str, Any]:
    """Return a section with keys SECTION.KEY, from tables in tables and from keys with dots; `together` stays."""
    entries: dict[str, Any] = {}
    for key, value in table.items():
        inside = isinstance(value, Mapping) and "." not in key and not _is_range(value)
        if key == TOGETHER:
            more = {key: value}
        elif inside:
            more = {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            more = {_full(key, where): value}
        for name in more.keys() & entries.keys():
            raise CoterieError(f"{where}.{name} is given twice; leave one of them out")
        entries |= more
    return entries


def _lists(table: Mapping[str, Any], where: str, distinct: bool = True) -> dict[str, list]:
    """Return the values of every key."""
    entries = {key: given for key, given in flat(table, where).items() if key != TOGETHER}
    return {key: _values(given, f"{where}.{key}", distinct) for key, given in entries.items()}


def _full(key: str, where: str) -> str:
    """Return a key as SECTION.KEY."""
    if "." in key:
        return key
    if key in SECTIONS:
        return f"{key}.name"
    if key in RUN:
        return f"run.{key}"
    guess = nearest(key, [*SECTIONS, *RUN]) or f"; write SECTION.KEY, for example method.{key}"
    raise CoterieError(f"unknown key {where}.{key}{guess}")


def _is_range(value: Any) -> bool:
    return isinstance(value, Mapping) and ("from" in value or "to" in value)


def _values(given: Any, where: str, distinct: bool) -> list[Any]:
    """Return the values of one key, from a list or a range."""
    if hasattr(given, "tolist"):  # a NumPy array
        given = given.tolist()
    if _is_range(given):
        return _spread(given, where)
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise CoterieError(
            f"{where} must be a list of values or a range such as {{ from = 0.01, to = 1.0, steps = 5 }}, not "
            f"{shown(given)}; a single value belongs into its own section"
        )
    values = [value.item() if hasattr(value, "item") else value for value in given]
    if not values:
        raise CoterieError(f"{where} is empty; give it at least one value, or take it out")
    for number, value in enumerate(values):
        if isinstance(value, float) and not math.isfinite(value):
            raise CoterieError(f"{where} has {value}; every value must be a finite number")
        if value is None:
            raise CoterieError(f"{where} has None, which no file can hold; leave it out")
        if distinct and value in values[:number]:
            raise CoterieError(f"{where} has {shown(value)} twice; leave one of them out")
    return values


def _spread(table: Mapping[str, Any], where: str) -> list[Any]:
    """Return the values of a range; whole numbers if both its ends are written as such."""
    named = {"from_" if key == "from" else key: value for key, value in table.items()}
    try:
        chosen = build(Range, named, where)
    except CoterieError as error:
        raise CoterieError(str(error).replace("from_", "from")) from None
    ends = chosen.from_, chosen.to
    if chosen.scale not in ("linear", "log"):
        guess = nearest(chosen.scale, ("linear", "log"))
        raise CoterieError(f"{where}.scale must be linear or log, not {shown(chosen.scale)}{guess}")
    if not all(map(math.isfinite, ends)) or ends[0] == ends[1]:
        raise CoterieError(f"{where} goes from {ends[0]:g} to {ends[1]:g}; give two different finite numbers")
    if chosen.scale == "log" and min(ends) <= 0:
        raise CoterieError(f"{where} has scale log and must stay above 0; it goes from {ends[0]:g} to {ends[1]:g}")
    shares = [i / (chosen.steps - 1) for i in range(chosen.steps)]
    if chosen.scale == "log":
        values = [ends[0] * (ends[1] / ends[0]) ** share for share in shares]
    else:
        values = [ends[0] + (ends[1] - ends[0]) * share for share in shares]
    values = [ends[0], *(float(f"{value:.{DIGITS}g}") for value in values[1:-1]), ends[1]]
    if all(type(table[end]) is int for end in ("from", "to")):
        values = [round(value) for value in values]
        if len(set(values)) < len(values):
            raise CoterieError(
                f"{where} has not so many whole numbers; lower steps, or write {ends[0]:.1f} and {ends[1]:.1f} "
                "for real ones"
            )
    return values
