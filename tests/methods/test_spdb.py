"""SPDB, FedPer and FedRep on regressions whose solution is a linear system, and what they refuse."""

import dataclasses
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coterie as ct
from coterie.errors import CoterieError, CoterieWarning
from coterie.experiment.config import Experiment
from coterie.experiment.job import Job
from coterie.graphs.mixing import check_stable, lazy_metropolis, metropolis
from coterie.graphs.topologies import Ring
from coterie.learning.task import Task
from coterie.methods import SPDB, FedPer, FedRep
from support.cases import own, regression, training
from support.run_cases import make_job

FEATURES, SHARED = 5, 2
FULL = {"batch_size": 0, "steps": 1}


class Halves(eqx.Module):
    """Outputs `base . x[:2] + head . x[2:]`: a shared and a personal part of a linear model, from zero."""

    base: jax.Array
    head: jax.Array

    def __call__(self, x):
        return (self.base @ x[:SHARED] + self.head @ x[SHARED:])[None]


def halves():
    return Halves(jnp.zeros(SHARED), jnp.zeros(FEATURES - SHARED))


@pytest.fixture(scope="module")
def federation():
    return regression([9, 12, 8, 10], FEATURES, seed=2, validation=7)


@pytest.fixture(scope="module")
def ring():
    graph = Ring(reach=1).build(4, 0)
    return graph, lazy_metropolis(graph)[0]


def moments(federation, client, part):
    """The second moments of one client: X'X / n and X'y / n, in blocks of shared and personal features."""
    x, y = own(federation, client, part)
    A, b = x.T @ x / len(x), x.T @ y / len(x)
    s = slice(None, SHARED), slice(SHARED, None)
    return [[A[i, j] for j in s] for i in s], [b[i] for i in s]


def best_base(federation, upper, ridge=0.0):
    """The minimiser in x of sum_i f_i(x, y_i*(x)) by linear algebra: y_i*(x) = p_i - P_i x, put into f_i."""
    H, c = np.zeros((SHARED, SHARED)), np.zeros(SHARED)
    for i in range(4):
        g, gb = moments(federation, i, "train")
        f, fb = moments(federation, i, upper)
        inverse = np.linalg.inv(g[1][1] + ridge * np.eye(FEATURES - SHARED))
        P, p = inverse @ g[1][0], inverse @ gb[1]
        # f_i = 1/2 z'Az - b'z with z = (x, p - P x) = S x + s
        S, s = np.vstack([np.eye(SHARED), -P]), np.concatenate([np.zeros(SHARED), p])
        A, b = np.block(f), np.concatenate(fb)
        H, c = H + S.T @ A @ S, c + S.T @ (b - A @ s)
    return np.linalg.solve(H, c)


def trained(federation, ring, device, rounds=6000, **settings):
    method = SPDB(lr=0.1, personal_lr=0.3, personal=("head",), **FULL, **settings)
    started = training(federation, method, device, *ring, model=halves())
    state, _ = started.advance(started.init()[0], 1, rounds)
    return method.models(state).params


@pytest.mark.usefixtures("x64")
def test_one_loss_for_both_levels_needs_no_hessian(federation, ring, device):
    """f = g: steps on y and x in turns converge to the minimum of the total loss, in x and in every y_i."""
    params = trained(federation, ring, device)
    best = best_base(federation, "train")
    np.testing.assert_allclose(params.base, np.tile(best, (4, 1)), atol=1e-9)
    for i in range(4):
        g, b = moments(federation, i, "train")
        np.testing.assert_allclose(params.head[i], np.linalg.solve(g[1][1], b[1] - g[1][0] @ best), atol=1e-9)


@pytest.mark.soak
@pytest.mark.usefixtures("x64")
def test_an_upper_level_on_validation_samples_needs_the_hessian(federation, ring, device):
    """f on validation samples: exact with conjugate gradients, nearly with many terms of the series, wrong without."""
    best = best_base(federation, "validation")
    gaps = {}
    for name, settings in {
        "cg": {"solver": "cg", "terms": 3},
        "neumann-5": {"solver": "neumann", "terms": 5},
        "neumann-50": {"solver": "neumann", "terms": 50},
        "dropped": {"solver": "none"},
    }.items():
        params = trained(federation, ring, device, upper="validation", damping=0.0, **settings)
        gaps[name] = np.abs(params.base - best).max()
    assert gaps["cg"] < 1e-9
    assert gaps["neumann-50"] < 1e-3 < gaps["neumann-5"] < gaps["dropped"]
    assert gaps["dropped"] > 0.05
    params = trained(federation, ring, device, upper="validation")
    assert np.abs(params.base - best).max() < 0.03  # the default damping; 0.13 with 1.0, 0.003 with 0.01


@pytest.mark.usefixtures("x64")
def test_weight_decay_belongs_to_the_lower_level(federation, ring, device):
    """With an L2 penalty the solution below is that of a ridge regression, and its Hessian is what is inverted.

    The penalty is also on x, where it adds `decay` times the number of clients to the sum's curvature.
    """
    decay = 0.2
    params = trained(
        federation, ring, device, upper="validation", damping=0.0, terms=3, weight_decay=decay, rounds=4000
    )
    for i in range(4):
        g, b = moments(federation, i, "train")
        ridge = np.linalg.solve(g[1][1] + decay * np.eye(3), b[1] - g[1][0] @ np.asarray(params.base[i]))
        np.testing.assert_allclose(params.head[i], ridge, atol=1e-9)
    slope = np.zeros(SHARED)  # sum of the hyper-gradients and the penalty's: zero at the end
    for i in range(4):
        g, _ = moments(federation, i, "train")
        f, fb = moments(federation, i, "validation")
        z = np.concatenate([params.base[i], params.head[i]])
        rest = np.block(f) @ z - np.concatenate(fb)
        term = g[0][1] @ np.linalg.solve(g[1][1] + decay * np.eye(3), rest[SHARED:])
        slope += rest[:SHARED] - term + decay * np.asarray(params.base[i])
    np.testing.assert_allclose(slope, 0, atol=1e-9)


@pytest.mark.usefixtures("x64")
def test_fedper_trains_together_and_fedrep_in_turns_redone_in_numpy(federation, device):
    """Two full steps per round for each part; the hub averages the base with the numbers of samples."""
    counts = np.asarray(federation.train.count, float)
    trained = {}
    for cls in (FedPer, FedRep):
        started = training(federation, cls(lr=0.1, personal=("head",), batch_size=0, steps=2), device, model=halves())
        state, _ = started.advance(started.init()[0], 1, 3)
        trained[cls] = started.method.models(state).params
    for cls in (FedPer, FedRep):
        base, heads = np.zeros(SHARED), np.zeros((4, FEATURES - SHARED))
        for _ in range(3):
            bases = np.zeros((4, SHARED))
            for i in range(4):
                x, y = own(federation, i)
                z = np.concatenate([base, heads[i]])
                masks = [np.ones(FEATURES)] if cls is FedPer else [np.arange(5) >= SHARED, np.arange(5) < SHARED]
                for mask in masks:
                    for _ in range(2):
                        z = z - 0.1 * mask * (x.T @ (x @ z - y) / len(x))
                bases[i], heads[i] = z[:SHARED], z[SHARED:]
            base = counts @ bases / counts.sum()
        np.testing.assert_allclose(trained[cls].base, np.tile(base, (4, 1)), rtol=1e-12)
        np.testing.assert_allclose(trained[cls].head, heads, rtol=1e-12)


def small():
    return ct.load("digits", clients=6, classes=3)


@pytest.mark.parametrize("cls", [SPDB, FedPer, FedRep])
def test_what_is_personal(cls):
    """The method's own choice comes first, then the model's, then the last layer."""
    federation = small()
    mlp = Task.of(federation, ct.models.Mlp())
    assert cls().adapt(mlp).personal_names == ["layers.1.weight", "layers.1.bias"]
    assert cls().adapt(mlp.keeping(("layers.0.bias",))).personal_names == ["layers.0.bias"]
    assert cls(personal=("layers.0",)).adapt(mlp.keeping(("layers.1",))).personal == ("layers.0",)
    assert mlp.personal == ()
    with pytest.raises(CoterieError, match=r"no parameter called 'layer.1'; did you mean layers.1\?"):
        make_job(federation, method=cls(personal=("layer.1",)))
    with pytest.raises(CoterieError, match="personal layers is the whole model, and nothing is left"):
        make_job(federation, method=cls(personal=("layers",)))
    with pytest.raises(
        CoterieError, match=r"one layer only.*name a part of it in method.personal \(known: weight, bias"
    ):
        make_job(federation, model="linear", method=cls())


@pytest.mark.soak
def test_an_upper_level_on_validation_samples_needs_samples_and_curvature():
    federation = small()
    upper = {"upper": "validation", "lr": 0.1}
    with pytest.raises(CoterieError, match="the Hessian of the personal layers of client 'client-0' is singular"):
        make_job(federation, method=SPDB(damping=0.0, **upper))  # 650 numbers, fewer samples
    for fine in ({}, {"damping": 0.0, "weight_decay": 0.01}, {"damping": 0.0, "solver": "neumann"}):
        make_job(federation, method=SPDB(**fine, **upper))
    counts = federation.validation.count.copy()
    counts[2] = 0
    without = dataclasses.replace(federation, validation=federation.validation._replace(count=counts))
    with pytest.raises(CoterieError, match="needs validation samples, and client 'client-2' has none"):
        make_job(without, method=SPDB(**upper))
    result = ct.run(federation, method=SPDB(**upper), graph="ring", rounds=3, device="cpu")
    assert np.isfinite(result.final["test_loss"]).all()


def asked(federation, name, weights):
    tables = {"method": {"name": name}, "graph": {"name": "ring", "weights": weights}}
    return Job.of(Experiment.from_dict(tables), federation)


@pytest.mark.parametrize("name", ["spdb", "spd", "d2"])
def test_weights_that_would_diverge_are_repaired_with_a_warning(name):
    """Metropolis weights on an even ring have the eigenvalue -1/3 exactly; (I + W) / 2 has 1/3."""
    federation = small()
    graph = Ring(reach=1).build(6, 0)
    with pytest.raises(CoterieError, match="diverge"):
        check_stable(*metropolis(graph), graph)
    with pytest.warns(CoterieWarning, match=r"graph.weights metropolis have the eigenvalue -0.333 .* \(I \+ W\) / 2"):
        job = asked(federation, name, "metropolis")
    np.testing.assert_allclose(job.weights, lazy_metropolis(graph)[0])
    with warnings.catch_warnings():  # no warning where nothing is changed
        warnings.simplefilter("error")
        odd = Ring(reach=1).build(5, 0)
        job = asked(ct.load("digits", clients=5, classes=3), name, "metropolis")
        np.testing.assert_allclose(job.weights, metropolis(odd)[0])
        np.testing.assert_allclose(asked(federation, name, "auto").weights, lazy_metropolis(graph)[0])
        np.testing.assert_allclose(asked(federation, name, "laplacian").weights, 0.2 * graph.present)
        np.testing.assert_allclose(asked(federation, "gossip-sgd", "auto").weights, metropolis(graph)[0])
        np.testing.assert_allclose(asked(federation, "gnsd", "metropolis").weights, metropolis(graph)[0])
