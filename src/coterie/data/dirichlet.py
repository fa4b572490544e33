"""Partitions by label shares: Dirichlet, input clusters, Pachinko, and one dominant label.

The official test pool, if there is one, is divided in the same shares as the training samples, so that a client is
tested on the mixture it is trained on.
"""

import dataclasses
from typing import Literal

import numpy as np

from coterie.data.clients import Federation
from coterie.data.samples import Samples
from coterie.data.split import Splits, client_count, deal, generator, share_out
from coterie.errors import CoterieError
from coterie.spec import param, spec

__all__ = ["Dirichlet", "Dominant", "InputClusters", "Pachinko"]

DRAWS = 1000  # attempts at a Dirichlet draw that leaves no client nearly empty
LEAST_SCALE = 0.1  # of the inputs of a cluster
TINY = 1e-300  # a sum of probabilities below this counts as zero


@spec
class Shares(Splits):
    """Base of the partitions by label shares."""

    fraction: float = param(1.0, "share of the pool that is used", above=0, at_most=1)

    def used(self, samples: Samples, rng: np.random.Generator) -> np.ndarray:
        """Draw the samples that are used: positions in the pool, in order."""
        size = len(samples)
        if self.fraction == 1:
            return np.arange(size)
        return np.sort(rng.choice(size, max(1, int(size * self.fraction)), replace=False))

    def deal_labels(
        self, samples: Samples, used: np.ndarray, counts: np.ndarray, rng: np.random.Generator, how: str
    ) -> Federation:
        """Deal `counts [K, classes]` samples of the used part, and the official test pool in the same shares."""
        rows = [used[part] for part in deal(counts, samples.y[used], rng)]
        tests = None
        if self.official(samples) and samples.test is not None:
            tests = share_out(counts, samples.test[1], rng)
        return self.assemble(samples, rows, tests, rng, how=how)


@spec
class Dirichlet(Shares):
    """Divide every class among the clients in proportions drawn from a symmetric Dirichlet distribution.

    A small alpha makes clients very different. A draw that leaves a client fewer than `at_least` samples is
    repeated (Terashita and Hara 2023, alpha 0.4, take the first draw).
    """

    alpha: float = param(0.4, "concentration: the smaller, the more clients differ", above=0)
    at_least: int = param(5, "minimum number of samples per client", at_least=2)

    def __call__(self, samples: Samples, clients: int | None, seed: int) -> Federation:
        """Divide the pool."""
        count, rng = client_count(clients, len(samples)), generator(seed)
        used = self.used(samples, rng)
        counts = self.draw(samples.labels("dirichlet")[used], samples.classes, count, rng)
        how = f"{count} clients with Dirichlet({self.alpha:g}) label shares"
        return self.deal_labels(samples, used, counts, rng, how)

    def draw(self, y: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> np.ndarray:
        """Draw how many samples of each class each client gets: `[K, classes]`."""
        available = np.bincount(y, minlength=classes)
        best = 0
        for _ in range(DRAWS):
            shares = rng.dirichlet(np.full(clients, self.alpha), size=classes)
            counts = np.stack([rng.multinomial(n, p) for n, p in zip(available, shares, strict=True)], axis=1)
            smallest = int(counts.sum(1).min())
            if smallest >= self.at_least:
                return counts
            best = max(best, smallest)
        raise CoterieError(
            f"no draw of {DRAWS} gives every client at_least {self.at_least} samples (the best left one with {best}); "
            "use fewer clients, a larger alpha or a smaller at_least"
        )


@spec
class InputClusters(Dirichlet):
    """Dirichlet labels, and clusters of clients that each normalise their inputs differently.

    Clients are shuffled into clusters of equal size; a cluster's inputs are (x - a) / b, with the mean a and the
    variance b^2 drawn once from U(0, 1) (Terashita and Hara 2023; here b is at least 0.1, so that no cluster's inputs
    explode). Images become floats: bytes are divided by 255 first, and the data's own mean and std are not used.
    """

    clusters: int = param(3, "number of clusters", at_least=1)

    def __call__(self, samples: Samples, clients: int | None, seed: int) -> Federation:
        """Divide the pool."""
        count, rng = client_count(clients, len(samples)), generator(seed)
        if self.clusters > count:
            raise CoterieError(f"clusters must be at most {count}, the number of clients, not {self.clusters}")
        used = self.used(samples, rng)
        counts = self.draw(samples.labels("input-clusters")[used], samples.classes, count, rng)
        group = np.empty(count, np.int64)
        for cluster, members in enumerate(np.array_split(rng.permutation(count), self.clusters)):
            group[members] = cluster
        shift, variance = rng.uniform(0, 1, self.clusters)[group], rng.uniform(0, 1, self.clusters)[group]
        scale = np.maximum(LEAST_SCALE, np.sqrt(variance))
        how = f"{count} clients with Dirichlet({self.alpha:g}) label shares in {self.clusters} input clusters"
        plain = self.deal_labels(samples, used, counts, rng, how)

        def normalised(x: np.ndarray, clients: np.ndarray) -> np.ndarray:
            unit = np.float32(255) if x.dtype == np.uint8 else np.float32(1)
            shape = (-1,) + (1,) * (x.ndim - 1)
            a, b = (value[clients].astype(np.float32).reshape(shape) for value in (shift, scale))
            return (x.astype(np.float32) / unit - a) / b

        return dataclasses.replace(
            plain,
            train=plain.train.with_inputs(normalised),
            validation=plain.validation.with_inputs(normalised),
            test=plain.test.with_inputs(normalised),
            groups=group,
            planted=True,
            mean=(0.0,),
            std=(1.0,),
            preparation=None,  # it would not know of the shift
        )


@spec
class Pachinko(Shares):
    """Draw every sample from two Dirichlet distributions: first its coarse class, then the class (Reddi et al. 2021).

    Each client has a distribution over the coarse classes and one over the classes below each of them. A class that has
    run out is removed from the distributions of later clients. All clients get the same number of samples.
    """

    alpha: float = param(0.1, "concentration of a client's coarse classes", above=0)
    beta: float = param(10.0, "concentration of the classes below a coarse class", above=0)

    def __call__(self, samples: Samples, clients: int | None, seed: int) -> Federation:
        """Divide the pool."""
        count, rng = client_count(clients, len(samples)), generator(seed)
        samples.labels("pachinko")
        if samples.coarse is None:
            raise CoterieError("partition pachinko needs coarse labels, as CIFAR-100 has; use dirichlet for these data")
        used = self.used(samples, rng)
        fine, coarse = samples.y[used], samples.coarse[used]
        children = [np.unique(fine[coarse == top]) for top in np.unique(coarse)]
        left = np.bincount(fine, minlength=samples.classes)
        top_left = np.array([left[below].sum() for below in children])
        counts = np.zeros((count, samples.classes), np.int64)
        for client in range(count):
            top_law = rng.dirichlet(np.full(len(children), self.alpha))
            laws = [rng.dirichlet(np.full(len(below), self.beta)) for below in children]
            for _ in range(len(used) // count):
                top = _pick(top_law, top_left > 0, rng)
                label = children[top][_pick(laws[top], left[children[top]] > 0, rng)]
                counts[client, label] += 1
                left[label] -= 1
                top_left[top] -= 1
        how = f"{count} clients with Pachinko({self.alpha:g}, {self.beta:g}) label shares"
        return self.deal_labels(samples, used, counts, rng, how)


@spec
class Dominant(Splits):
    """Let one label make up most of a client's data: label i mod classes for client i (Lu et al. 2022, 95 %).

    The rest is drawn at random from all samples, so that a few of these may have the dominant label, too. All clients
    get the same number of samples, as many as the rarest label allows.
    """

    share: float = param(0.95, "share of the dominant label", above=0, at_most=1)
    test_labels: Literal["own", "all"] = param(
        "own", "labels of a client's part of the official test pool: in its own shares, or all of them equally"
    )

    def __call__(self, samples: Samples, clients: int | None, seed: int) -> Federation:
        """Divide the pool."""
        count, rng = client_count(clients, len(samples)), generator(seed)
        labels, available = np.unique(samples.labels("dominant"), return_counts=True)
        if len(labels) < 2:
            raise CoterieError("partition dominant needs at least two classes in the data")
        main = np.arange(count) % len(labels)
        clients_of = np.bincount(main, minlength=len(labels))
        most = np.min(available[clients_of > 0] / clients_of[clients_of > 0]) / self.share
        size = min(len(samples) // count, int(most))
        # Labels of everyone's random samples, in the order in which they are taken: fewer samples are the first ones.
        drawn = rng.choice(len(labels), (count, size - self._dominant(size)), p=available / available.sum())
        while size > 0 and np.any(self._counts(size, main, drawn, len(labels)).sum(0) > available):
            size -= 1
        counts = np.zeros((count, samples.classes), np.int64)
        counts[:, labels] = self._counts(size, main, drawn, len(labels))
        rows = deal(counts, samples.y, rng)
        tests = None
        if self.official(samples) and samples.test is not None:
            shares = counts if self.test_labels == "own" else np.ones_like(counts)
            tests = share_out(shares, samples.test[1], rng)
        elif self.test_labels == "all":
            raise CoterieError("test_labels is all but test sets are the clients' own samples; use test_labels = 'own'")
        how = f"{count} clients with {self.share:.0%} of one label each"
        return self.assemble(samples, rows, tests, rng, how=how)

    def _dominant(self, size: int) -> int:
        """Return how many of a client's samples are of its own label by rule."""
        return int(np.floor(self.share * size + 0.5))

    def _counts(self, size: int, main: np.ndarray, drawn: np.ndarray, labels: int) -> np.ndarray:
        """Return how many samples of each label each client has when it has `size` in all: `[K, labels]`."""
        dominant = self._dominant(size)
        rest = drawn[:, : size - dominant]
        counts = np.stack([np.bincount(row, minlength=labels) for row in rest]).astype(np.int64)
        counts[np.arange(len(main)), main] += dominant
        return counts


def _pick(law: np.ndarray, allowed: np.ndarray, rng: np.random.Generator) -> int:
    """Draw an allowed index with probabilities proportional to a law."""
    edges = np.cumsum(np.where(allowed, law, 0.0))
    if edges[-1] < TINY:  # all classes with a positive probability have run out
        edges = np.cumsum(allowed.astype(float))
    return int(np.searchsorted(edges, rng.random() * edges[-1], side="right"))
