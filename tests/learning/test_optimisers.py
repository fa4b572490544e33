"""Local optimisers by name are Optax's, their learning rate follows the schedule, and what does not fit is refused."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from coterie.errors import CoterieError
from coterie.methods import FedAvg, Local
from support.cases import own, regression, run, slope, training

pytestmark = pytest.mark.usefixtures("x64")

NAMED = {
    "adam": optax.adam(0.02),
    "adamw": optax.adamw(0.02, weight_decay=0.1),
    "adagrad": optax.adagrad(0.02),
    "rmsprop": optax.rmsprop(0.02),
    "yogi": optax.yogi(0.02),
    "lion": optax.lion(0.02, weight_decay=0.1),
}


@pytest.fixture(scope="module")
def federation():
    federation = regression([6])
    return dataclasses.replace(federation, validation=federation.validation._replace(count=np.zeros(1, np.int32)))


@pytest.mark.parametrize("name", NAMED)
def test_a_local_optimiser_is_optax_s(federation, name):
    """The rule alone, on gradients of least squares; no engine, so that all of them cost little."""
    decay = 0.1 if name in ("adamw", "lion") else 0.0
    ours, theirs = Local(lr=0.02, local_optimiser=name, weight_decay=decay).optimiser(), NAMED[name]
    w = [jnp.zeros(3)] * 2
    states = [rule.init(w[0]) for rule in (ours, theirs)]
    for _ in range(4):
        for i, rule in enumerate((ours, theirs)):
            updates, states[i] = rule.update(jnp.asarray(slope(np.asarray(w[i]), *own(federation, 0))), states[i], w[i])
            w[i] = optax.apply_updates(w[i], updates)
    np.testing.assert_allclose(w[0], w[1], rtol=1e-12)


def test_adam_keeps_its_moments_from_round_to_round_and_follows_a_cosine(federation, device):
    """In NumPy: m, v with bias correction, and lr (1 + cos(pi (r - 1) / R)) / 2 in round r."""
    method = Local(lr=0.1, batch_size=0, local_optimiser="adam", schedule="cosine", schedule_rounds=5)
    _, models = run(training(federation, method, device), 5)
    w, m, v = np.zeros(3), np.zeros(3), np.zeros(3)
    for r in range(1, 6):
        gradient = slope(w, *own(federation, 0))
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        rate = 0.1 * (1 + np.cos(np.pi * (r - 1) / 5)) / 2
        w = w - rate * (m / (1 - 0.9**r)) / (np.sqrt(v / (1 - 0.999**r)) + 1e-8)
    np.testing.assert_allclose(models[0], w, rtol=1e-10)


def test_linear_schedule_ends_at_zero():
    method = FedAvg(lr=0.4, schedule="linear", schedule_rounds=4)
    rates = [float(method.at_round(r).lr) for r in range(1, 7)]
    np.testing.assert_allclose(rates, [0.4, 0.3, 0.2, 0.1, 0, 0], atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"local_optimiser": "adm"}, r"local_optimiser must be one of sgd, adam, .*did you mean adam\?"),
        ({"local_optimiser": "adam", "momentum": 0.9}, "momentum is for local_optimiser = 'sgd'; adam has its own"),
        ({"schedule": "cosine"}, "schedule 'cosine' or 'linear' and schedule_rounds belong together"),
        ({"schedule_rounds": 5}, "schedule 'cosine' or 'linear' and schedule_rounds belong together"),
    ],
)
def test_what_does_not_fit_is_refused(settings, sentence):
    with pytest.raises(CoterieError, match=sentence):
        FedAvg(**settings)
