"""The federation's data: stacked arrays with counts, split into train, validation and test for each client.

Shapes: K clients, n = the largest client's number of samples. `data/buckets.py` says how samples lie in these arrays.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from coterie.data.buckets import Part, Split, divided
from coterie.errors import CoterieError, printable

__all__ = ["PARTS", "Clients", "Federation", "Kind", "Redraw", "Split", "stack"]

Kind = Literal["classification", "regression", "next-character"]
PARTS = ("train", "validation", "test")
BLOCK = 64 << 20  # bytes that are checked at a time


class Clients(NamedTuple):
    """The input of a compiled program: the data of the clients on this machine, their labels and known groups."""

    # A `Split` of each; `Buckets` of splits where clients' sizes differ widely (but one client's is always a `Split`).
    train: Any
    validation: Any
    test: Any
    labels: Any  # [C, classes] true where the client has the label in its training data; [C, 0] for regression
    groups: Any  # [C, G] true for the client's known group; G = 1 and true for everyone where none are known
    unit: Any = None  # [C] scores are of targets times this: the deviation of standardised targets; None where it is 1

    @property
    def cluster(self) -> tuple[Any, int]:
        """The number of each client's known group `[C]`, and the number of groups."""
        return self.groups.argmax(1), self.groups.shape[1]


@dataclasses.dataclass(frozen=True, eq=False)
class Redraw:
    """How a pool was divided: called with another seed, it divides the pool again.

    Attributes:
        partition: the partition, called with the pool, the number of clients and a seed.
        samples: the pool.
        clients: the number of clients, as it was given.
        seed: the seed it was divided with.
        same_clients: whether every draw has the same clients, with the same samples, of which others are for testing.
    """

    partition: Any
    samples: Any
    clients: int | None
    seed: int
    same_clients: bool

    def __call__(self, seed: int) -> "Federation":
        """Return the federation of another seed."""
        return self.partition(self.samples, self.clients, seed)


@dataclasses.dataclass(frozen=True)
class Federation:
    """Named clients with their data, on the host.

    Attributes:
        names: one name per client, unique.
        train, validation, test: the clients' data (`Split`, NumPy arrays; `Buckets` where sizes differ widely).
        kind: what is predicted.
        classes: number of classes, or of characters; for regression the number of outputs.
        groups: the known or planted group of each client `[K]`, numbered 0, 1, ... without gaps, or None.
        planted: the groups were made with the data, as a truth to check against: the verdict does not use them.
        mean, std: per channel, applied inside the program to images stored as bytes (after division by 255).
        about: one sentence for the report.
        group_count: number of groups in the whole federation, if this is a part of one that may lack some; 0 counts
            them.
        client_count: number of clients in the whole federation, if this is a part of one; 0: these are all.
        class_names: what the classes are called, in the order of their numbers; empty where nothing is known.
        target_mean, target_std: the targets of a regression are stored as (target - mean) / std; scores are in the
            target's own unit.
        preparation: how rows of a table become inputs (`data.tables.preparation`); None for arrays.
        redraw: how the clients' samples were divided, so that they can be divided again with another seed; None where
            the data bring their own test samples.
        here: the clients whose samples this process reads, where several processes share a run; None: all of them.
        counted: the training labels of all clients, where only those `here` can be counted.
    """

    names: tuple[str, ...]
    train: Part
    validation: Part
    test: Part
    kind: Kind
    classes: int
    groups: np.ndarray | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    about: str = ""
    group_count: int = 0
    client_count: int = 0
    class_names: tuple[str, ...] = ()
    target_mean: float = 0.0
    target_std: float = 1.0
    preparation: Any = None
    planted: bool = False
    redraw: "Redraw | None" = dataclasses.field(default=None, compare=False, repr=False)
    here: slice | None = None
    counted: np.ndarray | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        _check(self)
        _check_groups(self)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def everyone(self) -> int:
        """The number of clients in the whole federation, of which this may be a part."""
        return self.client_count or len(self)

    @property
    def read_here(self) -> range:
        """The numbers of the clients whose samples this process reads."""
        return range(len(self))[self.here or slice(None)]

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train.stacks[0][0].x.shape[2:])

    @property
    def target_shape(self) -> tuple[int, ...]:
        """The shape of one target; empty for a label or a single number."""
        return tuple(self.train.stacks[0][0].y.shape[2:])

    @property
    def dtype(self) -> np.dtype:
        """The type of the inputs."""
        return np.dtype(self.train.stacks[0][0].x.dtype)

    @property
    def equal_sizes(self) -> bool:
        """Whether all clients have equally many training samples, and no padding."""
        (train, _), *more = self.train.stacks
        return not more and bool((train.count == train.x.shape[1]).all())

    def __repr__(self) -> str:
        sizes = {part: int(np.sum(getattr(self, part).count)) for part in PARTS}
        rows = ", ".join(f"{size:,} {part}" for part, size in sizes.items())
        some = ", ".join(map(printable, self.names[:4])) + (", ..." if len(self) > 4 else "")
        what = f"{self.kind}" + (f" of {self.classes} classes" if self.kind == "classification" else "")
        names = ", ".join(map(printable, self.class_names[:6])) + (", ..." if len(self.class_names) > 6 else "")
        inputs = " x ".join(map(str, self.sample_shape)) or "1"
        return (
            f"Federation of {len(self):,} clients ({some}): {rows} samples\n"
            f"  {what}{f' ({names})' if names else ''}, inputs {inputs}"
            f"{f'{chr(10)}  {self.about}' if self.about else ''}"
        )

    def _repr_html_(self) -> str:
        from html import escape

        head, *more = (escape(line) for line in repr(self).splitlines())
        rows = zip(self.names, *(np.asarray(getattr(self, p).count) for p in PARTS), strict=True)
        shown = "".join(
            f"<tr><td>{escape(name)}</td>{''.join(f'<td>{int(size):,}</td>' for size in sizes)}</tr>"
            for name, *sizes in list(rows)[:10]
        )
        titles = "<tr><th>client</th><th>train</th><th>validation</th><th>test</th></tr>"
        rest = f"<p>and {len(self) - 10:,} more clients</p>" if len(self) > 10 else ""
        return f"<p><b>{head}</b><br>{'<br>'.join(more)}</p><table>{titles}{shown}</table>{rest}"

    def label_counts(self) -> np.ndarray:
        """Count the training labels: `[K, classes]` (for regression and text, `[K, 0]`); none of who is not `here`."""
        if self.kind != "classification":
            return np.zeros((len(self), 0), np.int64)
        if self.counted is not None:
            return self.counted
        counts = np.zeros((len(self), self.classes), np.int64)
        for i in self.read_here:
            counts[i] = np.bincount(self.train.rows(i)[1], minlength=self.classes)
        return counts

    def arrays(self) -> Clients:
        """Return the input of the compiled program, as NumPy arrays."""
        unit = None if self.target_std == 1 else np.full(len(self), self.target_std)
        return Clients(self.train, self.validation, self.test, self.label_counts() > 0, self.membership(), unit)

    def membership(self) -> np.ndarray:
        """Return which client is in which known group, `[K, G]`; without known groups all are in the same one."""
        if self.groups is None:
            return np.ones((len(self), 1), bool)
        count = self.group_count or int(np.max(self.groups)) + 1
        return np.asarray(self.groups)[:, None] == np.arange(count)

    def select(self, clients: Sequence[int] | np.ndarray) -> "Federation":
        """Return a federation of some of the clients, in the given order."""
        rows = np.asarray(clients)
        splits: dict[str, Any] = {part: getattr(self, part).select(rows) for part in PARTS}
        # A part may lack a group, but keeps the number of all groups, so that arrays of all parts have the same shape.
        known = None if self.groups is None else np.asarray(self.groups)[rows]
        count = 0 if known is None else self.membership().shape[1]
        names = tuple(self.names[i] for i in rows)
        fields: dict[str, Any] = {"names": names, "groups": known, "group_count": count, **splits}
        return dataclasses.replace(self, redraw=None, here=None, counted=None, **fields)

    def only(self, here: slice) -> "Federation":
        """Return the federation with the samples of the clients `here`; those of the others are zeros, and not read.

        Zeros that nobody writes or reads take no memory. Arrays of a file stay as they are: what nobody reads of them
        is not in memory either.
        """
        whole = self if isinstance(self.train, Split) else self.in_buckets([np.arange(len(self))])
        parts: dict[str, Any] = {part: getattr(whole, part).only(here) for part in PARTS}
        return dataclasses.replace(whole, redraw=None, here=here, **parts)

    def in_buckets(self, places: Sequence[np.ndarray]) -> "Federation":
        """Return the same federation with its samples in other buckets: `places` are the clients of each."""
        parts: dict[str, Any] = {part: divided(getattr(self, part), places) for part in PARTS}
        return dataclasses.replace(self, **parts)


def stack(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> Split:
    """Stack one (x, y) pair per client into padded arrays with counts."""
    count = np.array([len(x) for x, _ in parts], np.int32)
    size = max(1, int(count.max(initial=0)))

    def padded(arrays: list[np.ndarray]) -> np.ndarray:
        out = np.zeros((len(arrays), size, *arrays[0].shape[1:]), np.result_type(*{a.dtype for a in arrays}))
        for row, values in zip(out, arrays, strict=True):
            row[: len(values)] = values
        return out

    return Split(padded([x for x, _ in parts]), padded([y for _, y in parts]), count)


def _check(federation: Federation) -> None:
    """Refuse unusable data, with the client's name."""
    names = federation.names
    if len(names) == 0:
        raise CoterieError("the federation has no clients")
    if len(set(names)) != len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise CoterieError(f"two clients are called {repeated!r}; names must be unique")
    if "hub" in names:
        raise CoterieError("a client is called 'hub', as the hub in the ledger is: give it another name")
    for part in PARTS:
        split: Part = getattr(federation, part)
        if len(split.count) != len(names):
            raise CoterieError(f"{part} holds {len(split.count)} clients but there are {len(names)} names")
        if part != "validation":
            empty = np.flatnonzero(np.asarray(split.count) == 0)
            if empty.size:
                raise CoterieError(f"client {names[empty[0]]!r} has no {part} sample; give it one or leave it out")
        for stack, places in split.stacks:
            if isinstance(split, Split) and federation.here is not None:
                stack, places = Split(*(a[federation.here] for a in stack)), places[federation.here]
            _check_stack(federation, part, stack, [names[i] for i in places])


def _check_stack(federation: Federation, part: str, split: Split, names: Sequence[str]) -> None:
    """Refuse unusable values in one stack, with the client's name."""
    if len(split.x) != len(names) or len(split.y) != len(names):
        raise CoterieError(f"{part} holds {len(split.x)} clients but there are {len(names)} names")
    if split.x.shape[2:] != federation.sample_shape:
        raise CoterieError(f"{part} inputs have shape {split.x.shape[2:]}, training inputs {federation.sample_shape}")
    real = np.arange(split.y.shape[1])[None, :] < np.asarray(split.count)[:, None]
    for what, values in (("inputs", split.x), ("targets", split.y)):
        if not np.issubdtype(values.dtype, np.floating):
            continue
        bad = np.concatenate([~_all_finite(values[rows]) & real[rows] for rows in _blocks(values)])
        if bad.any():
            client = int(np.flatnonzero(bad.any(1))[0])
            raise CoterieError(
                f"{part} {what} of client {names[client]!r} contain NaN or infinity; remove or fill them"
            )
    if federation.kind != "regression":
        if not np.issubdtype(split.y.dtype, np.integer):
            raise CoterieError(f"{part} labels must be integers, not {split.y.dtype}")
        wrong = ((split.y < 0) | (split.y >= federation.classes)).reshape(*real.shape, -1).any(-1) & real
        if wrong.any():
            client = int(np.flatnonzero(wrong.any(1))[0])
            last = federation.classes - 1
            raise CoterieError(f"{part} labels of client {names[client]!r} are out of range; they must be 0..{last}")


def _blocks(values: np.ndarray) -> list[slice]:
    """Return the clients in blocks of some 64 MB: their values may lie in a file that is larger than memory."""
    step = max(1, BLOCK * len(values) // max(1, values.nbytes))
    return [slice(start, start + step) for start in range(0, len(values), step)]


def _all_finite(values: np.ndarray) -> np.ndarray:
    return np.isfinite(values).reshape(*values.shape[:2], -1).all(-1)


def _check_groups(federation: Federation) -> None:
    """Refuse groups that do not give exactly one group to each client."""
    if federation.groups is None:
        return
    groups, names = np.asarray(federation.groups), federation.names
    if groups.ndim != 1:
        raise CoterieError(
            f"groups must give one number per client, not shape {groups.shape}; a client is in one group only"
        )
    if len(groups) != len(names):
        raise CoterieError(f"groups has {len(groups)} entries but there are {len(names)} clients; they must match")
    if not np.issubdtype(groups.dtype, np.integer) or groups.min() < 0:
        raise CoterieError("groups must be whole numbers from 0 on; number the groups 0, 1, 2, ...")
    if federation.group_count and groups.max() >= federation.group_count:
        raise CoterieError(f"groups go up to {groups.max()} but group_count is {federation.group_count}")
    empty = np.flatnonzero(np.bincount(groups) == 0)
    if not federation.group_count and empty.size:
        raise CoterieError(f"group {empty[0]} has no client; number the groups without gaps")
