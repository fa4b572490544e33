"""Models from somebody else, and what it takes to use them: one sentence for what does not fit; no link is followed."""

import shutil

import numpy as np
import pandas as pd
import pytest
import safetensors.numpy

import coterie as ct
from support.attacks import Attack, call, refuse
from support.folder_cases import DEEP, entries, link, text
from support.serving_cases import saved_run

PREDICT = ("predict", "x", "new.csv")
OWN = ("predict", "own", "new.csv", "--client", "a")
PREPARATION, INTERVALS, MODEL = "x/preparation.json", "x/intervals.json", "x/models/00000-a.safetensors"
STATISTICS = {"fill": [0.0], "mean": [0.0], "scale": [0.0]}
WIDTHS = {"rows": 30, "half_widths": [[1.0]]}


def table(rows=90):
    """Rows of three sites with one number, one word and a number to predict."""
    random = np.random.default_rng(0)
    age = random.normal(60, 10, rows).round()
    frame = {"site": np.repeat(["a", "b", "c"], rows // 3), "age": age, "ward": random.choice(["icu", "er"], rows)}
    return pd.DataFrame(frame | {"cost": age + random.normal(size=rows)})


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A working folder with a run, `x`, one client's share of it, `own`, and rows to predict."""
    place = tmp_path_factory.mktemp("served")
    saved_run(place / "x", ct.load(table(), target="cost", client="site"), "linear", "fedavg")
    ct.export(place / "x", "a", place / "own")
    table().head(5).drop(columns="cost").to_csv(place / "new.csv", index=False)
    return place


@pytest.fixture
def work(served, tmp_path, monkeypatch):
    place = tmp_path / "work"
    shutil.copytree(served, place)
    monkeypatch.chdir(place)
    return place


def model(**arrays):
    """Write other arrays into the file of a model."""
    return lambda folder: safetensors.numpy.save_file(arrays, str(folder / MODEL))


ATTACKS = [
    Attack("model garbage", text(MODEL, "garbage"), PREDICT, f"{MODEL} cannot be read as a saved model"),
    Attack("model absent", lambda f: (f / MODEL).unlink(), PREDICT, f"{MODEL} cannot be read as a saved model"),
    Attack("model of other shapes", model(weight=np.ones((1, 99), "f4"), bias=np.ones(1, "f4")), PREDICT, "of shape"),
    Attack("model of other arrays", model(evil=np.ones(1)), PREDICT, f"{MODEL} holds 'evil'"),
    Attack("model a link", link("models/00000-a.safetensors", "new.csv"), PREDICT, "is a link to a place outside of x"),
    Attack("preparation {}", text(PREPARATION, "{}"), PREDICT, f'{PREPARATION}: "columns" is missing'),
    Attack("preparation deep", text(PREPARATION, DEEP), PREDICT, f"{PREPARATION} cannot be read (it is nested"),
    Attack("preparation: columns = 3", entries(PREPARATION, columns=3), PREDICT, '"columns" must be a list, not 3'),
    Attack(
        "preparation: divides by 0", entries(PREPARATION, statistics={"": STATISTICS}), PREDICT, "must not have a zero"
    ),
    Attack(
        "preparation: standardise", entries(PREPARATION, standardise="<b>"), PREDICT, '"standardise" must be federated'
    ),
    Attack("intervals {}", text(INTERVALS, "{}"), PREDICT, f'{INTERVALS}: "levels" is missing'),
    Attack(
        "intervals: lengths", entries(INTERVALS, pooled=WIDTHS), PREDICT, '"pooled.half_widths" must have 5 entries'
    ),
    Attack("own {}", text("own/model.json", "{}"), OWN, 'own/model.json: "format" is missing'),
    Attack("own newer", entries("own/model.json", format=2), OWN, '"format" must be at most 1, not 2'),
    Attack("own: config = []", entries("own/model.json", config=[]), OWN, '"config" must be a table, not a list'),
    Attack("own: names = 3", entries("own/model.json", about={"names": 3}), OWN, '"about.names" must be a list, not 3'),
    Attack(
        "join-trained: joined is a link", link("joined"), ("join-trained", "x", "new.csv", "--name", "d"), "is a link"
    ),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_refused(attack, work):
    refuse(attack, work)


def test_what_was_attacked_works_as_it_is(work):
    for command in (PREDICT, OWN):
        outcome = call(*command)
        assert outcome.exit_code == 0, outcome.output
