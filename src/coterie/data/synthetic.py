"""Federations with a known truth: regressions of clients in clusters, Gaussian classes of planted groups."""

from typing import NamedTuple

import numpy as np

from coterie.data.samples import Samples
from coterie.errors import CoterieError
from coterie.spec import LARGEST_SEED, param, spec
from coterie.storage.memory import refuse_beyond

__all__ = ["HierarchicalLinear", "PlantedGroups", "Truth"]


class Truth(NamedTuple):
    """The coefficients behind a hierarchical linear model: `[d]`, `[clusters, d]`, `[clusters * clients, d]`."""

    centre: np.ndarray
    clusters: np.ndarray
    clients: np.ndarray


@spec
class HierarchicalLinear:
    """Linear or logistic regressions of clients in clusters (Lyu, Hanzely and Kolar 2022, section 6.1 and Table 1).

    With theta the common centre (zero): a cluster's centre is w_j ~ N(theta, between), a client's coefficients
    theta_i ~ N(w_j, within), its inputs X ~ N(0, 1) and its targets y ~ N(X theta_i, noise); `between`, `within` and
    `noise` are variances. With `within = 0` the clients of a cluster share their coefficients exactly. With `logistic`
    the target is 1 with probability 1 / (1 + exp(-X theta_i)), else 0. Clients are named "cluster-3/client-7", and the
    cluster is the group.
    """

    clusters: int = param(20, "number of clusters", at_least=1)
    clients_per_cluster: int = param(20, "clients in a cluster", at_least=1)
    dimension: int = param(20, "number of coefficients (the paper's d)", at_least=1)
    train_size: int = param(10, "training samples of a client (the paper's m)", at_least=1)
    validation_size: int = param(10, "validation samples of a client", at_least=1)
    test_size: int = param(50, "test samples of a client", at_least=1)
    between: float = param(1.0, "variance of the clusters' centres", at_least=0)
    within: float = param(1.0, "variance of the clients in a cluster", at_least=0)
    noise: float = param(1.0, "variance of the targets; not used if logistic", at_least=0)
    logistic: bool = param(False, "targets are two classes instead of numbers")
    seed: int = param(0, "seed of the generator", at_least=0, at_most=LARGEST_SEED)

    def truth(self, seed: int | None = None) -> Truth:
        """Return the true coefficients; `seed` replaces the field of that name."""
        rng = np.random.default_rng([self.seed if seed is None else seed, 0])
        centre = np.zeros(self.dimension)
        clusters = centre + np.sqrt(self.between) * rng.standard_normal((self.clusters, self.dimension))
        spread = rng.standard_normal((self.clusters, self.clients_per_cluster, self.dimension))
        clients = clusters[:, None] + np.sqrt(self.within) * spread
        return Truth(centre, clusters, clients.reshape(-1, self.dimension))

    def load(self) -> Samples:
        """Draw the data."""
        size = self.train_size + self.validation_size + self.test_size
        _refuse_beyond_memory(self.clusters * self.clients_per_cluster, size, self.dimension)
        theta = self.truth().clients
        rng = np.random.default_rng([self.seed, 1])
        x = rng.standard_normal((len(theta), size, self.dimension))
        y = np.einsum("knd,kd->kn", x, theta)
        if self.logistic:
            from scipy.special import expit

            y = rng.random(y.shape) < expit(y)
        else:
            y = y + np.sqrt(self.noise) * rng.standard_normal(y.shape)
        law = "logistic" if self.logistic else "linear"
        names = [f"cluster-{j}/client-{i}" for j in range(self.clusters) for i in range(self.clients_per_cluster)]
        return Samples(
            x=x.reshape(-1, self.dimension).astype(np.float32),
            y=y.reshape(-1).astype(np.int32 if self.logistic else np.float32),
            kind="classification" if self.logistic else "regression",
            classes=2 if self.logistic else 1,
            owner=np.repeat(names, size),
            ready=_marks(len(names), self.train_size, self.validation_size, self.test_size),
            group={name: i // self.clients_per_cluster for i, name in enumerate(names)},
            about=f"hierarchical {law} model, {self.clusters} clusters, {self.dimension} coefficients",
        )


@spec
class PlantedGroups:
    """Gaussian classes that every group labels differently, so that clients of the same group help and others mislead.

    The classes are unit Gaussians around `separation` times orthonormal directions, the same for all clients; group g
    gives component c the label (c + g) mod classes. So two groups agree on no label, and one model for all is no better
    than chance if all shifts are equally frequent.
    """

    groups: int = param(4, "number of groups", at_least=1)
    clients: int = param(20, "number of clients, divided evenly over the groups in order", at_least=1)
    classes: int = param(4, "number of classes", at_least=2)
    dims: int = param(10, "number of inputs", at_least=2)
    separation: float = param(2.0, "distance of a class centre from zero, in standard deviations", at_least=0)
    train_size: int = param(20, "training samples of a client", at_least=1)
    validation_size: int = param(10, "validation samples of a client", at_least=1)
    test_size: int = param(50, "test samples of a client", at_least=1)
    seed: int = param(0, "seed of the generator", at_least=0, at_most=LARGEST_SEED)

    def __post_init__(self) -> None:
        for name, limit, what in (
            ("groups", self.clients, "the number of clients"),
            ("groups", self.classes, "the number of classes"),
            ("classes", self.dims, "the number of inputs (dims)"),
        ):
            if getattr(self, name) > limit:
                raise CoterieError(f"{name} must be at most {limit}, {what}, not {getattr(self, name)}")

    def load(self) -> Samples:
        """Draw the data."""
        size = self.train_size + self.validation_size + self.test_size
        _refuse_beyond_memory(self.clients, size, self.dims)
        rng = np.random.default_rng(self.seed)
        directions, _ = np.linalg.qr(rng.standard_normal((self.dims, self.classes)))
        group = np.arange(self.clients) * self.groups // self.clients
        component = rng.integers(self.classes, size=(self.clients, size))
        x = self.separation * directions.T[component] + rng.standard_normal((self.clients, size, self.dims))
        names = [f"client-{i}" for i in range(self.clients)]
        return Samples(
            x=x.reshape(-1, self.dims).astype(np.float32),
            y=((component + group[:, None]) % self.classes).reshape(-1).astype(np.int32),
            kind="classification",
            classes=self.classes,
            owner=np.repeat(names, size),
            ready=_marks(self.clients, self.train_size, self.validation_size, self.test_size),
            group=dict(zip(names, group.tolist(), strict=True)),
            planted=True,
            about=f"Gaussian classes in {self.groups} planted groups",
        )


def _refuse_beyond_memory(clients: int, size: int, inputs: int) -> None:
    """Refuse what would not fit: numbers in 64 bits and their sum, in 32 bits, and a sample's marks as text."""
    what = f"drawing {clients:,} clients with {size:,} samples of {inputs:,} inputs"
    refuse_beyond(clients * size * (28 * inputs + 150), what, "lower the sizes in [data]")


def _marks(clients: int, train: int, validation: int, test: int) -> np.ndarray:
    """Mark every client's samples, which are in the order train, validation, test."""
    return np.tile(np.repeat(["train", "validation", "test"], [train, validation, test]), clients)
