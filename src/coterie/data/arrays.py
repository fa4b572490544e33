"""Data that are already in memory: one pool of arrays, or one pair of arrays or one DataFrame for each client."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.data.clients import Federation, Kind
from coterie.data.labels import characters, inputs, joined, judged_kind, names_of, plain, targets
from coterie.data.partition import Natural, divide
from coterie.data.samples import Samples
from coterie.errors import CoterieError

__all__ = ["federation", "is_frame", "pool"]

Pair = tuple[Any, Any]
TARGET = "target"  # what the targets of pairs (frame, y) are called


def federation(
    pairs: Sequence[Pair] | Mapping[str, Pair],
    *,
    names: Sequence[str] | None = None,
    test: Sequence[Pair] | Mapping[str, Pair] | None = None,
    validation: float = 0.1,
    test_fraction: float = 0.2,
    kind: Kind | None = None,
    seed: int = 0,
    groups: Sequence[int] | np.ndarray | None = None,
    target: str | None = None,
    **table: Any,
) -> Federation:
    """Make a federation from one `(x, y)` pair, or one DataFrame, per client.

    DataFrames, with the target among their columns or as pairs `(frame, y)`, are joined by the names of their columns
    and prepared as tables are: words, dates and missing values are welcome.

    Args:
        pairs: the clients' samples, in order or by name. Inputs of all clients have the same shape.
        names: the clients' names, if `pairs` is a sequence; "client-0", "client-1", ... if None.
        test: the clients' test samples, in the same order or by the same names; if None, `test_fraction` of each
            client's samples.
        validation: share of each client's samples for validation.
        test_fraction: share of each client's samples for testing, where `test` is None.
        kind: what is predicted; if None, words and a few different whole numbers are classes, numbered in sorted
            order, and other numbers are a regression.
        seed: of the random splits.
        groups: the known group of each client.
        target: of DataFrames, the column that is predicted.
        **table: of DataFrames, settings of a table, such as `missing`, `standardise`, `drop`.
    """
    if isinstance(pairs, Mapping):
        if names is not None:
            raise CoterieError("names must be left out when the pairs already have names")
        names, pairs = [str(name) for name in pairs], list(pairs.values())
    names = [f"client-{i}" for i in range(len(pairs))] if names is None else [str(name) for name in names]
    if len(names) != len(pairs):
        raise CoterieError(f"names has {len(names)} entries but there are {len(pairs)} clients; they must match")
    if len(pairs) == 0:
        raise CoterieError("the federation has no clients")
    if len(set(names)) != len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise CoterieError(f"two clients are called {repeated!r}; names must be unique")
    if groups is not None and len(groups) != len(names):
        raise CoterieError(f"groups has {len(groups)} entries but there are {len(names)} clients; they must match")
    for name, group in zip(names, () if groups is None else np.asarray(groups, dtype=object).tolist(), strict=False):
        if group is None or group == "" or group != group:  # NaN is not itself
            raise CoterieError(f"groups has none for client {name!r}; give every client one")
    division = Natural(validation=validation, test=test_fraction, at_least=1)
    if any(is_frame(pair) or _has_frame(pair) for pair in pairs):
        given = {} if test is None else dict(_matching(test, names))
        settings = {"target": target, "kind": kind or "auto", **table}
        samples = _of_frames(dict(zip(names, pairs, strict=True)), given, groups, settings)
        return divide(division, samples, None, seed)
    if target is not None or table:
        key = "target" if target is not None else next(iter(table))
        raise CoterieError(f"{key} belongs to tables: give every client a DataFrame, or leave it out")
    own = [_pair(pair, name, "") for name, pair in zip(names, pairs, strict=True)]
    tests = None if test is None else [_pair(pair, name, "test ") for name, pair in _matching(test, names)]
    _same_shapes(names, own, tests or [])
    x, y, owner = _join(own, names)
    joined = None if tests is None else _join(tests, names)
    samples = pool(
        x,
        y,
        test=None if joined is None else joined[:2],
        owner=owner,
        test_owner=None if joined is None else joined[2],
        group=None if groups is None else dict(zip(names, np.asarray(groups).tolist(), strict=True)),
        kind=kind,
    )
    return divide(division, samples, None, seed)


def is_frame(value: Any) -> bool:
    """Whether something is a pandas DataFrame; pandas is not imported to find out."""
    return hasattr(value, "columns") and hasattr(value, "iloc")


def _has_frame(pair: Any) -> bool:
    return isinstance(pair, tuple | list) and len(pair) == 2 and is_frame(pair[0])


def _of_frames(frames: dict[str, Any], tests: dict[str, Any], groups: Any, settings: dict[str, Any]) -> Samples:
    """Join the DataFrames of all clients by the names of their columns; test rows are marked as such."""
    from coterie.data.tables.source import Table, from_frames
    from coterie.spec import build

    strange = [name for name, pair in frames.items() if not (is_frame(pair) or _has_frame(pair))]
    if strange:
        raise CoterieError(f"client {strange[0]!r} brings arrays where others bring DataFrames; give one kind for all")
    if settings["target"] is None and any(map(is_frame, frames.values())):
        raise CoterieError("target is missing: name the column of the DataFrames that is predicted")
    settings["target"] = settings["target"] or TARGET
    joined = {name: _with_target(pair, settings["target"], name) for name, pair in frames.items()}
    extra = {name: _with_target(pair, settings["target"], name) for name, pair in tests.items()}
    samples = from_frames(joined, build(Table, {"path": "", **settings}, "federation"), extra)
    known = (
        None if groups is None else dict(zip(joined, np.unique(groups, return_inverse=True)[1].tolist(), strict=True))
    )
    return dataclasses.replace(samples, group=known)


def _with_target(pair: Any, target: str, name: str) -> Any:
    """Return a client's DataFrame with its targets as a column."""
    if is_frame(pair):
        return pair
    frame, y = pair
    if target in frame.columns:
        raise CoterieError(f"the inputs of client {name!r} have a column {target!r}; name the targets with target=")
    if len(y) != len(frame):
        raise CoterieError(f"client {name!r} has {len(frame)} inputs but {len(y)} targets; they must match")
    return frame.assign(**{target: np.asarray(y)})


def pool(
    x: Any,
    y: Any,
    *,
    test: Pair | None = None,
    owner: Any = None,
    test_owner: Any = None,
    ready: Any = None,
    coarse: Any = None,
    group: Mapping[str, int] | None = None,
    kind: Kind | None = None,
    about: str = "arrays",
) -> Samples:
    """Make a pool from arrays, ready to be divided among clients (`load(pool(x, y), "dirichlet")`).

    Inputs stored as bytes are images with the channel first. The arguments are those of `Samples`; `kind` follows
    from the targets if it is None.
    """
    pairs = [(x, y)] if test is None else [(x, y), test]
    y = [plain(pair[1], "targets") for pair in pairs]
    if any(part.ndim == 0 for part in y):
        raise CoterieError("targets must have one entry per sample, not be a single value")
    kind, note = (kind, "") if kind else judged_kind(joined(y, "targets"), np.ndim(x) > 2)
    names: tuple[str, ...] = ()
    if kind == "next-character":
        x = [characters(pair[0], "inputs") for pair in pairs]
        y = [characters(part, "targets") for part in y]
        classes = 1 + max(int(a.max(initial=0)) for a in [*x, *y])
    else:
        x = [inputs(pair[0], "inputs") for pair in pairs]
        encoded, classes, names = targets(joined(y, "targets"), kind, "targets")
        y = np.split(encoded, [len(y[0])])
    return Samples(
        x=x[0],
        y=y[0],
        kind=kind,
        classes=classes,
        test=None if test is None else (x[1], y[1]),
        owner=None if owner is None else names_of(owner, "owner"),
        test_owner=None if test_owner is None else names_of(test_owner, "test_owner"),
        ready=None if ready is None else np.asarray(ready),
        coarse=None if coarse is None else np.asarray(coarse),
        group=group,
        about="; ".join(part for part in (about, note) if part),
        class_names=names,
    )


def _pair(pair: Any, name: str, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Check one client's arrays."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise CoterieError(f"client {name!r} must bring a pair of arrays (x, y)")
    arrays = []
    for what, values in zip(("inputs", "targets"), pair, strict=True):
        arrays.append(plain(values, f"the {part}{what} of client {name!r}"))
        if arrays[-1].ndim == 0:
            raise CoterieError(f"the {part}{what} of client {name!r} are a single value; give one entry per sample")
    x, y = arrays
    if x.dtype.kind not in "biuf":
        raise CoterieError(f"the {part}inputs of client {name!r} must be numbers, not {x.dtype}")
    if len(x) != len(y):
        raise CoterieError(f"client {name!r} has {len(x)} {part}inputs but {len(y)} {part}targets; they must match")
    if len(x) == 0:
        raise CoterieError(f"client {name!r} has no {part}sample; give it one or leave it out")
    return x, y


def _matching(test: Sequence[Pair] | Mapping[str, Pair], names: Sequence[str]) -> list[tuple[str, Pair]]:
    if isinstance(test, Mapping):
        by_name = {str(name): pair for name, pair in test.items()}
        missing = [name for name in names if name not in by_name]
        if missing:
            raise CoterieError(f"test has nothing for client {missing[0]!r}; give every client a test pair")
        return [(name, by_name[name]) for name in names]
    if len(test) != len(names):
        raise CoterieError(f"test has {len(test)} entries but there are {len(names)} clients; they must match")
    return list(zip(names, test, strict=True))


def _same_shapes(names: Sequence[str], own: Sequence[Pair], tests: Sequence[Pair]) -> None:
    for what, index in (("inputs", 0), ("targets", 1)):
        expected = own[0][index].shape[1:]
        for part, pairs in (("", own), ("test ", tests)):
            for name, pair in zip(names, pairs, strict=False):
                if pair[index].shape[1:] != expected:
                    raise CoterieError(
                        f"the {part}{what} of client {name!r} have shape {pair[index].shape[1:]} per sample, those of "
                        f"{names[0]!r} {expected}; they must match"
                    )


def _join(pairs: Sequence[Pair], names: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, y = (joined([pair[i] for pair in pairs], what) for i, what in enumerate(("inputs", "targets")))
    return x, y, np.repeat(list(names), [len(pair[0]) for pair in pairs])
