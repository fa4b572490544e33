"""The column contract: what it holds, what it makes of a site's own table, and what does not fit."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coterie.data.partition import divide
from coterie.data.tables.read import of_frame
from coterie.data.tables.source import Table
from coterie.errors import CoterieError
from coterie.sites.contract import Contract
from coterie.sites.data import load_site
from coterie.sites.federation import FederationFile
from coterie.sites.own_table import own_samples
from coterie.sites.site import SiteFile
from coterie.sites.starter import member_names, started


def rows(seed, size=60):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(20, 90, size).astype(str),
            "ward": rng.choice(["a", "b", "c"], size),
            "when": [f"2024-0{month}-11" for month in rng.integers(1, 10, size)],
            "cost": np.round(rng.normal(70, 9, size), 1),
            "died": rng.choice(["yes", "no"], size),
        }
    )


@pytest.fixture
def sites(tmp_path, monkeypatch):
    """Two sites with a table each, and the files that `coterie init` writes for them."""
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("north", "south")):
        rows(seed).to_csv(f"{name}.csv", index=False)
    return tmp_path


def contract_of(target="died", **settings):
    return Contract.of(Table(path=("north.csv", "south.csv"), target=target, **settings).load())


def own_data(target, contract):
    """Return north's own data as the files of `coterie init` and a contract give them."""
    files, _ = started(("north", "south"), ["*.csv"], target)
    for name, text in (files | {"columns.json": contract.to_json()}).items():
        Path(name).write_text(text)
    federation = FederationFile.read("federation.toml")
    assert federation.contract == contract
    return load_site(federation, SiteFile.read("north.site.toml"))


@pytest.mark.parametrize("target", ["died", "cost"])
def test_a_site_divides_its_rows_as_one_process_would(sites, target):
    experiment, own = own_data(target, contract_of(target))
    together = divide(experiment.partition.spec, Table(path=("north.csv", "south.csv"), target=target).load(), None, 0)
    assert own.names == ("north",) == together.names[:1]
    flag = [own.preparation.features.index(f"ward = {level}") for level in "abc"]
    theirs = [together.preparation.features.index(f"ward = {level}") for level in "abc"]
    for part in ("train", "validation", "test"):
        (x, y), (their_x, their_y) = getattr(own, part).rows(0), getattr(together, part).rows(0)
        np.testing.assert_array_equal(x[:, flag], their_x[:, theirs])
        unit, shift = own.target_std / together.target_std, own.target_mean - together.target_mean
        np.testing.assert_allclose(y * unit + shift / together.target_std, their_y, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("standardise", ["federated", "local", "none"])
def test_numbers_are_standardised_with_what_was_agreed(sites, standardise):
    _, own = own_data("died", contract_of(standardise=standardise))
    north, south = (pd.read_csv(f"{name}.csv")["age"].to_numpy(float) for name in ("north", "south"))
    both = np.concatenate([north, south])
    age = own.preparation.features.index("age")
    trained = own.train.rows(0)[0][:, age].astype(float)
    if standardise == "local":
        np.testing.assert_allclose([trained.mean(), trained.std()], [0, 1], atol=1e-6)
        return
    mean, std = (both.mean(), both.std()) if standardise == "federated" else (0, 1)
    distance = np.abs((trained * std + mean)[:, None] - north[None]).min(1)
    assert distance.max() < 1e-4  # every training row is one of north's
    assert own.preparation.statistics[""].fill[0] in (np.median(north), np.median(south))


def test_a_contract_says_nothing_about_rows_or_sites(sites):
    text = contract_of().to_json()
    assert "north" not in text
    record = json.loads(text)
    assert [record[key] for key in ("clients", "rows", "warnings", "source")] == [[], 0, [], ""]
    assert all(column["note"] == "" and column["missing"] == 0 for column in record["columns"])
    files, notes = started(("a", "b"), ["north.csv"], "died")  # of one site alone: no numbers of its rows
    assert json.loads(files["columns.json"])["statistics"] == {}
    assert any("no statistics" in note for note in notes)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda f: f.drop(columns="age"), "the table lacks the column 'age'"),
        (lambda f: f.drop(columns="died"), "it has no target column 'died'"),
        (lambda f: f.assign(age="old"), "column 'age' has 'old' in row 1, which is no number (60 such cells)"),
        (lambda f: f.assign(when="soon"), "column 'when' has 'soon' in row 1, which is no date"),
        (lambda f: f.assign(ward="X1"), "column 'ward' has 'X1' in row 1, and 60 of 60 cells are none of its levels"),
        (lambda f: f.assign(died="maybe"), "target column 'died' has 'maybe' in row 1; classes: no, yes"),
        (lambda f: f.assign(cost=1e39), "column 'cost' has too large a number in row 1"),
        (lambda f: f.assign(died=""), "no row is left"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_column_named(sites, change, sentence):
    with pytest.raises(CoterieError) as refused:
        own_samples(of_frame(change(rows(5)), "x.csv"), contract_of(), "north")
    assert sentence in str(refused.value)
    assert str(refused.value).startswith("x.csv does not fit the column contract: ")


def test_a_few_strays_and_unknown_words_do_fit(sites):
    frame = rows(5)
    frame.loc[0, ["age", "ward"]] = ["?", "unheard"]
    samples = own_samples(of_frame(frame, "x.csv"), contract_of(), "north")
    x, _, fields = samples.table.encode(samples.y, ["north"], ([np.arange(1, 60)], [np.arange(1)], [np.arange(0)]))
    features = fields["preparation"].features
    assert x[0, features.index("age missing")] == 1 == x[0, features.index("ward = (other)")]
    assert x[1:, features.index("age missing")].sum() == 0


@pytest.mark.parametrize(("missing", "left"), [("drop-rows", 59), ("refuse", None)])
def test_missing_values_as_the_contract_says(sites, missing, left):
    frame = rows(5)
    frame.loc[3, "ward"] = ""
    raw = of_frame(frame, "x.csv")
    if left is None:
        with pytest.raises(CoterieError, match="column 'ward' has no value in row 4"):
            own_samples(raw, contract_of(missing=missing), "north")
    else:
        assert len(own_samples(raw, contract_of(missing=missing), "north")) == left


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"clients": [["a", 1, 1, 1]]}, '"clients" must be empty'),
        ({"statistics": {}}, '"statistics" must be those that hold for every site'),
        ({"standardise": "local"}, '"statistics" must be empty'),
        ({"columns": []}, '"statistics..fill" must have 0 entries'),
        ({"columns": [], "statistics": {"": {"fill": [], "mean": [], "scale": []}}}, "must have a column that becomes"),
        ({"target": {"name": "age", "kind": "regression"}}, "must not name a column twice"),
        ({"target": {"name": "y", "kind": "classification", "class_names": ["a"]}}, "must have at least two entries"),
        ({"rows": "x"}, '"rows" must be a whole number'),
    ],
)
def test_a_damaged_contract_is_one_sentence(sites, change, sentence):
    record = json.loads(contract_of().to_json()) | change
    Path("columns.json").write_text(json.dumps(record))
    with pytest.raises(CoterieError) as refused:
        Contract.read(Path("columns.json"))
    assert sentence in str(refused.value)


def test_names_of_members_on_the_command_line():
    assert member_names("3") == ("site-1", "site-2", "site-3")
    assert member_names(" north, south ") == ("north", "south")
    for text, part in [("1", "2 to 100 members"), ("a", "at least two"), ("a,A", "at least two"), ("a,b*", "'*'")]:
        with pytest.raises(CoterieError, match=part.replace("*", r"\*")):
            member_names(text)
