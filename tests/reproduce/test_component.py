"""`coterie reproduce component` at a small size, and its choices at equal bytes worked out by hand."""

import json
import os

import jax
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import coterie
from coterie.cli import app
from coterie.comparison.config import ComparisonConfig
from coterie.errors import CoterieError
from coterie.learning.task import Task
from coterie.methods import FedAvg
from coterie.reproduce.component import expected
from coterie.reproduce.component import layout as component
from coterie.reproduce.component.elements import Update, elements, example, figure6, updates
from coterie.reproduce.component.frontier import (
    Curve,
    Point,
    best_within,
    cheapest,
    curves,
    equal_bytes,
    frontier,
    reaching,
)
from coterie.reproduce.component.records import codecs_record, figure6_record
from coterie.reproduce.component.runs import judge_codecs, run_groups


def curve(family, label, up, validation, test):
    """Make a curve of one draw by hand; a header is 48 bytes, and there is a message in each of the rounds 1, 2, 3."""
    up, rounds = np.array([up], float), np.array([1, 2, 3])
    bare = up - 48 * rounds
    return Curve(family, label, rounds, up, bare, 2 * up, *(np.array([x], float) for x in (validation, test, test)))


NONE = curve("none", "none", [100, 200, 300], [0.5, 0.7, 0.8], [0.4, 0.6, 0.7])
COARSE = curve("few", "coarse", [60, 120, 180], [0.6, 0.62, 0.61], [0.5, 0.52, 0.51])
FINE = curve("few", "fine", [80, 160, 240], [0.55, 0.65, 0.799], [0.45, 0.56, 0.69])


@pytest.mark.parametrize(
    ("budget", "label", "number"), [(60, "coarse", 1), (119, "coarse", 1), (130, "coarse", 2), (170, "fine", 2)]
)
def test_a_budget_gets_the_setting_and_round_that_validation_prefers(budget, label, number):
    point = best_within([COARSE, FINE], budget)
    assert (point.curve.label, point.about()["round"]) == (label, number)
    assert point.about()["up"] <= budget


def test_nobody_is_within_a_budget_that_no_message_fits():
    assert best_within([COARSE, FINE], 59) is None
    assert best_within([COARSE], 60, bytes_of="total") is None


def test_the_cheaper_of_two_equal_scores_is_taken():
    twice = curve("few", "twice", [120, 240, 360], COARSE.validation[0], COARSE.test[0])
    assert best_within([twice, COARSE]).curve.label == "coarse"


def test_codecs_are_judged_by_what_uncompressed_training_has():
    figures = judge_codecs([NONE, COARSE, FINE])
    assert figures["target"] == pytest.approx(0.795)  # half a point below 0.8
    reach = figures["reach"]["few"]
    assert (reach["label"], reach["round"]) == ("fine", 3)
    assert reach["fewer"] == pytest.approx(300 / 240)
    assert reach["fewer_bare"] == pytest.approx((300 - 3 * 48) / (240 - 3 * 48))
    assert reach["gap"] == pytest.approx(0.69 - 0.7)
    assert figures["end"]["few"]["label"] == "fine"  # coarse costs less, and is not good enough
    assert [row["label"] for row in figures["settings"]] == ["none", "coarse", "fine"]
    by_share = {row["share"]: row for row in figures["equal"]}
    assert by_share[1 / 4]["winner"] == "few"  # 75 bytes: enough for one coarse message
    assert by_share[1 / 8]["families"] == {}
    assert by_share[1 / 8]["winner"] is None
    assert by_share[1]["winner"] == "none"


def test_at_equal_bytes_the_best_by_validation_wins():
    rows = equal_bytes({"none": [NONE], "few": [COARSE, FINE]}, [0.2, 0.55, 0.8, 1.0])
    assert [row["winner"] for row in rows] == ["few", "few", "few", "none"]
    assert [row["families"]["few"]["label"] for row in rows] == ["coarse", "fine", "fine", "fine"]
    assert rows[2]["families"]["few"]["test"] == pytest.approx(0.69)


def test_what_nobody_reaches_is_said():
    assert reaching([COARSE], 0.7) is None
    assert cheapest([COARSE], 0.7) is None
    assert judge_codecs([NONE, COARSE])["reach"]["few"] is None
    with pytest.raises(CoterieError, match="none among them"):
        component.codecs(families=("qsgd",))


def test_a_frontier_rises_with_the_budget():
    points = frontier([COARSE, FINE])
    assert points[0]["label"] == "coarse"
    assert points[-1]["label"] == "fine"
    assert points[-1]["round"] == 3
    scores, budgets = [p["validation"] for p in points], [p["budget"] for p in points]
    assert scores == sorted(scores)
    assert budgets == sorted(budgets)
    assert all(p["up"] <= p["budget"] for p in points)


def test_bytes_of_a_curve_are_the_ledgers():
    federation = coterie.load("planted-groups", clients=4)
    method = FedAvg(lr=0.1, batch_size=0, steps=1)
    runs = [
        {"half": [coterie.run(federation, "linear", method, codec="float16", rounds=4, evaluate_every=2, seed=seed)]}
        for seed in (0, 1)
    ]
    (curve,) = curves(runs, {"half": "float16"})
    numbers = 4 * 10 + 4
    up = 48 + 4 + 1 + 5 + 2 * numbers  # header, weight, kind, layout and checksum, float16
    down = 48 + 4 + 4 * numbers
    at = curve.rounds
    np.testing.assert_allclose(curve.up, np.stack([up * at, up * at]))
    np.testing.assert_allclose(curve.bare, np.stack([(up - 48) * at] * 2))
    np.testing.assert_allclose(curve.total, np.stack([(up + down) * at] * 2))
    final = runs[1]["half"][0].final
    assert curve.test[1, -1] == pytest.approx(final["test_score"].mean(), abs=1e-6)
    assert curve.validation[1, -1] == pytest.approx(final["validation_score"].mean(), abs=1e-6)
    about = Point(curve, -1).about()
    assert about["spread"] == pytest.approx(np.std([run["half"][0].final["test_score"].mean() for run in runs], ddof=1))


def test_the_updates_are_the_clients_gradients():
    federation = coterie.load("planted-groups", clients=4)
    task = Task.of(federation, coterie.models.Linear())
    first, second = updates(task, federation, 0.5, rounds=(2, 3))
    variables = task.init(jax.random.key(0))
    weight, bias = (np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(variables.params))
    if weight.ndim == 1:
        weight, bias = bias, weight

    def slopes(weight, bias):
        gradients = []
        for x, y in zip(np.asarray(federation.train.x, np.float64), np.asarray(federation.train.y), strict=True):
            logits = x @ weight.T + bias
            share = np.exp(logits - logits.max(1, keepdims=True))
            share = share / share.sum(1, keepdims=True) - np.eye(4)[y]
            gradients.append((share.T @ x / len(x), share.mean(0)))
        return gradients

    means = []
    for update in (None, first, second):
        each = slopes(weight, bias)
        rows = np.array([np.concatenate([w.ravel(), b]) for w, b in each])
        if update is not None:
            np.testing.assert_allclose(np.sort(update.each), np.sort(rows), atol=1e-5)
            np.testing.assert_allclose(np.sort(update.before), np.sort(means[-1]), atol=1e-5)
        means.append(rows.mean(0))  # clients have equally many samples
        weight, bias = weight - 0.5 * means[-1][:40].reshape(4, 10), bias - 0.5 * means[-1][40:]


def test_elements_of_a_vector_that_can_be_fused_by_hand():
    # With a price of 1 a jump: s = cumsum(x - q) is 1, 1, -1, -1, 1, as the signs of the jumps of q and of its end ask.
    x = np.array([[3, 1, -2, 0.5, 4]])
    gamma = 1 / np.abs(x).mean()
    row, ordered = elements([Update(7, x, x[0])], [gamma])
    assert (row["round"], row["runs"], row["distinct"], row["elements"]) == (7, 5, 4, 5)
    assert row["error"] == pytest.approx(np.linalg.norm([1, 0, 2, 0, 2]) / np.linalg.norm(x), rel=1e-6)
    # In rising order, -2, 0.5, 1, 3, 4, what is left is -1, 0.5, 1, 2.5, 2.5.
    assert ordered["order"] == "by the last mean"
    assert ordered["runs"] == 4
    assert ordered["distinct"] == 4
    drawn = example(Update(7, x, x[0]), gammas=[gamma])
    assert drawn["update"] == x[0].tolist()
    np.testing.assert_allclose(next(iter(drawn["fused"].values())), [2, 1, 0, 0.5, 2], atol=1e-6)


def test_figure_6_by_hand():
    x = np.array([[4.0, 4.0, 0.0, 0.0, 0.0, -8.0]])  # the mean absolute element is 16 / 6
    rows = {row["panel"]: row for row in figure6([Update(10, x, x[0])], gamma=0.75)}  # a jump costs 2
    assert (rows["gamma = 0"]["distinct"], rows["gamma = 0"]["bytes"], rows["gamma = 0"]["error"]) == (3, 24, 0)
    # A jump of 2 is taken from both ends: 3, 3, 0, 0, 0, -4 (the last element pays for its jump to 0, too).
    assert rows["regulariser"]["error"] == pytest.approx(np.linalg.norm([1, 1, 0, 0, 0, 4]) / np.linalg.norm(x))
    assert rows["regulariser"]["distinct"] == rows["k = 4"]["distinct"] == rows["k = 3"]["distinct"] == 3
    record = figure6_record(list(rows.values()), "coterie reproduce component", "cpu")
    assert [row["paper"] for row in record["rows"]] == ["55 elements", "drawn", "4 values", "3 values"]
    assert record["rows"][0]["printed"] == "3 / 24 / 0.000"
    assert [row["paper"] for row in expected()[0]["rows"]] == [row["paper"] for row in record["rows"]]


def test_the_binary_model_has_the_55_elements_of_figure_6():
    tables, families = component.codecs("covtype-binary")
    model = ComparisonConfig.from_dict(tables).experiment.model.spec
    tree = model.build((54,), 2, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(tree)) == 55
    drafts = [label for label, family in families.items() if family == "draft"]
    assert drafts == ["fused-0.3-constant", "fused-0.3-k4-constant", "fused-0.3-k3-constant"]
    settings = {label: tables["methods"][label]["codec"] for label in drafts}
    assert all(codec["settle"] == 0 for codec in settings.values())
    about = {"test": 0.5, "spread": 0.0, "gap": 0.0, "fewer": 2.0, "fewer_bare": 3.0}
    figures = {"data": "x", "rounds": 3, "draws": 1, "settings": [about | {"label": label} for label in families]}
    record = codecs_record(figures, "coterie reproduce component", "cpu")
    assert [row["printed"] for row in record["rows"]] == ["50.00 / 2.0 / 3.0"] * 4
    assert codecs_record(figures | {"settings": figures["settings"][:1]}, "", "") is None


@pytest.mark.soak
def test_groups_are_found_exactly_along_the_path(tmp_path):
    outcome = run_groups(networks=[5], seeds=1, values=9, out=tmp_path)
    (network,) = outcome.figures["networks"]
    assert network["found"] == 1
    assert network["best_ari"] == [1.0]
    low, high = network["always"]
    first = outcome.tables["groups"][0]
    assert first["lam"] == pytest.approx(20.0)
    assert first["clusters"] == 1
    inside = [row for row in outcome.tables["groups"] if low <= row["lam"] <= high]
    assert all(row["clusters"] == 4 for row in inside if row["ari"] == 1.0)


@pytest.mark.soak
def test_every_experiment_can_be_laid_out():
    for data, local in ((data, local) for data in component.CODED for local in component.LOCAL):
        tables, families = component.codecs(data, local, draw=2)
        planned = ComparisonConfig.from_dict(tables)
        assert len(planned.methods) == len(families) == sum(map(len, component.CODECS.values()))
        assert planned.experiment.partition.common.seed == planned.experiment.run.seed == 2
    for data, model in ((data, model) for data in component.PERSONAL for model in component.MODELS):
        tables, methods = component.personal(data, model, draw=1)
        assert set(methods.values()) == set(component.METHODS)
        assert len(ComparisonConfig.from_dict(tables).methods) == len(methods)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--part", "codec"], "did you mean codecs"),
        (["--data", "covertype"], "did you mean covtype"),
        (
            ["--part", "personal", "--data", "covtype-soil"],
            "--data must be one of digits, human-activity, a9a, covtype",
        ),
        (["--local", "step"], "local must be one of gradient, epoch"),
        (["--part", "codecs", "--codecs", "none,fuse"], "did you mean fused"),
        (["--part", "personal", "--methods", "ditto,pooled"], "methods must be one of"),
        (["--part", "personal", "--model", "cnn"], "model must be one of mlp, linear"),
        (["--part", "codecs", "--codecs", "qsgd"], "none among them"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(given, words, tmp_path):
    outcome = CliRunner().invoke(app, ["reproduce", "component", *given, "--out", str(tmp_path / "x")])
    assert outcome.exit_code == 2
    assert words in outcome.output
    assert "Traceback" not in outcome.output
    assert not (tmp_path / "x").exists()


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduce") / "component"
    small = ["--codecs", "none,fused-k", "--methods", "local,ditto", "--seeds", "1", "--rounds", "20"]
    outcome = CliRunner().invoke(app, ["reproduce", "component", *small, "--out", str(folder)])
    assert outcome.exit_code == 0, outcome.output
    return folder, outcome.output, small


@pytest.mark.soak
def test_tables_files_and_page(done):
    folder, text, _ = done
    for words in ("fused-0.3-k4", "to within 0.5 points", "planted groups along the path", "personal models: digits"):
        assert words in text
    figures = json.loads((folder / "figures.json").read_text())
    assert set(figures) == {"codecs", "groups", "personal"}
    frame = pd.read_csv(folder / "codecs.csv")
    settings = {row["label"]: row for row in figures["codecs"]["settings"]}
    last = frame[frame["round"] == 20].set_index("label")
    for label, row in settings.items():
        assert last.loc[label, "up"] == pytest.approx(row["up"])
        assert last.loc[label, "test"] == pytest.approx(row["test"])
    assert settings["none"]["up"] == 20 * (48 + 4 + 4 * figures["codecs"]["parameters"])
    assert settings["fused-0.3-k4"]["fewer"] > 8
    page = (folder / "component.html").read_text()
    assert page.count('class="plot"') == 5
    assert "default-src 'none'" in page
    chosen = {row["method"]: row for row in figures["personal"]["methods"]}
    personal = pd.read_csv(folder / "personal.csv")
    best = personal[personal["family"] == "ditto"]["validation"].max()
    assert chosen["ditto"]["validation"] == pytest.approx(best)
    assert chosen["local"]["total"] == 0
    assert chosen["local"]["gain"] is None


@pytest.mark.soak
def test_a_second_call_only_reads(done):
    folder, _, small = done
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("metrics.jsonl")}
    assert before
    outcome = CliRunner().invoke(app, ["reproduce", "component", *small, "--out", str(folder), "--json"])
    assert outcome.exit_code == 0, outcome.output
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("metrics.jsonl")} == before
    assert json.loads(outcome.stdout)["codecs"]["data"] == "digits"


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("COTERIE_DATA"), reason="COTERIE_DATA is not set")
@pytest.mark.soak
def test_real_data_are_laid_out_for_codecs(tmp_path):
    given = ["--part", "codecs", "--data", "human-activity", "--codecs", "none,fused-k-ef", "--seeds", "1"]
    outcome = CliRunner().invoke(
        app, ["reproduce", "component", *given, "--rounds", "20", "--json", "--out", str(tmp_path)]
    )
    assert outcome.exit_code == 0, outcome.output
    figures = json.loads(outcome.stdout)["codecs"]
    assert (figures["clients"], figures["parameters"]) == (30, 59 * 12)
    few = [row for row in figures["settings"] if row["family"] == "fused-k-ef"]
    assert min(row["fewer"] for row in few) > 8
