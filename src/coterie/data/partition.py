"""Partitions of samples among clients: equal shares, a few classes each, groups, unequal amounts, known owners.

A partition is a frozen dataclass that is called with a pool, a number of clients and a seed; the same seed gives the
same federation. The partitions by random label shares are in `dirichlet.py`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from coterie.data.clients import Federation, Redraw
from coterie.data.samples import Samples, encode
from coterie.data.split import Splits, client_count, generator, share_out
from coterie.errors import CoterieError
from coterie.spec import LARGEST_SEED, build, param, spec, to_dict

__all__ = ["Classes", "DataDefault", "Groups", "Iid", "Natural", "Quantity", "divide", "with_same_owners"]


@spec
class Iid(Splits):
    """Shuffle the samples and divide them equally; the official test pool likewise."""

    def __call__(self, samples: Samples, clients: int | None, seed: int) -> Federation:
        """Divide the pool."""
        count, rng = client_count(clients, len(samples)), generator(seed)
        rows = np.array_split(rng.permutation(len(samples)), count)
        tests = None
        if self.official(samples) and samples.test is not None:
            tests = np.array_split(rng.permutation(len(samples.test[0])), count)
        return self.assemble(samples, rows, tests, rng, how=f"{count} clients with equal shares of everything")


@spec
class Classes(Splits):
    """Give every client a few classes (Li et al. 2024, "non-IID McMahan"; methods: shards of equal size).

    The classes are dealt like cards from a shuffled deck that is renewed when it is empty. If the number of classes is
    a multiple of `classes`, every deck is a random perfect matching of the classes, as in the authors' program;
    otherwise a client who gets cards of two decks gets no class twice. Either way the numbers of clients per class
    differ by at most one. A class is cut into shards, one for each of its clients. The test set is every official test
    sample of the client's classes, if there is a test pool.
    """

    classes: int = param(2, "classes per client", at_least=1)

    def __call__(self, samples: Samples, clients: int | None, seed: int) -> Federation:
        """Divide the pool."""
        count, rng = client_count(clients, len(samples)), generator(seed)
        labels = np.unique(samples.labels("classes"))
        if self.classes > len(labels):
            raise CoterieError(f"classes must be at most {len(labels)}, the classes in these data, not {self.classes}")
        hands = _hands(count, self.classes, labels, rng)
        how = f"{count} clients with {self.classes} class{'es' * (self.classes > 1)} each"
        return self.assemble(samples, _shards(samples.y, hands, rng), _tests_of(self, samples, hands), rng, how=how)


@spec
class Groups(Splits):
    """Make groups of clients that share their classes; no class is in two groups (Li et al. 2024, "non-IID SBM").

    Clients and classes are divided in order, as evenly as possible: with 10 classes, 100 clients and 5 groups the first
    20 clients have classes 0 and 1, the next 20 have 2 and 3. Samples are never shared.
    """

    groups: int = param(5, "number of groups", at_least=1)

    def __call__(self, samples: Samples, clients: int | None, seed: int) -> Federation:
        """Divide the pool."""
        count, rng = client_count(clients, len(samples)), generator(seed)
        labels = np.unique(samples.labels("groups"))
        for limit, what in ((len(labels), "the classes in these data"), (count, "the number of clients")):
            if self.groups > limit:
                raise CoterieError(f"groups must be at most {limit}, {what}, not {self.groups}")
        group = np.repeat(np.arange(self.groups), [len(part) for part in np.array_split(np.arange(count), self.groups)])
        classes = np.array_split(labels, self.groups)
        hands = [classes[g] for g in group]
        rows = _shards(samples.y, hands, rng)
        how = f"{count} clients in {self.groups} groups that share their classes"
        return self.assemble(samples, rows, _tests_of(self, samples, hands), rng, how=how, groups=group, planted=True)


@spec
class Quantity(Splits):
    """Give clients unequal amounts of the same mixture.

    Every client gets `at_least` samples; the rest is divided in proportion to exp(skew * N(0, 1)) (log-normal) or to
    rank ** -skew with ranks in random order (power-law).
    """

    law: Literal["log-normal", "power-law"] = param("log-normal", "law of the amounts")
    skew: float = param(
        1.0, "how unequal: 0 is equal; standard deviation of the logarithm, or the exponent", at_least=0
    )
    at_least: int = param(5, "minimum number of samples per client", at_least=2)

    def __call__(self, samples: Samples, clients: int | None, seed: int) -> Federation:
        """Divide the pool."""
        count, rng = client_count(clients, len(samples)), generator(seed)
        rest = len(samples) - count * self.at_least
        if rest < 0:
            raise CoterieError(
                f"{count} clients with at_least {self.at_least} samples need {count * self.at_least}, but there are "
                f"{len(samples)}; use fewer clients"
            )
        exponent = rng.standard_normal(count) if self.law == "log-normal" else -np.log(1 + rng.permutation(count))
        weight = np.exp(self.skew * (exponent - exponent.max()))
        edges = np.floor(np.cumsum(weight) / weight.sum() * rest + 0.5).astype(np.int64)
        sizes = self.at_least + np.diff(edges, prepend=0)
        rows = np.split(rng.permutation(len(samples)), np.cumsum(sizes)[:-1])
        tests = None
        if self.official(samples) and samples.test is not None:
            tests = share_out(sizes[:, None], np.zeros(len(samples.test[0]), np.int64), rng)
        return self.assemble(
            samples, rows, tests, rng, how=f"{count} clients with unequal amounts of data ({self.law})"
        )


@spec
class Natural(Splits):
    """Give every sample to its owner. The number of clients, if given, is a limit: owners are drawn at random."""

    at_least: int = param(2, "owners with fewer samples are left out", at_least=1)
    owners_seed: int | None = param(
        None,
        "the seed of the choice of owners, where clients is a limit; default: the partition's",
        at_least=0,
        at_most=LARGEST_SEED,
    )

    def __call__(self, samples: Samples, clients: int | None, seed: int) -> Federation:
        """Divide the pool."""
        rng = generator(seed)
        if samples.owner is None:
            raise CoterieError(
                "partition natural needs data that say whose sample it is; name the client column or choose another"
            )
        owners, first, sizes = np.unique(samples.owner, return_index=True, return_counts=True)
        kept = np.array([o for o in np.argsort(first, kind="stable") if sizes[o] >= self.at_least], np.int64)
        if len(kept) == 0:
            raise CoterieError(f"no owner has at_least {self.at_least} samples; the largest has {sizes.max()}")
        dropped = len(owners) - len(kept)
        if clients is not None and client_count(clients) < len(kept):
            chooser = rng if self.owners_seed is None else generator(self.owners_seed)
            kept = kept[np.sort(chooser.choice(len(kept), client_count(clients), replace=False))]
        by_owner = _by_owner(samples.owner, owners)
        tests = None
        if self.test_from == "official" and samples.test_owner is None:
            raise CoterieError("test_from is official but these data have no test samples with owners; use own or auto")
        if self.official(samples) and samples.test_owner is not None:
            theirs = _by_owner(samples.test_owner, owners)
            tests = [theirs[o] for o in kept]
        names = [str(owners[o]) for o in kept]
        groups = None
        if samples.group is not None:
            unknown = next((name for name in names if name not in samples.group), None)
            if unknown is not None:
                raise CoterieError(f"client {unknown!r} has no group; give it one or none to all")
            # Renumbered: if owners are left out, a group may be empty.
            groups = encode(np.array([samples.group[name] for name in names]))[0]
        how = f"{len(kept)} owners" + (
            f" ({dropped} with fewer than {self.at_least} samples left out)" if dropped else ""
        )
        rows, planted = [by_owner[o] for o in kept], samples.planted
        return self.assemble(samples, rows, tests, rng, how=how, names=names, groups=groups, planted=planted)


@spec
class DataDefault(Splits):
    """Natural where the data say whose sample it is, else classes."""

    classes: int | None = param(None, "classes per client, where the data do not say whose sample it is", at_least=1)
    at_least: int | None = param(None, "owners with fewer samples are left out, where the data say", at_least=1)

    def chosen(self, samples: Samples) -> Classes | Natural:
        """Return the partition that the data call for."""
        given = to_dict(self)
        return build(Natural, given, "partition") if samples.owner is not None else build(Classes, given, "partition")

    def __call__(self, samples: Samples, clients: int | None, seed: int) -> Federation:
        """Divide the pool."""
        return self.chosen(samples)(samples, clients, seed)


def divide(partition: Any, samples: Samples, clients: int | None, seed: int) -> Federation:
    """Divide a pool; the federation remembers how, unless the data bring their own test samples."""
    if getattr(partition, "test_from", None) == "pooled":
        samples = samples.pooled()
    federation = partition(samples, clients, seed)
    chosen = partition.chosen(samples) if isinstance(partition, DataDefault) else partition
    natural = isinstance(chosen, Natural)
    own_tests = samples.ready is not None or (natural and chosen.official(samples) and samples.test_owner is not None)
    if not own_tests:
        redraw = Redraw(with_same_owners(chosen, clients, seed), samples, clients, seed, natural)
        object.__setattr__(federation, "redraw", redraw)  # not `replace`, which would check all samples once more
    return federation


def with_same_owners(partition: Any, clients: int | None, seed: int) -> Any:
    """Return a partition that chooses the owners that it chooses with this seed, whatever it is called with later."""
    if isinstance(partition, Natural) and clients is not None and partition.owners_seed is None:
        return dataclasses.replace(partition, owners_seed=seed)
    return partition


def _by_owner(values: np.ndarray, owners: np.ndarray) -> list[np.ndarray]:
    """List the positions of every owner's samples; `owners` is sorted, and samples of other owners are left out."""
    code = np.minimum(np.searchsorted(owners, values), len(owners) - 1)
    known = np.flatnonzero(owners[code] == values)
    order = known[np.argsort(code[known], kind="stable")]
    return np.split(order, np.cumsum(np.bincount(code[known], minlength=len(owners)))[:-1])


def _hands(clients: int, size: int, labels: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Deal `size` different labels to every client, from decks that contain every label once."""
    deck, hands = labels[:0], []
    for _ in range(clients):
        hand, deck = deck[:size], deck[size:]
        if len(hand) < size:
            fresh = rng.permutation(labels)
            repeated = np.isin(fresh, hand)
            new = fresh[~repeated][: size - len(hand)]
            deck = fresh[~np.isin(fresh, new)]
            hand = np.concatenate([hand, new])
        hands.append(np.sort(hand))
    return hands


def _shards(y: np.ndarray, hands: Sequence[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    """Cut every class into one shard for each of its clients; shards of a class differ by at most one sample."""
    owners: dict[int, list[int]] = {}
    for client, hand in enumerate(hands):
        for label in hand:
            owners.setdefault(int(label), []).append(client)
    parts: list[list[np.ndarray]] = [[] for _ in hands]
    for label in sorted(owners):
        rows = rng.permutation(np.flatnonzero(y == label))
        if len(rows) < len(owners[label]):
            raise CoterieError(
                f"class {label} has {len(rows)} samples for {len(owners[label])} clients, so client "
                f"'client-{owners[label][len(rows)]}' would have none; use fewer clients or fewer classes each"
            )
        for client, part in zip(owners[label], np.array_split(rows, len(owners[label])), strict=True):
            parts[client].append(part)
    return [np.sort(np.concatenate(part)) for part in parts]


def _tests_of(splits: Splits, samples: Samples, hands: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    """Return every official test sample of each client's classes (Li et al. 2024), or None for own test sets."""
    if not splits.official(samples) or samples.test is None:
        return None
    return [np.flatnonzero(np.isin(samples.test[1], hand)) for hand in hands]
