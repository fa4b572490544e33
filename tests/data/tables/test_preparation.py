"""Rows become inputs: the same numbers as scikit-learn's own transformers, from training rows only, kept as data."""

import io
import json

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import coterie as ct
from coterie.codecs.frame import HEADER
from coterie.data.tables.encode import weighted_medians
from coterie.data.tables.intake import describe
from coterie.data.tables.preparation import Preparation
from coterie.data.tables.starter import init_toml
from coterie.errors import CoterieError

N = 90
RANDOM = np.random.default_rng(1)
FRAME = pd.DataFrame(
    {
        "site": np.repeat(["a", "b", "c"], N // 3),
        "age": np.where(RANDOM.random(N) < 0.2, np.nan, RANDOM.normal(1e6, 9, N)),
        "colour": RANDOM.choice(["red", "green", "blue", None], N),
        "dose": RANDOM.normal(size=N) + np.repeat([0, 5, 9], N // 3),
        "cost": RANDOM.normal(100, 30, N),
    }
)
PART = np.tile(["train", "train", "test"], N // 3)
TRAIN = PART == "train"


def federation(**settings):
    frame = FRAME.assign(part=PART)
    return ct.load(frame, **{"target": "cost", "client": "site", "split": "part", "validation": 0} | settings)


def rows(made, part):
    """All rows of a split, client after client."""
    split = getattr(made, part)
    return np.concatenate([x[:n] for x, n in zip(split.x, split.count, strict=True)])


def pipeline():
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    return ColumnTransformer(
        [
            ("numbers", numbers, ["age", "dose"]),
            ("missing", MissingIndicator(), ["age"]),
            ("words", OneHotEncoder(), ["colour"]),
        ],
        sparse_threshold=0,
    )


class TestStatistics:
    def test_local_statistics_are_those_of_scikit_learn_on_a_sites_training_rows(self):
        made = federation(standardise="local")
        frame = FRAME.assign(colour=FRAME["colour"].fillna("(missing)"))
        for k, site in enumerate("abc"):
            own = (FRAME["site"] == site).to_numpy()
            expected = pipeline().fit(frame[own & TRAIN])
            assert np.array_equal(made.train.x[k], expected.transform(frame[own & TRAIN]).astype(np.float32))
            assert np.array_equal(made.test.x[k], expected.transform(frame[own & ~TRAIN]).astype(np.float32))

    def test_federated_statistics_are_those_of_all_training_rows(self):
        made, seen = federation(), FRAME[TRAIN]
        medians = seen.groupby("site")["age"].median().sort_values()  # the middle one of three, of sites of equal size
        fill = weighted_medians(
            FRAME[["age"]].to_numpy(), [np.flatnonzero(TRAIN & (FRAME["site"] == s)) for s in "abc"]
        )
        assert fill[0] in medians.tolist()
        scaler = StandardScaler().fit(seen[["age", "dose"]].fillna({"age": fill[0]}))
        expected = scaler.transform(FRAME[["age", "dose"]].fillna({"age": fill[0]}))
        np.testing.assert_array_equal(rows(made, "test")[:, :2], expected[~TRAIN].astype(np.float32))
        np.testing.assert_array_equal(rows(made, "train")[:, 2], FRAME["age"].isna()[TRAIN])
        assert made.preparation.features[:3] == ("age", "dose", "age missing")
        assert made.preparation.features[3:] == tuple(f"colour = {c}" for c in ("(missing)", "blue", "green", "red"))

    def test_test_rows_change_nothing(self):
        changed = FRAME.assign(part=PART, dose=np.where(TRAIN, FRAME["dose"], 1e6))
        made = ct.load(changed, target="cost", client="site", split="part", validation=0)
        np.testing.assert_array_equal(made.train.x, federation().train.x)
        assert made.target_mean == federation().target_mean

    def test_numbers_as_they_are(self):
        made = federation(standardise="none")
        assert (made.target_mean, made.target_std, made.train.x.dtype) == (0, 1, np.float64)
        assert rows(made, "train")[:, 1].tolist() == FRAME["dose"][TRAIN].tolist()
        assert rows(federation(standardise=False), "train").tolist() == rows(made, "train").tolist()

    def test_the_weighted_median_by_hand(self):
        """Medians 1 (of 1 value), 5 (of 3), 9 (of 2): as 1 5 5 5 9 9, the third of six is 5."""
        numbers = np.array([1, 4, 5, 6, 8, 10, np.nan, np.nan])[:, None]
        sites = [np.array([0]), np.array([1, 2, 3]), np.array([4, 5, 6]), np.array([7])]
        assert weighted_medians(numbers, sites).tolist() == [5]
        assert np.isnan(weighted_medians(numbers, [np.array([7])])).all()

    def test_the_number_of_inputs_does_not_depend_on_the_split(self):
        frame = pd.concat([FRAME] * 3).assign(word=[f"w{i % 40}" for i in range(3 * N)])
        shapes = {ct.load(frame, target="cost", client="site", seed=seed).sample_shape for seed in range(5)}
        assert len(shapes) == 1

    def test_targets_are_standardised_with_training_rows(self):
        made = federation()
        assert made.target_mean == pytest.approx(FRAME["cost"][TRAIN].mean())
        assert made.target_std == pytest.approx(FRAME["cost"][TRAIN].std(ddof=0))
        back = rows_of_targets(made) * made.target_std + made.target_mean
        np.testing.assert_allclose(back, FRAME["cost"][TRAIN], rtol=1e-12)


def rows_of_targets(made):
    return np.concatenate([y[:n] for y, n in zip(made.train.y, made.train.count, strict=True)])


class TestNewRows:
    @pytest.fixture(params=["federated", "local", "none"])
    def made(self, request):
        return federation(standardise=request.param)

    def test_the_record_gives_the_same_numbers_after_json(self, made):
        kept = Preparation.from_dict(json.loads(json.dumps(made.preparation.to_dict())))
        assert kept == made.preparation
        for k, site in enumerate("abc"):
            own = FRAME[(FRAME["site"] == site) & ~TRAIN]
            x, notes = kept.transform(own[own.columns[::-1]], site)  # columns in another order
            assert x.dtype == made.test.x.dtype
            np.testing.assert_array_equal(x, made.test.x[k, : made.test.count[k]])
            assert [bool(note) for note in notes] == own["age"].isna().tolist()
        np.testing.assert_allclose(kept.targets(FRAME)[TRAIN], rows_of_targets(made), rtol=1e-12, atol=1e-12)

    def test_as_text(self, made, tmp_path):
        from coterie.data.tables.read import read

        FRAME.to_csv(tmp_path / "new.csv", index=False, sep=";", decimal=",")
        x, _ = made.preparation.transform(read(str(tmp_path / "new.csv")).frame, "a")
        np.testing.assert_array_equal(x, made.preparation.transform(FRAME, "a")[0])

    def test_what_is_new_is_said(self):
        preparation = federation().preparation
        new = pd.DataFrame({"age": ["1000001", "old", ""], "colour": ["red", "mauve", ""], "dose": ["1", "2", "NA"]})
        x, notes = preparation.transform(new)
        assert notes[0] == ""
        assert notes[1] == "'old' in 'age' is no number; 'mauve' in 'colour' was not seen"
        assert notes[2] == "no value in 'age'; no value in 'dose'"
        assert x[1, 3:].tolist() == [0, 0, 0, 0]
        assert x[2, 3:].tolist() == [1, 0, 0, 0]
        assert np.isfinite(x).all()

    def test_a_new_file_that_lacks_columns(self):
        with pytest.raises(CoterieError, match=r"the table lacks the columns 'age', 'dose'"):
            federation().preparation.transform(FRAME[["colour"]])
        with pytest.raises(CoterieError, match=r"lacks the column 'dose'; did you mean doses\?"):
            federation().preparation.transform(FRAME.rename(columns={"dose": "doses"}))
        with pytest.raises(CoterieError, match=r"lacks the target column 'cost'"):
            federation().preparation.targets(FRAME[["colour"]])

    def test_classes_that_are_not_known(self):
        made = ct.load(FRAME.assign(cost=np.tile(["no", "yes"], N // 2)), target="cost", client="site")
        assert made.preparation.targets(pd.DataFrame({"cost": ["yes", "no"]})).tolist() == [1, 0]
        with pytest.raises(CoterieError, match=r"row 2: 'maybe' cannot be used; classes: no, yes"):
            made.preparation.targets(pd.DataFrame({"cost": ["yes", "maybe"]}))

    def test_an_unknown_client_with_local_statistics(self):
        made = federation(standardise="local")
        own = FRAME[FRAME["site"] == "a"]
        x, notes = made.preparation.transform(own, "new")
        frame = own.assign(colour=own["colour"].fillna("(missing)"))
        expected = StandardScaler().fit_transform(
            SimpleImputer(strategy="median").fit_transform(frame[["age", "dose"]])
        )
        np.testing.assert_array_equal(x[:, :2], expected.astype(np.float32))
        assert all("statistics of these rows" in note for note in notes)

    def test_one_clients_part(self):
        mine = federation(standardise="local").preparation.only("b")
        assert set(mine.statistics) == set(mine.sent) == {"b"}
        assert [name for name, *_ in mine.clients] == ["b"]

    def test_a_damaged_record(self):
        record = federation().preparation.to_dict()
        with pytest.raises(CoterieError, match="the preparation of the table is damaged"):
            Preparation.from_dict({key: value for key, value in record.items() if key != "columns"})


PARTS = {site: part.drop(columns="site") for site, part in FRAME.groupby("site")}


class TestFrames:
    def test_one_frame_per_site_joined_by_name(self):
        turned = {site: part[part.columns[:: (-1) ** i]] for i, (site, part) in enumerate(PARTS.items())}
        whole = ct.load(FRAME, target="cost", client="site", seed=2)
        for frames in (PARTS, turned):
            made = ct.federation(frames, target="cost", seed=2)
            assert made.names == whole.names
            np.testing.assert_array_equal(made.train.x, whole.train.x)

    def test_pairs_of_frames_and_targets_are_joined_by_name(self):
        x = {site: part[["dose", "age"][:: 1 if site == "a" else -1]] for site, part in PARTS.items()}
        pairs = {site: (x[site], part["cost"]) for site, part in PARTS.items()}
        made = ct.federation(pairs, seed=2)
        whole = ct.load(FRAME.drop(columns="colour"), target="cost", client="site", seed=2)
        by_name = [whole.preparation.features.index(name) for name in made.preparation.features]
        np.testing.assert_array_equal(made.train.x, whole.train.x[..., by_name])
        pairs["b"] = (pairs["b"][0].rename(columns={"dose": "amount"}), pairs["b"][1])
        said = ct.federation(pairs).preparation.warnings
        assert said[0] == "b has no column 'dose': left out everywhere"
        assert said[1] == "a, c have no column 'amount': left out everywhere"

    def test_test_frames_and_groups(self):
        tests = {site: part.head(4) for site, part in PARTS.items()}
        made = ct.federation(PARTS, target="cost", test=tests, validation=0, groups=["x", "y", "x"])
        assert made.test.count.tolist() == [4, 4, 4]
        assert made.train.count.tolist() == [30, 30, 30]
        assert made.groups.tolist() == [0, 1, 0]

    @pytest.mark.parametrize(
        ("pairs", "options", "sentence"),
        [
            (PARTS, {}, "target is missing: name the column"),
            (PARTS, {"target": "costs"}, "a, b, c have no column 'costs'"),
            ({**PARTS, "d": (np.zeros((3, 2)), np.zeros(3))}, {"target": "cost"}, "client 'd' brings arrays"),
            ({"a": (np.zeros((3, 2)), np.zeros(3))}, {"target": "y"}, "target belongs to tables"),
            (PARTS, {"target": "cost", "mising": "refuse"}, "unknown key federation.mising; did you mean missing"),
            ({"a": (PARTS["a"], [1, 2])}, {}, "client 'a' has 30 inputs but 2 targets"),
        ],
    )
    def test_wrong_input_gets_one_sentence(self, pairs, options, sentence):
        with pytest.raises(CoterieError, match=sentence):
            ct.federation(pairs, **options)


def test_what_sites_share_is_counted():
    """Two numbers: count, median, sum, sum of squares each; the target's three; each level with its count."""
    sent = federation().preparation.sent_bytes
    levels = [set(FRAME["colour"][TRAIN & (FRAME["site"] == site)].dropna()) for site in "abc"]
    for site, own in zip("abc", levels, strict=True):
        assert sent[site][0] == HEADER + 8 * (2 * 4 + 3) + sum(len(level) + 8 for level in own)
        assert sent[site][1] == HEADER + 8 * (2 * 3 + 2) + len("(missing)bluegreenred")
    assert federation(standardise="local").preparation.sent_bytes["a"][0] < sent["a"][0]


class TestIntake:
    def test_on_the_screen_and_as_a_record(self):
        from rich.console import Console

        made = federation()
        intake = describe(made)
        assert intake.columns == made.preparation.intake().columns
        assert intake.clients[1] == {"name": "b", "train": 20, "validation": 0, "test": 10}
        assert json.loads(json.dumps(intake.to_dict()))["inputs"] == 7
        console = Console(width=200, record=True, file=io.StringIO())
        console.print(intake)
        for text in (console.export_text(), str(intake), intake._repr_html_()):
            for part in ("regression: 'cost' from", "90 rows, 7 inputs", "age", "3 levels"):
                assert part in text.replace("&#x27;", "'")
        assert "3 clients" in str(intake)

    def test_of_arrays(self):
        arrays = ct.federation([(np.zeros((10, 2)), ["a", "b"] * 5)] * 2)
        assert describe(arrays).task == "classification, 2 classes: a, b"
        assert describe(ct.pool(np.zeros((4, 3)), [0, 1, 0, 1])).inputs == 3
        with pytest.raises(CoterieError, match="describe takes a federation or samples, not int"):
            describe(3)

    def test_a_federation_prints_short(self):
        text = repr(federation())
        assert text.splitlines()[0] == "Federation of 3 clients (a, b, c): 60 train, 0 validation, 30 test samples"
        assert "regression, inputs 7" in text
        assert len(text) < 300
        html = ct.federation([(np.zeros((10, 2)), ["<b>", "x"] * 5)] * 12)._repr_html_()
        assert "&lt;b&gt;" in html
        assert "and 2 more clients" in html


def test_a_first_experiment(tmp_path):
    import tomllib

    from coterie.experiment.config import Experiment

    FRAME.assign(died=np.tile(["no", "yes"], N // 2), key=np.arange(N)).to_csv(tmp_path / "t.csv", index=False)
    text = init_toml(str(tmp_path / "t.csv"), "died", "site", missing="drop-rows")
    assert '# keep = ["key"]' in text
    assert "# classification, 2 classes: no" in text
    experiment, made = Experiment.from_dict(tomllib.loads(text)).load()
    assert experiment.partition.name == "natural"
    assert made.names == ("a", "b", "c")
    assert experiment.data.spec.missing == "drop-rows"
