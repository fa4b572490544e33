"""What a sweep runs: combinations of values, ranges, keys that do not exist."""

import itertools
import tomllib

import numpy as np
import pytest

from coterie.comparison.sweeps.axes import read_axes
from coterie.comparison.sweeps.plan import SweepConfig, by_key, words_of
from coterie.comparison.sweeps.runner import evenly
from coterie.errors import CoterieError
from coterie.pages.sweep import axis_of
from coterie.storage.toml import dump_toml

BASE = '[method]\nname = "ditto"\nlr = 0.1\ntie = 0.3\nbatch_size = 5\n[model]\nname = "mlp"\n[sweep]\n'


def config(text):
    return SweepConfig.from_dict(tomllib.loads(BASE + text))


def test_every_value_with_every_other_and_some_side_by_side():
    swept = config(
        "method.tie = [0.1, 1.0]\nseed = [3, 4]\n"
        "[[sweep.together]]\nmodel.hidden = [[8], [8, 8]]\nmethod.epochs = [1, 2]"
    )
    found = [
        (run.experiment.method.spec.tie, run.seed, run.experiment.model.spec.hidden, run.experiment.method.spec.epochs)
        for run in swept.runs
    ]
    bundles = [((8,), 1), ((8, 8), 2)]
    assert found == [(tie, seed, *both) for tie, seed, both in itertools.product((0.1, 1.0), (3, 4), bundles)]
    assert [run.candidate for run in swept.runs] == [1, 2, 1, 2, 3, 4, 3, 4]  # seeds are runs of the same candidate
    assert words_of(swept.runs[1].settings) == "method.tie=0.1 model.hidden=[8, 8] method.epochs=2"
    # Another shape is another program; another real number or seed is not.
    assert [len(group) for group in by_key(swept.runs, "program")] == [4, 4]
    assert SweepConfig.from_dict(tomllib.loads(dump_toml(swept.to_dict()))).runs == swept.runs


def test_ranges_are_those_of_numpy():
    axes = read_axes(
        {
            "method.lr": {"from": 1e-3, "to": 0.5, "steps": 7, "scale": "log"},
            "method": {"tie": {"from": 0.0, "to": 1.0, "steps": 4}, "steps": {"from": 1, "to": 9, "steps": 3}},
            "run.seed": np.arange(3),
        }
    )
    values = {axis.keys[0]: [step[0] for step in axis.steps] for axis in axes}
    np.testing.assert_allclose(values["method.lr"], np.geomspace(1e-3, 0.5, 7), rtol=1e-5)  # six digits are kept
    np.testing.assert_allclose(values["method.tie"], np.linspace(0, 1, 4), rtol=1e-5)
    assert (values["method.lr"][0], values["method.lr"][-1]) == (1e-3, 0.5)
    assert values["method.steps"] == [1, 5, 9]
    assert all(type(value) is int for value in values["method.steps"] + values["run.seed"])


def test_zero_switches_a_setting_off_and_is_another_program():
    groups = by_key(config("method.tie = [0.0, 0.5, 1.0]").runs, "program")
    assert [[run.settings["method.tie"] for run in group] for group in groups] == [[0.0], [0.5, 1.0]]


def test_another_method_takes_over_the_settings_of_local_training():
    runs = SweepConfig.from_dict(
        tomllib.loads(BASE + 'method = ["ditto", "fedprox", "local"]\n[methods.fedprox]\nmu = 0.25')
    ).runs
    ditto, fedprox, local = (run.experiment.method.spec for run in runs)
    assert (ditto.tie, fedprox.mu) == (0.3, 0.25)
    assert {(each.lr, each.batch_size) for each in (ditto, fedprox, local)} == {(0.1, 5)}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("method.lrr = [1.0]", r"sweep: unknown key method.lrr for ditto; did you mean lr\?"),
        ("metod.lr = [1.0]", r"sweep: unknown section \[metod\]; did you mean method\?"),
        ("lr = [0.1]", r"unknown key sweep.lr; write SECTION.KEY, for example method.lr"),
        ("sede = [1]", r"unknown key sweep.sede; did you mean seed\?"),
        ("data.classes = [1]", r"unknown key data.classes for digits; did you mean partition.classes\?"),
        ("method.lr = []", r"sweep.method.lr is empty; give it at least one value"),
        ("method.lr = 0.1", r"sweep.method.lr must be a list of values or a range .*, not 0.1; a single value"),
        ('method.lr = ["a"]', r"sweep: method.lr must be number, not 'a'"),
        ("method.lr = [-1.0]", r"sweep: method.lr must be greater than 0, not -1"),
        ("method.lr = [nan]", r"sweep.method.lr has nan; every value must be a finite number"),
        ("method.lr = [0.1, 0.1]", r"sweep.method.lr has 0.1 twice"),
        ('method = ["dito"]', r"there is no method called 'dito'; did you mean ditto\?"),
        ("method.lr = { from = 0.1, to = 1.0 }", r"sweep.method.lr.steps is required"),
        ("method.lr = { from = 0.1, to = 1.0, step = 3 }", r"unknown key sweep.method.lr.step; did you mean steps\?"),
        ('method.lr = { from = 0.0, to = 1.0, steps = 3, scale = "log" }', r"has scale log and must stay above 0"),
        ('method.lr = { from = 0.1, to = 1.0, steps = 3, scale = "lg" }', r"scale must be .*; did you mean log\?"),
        ("method.lr = { from = 1, to = 2, steps = 5 }", r"has not so many whole numbers; lower steps, or write 1.0"),
        ("seed = [0]\nrun.seed = [1]", r"sweep.run.seed is given twice"),
        ("[[sweep.together]]\nmethod.lr = [0.1]\nseed = [0, 1]", r"same length: method.lr has 1, run.seed has 2"),
        ("", r"sweep is empty; write what varies"),
        ("seed = { from = 0, to = 20000, steps = 10000 }\nmethod.tie = [0.1, 1.0]", r"has 20,000 candidates"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(text, sentence):
    with pytest.raises(CoterieError, match=sentence):
        config(text)


@pytest.mark.parametrize(
    ("runs", "width", "sizes"), [(16, 16, [16]), (16, 5, [4, 4, 4, 4]), (7, 3, [3, 3, 1]), (0, 3, [])]
)
def test_one_program_serves_parts_of_nearly_equal_size(runs, width, sizes):
    parts = evenly(list(range(runs)), width)
    assert [len(part) for part, _ in parts] == sizes
    assert len({size for _, size in parts}) <= 1  # the program has one size
    assert [run for part, _ in parts for run in part] == list(range(runs))


def test_axes_of_the_drawing():
    wide = axis_of([0.01, 1.0, 0.1])  # on a logarithmic scale
    np.testing.assert_allclose(wide["at"], [0, 1, 0.5])
    assert [text for _, text in wide["ticks"]] == ["0.01", "0.1", "1"]
    np.testing.assert_allclose(axis_of([1, 5, 2])["at"], [0, 1, 0.25])
    assert axis_of(["b", "a", "b"]) == {"at": [0, 1, 0], "ticks": [[0, "b"], [1, "a"]]}
    assert axis_of([[8], [8]])["at"] == [0.5, 0.5]
