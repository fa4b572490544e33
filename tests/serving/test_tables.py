"""From a table to predictions: columns by name, what is missing or new is said, the same numbers everywhere."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import coterie as ct
from coterie.cli import app
from coterie.errors import CoterieError
from support.serving_cases import saved_run


def visits(rows=240):
    random = np.random.default_rng(0)
    age = random.normal(60, 10, rows).round()
    return pd.DataFrame(
        {
            "age": age,
            "ward": random.choice(["icu", "er", "gp"], rows),
            "seen": pd.date_range("2024-01-01", periods=rows, freq="7h").strftime("%d.%m.%Y %H:%M"),
            "crp": np.where(random.random(rows) < 0.1, np.nan, random.gamma(2, 3, rows)),
            "hospital": random.choice(["north", "south", "west"], rows),
            "died": np.where(random.random(rows) < 1 / (1 + np.exp(60 - age)), "yes", "no"),
        }
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table") / "run"
    saved_run(folder, ct.load(visits(), target="died", client="hospital"), "linear", "fedavg")
    return folder


@pytest.fixture
def new():
    """Six rows with an unseen level, a missing value where some were, and one where none was."""
    frame = visits().head(6).drop(columns="died")
    frame.loc[1, "ward"] = "maternity"
    frame.loc[2, "crp"] = np.nan
    frame.loc[3, "age"] = np.nan
    return frame


def probabilities(table):
    return table[["probability no", "probability yes"]].to_numpy()


def test_rows_say_what_was_new_or_missing(run, new):
    new.loc[[0, 4, 5], "crp"] = 5.0
    table = ct.open(run).predict(new)
    assert table["client"].tolist() == new["hospital"].tolist()
    assert set(table["prediction"]) <= {"yes", "no"}
    assert "'maternity' in 'ward' was not seen" in table["note"][1]
    assert "no value in 'crp'" in table["note"][2]
    assert "no value in 'age'" in table["note"][3]
    assert table["note"][[0, 4, 5]].tolist() == ["", "", ""]


def test_columns_are_found_by_name_and_others_ignored(run, new):
    shuffled = new[new.columns[::-1]].assign(comment="x", died="?")
    pd.testing.assert_frame_equal(ct.open(run).predict(shuffled), ct.open(run).predict(new))


def test_an_absent_column_is_missing_if_it_may_be_and_refused_otherwise(run, new):
    table = ct.open(run).predict(new.drop(columns="crp"))
    assert table["note"][0] == "no column 'crp': taken as missing"
    expected = ct.open(run).predict(new.assign(crp=np.nan))
    np.testing.assert_array_equal(probabilities(table), probabilities(expected))
    with pytest.raises(CoterieError, match="lacks the columns 'age', 'ward'"):
        ct.open(run).predict(new.drop(columns=["ward", "age"]))


def test_a_client_that_took_no_part(run, new):
    strangers = new.assign(hospital="east")
    with pytest.raises(CoterieError, match="no client 'east'"):
        ct.open(run).predict(strangers)
    table = ct.open(run).new_client().predict(strangers)
    assert np.isfinite(probabilities(table)).all()


def test_the_site_predicts_with_its_folder_and_numpy_alone(run, new, tmp_path):
    folder, _ = ct.export(run, "north", tmp_path / "site")
    expected = ct.open(run).model("north").predict(new)
    own = new.drop(columns="hospital")
    pd.testing.assert_frame_equal(ct.open(folder).predict(own), expected)  # one client: no column needed
    mixed = ct.open(folder).predict(new)  # rows of others are not predicted, and say so
    others = (new["hospital"] != "north").to_numpy()
    assert mixed["prediction"].isna().to_numpy().tolist() == others.tolist()
    assert mixed["note"][others].str.contains("took no part").all()
    with pytest.raises(CoterieError, match="no client 'south'"):
        ct.open(folder).predict(new[new["hospital"] == "south"])
    new.to_csv(tmp_path / "new.csv", index=False)
    command = [sys.executable, str(folder / "predict.py"), str(tmp_path / "new.csv")]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": ""}).stdout
    (tmp_path / "out.csv").write_text(lines)
    alone = pd.read_csv(tmp_path / "out.csv")
    assert alone["prediction"].tolist() == expected["prediction"].tolist()
    np.testing.assert_allclose(probabilities(alone), probabilities(expected), rtol=1e-4)
    text = (folder / "preparation.json").read_text() + (folder / "model.json").read_text()
    assert "south" not in text
    assert "west" not in text


def test_the_commands(run, new, tmp_path):
    def call(*words):
        outcome = CliRunner().invoke(app, [str(word) for word in words])
        return outcome.exit_code, outcome.output

    new.to_csv(tmp_path / "new.csv", index=False)
    code, said = call("predict", run, tmp_path / "new.csv", "--client", "south", "--out", tmp_path / "out.csv")
    assert code == 0
    assert "6 rows predicted with fedavg" in said
    assert "have a note, for example:" in said
    written = pd.read_csv(tmp_path / "out.csv", keep_default_na=False)
    expected = ct.open(run).model("south").predict(new)
    assert written["prediction"].tolist() == expected["prediction"].tolist()
    np.testing.assert_allclose(probabilities(written), probabilities(expected), rtol=1e-6)
    assert written["note"].tolist() == expected["note"].tolist()

    assert call("predict", run, tmp_path / "new.csv", "--new-client")[0] == 0
    assert (tmp_path / "new.predictions.csv").is_file()
    assert call("export", run, "--client", "west", "--out", tmp_path / "west")[1] == f"written: {tmp_path / 'west'}\n"
    assert call("predict", tmp_path / "west", tmp_path / "new.csv", "--client", "west")[0] == 0
    code, said = call("predict", run, tmp_path / "none.csv")
    assert (code, "there is no file" in said) == (2, True)

    visits().head(12).drop(columns="hospital").to_csv(tmp_path / "east.csv", index=False)
    code, said = call("join-trained", run, tmp_path / "east.csv", "--name", "east")
    assert code == 0
    assert "east starts from" in said
    assert ct.open(run / "joined" / "east").clients == ("east",)


def test_a_new_site_keeps_its_own_scale(tmp_path):
    """Where each site has statistics of its own, a single row of a new site is scaled by those of its labelled rows."""
    federation = ct.load(visits(), target="died", client="hospital", standardise="local")
    saved_run(tmp_path / "run", federation, "linear", "fedavg")
    rows = visits().drop(columns="hospital").head(12)
    member = ct.join_trained(tmp_path / "run", rows, name="east", out=tmp_path / "east", passes=2)
    both, one = (ct.open(tmp_path / "east").predict(rows.head(count)) for count in (2, 1))
    np.testing.assert_allclose(probabilities(one), probabilities(both)[:1], rtol=1e-5)
    own = member.answers.preparation.statistics["east"]
    np.testing.assert_allclose(own.mean[0], rows["age"].mean())
    assert set(ct.open(tmp_path / "east").answers.preparation.statistics) == {"east"}
