"""Estimators as rows of a comparison: exact answers, the same files and metrics as any method, the bytes of a fit."""

import jax
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import coterie
from coterie.cli import app
from coterie.codecs.frame import HEADER
from coterie.comparison.compare import compare
from coterie.comparison.comparison import Comparison
from coterie.data.clients import Federation, stack
from coterie.errors import CoterieError
from coterie.experiment.result import Result
from coterie.experiment.run import run
from coterie.learning.task import Task
from coterie.methods.exact import Hierarchical, LocalExact, PooledExact, independent_columns
from coterie.models.mlp import Mlp
from support.run_cases import make_job


def federation(parts, kind="regression", classes=1, groups=None):
    """Make a federation of (x, y) pairs, the same samples for training and testing."""
    split = stack([(np.asarray(x, np.float32), np.asarray(y)) for x, y in parts])
    none = stack([(np.zeros((0, split.x.shape[2]), np.float32), split.y[0, :0]) for _ in parts])
    names = tuple(f"client-{i}" for i in range(len(parts)))
    return Federation(names, split, none, split, kind=kind, classes=classes, groups=groups)


def random_parts(kind="regression", seed=0, clients=6):
    rng = np.random.default_rng(seed)
    parts = []
    for i in range(clients):
        x = rng.normal(size=(12 + i, 2))
        y = x @ rng.normal(1.0, 0.5, size=2) + 0.3 * i + rng.normal(size=len(x))
        parts.append((x, y.astype(np.float32) if kind == "regression" else (y > 0.7).astype(np.int32)))
    return parts


def least_squares(x, y):
    return np.linalg.lstsq(np.column_stack([np.ones(len(x)), x]), y, rcond=None)[0]


def coefficients(models):
    return np.concatenate([models.params.bias, models.params.weight[:, 0]], axis=1)


def fitted(method, clients):
    """Fit without a run; the task's own model is not linear, and that does not matter."""
    with jax.enable_x64(True):
        task = Task.of(clients, Mlp(hidden=(3,)), dtype=np.float64)
        method.check(task, clients)
        return method.fit(method.adapt(task), clients.arrays())


def test_the_hand_computed_case_of_two_clusters():
    # Each client has y = 1, 2 | 5, 8 twice, at x = -1 and 1: the slope is 0, and a mean of two has half the noise's
    # variance 2, so that all variances are 1. By hand: centres 2.75 and 5.25 around 4, clients half way to their own.
    parts = [([[-1.0], [1.0]], np.full(2, value, np.float32)) for value in (1, 2, 5, 8)]
    method = Hierarchical(random="intercept", residual_variance=2, client_variance=1, group_variance=1)
    with jax.enable_x64(True):
        result = run(federation(parts, groups=np.array([0, 0, 1, 1])), "linear", method, rounds=3, precision="float64")
    np.testing.assert_allclose(coefficients(result.variables)[:, 0], [1.875, 2.375, 5.125, 6.625], atol=1e-12)
    np.testing.assert_allclose(coefficients(result.variables)[:, 1], 0, atol=1e-12)
    error = np.abs(np.array([1.875, 2.375, 5.125, 6.625]) - [1, 2, 5, 8])
    np.testing.assert_allclose(result.final["test_score"], error, atol=1e-12)
    assert result.metric == "rmse"


def test_one_message_each_way_in_the_first_round_and_nothing_after():
    clients = federation(random_parts(), groups=np.arange(6) % 2)
    result = run(clients, "linear", Hierarchical(residual_variance=1), rounds=4, evaluate_every=2)
    edges = result.ledger.edges()
    width = 3  # the intercept and two slopes; as a variance is estimated, also y'y
    up, down = HEADER + 8 * (width * (width + 1) // 2 + width + 1), HEADER + 8 * width
    assert set(edges["round"]) == {1}
    assert set(edges["messages"]) == {1}
    assert edges[edges["receiver"] == "hub"]["bytes"].tolist() == [up] * 6
    assert edges[edges["sender"] == "hub"]["bytes"].tolist() == [down] * 6
    assert [row["round"] for row in result.rows] == [2, 4]
    assert result.rows[0]["test_score"] == result.rows[1]["test_score"]
    given = fitted(Hierarchical(residual_variance=1, client_variance=1, group_variance=1), clients)
    assert (given.messages, given.bytes_up, given.bytes_down) == (1, up - 8, down)
    assert fitted(PooledExact(), clients)[1:] == (1, up - 8, down)
    assert fitted(LocalExact(), clients)[1:] == (0, 0, 0)


def test_alone_and_pooled_are_least_squares():
    parts = random_parts()
    whole = least_squares(np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]))
    alone = [least_squares(x, y) for x, y in parts]
    np.testing.assert_allclose(coefficients(fitted(LocalExact(), federation(parts)).models), alone, atol=1e-5)
    pooled = fitted(PooledExact(), federation(parts)).models
    np.testing.assert_allclose(coefficients(pooled), [whole] * len(parts), atol=1e-5)
    result = run(federation(parts), "mlp", LocalExact(), rounds=1)
    rmse = [np.sqrt(np.mean((b[0] + x @ b[1:] - y) ** 2)) for b, (x, y) in zip(alone, parts, strict=True)]
    np.testing.assert_allclose(result.final["test_score"], rmse, rtol=1e-5)
    np.testing.assert_allclose(result.rows[-1]["train_loss"], 0.5 * np.square(rmse), rtol=1e-4)
    assert result.ledger.edges().empty


def test_clients_are_drawn_to_their_group_and_groups_to_all():
    # Without variance between clients everyone has its group's regression, and without any between groups, that of all.
    parts, groups = random_parts(), np.array([0, 0, 0, 1, 1, 1])
    clients, settings = federation(parts, groups=groups), {"residual_variance": 1.0, "client_variance": 0.0}
    one = coefficients(fitted(Hierarchical(group_variance=0.0, **settings), clients).models)
    whole = least_squares(np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]))
    np.testing.assert_allclose(one, [whole] * 6, atol=1e-5)
    two = coefficients(fitted(Hierarchical(group_variance=1e9, **settings), clients).models)
    for chosen in (slice(0, 3), slice(3, 6)):
        own = least_squares(
            np.concatenate([x for x, _ in parts[chosen]]), np.concatenate([y for _, y in parts[chosen]])
        )
        np.testing.assert_allclose(two[chosen], [own] * 3, atol=1e-5)


def test_two_classes_are_logistic_regression():
    from sklearn.linear_model import LogisticRegression

    parts = random_parts("classification")
    x, y = np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])
    reference = LogisticRegression(C=1e12, tol=1e-10).fit(x, y)
    clients = federation(parts, "classification", 2)
    result = run(clients, "mlp", PooledExact(), rounds=1)
    weight, bias = result.variables.params.weight, result.variables.params.bias
    assert (weight[:, 0] == 0).all()
    np.testing.assert_allclose(weight[:, 1], np.tile(reference.coef_, (6, 1)), atol=1e-4)
    np.testing.assert_allclose(bias[:, 1], np.tile(reference.intercept_, 6), atol=1e-4)
    expected = [np.mean(reference.predict(x) == y) for x, y in parts]
    np.testing.assert_allclose(result.final["test_score"], expected, atol=1e-6)
    edges = result.ledger.edges()
    # First X'X, p(p+1)/2 numbers; then Newton's method asks more than once, and every answer has p(p+1)/2 + p + 1; at
    # last whether the client is separated.
    exchanges = edges["messages"].iloc[0]
    assert exchanges > 3
    numbers = 6 + (exchanges - 2) * 10 + 1
    assert edges[edges["receiver"] == "hub"]["bytes"].iloc[0] == exchanges * HEADER + 8 * numbers
    personal = fitted(Hierarchical(client_variance=0.5), clients).models.params
    assert np.ptp(personal.bias[:, 1]) > 0.01


def test_dependent_columns_change_no_prediction():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(40, 2)).astype(np.float32)
    word = np.eye(3)[rng.integers(0, 3, 40)]  # its columns sum to one, like the intercept
    wide = np.column_stack([x, word, 2 * x[:, 0] - x[:, 1], np.full(40, 7.0)])
    assert independent_columns(wide).tolist() == [0, 1, 2, 3]
    y = (x[:, 0] + word @ [0, 1, 2] + rng.normal(size=40)).astype(np.float32)
    clients = federation([(wide[:20], y[:20]), (wide[20:], y[20:])])
    enough = np.column_stack([x, word[:, :2]])
    expected = np.column_stack([np.ones(40), enough]) @ least_squares(enough, y)
    predicted = np.column_stack([np.ones(40), wide]) @ coefficients(fitted(PooledExact(), clients).models)[0]
    np.testing.assert_allclose(predicted, expected, atol=1e-4)


@pytest.mark.soak
def test_in_a_comparison_with_other_methods_from_a_table(tmp_path):
    schools = [
        pd.DataFrame(x, columns=["a", "b"]).assign(score=y, school=f"s{i}", district=f"d{i % 2}")
        for i, (x, y) in enumerate(random_parts(clients=8))
    ]
    pd.concat(schools).to_csv(tmp_path / "table.csv", index=False)
    names = ["local", "local-exact", "hierarchical"]
    words = ["compare", "--data", "csv", "--methods", ",".join(names), "--rounds", "2", "--out", str(tmp_path / "out")]
    for key, value in (("path", tmp_path / "table.csv"), ("target", "score"), ("client", "school")):
        words += ["--set", f"data.{key}={value}"]
    words += ["--set", "data.group=district"]
    outcome = CliRunner().invoke(app, words)
    assert outcome.exit_code == 0, outcome.output
    comparison = Comparison.read([tmp_path / "out"])
    assert set(comparison.results) == set(names)
    board = {row["method"]: row for row in comparison.leaderboard()}
    assert comparison.baseline == min(("local", "local-exact"), key=lambda name: board[name]["mean"])
    statistics = 2 * HEADER + 8 * (2 * 4 + 3) + 8 * (2 * 3 + 2)  # of two numbers and the target, up and down
    assert board["local"]["bytes_per_client"] == statistics
    assert board["hierarchical"]["bytes_per_client"] - statistics == 2 * HEADER + 8 * (3 * 4 // 2 + 3 + 1) + 8 * 3
    text = (tmp_path / "out" / "report.html").read_text()
    assert "hierarchical" in text
    result = Result.read(tmp_path / "out" / "hierarchical" / "seed-0")
    assert result.model("s0").variables.params.weight.shape == (1, 2)


def test_a_resumed_run_does_not_fit_again(tmp_path, monkeypatch):
    clients, method = federation(random_parts(), groups=np.arange(6) % 2), Hierarchical()
    options = {"rounds": 4, "evaluate_every": 1, "checkpoint_every": 1}
    whole = run(clients, "linear", method, **options)

    def stop(stage, number, *_):
        if stage == "round" and number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(clients, "linear", method, out=tmp_path / "run", progress=stop, **options)
    monkeypatch.setattr(Hierarchical, "fit", lambda *_: pytest.fail("it was fitted a second time"))
    resumed = run(clients, "linear", method, out=tmp_path / "run", **options)
    assert resumed.rows == whole.rows
    pd.testing.assert_frame_equal(resumed.ledger.edges(), whole.ledger.edges())


@pytest.mark.parametrize(
    ("clients", "method", "words"),
    [
        (federation(random_parts("classification"), "classification", 3), Hierarchical(), "3 classes"),
        (
            federation(random_parts("classification"), "classification", 2),
            Hierarchical(residual_variance=1),
            "two classes",
        ),
        (federation([(x, np.stack([y, y], 1)) for x, y in random_parts()], classes=2), LocalExact(), "2 targets"),
    ],
)
def test_unsuitable_data_are_refused_before_anything_runs(clients, method, words):
    with pytest.raises(CoterieError, match=words):
        make_job(clients, "linear", method)


def test_images_and_constant_tables_are_refused():
    digits = coterie.load("digits", partition="iid", clients=3)
    with pytest.raises(CoterieError, match="table of numbers"):
        compare(digits, ["hierarchical"], rounds=1)
    flat = [(np.ones((3, 1)), np.arange(3, dtype=np.float32)) for _ in range(2)]
    with pytest.raises(CoterieError, match="not the same in all samples"):
        fitted(PooledExact(), federation(flat))


def test_it_is_listed_and_described():
    outcome = CliRunner().invoke(app, ["show", "hierarchical"])
    assert outcome.exit_code == 0, outcome.output
    for words in ("client_variance", "group_variance", "REML", "Lyu et al. 2022"):
        assert words in outcome.output
    assert "hierarchical" in CliRunner().invoke(app, ["list", "methods"]).output
