"""How a client's samples become train, validation and test: the rules that all partitions share.

A client's test set comes from the official test pool if the source has one, otherwise from the client's own samples.
Its validation set always comes from its own training samples. Splits of the source are kept. With classes the draws are
stratified, so that a small client does not lose a class by chance; text keeps its order, so that a test passage does
not lie between two training passages.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from coterie.data.buckets import (
    CHARACTER,
    ROWS,
    TEXTS,
    Part,
    gathered,
    group_by_size,
    padded_bytes,
    refuse_too_large,
)
from coterie.data.clients import PARTS, Federation
from coterie.data.labels import centred
from coterie.data.samples import Samples
from coterie.errors import CoterieError
from coterie.spec import param, spec

__all__ = ["Splits", "client_count", "deal", "generator", "share_out"]

DEFAULT_CLIENTS = 20


def client_count(clients: int | None, samples: int | None = None) -> int:
    """Return the number of clients: 20 if None. More than there are `samples` to divide are refused at once."""
    if clients is None:
        return DEFAULT_CLIENTS
    if isinstance(clients, bool) or not isinstance(clients, int | np.integer) or clients < 1:
        raise CoterieError(f"clients must be an integer of at least 1, not {clients!r}")
    if samples is not None and clients > samples:
        raise CoterieError(f"clients is {clients:,} but there are {samples:,} samples to divide; use fewer clients")
    return int(clients)


def generator(seed: int) -> np.random.Generator:
    """Return the random generator of a partition."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise CoterieError(f"seed must be an integer of at least 0, not {seed!r}")
    return np.random.default_rng(int(seed))


@spec
class Splits:
    """Base of all partitions: how a client's samples become train, validation and test."""

    validation: float = param(0.1, "share of a client's own samples for validation", at_least=0, below=1)
    test: float = param(0.2, "share of a client's own samples for testing (own test sets)", above=0, below=1)
    test_from: Literal["auto", "official", "own", "pooled"] = param(
        "auto",
        "official: from the source's test pool; own: from the client's samples; auto: official if there is one; "
        "pooled: own, after the test pool was added to the samples",
    )
    samples: int | None = param(
        None, "at most this many training samples per client; validation is taken out of them", at_least=1
    )
    test_samples: int | None = param(None, "at most this many test samples per client", at_least=1)

    def __post_init__(self) -> None:
        if self.validation + self.test >= 1:
            total = f"{self.validation:g} + {self.test:g}"
            raise CoterieError(f"validation and test must leave something to train on, but {total} is not below 1")

    def official(self, pool: Samples) -> bool:
        """Return whether test sets come from the official test pool."""
        if self.test_from == "official" and pool.test is None:
            raise CoterieError("test_from is official but these data have no test pool; use own or auto")
        return self.test_from in ("auto", "official") and pool.test is not None

    def assemble(
        self,
        pool: Samples,
        rows: Sequence[np.ndarray],
        tests: Sequence[np.ndarray] | None,
        rng: np.random.Generator,
        *,
        how: str,
        names: Sequence[str] | None = None,
        groups: np.ndarray | None = None,
        planted: bool = False,
    ) -> Federation:
        """Make the federation from each client's samples.

        Args:
            pool: the samples.
            rows: each client's own samples, as positions in the pool.
            tests: each client's test samples as positions in the official test pool, or None for own test sets.
            rng: for the random splits.
            how: the partition in a few words, for the report.
            names: the clients' names; "client-0", "client-1", ... if None.
            groups: the clients' groups.
            planted: whether they were made with the data.
        """
        names = tuple(names) if names is not None else tuple(f"client-{i}" for i in range(len(rows)))
        train: list[np.ndarray] = []
        validation: list[np.ndarray] = []
        test: list[np.ndarray] = []
        validated = pool.ready is not None and bool(np.any(pool.ready == "validation"))
        for client, (name, own) in enumerate(zip(names, rows, strict=True)):
            given = None if tests is None else tests[client]
            parts = self._parts(pool, np.asarray(own, np.int64), given, validated, rng, name)
            for rows_of, part in zip((train, validation, test), parts, strict=True):
                rows_of.append(part)
        x, y, fields = pool.x, pool.y, {}
        if pool.table is not None:  # its statistics are those of the training rows, which are known only now
            x, y, fields = pool.table.encode(pool.y, names, (train, validation, test))
        elif pool.kind == "regression":
            y, fields = centred(pool.y, np.concatenate(train))
        test_pool = (x, y)
        if tests is not None and pool.test is not None:
            shift = fields.get("target_mean", 0.0) if pool.table is None else 0.0
            test_pool = (pool.test[0], pool.test[1] - shift if shift else pool.test[1])
        stacks: dict[str, Any] = _in_stacks([(x, y), (x, y), test_pool], (train, validation, test), names, pool.kind)
        return Federation(
            names=names,
            **stacks,
            kind=pool.kind,
            classes=pool.classes,
            groups=groups,
            planted=planted,
            mean=pool.mean,
            std=pool.std,
            about="; ".join(part for part in (pool.about, how) if part),
            class_names=pool.class_names,
            **fields,
        )

    def _parts(
        self,
        pool: Samples,
        own: np.ndarray,
        given: np.ndarray | None,
        validated: bool,
        rng: np.random.Generator,
        name: str,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Divide one client's samples: positions of train, validation (in the pool) and test (in its pool).

        `given` are its official test samples, if any; `validated` says that the source marks validation samples.
        """
        marked, ready = None if pool.ready is None else pool.ready[own], own[:0]
        if marked is not None:
            learn, test, ready = own[marked == "train"], own[marked == "test"], own[marked == "validation"]
            if len(learn) == 0 or len(test) == 0:
                missing = "train" if len(learn) == 0 else "test"
                raise CoterieError(
                    f"client {name!r} has {len(own)} samples but none is marked {missing}; mark one or leave it out"
                )
        elif given is not None:
            learn, test = own, given
            if len(learn) == 0 or len(test) == 0:
                raise CoterieError(
                    f"client {name!r} would have {len(learn)} training and {len(test)} test samples and needs at least "
                    "one of each; use fewer clients or test_from = 'own'"
                )
        else:
            if len(own) < 2:
                raise CoterieError(
                    f"client {name!r} would have {len(own)} sample{'s' * (len(own) != 1)} and needs at least two, "
                    "one to train on and one to test on; use fewer clients or more data"
                )
            learn, test = self._divide(pool, own, min(max(1, _part(len(own), self.test)), len(own) - 1), rng)
        if self.test_samples is not None and len(test) > self.test_samples:
            labels = pool.y if given is None or pool.test is None else pool.test[1]
            test = test[_spread(test, labels, self.test_samples, pool.kind, rng)]
        if self.samples is not None and len(learn) > self.samples:
            learn = learn[_spread(learn, pool.y, self.samples, pool.kind, rng)]
        if validated:
            return learn, ready, test
        # the share refers to all of a client's samples, from which an own test set has already been taken
        share = self.validation if given is not None or marked is not None else self.validation / (1 - self.test)
        learn, validation = self._divide(pool, learn, min(_part(len(learn), share), len(learn) - 1), rng)
        return learn, validation, test

    def _divide(
        self, pool: Samples, rows: np.ndarray, size: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Take `size` rows away; return the remaining rows and those taken."""
        if pool.kind == "next-character":
            return rows[: len(rows) - size], rows[len(rows) - size :]
        taken = np.zeros(len(rows), bool)
        taken[_spread(rows, pool.y, size, pool.kind, rng)] = True
        return rows[~taken], rows[taken]


def _in_stacks(
    pools: Sequence[tuple[np.ndarray, np.ndarray]], rows: Any, names: Sequence[str], kind: str
) -> dict[str, Any]:
    """Gather each client's samples: `rows` has for each pool (of train, validation, test) every client's positions."""
    counts = np.array([[len(part) for part in parts] for parts in rows], np.int32)  # [3, K]
    row_bytes = [sum(a.dtype.itemsize * int(np.prod(a.shape[1:], dtype=np.int64)) for a in pool) for pool in pools]
    dear, least = (CHARACTER, TEXTS) if kind == "next-character" else (1, ROWS)
    places = group_by_size(counts, [dear * size for size in row_bytes], least)
    refuse_too_large(names, counts, padded_bytes(counts, row_bytes, places, least))

    def part(pool: tuple[np.ndarray, np.ndarray], parts: Sequence[np.ndarray], count: np.ndarray) -> Part:
        return gathered(lambda i: (pool[0][parts[i]], pool[1][parts[i]]), count, places, least)

    return dict(zip(PARTS, map(part, pools, rows, counts), strict=True))


def _part(size: int, share: float) -> int:
    return int(np.floor(size * share + 0.5))


def _spread(rows: np.ndarray, y: np.ndarray, size: int, kind: str, rng: np.random.Generator) -> np.ndarray:
    """Choose `size` of the rows; return their positions, in order.

    With classes this is a systematic sample over the rows sorted by class: of a class with n of N rows, n * size / N
    are chosen, rounded down or up.
    """
    if kind == "next-character":
        return np.arange(size)
    if size == 0:
        return np.empty(0, np.int64)
    shuffled = rng.permutation(len(rows))
    order = shuffled[np.argsort(y[rows[shuffled]], kind="stable")] if kind == "classification" else shuffled
    places = (np.arange(size) * len(rows) + rng.integers(len(rows))) // size  # integers: none is drawn twice
    return np.sort(order[places])


def share_out(counts: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Deal a second pool in the shares of a first: returns positions for each client.

    Args:
        counts: how many samples of each class each client got of the first pool, `[K, classes]`.
        y: the classes of the second pool `[N]`.
        rng: for the random choice of samples.

    Each client's share of a class is its share in `counts`, rounded so that the whole class is used. A client that
    rounding would leave without samples gets one of its commonest class from the client that has most of them.
    """
    clients, classes = counts.shape
    take = np.zeros((clients, classes), np.int64)
    for label in range(classes):
        total = counts[:, label].sum()
        if total:
            edges = np.cumsum(counts[:, label]) / total * np.sum(y == label)
            take[:, label] = np.diff(np.floor(edges + 0.5).astype(np.int64), prepend=0)
    for client in np.flatnonzero(take.sum(1) == 0):
        label = int(np.argmax(counts[client]))
        donor = int(np.argmax(take[:, label]))
        if take[donor, label] > 0 and take[donor].sum() > 1:
            take[donor, label] -= 1
            take[client, label] += 1
    return deal(take, y, rng)


def deal(take: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Deal samples without replacement: client k gets `take[k, c]` random samples of class c."""
    parts: list[list[np.ndarray]] = [[] for _ in range(len(take))]
    for label in range(take.shape[1]):
        rows = rng.permutation(np.flatnonzero(y == label))
        for client, part in enumerate(np.split(rows, np.cumsum(take[:, label]))[:-1]):
            parts[client].append(part)
    return [np.sort(np.concatenate(part)) for part in parts]
