"""Models from somebody else, and what it takes to use them: one sentence for what does not fit; no link is followed."""

import csv
import json
import shutil

import numpy as np
import pandas as pd
import pytest
import safetensors.numpy

import coterie as ct
from coterie.serving import numpy_model
from support.attacks import Attack, call, refuse
from support.folder_cases import DEEP, entries, link, nothing, text
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


def column(place, **changes):
    """Change what the preparation says of a column."""
    return preparation(lambda record: record["columns"][place].update(changes))


def target(**changes):
    """Change what the preparation says of the target."""
    return preparation(lambda record: record["target"].update(changes))


def preparation(change):
    def prepare(folder):
        record = json.loads((folder / PREPARATION).read_text())
        change(record)
        (folder / PREPARATION).write_text(json.dumps(record))

    return prepare


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
    Attack(
        "preparation: another level", column(1, levels=["icu", "er", "new"]), PREDICT, '"columns" must make samples'
    ),
    Attack("preparation: no such column", column(1, kind="dropped"), PREDICT, f'{PREPARATION}: "columns" must make'),
    Attack("preparation: classes", target(kind="classification"), PREDICT, '"target.kind" must be regression'),
    Attack("preparation: a target without spread", target(std=0.0), PREDICT, '"target.std" must not be 0'),
    Attack("clients.json: other inputs", entries("x/clients.json", sample_shape=[7]), PREDICT, "must make samples of"),
    Attack("predict into its own rows", nothing, (*PREDICT, "--out", "./new.csv"), "which would be lost"),
    Attack("a client of 100,000 letters", nothing, (*PREDICT, "--client", "x" * 100_000), "there is no client 'xxx"),
    Attack("a group of 100,000 letters", nothing, (*PREDICT, "--group", "x" * 100_000), "are for --new-client"),
    Attack("a method of 100,000 letters", nothing, (*PREDICT, "--method", "x" * 100_000), "leave them out"),
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


def test_numbers_that_are_too_large_count_as_missing_and_are_noted(work):
    cells = ["1e400", "-1e400", "1e300", "1e40", "inf"]
    (work / "cells.csv").write_text("site,age,ward\n" + "".join(f"a,{cell},icu\n" for cell in ["", "50", *cells]))
    notes = ["no value in 'age'", "", *(f"'{cell}' in 'age' is too large a number" for cell in cells)]
    for command in (("predict", "x", "cells.csv"), ("predict", "own", "cells.csv", "--client", "a")):
        outcome = call(*command)
        assert outcome.exit_code == 0, outcome.output
        predicted = pd.read_csv("cells.predictions.csv", keep_default_na=False)
        assert predicted["note"].tolist() == notes
        missing, usual, *large = predicted["prediction"]
        assert np.isfinite(missing)
        assert set(large) == {missing} != {usual}
    with open("cells.csv") as stream:
        first, _, *large = numpy_model.inputs(list(csv.DictReader(stream)), work / "own").tolist()
    assert all(row == first for row in large)


def test_a_row_for_which_a_model_gives_no_number_is_noted(work):
    model(weight=np.full((1, 3), 3e38, "f4"), bias=np.zeros(1, "f4"))(work)
    (work / "new.csv").write_text("site,age,ward\na,1e6,icu\n")
    assert call(*PREDICT).exit_code == 0
    predicted = pd.read_csv("new.predictions.csv")
    assert predicted["note"].tolist() == ["no prediction: the numbers are too large for the model"]
    assert predicted[["prediction", "low", "high"]].isna().all(axis=None)
