"""Methods that divide a model by layers: what each keeps, trains and sends, redone step by step.

The model has one hidden layer of two tanh units. The tests hold its arrays in plain tuples and use `jax.grad` of losses
written from the papers; all numbers are float64, and training takes full batches.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.nn import log_softmax

from coterie.data.clients import Federation, stack
from coterie.errors import CoterieError
from coterie.methods import FedBABU, FedBN, FedProto, FedRoD, LGFedAvg, Moon
from coterie.models.cnn4 import Cnn4
from coterie.models.mlp import Mlp
from support.cases import training

pytestmark = pytest.mark.usefixtures("x64")

SIZES, CLASSES, LR = [5, 8], 3, 0.3
N = np.array(SIZES) / sum(SIZES)
MLP = Mlp(hidden=(2,), activation="tanh")


@pytest.fixture(scope="module")
def federation():
    """Two clients; the second has no sample of the last class."""
    random = np.random.default_rng(3)

    def part(count, classes):
        y = np.arange(count) % classes
        return random.normal(size=(count, 4)) + y[:, None], y.astype(np.int32)

    splits = {name: stack([part(size, 3 - k) for k, size in enumerate(SIZES)]) for name in ("train", "test")}
    return Federation(
        ("a", "b"), splits["train"], splits["test"], splits["test"], kind="classification", classes=CLASSES
    )


def data(federation, k):
    count = federation.train.count[k]
    return jnp.asarray(federation.train.x[k, :count]), jnp.asarray(federation.train.y[k, :count])


def layers(params, k):
    """One client's arrays (W1, b1, W2, b2)."""
    return tuple(jnp.asarray(a[k]) for layer in params.layers for a in (layer.weight, layer.bias))


def features(p, x):
    return jnp.tanh(x @ p[0].T + p[1])


def entropy(logits, y):
    return -log_softmax(logits)[jnp.arange(len(y)), y].mean()


def loss(p, x, y):
    return entropy(features(p, x) @ p[2].T + p[3], y)


def descend(p, gradient, steps=1, moves=(True,) * 4):
    for _ in range(steps):
        g = gradient(p)
        p = tuple(a - LR * b if move else a for a, b, move in zip(p, g, moves, strict=True))
    return p


def everyone(federation, models, steps=1, moves=(True,) * 4):
    """Let every client descend on its own loss."""
    return [
        descend(p, lambda p, k=k: jax.grad(loss)(p, *data(federation, k)), steps, moves) for k, p in enumerate(models)
    ]


def mean(models, sent=(True,) * 4):
    """Average the arrays that are sent; the others stay."""
    averaged = [sum(n * p[i] for n, p in zip(N, models, strict=True)) for i in range(4)]
    return [tuple(averaged[i] if sent[i] else p[i] for i in range(4)) for p in models]


def same(params, models, rtol=1e-11):
    for k, expected in enumerate(models):
        for a, b in zip(layers(params, k), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-14)


def begin(federation, method, device):
    started = training(federation, method, device, model=MLP)
    state, _ = started.init()
    return started, state, [layers(started.method.models(state).params, k) for k in range(2)]


def test_lg_fedavg_averages_only_the_last_layer(federation, device):
    started, state, models = begin(federation, LGFedAvg(lr=LR, batch_size=0), device)
    state, block = started.advance(state, 1, 3)
    for _ in range(3):
        models = everyone(federation, models)
        models = mean(models, (False, False, True, True))
    same(state.variables.params, models)
    assert (np.asarray(block.traffic.up_bytes) == 48 + 8 * (CLASSES * 2 + CLASSES) + 8).all()


def test_lg_fedavg_must_keep_something(federation, device):
    with pytest.raises(CoterieError, match="shares layers leaves nothing personal; name another part"):
        begin(federation, LGFedAvg(shares=("layers",)), device)


def test_fedbabu_trains_the_body_under_a_fixed_head_and_finetunes_all(federation, device):
    method = FedBABU(lr=LR, batch_size=0, finetune_epochs=2)
    started, state, models = begin(federation, method, device)
    head = models[0][2:]
    state, block = started.advance(state, 1, 3)
    body = (True, True, False, False)
    for _ in range(3):
        models = everyone(federation, models, moves=body)
        models = mean(models, body)
    same(state.variables.params, models)
    assert all((layers(state.variables.params, 1)[2 + i] == head[i]).all() for i in range(2))
    assert (np.asarray(block.traffic.up_bytes) == 48 + 8 * (2 * 4 + 2) + 8).all()
    tuned = everyone(federation, models, 2)
    same(started.models(state, 3).params, tuned)


@pytest.mark.parametrize("finetunes", ["head", "body"])
def test_fedbabu_finetunes_a_part(federation, device, finetunes):
    moves = {"head": (False, False, True, True), "body": (True, True, False, False)}[finetunes]
    method = FedBABU(lr=LR, batch_size=0, finetune_epochs=1, finetunes=finetunes)
    started, state, models = begin(federation, method, device)
    tuned = everyone(federation, models, moves=moves)
    same(started.models(state, 1).params, tuned)


def cosine(a, b):
    return (a * b).sum(1) / jnp.sqrt((a * a).sum(1) * (b * b).sum(1))


def test_moon_step_by_step(federation, device):
    mu, tau = 2.0, 0.7
    started, state, models = begin(federation, Moon(lr=LR, batch_size=0, epochs=2, mu=mu, tau=tau), device)
    state, _ = started.advance(state, 1, 3)
    previous = list(models)
    for _ in range(3):
        trained = []
        for k, (hub, last) in enumerate(zip(models, previous, strict=True)):
            x, y = data(federation, k)

            def total(p, x=x, y=y, hub=hub, last=last):
                z = features(p, x)
                near, far = (jnp.exp(cosine(z, features(other, x)) / tau) for other in (hub, last))
                return loss(p, x, y) + mu * -jnp.log(near / (near + far)).mean()

            trained.append(descend(hub, jax.grad(total), 2))
        models, previous = mean(trained), trained
    same(state.variables.params, models)
    same(state.previous.params, previous)


def test_fedproto_step_by_step(federation, device):
    tie = 0.8
    started, state, models = begin(federation, FedProto(lr=LR, batch_size=0, tie=tie), device)
    state, block = started.advance(state, 1, 3)
    prototypes = None
    for _ in range(3):
        totals, counts = np.zeros((CLASSES, 2)), np.zeros(CLASSES)
        for k in range(2):
            x, y = data(federation, k)

            def total(p, x=x, y=y, prototypes=prototypes):
                far = 0 if prototypes is None else ((features(p, x) - prototypes[y]) ** 2).mean(1).mean()
                return loss(p, x, y) + tie * far

            models[k] = descend(models[k], jax.grad(total))
            z = np.asarray(features(models[k], x))
            for j in range(CLASSES):
                totals[j] += z[np.asarray(y) == j].sum(0)
                counts[j] += (np.asarray(y) == j).sum()
        prototypes = jnp.asarray(totals / counts[:, None])
    same(state.variables.params, models)  # no model is ever averaged
    assert (np.asarray(block.traffic.up_bytes) == 48 + 8 * (CLASSES * 2 + CLASSES) + 8).all()
    # Prediction by the nearest prototype.
    x = jnp.asarray(federation.test.x[0, :5])
    distances = ((features(models[0], x)[:, None] - prototypes) ** 2).sum(-1)
    module = started.task.module(jax.tree.map(lambda a: a[0], started.models(state, 3)))
    assert (jax.vmap(module)(x).argmax(1) == distances.argmin(1)).all()


def test_fedrod_step_by_step(federation, device):
    started = training(federation, FedRoD(lr=LR, batch_size=0), device, model=MLP)
    state, _ = started.init()
    assert all(not np.asarray(a).any() for a in jax.tree.leaves(state.variables.params.head))
    models = [layers(state.variables.params.network, k) for k in range(2)]
    heads = [(jnp.zeros((CLASSES, 2)), jnp.zeros(CLASSES))] * 2
    state, block = started.advance(state, 1, 3)
    for _ in range(3):
        for k in range(2):
            x, y = data(federation, k)
            counts = np.bincount(np.asarray(y), minlength=CLASSES)

            def balanced(p, x=x, y=y, counts=counts):
                logits = features(p, x) @ p[2].T + p[3]
                weighted = counts * jnp.exp(logits)
                return -jnp.log(weighted[jnp.arange(len(y)), y] / weighted.sum(1)).mean()

            def personal(head, x=x, y=y, p=models[k]):
                z = features(p, x)
                return entropy(z @ p[2].T + p[3] + z @ head[0].T + head[1], y)

            gradient = jax.grad(personal)(heads[k])
            heads[k] = tuple(a - LR * g for a, g in zip(heads[k], gradient, strict=True))
            models[k] = descend(models[k], jax.grad(balanced))
        models = mean(models)
    same(state.variables.params.network, models)
    for k in range(2):
        for a, b in zip((state.variables.params.head.weight, state.variables.params.head.bias), heads[k], strict=True):
            np.testing.assert_allclose(a[k], b, rtol=1e-11, atol=1e-14)
    assert (np.asarray(block.traffic.up_bytes) == 48 + 8 * 19 + 8).all()  # the personal head is not sent


def test_features_need_layers_and_classes(federation, device):
    for method in (Moon(), FedProto(), FedRoD()):
        started = training(federation, LGFedAvg(), device, model=MLP)
        task = started.engine.task.linear()
        with pytest.raises(CoterieError, match="the model has one layer only"):
            method.check(task, federation)


class Normed(eqx.Module):
    """A linear layer on normalised inputs."""

    norm: eqx.nn.LayerNorm
    layer: eqx.nn.Linear

    def __call__(self, x):
        return self.layer(self.norm(x))


def test_fedbn_keeps_normalisation_layers(federation, device):
    def build(key):
        return Normed(eqx.nn.LayerNorm(4), eqx.nn.Linear(4, CLASSES, key=key))

    def arrays(state, k):
        norm, layer = state.variables.params.norm, state.variables.params.layer
        return tuple(jnp.asarray(a[k]) for a in (norm.weight, norm.bias, layer.weight, layer.bias))

    started = training(federation, FedBN(lr=LR, batch_size=0), device, model=build)
    assert started.task.personal_names == ["norm.weight", "norm.bias"]
    state, _ = started.init()
    params = state.variables.params
    models = [
        tuple(jnp.asarray(a[k]) for a in (params.norm.weight, params.norm.bias, params.layer.weight, params.layer.bias))
        for k in range(2)
    ]
    state, _ = started.advance(state, 1, 3)

    def total(p, x, y):
        centred = x - x.mean(1, keepdims=True)
        normal = centred / jnp.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
        return entropy((normal * p[0] + p[1]) @ p[2].T + p[3], y)

    for _ in range(3):
        models = [descend(p, lambda p, k=k: jax.grad(total)(p, *data(federation, k))) for k, p in enumerate(models)]
        models = mean(models, (False, False, True, True))
    for k in range(2):
        for a, b in zip(arrays(state, k), models[k], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14)


def test_fedbn_finds_the_norms_of_a_network_and_refuses_one_without(federation, device):
    images = Federation(
        ("a",),
        *(stack([(np.zeros((2, 1, 16, 16)), np.zeros(2, np.int32))]) for _ in range(3)),
        kind="classification",
        classes=2,
    )
    started = training(images, FedBN(), device, model=Cnn4())
    assert started.task.personal_names
    assert all("norm" in name for name in started.task.personal_names)
    with pytest.raises(CoterieError, match="fedbn needs a model with normalisation layers"):
        training(federation, FedBN(), device, model=MLP)
