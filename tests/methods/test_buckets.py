"""Every method on clients in several buckets: the same numbers as with all of them in one stack."""

import jax
import numpy as np
import pytest

from coterie.data.clients import Federation, stack
from coterie.testing.contract import Case, lives_anywhere
from coterie.testing.two_processes import train

SIZES = (7, 150, 12, 70, 5, 300, 9)
PLACES = [np.array([0, 2, 4, 6]), np.array([1, 3]), np.array([5])]
SETTINGS = {"fedavg": {"participation": 0.5}, "spdb": {"personal": ("bias",)}, "fedper": {"personal": ("bias",)}}
FEW = [("exact", "local")]  # the others are tried in `make soak`
METHODS = [
    "local", "fedavg", "gossip-sgd", "ditto", "scool-sbm", "scool-attention", "pooled", "pdbo-mtl", "spdb", "cga",
    "fomo", "l2gd", "async-al2sgd+", "dada", "pfedme", "pfedgraph", "meta-l2c", "fedper", "d2", "guess",
]  # fmt: skip
ROUNDED = ["async-al2sgd+"]  # gradients of all samples at once, which are sums over padded rows
CASES = [
    pytest.param(mode, name, marks=() if (mode, name) in FEW else pytest.mark.soak)
    for mode in ("exact", "fast")
    for name in METHODS
]


def unequal_federation():
    """Seven clients of 5 to 300 training samples."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(3, 6))

    def pair(client, count):
        y = random.integers(0, 3, count)
        x = centres[y] + 0.3 * client + random.normal(size=(count, 6))
        return x.astype(np.float32), y.astype(np.int32)

    names = tuple(f"client-{i}" for i in range(len(SIZES)))
    parts = [stack([pair(i, n // d + e) for i, n in enumerate(SIZES)]) for d, e in ((1, 0), (8, 2), (3, 2))]
    return Federation(names, *parts, kind="classification", classes=3, groups=np.arange(len(SIZES)) % 3)


@pytest.fixture(scope="module")
def layouts():
    one = unequal_federation()
    return one, one.in_buckets(PLACES)


def outcome(case, federation, mode):
    training = case.training(mode, federation)
    done = train(training, 2)
    metrics = training.evaluate(done.state, 2)
    return jax.device_get((done.models, done.loss, metrics))


@pytest.mark.parametrize(("mode", "method"), CASES)
def test_buckets_do_not_change_the_numbers(layouts, mode, method):
    case = Case(method, **SETTINGS.get(method, {}))
    one, several = (outcome(case, federation, mode) for federation in layouts)
    same_bits = mode == "exact" and method not in ROUNDED
    jax.tree.map(np.testing.assert_array_equal if same_bits else close, one, several)


@pytest.mark.soak
@pytest.mark.parametrize("method", ["local", "fomo", "cga"])
def test_buckets_give_the_same_bits_in_two_processes(layouts, method):
    case = Case(method)
    case.federation = layouts[1]
    try:
        lives_anywhere(case)
    finally:
        case.close()


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
