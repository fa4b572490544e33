"""Small federations and a bare linear model, whose training a test can redo with NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from coterie.data.clients import Federation, Split, stack
from coterie.experiment.engine import Engine
from coterie.experiment.training import Training
from coterie.graphs.graph import Graph
from coterie.learning.task import Task
from coterie.peers.local import Plan


class Weights(eqx.Module):
    """Outputs `w x` for `w [outputs, inputs]`: no bias, no randomness."""

    w: jax.Array

    def __call__(self, x):
        return self.w @ x


def regression(sizes, features=3, seed=0, validation=2, dtype=np.float64):
    """Clients with `sizes` training samples of a linear law with noise, each client its own law."""
    random = np.random.default_rng(seed)
    parts = {"train": [], "validation": [], "test": []}
    for size in sizes:
        law = random.normal(size=features)
        for part, count in (("train", size), ("validation", validation), ("test", 2)):
            x = random.normal(size=(count, features))
            y = x @ law + 0.1 * random.normal(size=count)
            parts[part].append((x.astype(dtype), y.astype(dtype)))
    names = tuple(f"client-{i}" for i in range(len(sizes)))
    return Federation(names, **{k: stack(v) for k, v in parts.items()}, kind="regression", classes=1)


def own(federation, client, part="train"):
    """One client's real samples `(x, y)`."""
    split = getattr(federation, part)
    count = split.count[client]
    return split.x[client, :count], split.y[client, :count]


def one(split, client):
    """One client's slice of a split, as local training gets it."""
    return Split(*(jnp.asarray(a[client]) for a in split))


def slope(w, x, y):
    """The gradient of the mean of half the squared error at w [features]."""
    return x.T @ (x @ w - y) / len(x)


def zero_model(features=3):
    return Weights(jnp.zeros((1, features)))


def training(
    federation, method, device, graph=None, weights=None, *, model=None, seed=1, plan=None, faults=None, **options
):
    """A training in float64 (inside `x64`) that starts from zero weights, on one device unless a plan says more."""
    features = federation.sample_shape[0]
    task = Task.of(federation, zero_model(features) if model is None else model, dtype=jnp.float64, **options)
    engine = Engine(task, federation, device, plan or Plan("fast"))
    graph = graph or Graph.empty(len(federation))
    weights = np.zeros(graph.neighbours.shape) if weights is None else weights
    return Training(engine, method, graph, weights, seed, faults=faults)


def run(started, rounds, state=None, first=1):
    """Run rounds; returns the state and the models' weights `[K, features]`."""
    state = started.init()[0] if state is None else state
    state, _ = started.advance(state, first, rounds)
    return state, weights_of(started.method.models(state))


def weights_of(variables):
    return np.asarray(variables.params.w)[:, 0]
