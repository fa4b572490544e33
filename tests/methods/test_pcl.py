"""The two settings of personalised client learning: examples that run, the input layer, annealing, `reproduce spdb`."""

import os
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

import coterie as ct
from coterie.cli import app
from coterie.cli.training import _for_one_run
from coterie.comparison.config import ComparisonConfig
from coterie.data.dirichlet import Dominant
from coterie.data.samples import Samples
from coterie.errors import CoterieError
from coterie.experiment.config import Experiment
from coterie.experiment.job import Job, load_federation, make_task
from coterie.experiment.run import execute
from coterie.methods import SPDB, FedAvg
from coterie.models import Mlp
from coterie.models.affine import AffineInput, affine_input
from coterie.reproduce import spdb
from coterie.storage.toml import read_toml
from support.run_cases import make_job

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("file", "personal"),
    [pytest.param("pcl_last_layer", "layers.1", marks=pytest.mark.soak), ("pcl_input_layer", "input")],
)
def test_examples_run(file, personal, device):
    """Personal layers differ between clients, the rest is exchanged; the file is an experiment and a comparison."""
    tables = read_toml(EXAMPLES / f"{file}.toml")
    chosen = {label: table.get("personal") for label, table in ComparisonConfig.from_dict(tables).methods}
    assert chosen["spdb"] == chosen["fedper"] == chosen["fedrep"] == [personal]
    assert chosen["spd"] is chosen["gossip-sgd"] is None
    tables = _for_one_run(tables) | {"run": {"rounds": 40, "evaluate_every": 40}}
    result = execute(Job.of(Experiment.from_dict(tables)), device=device)
    assert result.task.personal_names == [f"{personal}.weight", f"{personal}.bias"]
    own, shared = (jax.tree.leaves(part(result.variables.params)) for part in (result.task.own, result.task.shared))
    assert all(np.abs(leaf - leaf[:1]).max() > 1e-4 for leaf in own)
    edges = result.ledger.edges()
    assert (edges["bytes"] / edges["messages"] == 48 + 4 * sum(leaf[0].size for leaf in shared)).all()


def test_a_network_behind_an_affine_layer_starts_as_the_network():
    federation = ct.load("digits", clients=3, classes=3)
    key = jax.random.key(0)
    plain = Mlp().build(federation.sample_shape, 10, key)
    wrapped = affine_input(lambda key: Mlp().build(federation.sample_shape, 10, key), federation.sample_shape)(key)
    x = jnp.asarray(np.random.default_rng(0).normal(size=federation.sample_shape), jnp.float32)
    np.testing.assert_allclose(wrapped(x), plain(x), rtol=1e-6)
    turned = eqx.tree_at(lambda m: (m.input.weight, m.input.bias), wrapped, (2 * jnp.eye(8), jnp.full(8, 3.0)))
    np.testing.assert_allclose(turned(x), plain(2 * x + 3), rtol=1e-5)  # rows of eight features
    task = make_task(Experiment.from_dict({"model": {"input_affine": True}}), federation)
    assert task.names == [
        "input.weight",
        "input.bias",
        *(f"model.layers.{i}.{n}" for i in (0, 1) for n in ("weight", "bias")),
    ]


def test_the_affine_layer_passes_keys_and_statistics_on():
    class Noisy(eqx.Module):
        norm: eqx.nn.BatchNorm

        def __call__(self, x, state, key=None):
            out, state = self.norm(x, state)
            return out + (0 if key is None else jax.random.normal(key, out.shape)), state

    built = affine_input(lambda key: eqx.nn.make_with_state(Noisy)(eqx.nn.BatchNorm(4, "batch", mode="ema")), (4,))
    module, state = built(jax.random.key(0))
    assert isinstance(module, AffineInput)
    x, keys = jnp.arange(8.0).reshape(2, 4), jax.random.split(jax.random.key(1), 2)
    with_key = jax.vmap(
        lambda x, s, key: module(x, s, key=key), axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None)
    )(x, state, keys)[0]
    silent = jax.vmap(module, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)[0]
    np.testing.assert_allclose(
        with_key - silent, jax.vmap(lambda key: jax.random.normal(key, (4,)))(keys), rtol=1e-5, atol=1e-5
    )


def test_text_has_no_affine_layer():
    federation = ct.federation(
        {"a": (np.zeros((4, 5), np.int32), np.zeros((4, 5), np.int32))}, kind="next-character", validation=0.0
    )
    with pytest.raises(CoterieError, match="input_affine needs inputs that are numbers"):
        make_job(federation, model="lstm", input_affine=True)


def test_the_learning_rate_shrinks_when_it_is_due():
    method = SPDB(lr=1.0, personal_lr=0.5, decay=0.5, decay_after=2, decay_every=3)
    rates = [float(method.at_round(r).lr) for r in range(1, 10)]
    assert rates == [1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125]
    assert float(method.at_round(3).personal_lr) == 0.25
    assert FedAvg(lr=0.3, decay_after=2).at_round(100).lr == 0.3
    assert SPDB(lr=1.0, decay=0.5).at_round(1).personal_lr == 0  # it follows lr


def pool(size=400):
    y = np.arange(size) % 10
    x = np.zeros((size, 2), np.float32)
    return Samples(x=x, y=y, kind="classification", classes=10, test=(x[:200], y[:200]))


def test_test_sets_with_all_labels():
    """200 test samples for ten clients: two of each label for everyone; `own` gives nearly all to their client."""
    for labels in ("all", "own"):
        federation = Dominant(test_labels=labels)(pool(), 10, 0)
        counts = [
            np.bincount(y[:n], minlength=10) for y, n in zip(federation.test.y, federation.test.count, strict=True)
        ]
        assert (np.array(counts) == 2).all() if labels == "all" else all(c[i] >= 15 for i, c in enumerate(counts))
    with pytest.raises(CoterieError, match="test_labels is all but test sets are the clients' own samples"):
        Dominant(test_labels="all", test_from="own")(pool(), 10, 0)


def test_reproduce_lays_out_figure_1():
    plan = spdb.reproduction("mnist", "limited", test="all", rounds=500)
    tables = plan.tables
    assert tables["partition"] == {
        "name": "dominant", "clients": 10, "share": 0.95, "validation": 0.0, "samples": 128, "test_labels": "all"
    }  # fmt: skip
    assert tables["method"] == {"lr": 0.02, "batch_size": 16, "steps": 1}
    planned = ComparisonConfig.from_dict(tables)
    assert [label for label, _ in planned.methods] == list(spdb.METHODS)
    assert planned.experiment.graph.common.weights == "laplacian"
    assert any("500 iterations" in text for text, *_ in plan.differences)
    for wrong in ({"dataset": "cifar10"}, {"setting": "many"}, {"test": "none"}):
        with pytest.raises(CoterieError, match=f"{next(iter(wrong))} must be one of"):
            spdb.reproduction(**wrong)


@pytest.mark.soak
def test_reproduce_runs_on_sequences_of_the_users_own(tmp_path):
    random = np.random.default_rng(0)
    owners = np.repeat(["ann", "bob", "cem", "dee", "eve"], 12)
    x, y = random.normal(size=(60, 7, 3)).astype(np.float32), np.arange(60) % 3
    np.savez(tmp_path / "speech.npz", x=x, y=y, client=owners)
    command = ["reproduce", "spdb", "--speech", str(tmp_path / "speech.npz"), "--rounds", "4", "--seeds", "1"]
    command += ["--methods", "local,spdb", "--device", "cpu", "--out", str(tmp_path / "out")]
    outcome = CliRunner().invoke(app, command)
    assert outcome.exit_code == 0, outcome.output
    assert "personal input layers on a ring" in outcome.output
    tables = spdb.reproduction(speech=tmp_path / "speech.npz").tables
    federation = load_federation(ComparisonConfig.from_dict(tables).experiment)
    assert federation.sample_shape == (7, 3)
    saved = [
        load_file(file) for file in sorted((tmp_path / "out" / "printed" / "spdb" / "seed-0" / "models").glob("0*"))
    ]
    assert len(saved) == 5
    assert saved[0]["input.weight"].shape == (3, 3)
    assert not np.array_equal(saved[0]["input.weight"], saved[1]["input.weight"])


@pytest.mark.soak
@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("COTERIE_DATA"), reason="COTERIE_DATA is not set")
def test_on_mnist_with_few_samples_personal_layers_beat_shared_models(device):
    """The setting of Figure 1 at a tenth of its length: in every seed, on test sets like the training sets."""
    methods = ("spdb", "gossip-sgd", "d2", "gnsd")
    planned = ComparisonConfig.from_dict(spdb.reproduction(methods=methods, rounds=1000).tables)
    results = ct.compare(planned.experiment, planned.methods, 2, device=device, splits=1, tune=False).results
    score = {label: np.array([run.final["test_score"].mean() for run in runs]) for label, runs in results.items()}
    for rival in methods[1:]:
        assert (score["spdb"] > score[rival] + 0.02).all()
