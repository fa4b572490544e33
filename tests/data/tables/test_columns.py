"""What each column is and why; what is predicted; and everything that is wrong with a table, said at once."""

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.data.tables.intake import describe
from coterie.data.tables.source import Table, from_frames
from coterie.errors import CoterieError

N = 60
RANDOM = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "rownames": np.arange(1, N + 1),
        "site": np.repeat(["a", "b", "c"], N // 3),
        "age": RANDOM.normal(50, 9, N).round(1),
        "colour": RANDOM.choice(["red", "green", "blue"], N),
        "name": [f"person {i}" for i in range(N)],
        "always": 7,
        "when": pd.date_range("2021-01-01 06:30", periods=N, freq="31h").strftime("%Y-%m-%d %H:%M"),
        "died": RANDOM.choice(["no", "yes"], N),
    }
)


def samples(frame=FRAME, target="died", client="site", **settings):
    return from_frames(frame, Table(path="", target=target, client=client, **settings))


def column(name, frame=FRAME, **settings):
    return next(c for c in samples(frame, **settings).table.columns if c.name == name)


class TestKinds:
    def test_every_kind(self):
        kinds = {c.name: c.kind for c in samples(drop=("colour",)).table.columns}
        expected = {"rownames": "identifier", "age": "number", "colour": "dropped", "name": "identifier"}
        assert kinds == expected | {"always": "constant", "when": "date"}

    def test_identifiers_can_be_kept(self):
        assert column("rownames", keep=("rownames",)).kind == "number"
        assert column("name", keep=("name",)).kind == "words"

    def test_whole_numbers_that_never_repeat_in_a_narrow_range_number_the_rows(self):
        random, frame = np.random.default_rng(5), pd.concat([FRAME] * 10, ignore_index=True)
        kid = random.choice(40 * N, 10 * N, replace=False)  # by chance 75 pairs would be equal
        assert column("kid", frame.assign(kid=kid)).kind == "identifier"
        assert column("kid", frame.assign(kid=random.integers(0, 40 * N, 10 * N))).kind == "number"
        assert column("kid", frame.assign(kid=random.choice(10**7, 10 * N, replace=False))).kind == "number"
        assert column("score", FRAME.assign(score=np.arange(N))).kind == "number"  # too few rows to know

    def test_numbers_that_are_no_identifiers(self):
        assert column("income", FRAME.assign(income=RANDOM.permutation(N) * 100)).kind == "number"
        assert column("patient_id", FRAME.assign(patient_id=np.arange(N) // 4)).kind == "number"
        assert column("subjectID", FRAME.assign(subjectID=np.arange(N) * 13)).kind == "identifier"

    def test_a_date_becomes_four_numbers(self):
        made = samples(FRAME[["site", "when", "died"]])
        assert made.table.columns[0].parts == ("time", "month", "weekday", "hour")
        times = pd.to_datetime(FRAME["when"])
        days = (times - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)
        expected = np.stack([days, times.dt.month, times.dt.day_of_week, times.dt.hour + times.dt.minute / 60], axis=1)
        np.testing.assert_allclose(made.table.numbers, expected, rtol=1e-12)
        stored = samples(FRAME[["site", "when", "died"]].assign(when=times))
        np.testing.assert_array_equal(stored.table.numbers, made.table.numbers)

    def test_a_few_words_among_numbers_count_as_missing_and_are_named(self):
        age = FRAME["age"].astype(str)
        age[8] = "abc"
        made = samples(FRAME.assign(age=age))
        assert next(c for c in made.table.columns if c.name == "age").kind == "number"
        assert any("'abc' in row 9 is none: it counts as missing" in warning for warning in made.table.warnings)
        age[:30] = "abc"
        made = samples(FRAME.assign(age=age))
        assert next(c for c in made.table.columns if c.name == "age").kind in ("words", "identifier")
        age[:2] = "unknown"
        assert column("age", FRAME.assign(age=age.replace("abc", "50.5")), na=("unknown",)).missing == 2 / N

    def test_codes_are_words(self):
        codes = column("code", FRAME.assign(code=np.tile(["007", "07", "7"], N // 3)))
        assert (codes.kind, codes.levels) == ("words", ("007", "07", "7"))

    def test_rare_levels_share_one_input(self):
        words = np.repeat(["common", "usual"], N // 2).astype(object)
        words[:9] = [f"rare {i}" for i in range(9)]
        big = pd.concat([FRAME.assign(word=words)] + [FRAME.assign(word="common")] * 9)
        made = column("word", big)
        assert (made.levels, made.other) == (("common", "usual"), 9)
        assert made.features == ("word = common", "word = usual", "word = (other)")
        many = column("word", pd.concat([FRAME] * 20).assign(word=[f"w{i % 60}" for i in range(20 * N)]))
        assert (len(many.levels), many.other) == (30, 30)

    def test_a_column_that_gives_the_answer_away_is_kept_and_warned_of(self):
        result = np.where(FRAME["died"] == "yes", RANDOM.normal(20, 1, N), 45.0)
        made = samples(FRAME.assign(result=result))
        assert any(w.startswith("'result' alone predicts the target") for w in made.table.warnings)
        assert not any("'age'" in w or "'colour'" in w for w in made.table.warnings)
        made = samples(FRAME.assign(cost=RANDOM.normal(size=N)).assign(bill=lambda f: 3 * f["cost"]), target="cost")
        assert any("'bill' alone" in w for w in made.table.warnings)


class TestTargets:
    def test_words_and_whole_numbers_are_classes(self):
        assert samples().class_names == ("no", "yes")
        made = samples(FRAME.assign(died=np.arange(N) % 12), kind="classification")
        assert made.class_names == tuple(map(str, range(12)))  # 10 after 9
        assert samples(FRAME.assign(died=np.tile([0.0, 1.0], N // 2))).class_names == ("0", "1")
        mixed = samples(FRAME.assign(died=np.tile(["0", "1.0", "1"], N // 3)))
        assert mixed.class_names == ("0", "1")
        assert samples(FRAME.assign(died=np.tile(["01", "1", "2"], N // 3))).class_names == ("01", "1", "2")

    def test_a_whole_number_of_many_values_is_a_regression_and_says_so(self):
        stays = FRAME.assign(died=np.arange(N) % 30)
        made = samples(stays)
        assert made.kind == "regression"
        assert "30 different whole numbers are an amount" in describe(made).task
        assert samples(stays, kind="classification").classes == 30
        assert describe(samples()).task.startswith("classification, 2 classes: no ")

    def test_numbers_keep_all_their_digits_until_they_are_centred(self):
        """1e9 plus a few units: in float32 only two different values would be left."""
        y = 1e9 + np.arange(N) + 0.5
        federation = ct.load(FRAME.assign(died=y), target="died", client="site", validation=0, drop=("name",))
        back = [
            federation.train.y[k, :n] * federation.target_std + federation.target_mean for k, n in enumerate([16] * 3)
        ]
        assert set(np.round(np.concatenate(back), 3).tolist()) <= set(y.tolist())
        seen = np.concatenate([federation.train.y[k, :16] for k in range(3)])
        assert seen.std() == pytest.approx(1)
        assert seen.mean() == pytest.approx(0, abs=1e-6)

    def test_rows_without_a_target_are_left_out_and_said(self):
        made = samples(FRAME.assign(died=FRAME["died"].where(np.arange(N) != 4)))
        assert len(made) == N - 1
        assert "1 row without a value of 'died' left out" in made.table.warnings


def test_clients_are_text_exactly_as_written(tmp_path):
    ids = np.tile(["007", "07", "7", "NA", "None", "1.0"], N // 6)
    FRAME.assign(site=ids).to_csv(tmp_path / "t.csv", index=False)
    made = Table(path=str(tmp_path / "t.csv"), target="died", client="site").load()
    assert sorted(set(made.owner.tolist())) == ["007", "07", "1.0", "7", "NA", "None"]
    assert samples(FRAME.assign(site=np.tile([3.0, 5.0, 8.0], N // 3))).owner[0] == "3"


class TestMissing:
    GAPS = FRAME.assign(
        age=FRAME["age"].where(np.arange(N) % 10 != 0), colour=FRAME["colour"].where(np.arange(N) % 15 != 1)
    )

    def test_rows_are_dropped(self):
        made = samples(self.GAPS, missing="drop-rows")
        assert len(made) == N - 6 - 4
        assert "10 of 60 rows with a missing value left out" in made.table.warnings
        assert not any(c.indicator for c in made.table.columns)

    def test_all_columns_are_refused_at_once(self):
        with pytest.raises(CoterieError) as error:
            samples(self.GAPS, missing="refuse")
        first, second = str(error.value).splitlines()
        assert "has no value in column 'age', row 1 of the data (and 5 more)" in first
        assert "has no value in column 'colour', row 2 of the data (and 3 more)" in second


@pytest.mark.parametrize(
    ("change", "options", "sentences"),
    [
        ({"died": "no"}, {}, ["has only one class, 'no', in the target column 'died'"]),
        ({"died": 1.5}, {}, ["has the same number, 1.5, in every row of the target column"]),
        ({"died": pd.NA}, {}, ["has no value at all in the target column"]),
        ({"died": [f"w{i}" for i in range(N)]}, {}, ["has 60 different words in 60 rows of the target column"]),
        ({"died": pd.date_range("2021", periods=N)}, {}, ["has dates in the target column 'died'"]),
        ({"died": ["2021-01-01", "2021-01-02"] * (N // 2)}, {}, ["has dates in the target column 'died'"]),
        ({"died": ["1.5"] * (N - 1) + ["x"]}, {"kind": "regression"}, ["has 'x' in row 60 of the target column"]),
        ({"site": "a"}, {}, ["has one client only, 'a', in column 'site'"]),
        ({"site": ["a", "b", ""] * (N // 3)}, {}, [r"has no value in column 'site', row 3 of the data (20 such rows)"]),
        (
            {"when": ["2021-01-01"] * (N - 1) + ["2021-02-30"]},
            {},
            ["column 'when', but '2021-02-30' in row 60 is none"],
        ),
        ({"age": [np.inf, *range(1, N)]}, {}, ["has an infinite number in column 'age', row 1"]),
        ({"age": [1e200, *range(1, N)]}, {}, ["row 1 of the data, that is too large to compute with"]),
        ({}, {"target": "dead"}, ["has no column 'dead'"]),
        ({}, {"target": "site"}, ["has two roles"]),
        ({}, {"drop": ("age", "colour", "when")}, ["has no column left to predict from; 'rownames', 'name' left out"]),
        ({}, {"split": "colour"}, ["column 'colour' says"]),
        ({}, {"group": "died"}, ["has two roles"]),
        ({}, {"client": None, "group": "site"}, ["needs to know whose sample it is"]),
        (
            {"died": "no", "site": "a", "age": [np.inf, *range(1, N)]},
            {},
            ["has an infinite number", "has one client only", "has only one class"],
        ),
        ({}, {"target": "dead", "client": "sit", "drop": ("agee",)}, ["'dead'", "'sit'; did you mean site", "'agee'"]),
    ],
)
def test_bad_input_is_one_sentence_for_each_problem(change, options, sentences):
    with pytest.raises(CoterieError) as error:
        samples(FRAME.assign(**change), **options)
    lines = str(error.value).splitlines()
    assert len(lines) == len(sentences), lines
    for line, sentence in zip(lines, sentences, strict=True):
        assert sentence in line


def test_no_rows():
    with pytest.raises(CoterieError, match="has no rows"):
        samples(FRAME.iloc[:0])


def test_a_client_without_a_class_in_training_is_said():
    died = FRAME["died"].where(FRAME["site"] != "b", "no")
    federation = ct.load(FRAME.assign(died=died), target="died", client="site")
    assert "the training rows of client 'b' have no 'yes'" in federation.preparation.warnings


def test_groups_and_splits():
    frame = FRAME.assign(
        part=np.tile(["train", "Train", "test", "val"], N // 4), area=FRAME["site"].map({"a": 2, "b": 1, "c": 2})
    )
    made = samples(frame, split="part", group="area")
    assert made.ready.tolist() == ["train", "train", "test", "validation"] * (N // 4)
    assert made.group == {"a": 1, "b": 0, "c": 1}
