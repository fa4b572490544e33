"""Tables and arrays of real life whose meaning is easily lost: every one ends with the right answer."""

import json
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.data import labels
from coterie.data.tables.intake import describe
from coterie.errors import CoterieError

ROWS = 60
X = np.random.default_rng(0).normal(size=ROWS).round(3)


class Case(NamedTuple):
    """What is written into column client (`who`), input (`x`) or target (`y`), and what must come of it."""

    name: str
    columns: dict[str, list]
    clients: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    levels: tuple[str, ...] | None = None
    kind: str = "classification"
    said: str = ""

    def __str__(self) -> str:
        return self.name


def clients(name, *words):
    return Case(name, {"who": words}, clients=words)


CASES = [
    clients("leading zeros", "007", "07", "7"),
    clients("1.0, 1 and 1e0", "1.0", "1", "1e0"),
    clients("True and true", "True", "true", "TRUE"),
    clients("19 digits and 1.5", "1234567890123456781", "1234567890123456782", "1.5"),
    clients("words for nothing", "NA", "nan", "None", "null"),
    clients("words with line breaks and quotes", "a\nb", 'a"b', "a,b"),
    Case("class words 01 and 1", {"y": ["01", "1"]}, classes=("01", "1")),
    Case("a class called NA", {"y": ["NA", "EU"]}, classes=("EU", "NA"), said="'NA' is a class of 'y'"),
    Case("0 and 1", {"y": ["0", "1"]}, classes=("0", "1")),
    Case("0.0 and 1.0", {"y": ["0.0", "1.0"]}, classes=("0", "1")),
    Case("1, 1.0 and 1e0 are one class", {"y": ["1", "0", "1.0", "1e0"]}, classes=("0", "1")),
    Case("0,0 and 1,0", {"y": ["0,0", "1,0"]}, classes=("0", "1")),
    Case("0 and 1 and ?", {"y": ["0", "1", "?", "1"]}, classes=("0", "1"), said="15 rows without a value of 'y'"),
    Case("years", {"y": ["2019", "2020"]}, classes=("2019", "2020")),
    Case("labels of 19 digits", {"y": (digits := [f"123456789012345678{i}" for i in (1, 2)])}, classes=tuple(digits)),
    Case("True and False", {"y": ["True", "False"]}, classes=("False", "True")),
    Case("numbers with a 0 among them", {"y": ["0", "0.5", "1.25", "2"]}, kind="regression"),
    Case(
        "many whole numbers", {"y": [str(i) for i in range(60)]}, kind="regression", said="60 different whole numbers"
    ),
    Case("Namibia", {"x": ["NA", "EU", "AS"]}, levels=("AS", "EU", "NA"), said="'NA' in row 1 is a word like others"),
    Case("codes", {"x": ["01", "1", "001"]}, levels=("001", "01", "1"), said=""),
    Case("decimal commas", {"x": [f"{i},5" for i in range(20)]}, levels=(), said="decimal comma"),
    Case("one stray word", {"x": ["abc", *map(str, X[1:])]}, levels=(), said="'abc' in row 1 is none: it counts as"),
    Case("two stray words in ten", {"x": ["abc", "def", *"12345678"]}, said="because 'abc' in row 1 (and more) is no"),
    Case("dates", {"x": [f"2020-{m:02}-01" for m in range(1, 13)]}, said="x time"),
]


def table_of(case):
    base = {"who": ["c0", "c1", "c2"], "x": list(map(str, X)), "y": ["0"] * 6 + ["1"] * 6}
    return pd.DataFrame({k: [v[i % len(v)] for i in range(ROWS)] for k, v in (base | case.columns).items()})


@pytest.mark.parametrize("source", ["csv", "parquet", "frame"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_text_keeps_its_meaning(case, source, tmp_path):
    table = table_of(case)
    if source == "csv":
        table.to_csv(tmp_path / "t.csv", index=False)
    elif source == "parquet":
        table.to_parquet(tmp_path / "t.parquet")
    place: Any = table if source == "frame" else tmp_path / f"t.{source}"
    made = ct.load(place, target="y", client="who", validation=0.0)
    assert made.kind == case.kind
    assert case.clients is None or set(made.names) == set(case.clients)
    assert case.classes is None or made.class_names == case.classes
    column = next(c for c in made.preparation.columns if c.name == "x")
    assert case.levels is None or column.levels == case.levels
    assert case.said in json.dumps(made.preparation.to_dict(), ensure_ascii=False) + " ".join(column.features)


STORED = {
    "integers": (np.array([7, 8, 9] * 20), ("7", "8", "9")),
    "integers with gaps elsewhere": (pd.array([2**60 + 1, 2**60 + 2, 2**60 + 3] * 20, dtype="Int64"), None),
    "whole floats": (np.array([1.0, 2.0, 3.0] * 20), ("1", "2", "3")),
    "floats of 32 bits": (np.array([0.1, 0.2, 0.3] * 20, np.float32), ("0.1", "0.2", "0.3")),
    "truth": (np.array([True, False] * 30), ("True", "False")),
    "categories": (pd.Categorical(["007", "7", "NA"] * 20), ("007", "7", "NA")),
    "bytes": (np.array([b"a", b"b"] * 30, dtype=object), ("a", "b")),
}


@pytest.mark.parametrize("kind", STORED)
@pytest.mark.parametrize("source", ["parquet", "frame"])
def test_stored_clients(kind, source, tmp_path):
    values, names = STORED[kind]
    table = pd.DataFrame(
        {"who": values, "x": X, "gap": pd.array([None, *range(1, ROWS)], dtype="Int64"), "y": [0, 1] * 30}
    )
    if source == "parquet":
        table.to_parquet(tmp_path / "t.parquet")
        table = tmp_path / "t.parquet"
    made = ct.load(table, target="y", client="who", validation=0.0)
    assert made.names == (names or tuple(str(2**60 + i) for i in (1, 2, 3)))


def test_equal_python_values_that_are_written_differently_are_different_clients():
    who = pd.Series([True, 1, 1.0, "a", "b", "c"] * 10, dtype=object)
    made = ct.load(pd.DataFrame({"who": who, "x": X, "y": [0, 0, 1] * 20}), target="y", client="who", validation=0.0)
    assert made.names == ("True", "1", "1.0", "a", "b", "c")


def test_19_digits_in_parquet_beside_a_gap(tmp_path):
    who = pd.array([1234567890123456781, None, 1234567890123456782] * 20, dtype="Int64")
    pd.DataFrame({"who": who, "x": X, "y": [0, 1] * 30}).to_parquet(tmp_path / "t.parquet")
    made = ct.load(tmp_path / "t.parquet", target="y", client="who", missing="drop-rows", validation=0.0)
    assert made.names == ("1234567890123456781", "1234567890123456782")


TARGETS = {
    "0 and 1": (np.arange(ROWS) % 2, ("0", "1")),
    "0.0 and 1.0": (np.arange(ROWS) % 2 * 1.0, ("0", "1")),
    "truth": (np.arange(ROWS) % 2 == 1, ("False", "True")),
    "years": (2019 + np.arange(ROWS) % 2, ("2019", "2020")),
    "-1 and 1": (np.arange(ROWS) % 2 * 2 - 1, ("-1", "1")),
    "beyond 32 bits": (np.arange(ROWS) % 2 * 2**32, ("0", "4294967296")),
    "words": (np.array(["01", "1"] * 30), ("01", "1")),
    "bytes": (np.array([b"no", b"yes"] * 30), ("no", "yes")),
    "fractions": (np.arange(ROWS) / 7, None),
    "many": (np.arange(ROWS), None),
    "many, as floats": (np.arange(ROWS) * 1.0, None),
}


SOURCES = ["pool", "federation", "npz", "libsvm", "frame", "csv"]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        (name, source)
        for name in TARGETS
        for source in SOURCES
        if source != "libsvm" or TARGETS[name][0].dtype.kind in "if"
    ],
)
def test_one_rule_for_targets(name, source, tmp_path):
    y, names = TARGETS[name]
    half = ROWS // 2
    if source == "libsvm":
        lines = (f"{label} qid:{i % 2} 1:{x}" for i, (label, x) in enumerate(zip(y.tolist(), X, strict=True)))
        (tmp_path / "t.txt").write_text("\n".join(lines))
        made = ct.load("libsvm", path=tmp_path / "t.txt")
    elif source == "pool":
        made = ct.load(ct.pool(X[:, None], y), "iid", clients=2)
    elif source == "federation":
        made = ct.federation([(X[:half, None], y[:half]), (X[half:, None], y[half:])])
    elif source == "npz":
        np.savez(tmp_path / "t.npz", x=X[:, None], y=y, client=np.arange(ROWS) % 2)
        made = ct.load("npz", path=tmp_path / "t.npz")
    else:
        table = pd.DataFrame(
            {"who": ["a", "b"] * half, "x": X, "y": [v.decode() for v in y] if y.dtype.kind == "S" else y}
        )
        if source == "csv":
            table.to_csv(tmp_path / "t.csv", index=False)
        made = ct.load(tmp_path / "t.csv" if source == "csv" else table, target="y", client="who")
    assert made.kind == ("regression" if names is None else "classification")
    assert made.class_names == (names or ())
    if name.startswith("many"):
        assert "60 different whole numbers are an amount" in str(describe(made))


def test_labels_of_images_are_classes_however_many():
    images = np.zeros((ROWS, 4, 4), np.uint8)
    assert ct.load(ct.pool(images, np.arange(ROWS) % 30), "iid", clients=2).classes == 30


class TestDigits:
    """Numbers keep their digits until they are centred."""

    @pytest.mark.parametrize("source", ["csv", "npz", "libsvm", "federation"])
    def test_values_around_1e9(self, source, tmp_path):
        y = 1e9 + np.arange(ROWS) * 0.25
        if source == "csv":
            table = pd.DataFrame({"who": ["a", "b"] * 30, "x": X, "y": y})
            made = ct.load(table, target="y", client="who", validation=0.0)
        elif source == "npz":
            np.savez(tmp_path / "t.npz", x=X[:, None], y=y, client=np.arange(ROWS) % 2)
            made = ct.load("npz", path=tmp_path / "t.npz", validation=0.0)
        elif source == "libsvm":
            lines = (f"{label!r} qid:{i % 2} 1:{x}" for i, (label, x) in enumerate(zip(y.tolist(), X, strict=True)))
            (tmp_path / "t.txt").write_text("\n".join(lines))
            made = ct.load("libsvm", path=tmp_path / "t.txt", validation=0.0)
        else:
            made = ct.federation([(X[:30, None], y[:30]), (X[30:, None], y[30:])], validation=0.0)
        stored = np.concatenate([np.asarray(part.y).ravel() for part in (made.train, made.test)]).astype(np.float32)
        back = np.round((stored.astype(float) * made.target_std + made.target_mean) * 4) / 4
        assert set(y) <= set(back.tolist())

    @pytest.mark.parametrize(
        ("source", "precision"),
        [
            ("table", "float32"),
            pytest.param("arrays", "float64", marks=pytest.mark.soak),
            pytest.param("table", "float64", marks=pytest.mark.soak),
            pytest.param("arrays", "float32", marks=pytest.mark.soak),
        ],
    )
    def test_an_offset_of_1e8_is_recovered(self, source, precision):
        y = 1e8 + 3 * X
        made = ct.federation([(X[:30, None], y[:30]), (X[30:, None], y[30:])])
        if source == "table":
            made = ct.load(pd.DataFrame({"who": ["a", "b"] * 30, "x": X, "y": y}), target="y", client="who")
        scores = ct.run(made, "linear", "local-exact", rounds=1, precision=precision).scores
        assert np.all(scores["rmse"] < 1e-5)

    def test_integers_beyond_24_bits(self):
        x = np.array([[2**24 + 1], [2**24 + 2], [5]])
        assert ct.pool(x, [0, 1, 0]).x.tolist() == x.tolist()


class TestMasks:
    @pytest.mark.parametrize("place", ["inputs", "targets"])
    def test_masked_cells_are_refused(self, place):
        x, y = np.ones((4, 1)), np.array([0, 1, 0, 1])
        hidden = np.ma.masked_array(
            x if place == "inputs" else y,
            mask=[[True], [False], [False], [False]] if place == "inputs" else [1, 0, 0, 0],
        )
        pair = (hidden, y) if place == "inputs" else (x, hidden)
        for make in (lambda: ct.pool(*pair), lambda: ct.federation({"a": pair, "b": (x, y)})):
            with pytest.raises(CoterieError, match=rf"{place}.*: 1 masked cells have no value; fill them"):
                make()

    def test_a_mask_that_hides_nothing(self):
        assert ct.pool(np.ma.masked_array(np.ones((2, 1))), [0, 1]).x.tolist() == [[1], [1]]


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        (np.ones((3, 1)), np.array([0, None, 1], dtype=object), "targets: sample 1 has no value"),
        (np.ones((3, 1)), np.array([0, {}, 1], dtype=object), "targets must be numbers or words, not dict"),
        (np.ones((3, 1)), np.zeros(3, "M8[s]"), r"targets must be numbers or words, not datetime64\[s\]"),
        (np.ones((3, 1)), np.zeros(3, "f4,i4"), "targets must be numbers or words"),
        (np.array([[1], [None], [2]], dtype=object), [0, 1, 0], "inputs must be numbers, not object"),
        (np.full((3, 1), 1e200), [0, 1, 0], r"inputs hold the number 1e\+200, which is too large"),
    ],
)
def test_arrays_that_are_no_numbers(x, y, sentence):
    with pytest.raises(CoterieError, match=sentence):
        ct.pool(x, y)


@pytest.mark.parametrize("value", [-5, 2**40])
def test_characters_out_of_range(value):
    with pytest.raises(CoterieError, match=f"inputs hold {value}, which is no character; they must be from 0 to"):
        ct.pool(np.full((4, 3), value), np.ones((4, 3), int), kind="next-character")


def test_line_breaks_in_the_header_and_in_cells(tmp_path):
    rows = "".join(f'c{i % 3},"{i}.5","a\nb{i % 4}",{i // 3 % 2}\n' for i in range(ROWS))
    (tmp_path / "t.csv").write_text('who,"x\nof it",word,y\n' + rows)
    made = ct.load(tmp_path / "t.csv", target="y", client="who")
    assert [c.name for c in made.preparation.columns] == ["x\nof it", "word"]
    assert made.preparation.columns[1].levels == ("a\nb0", "a\nb1", "a\nb2", "a\nb3")


def test_few():
    assert [labels.few(*case) for case in ((10, 10), (11, 100), (20, 400), (21, 10**6))] == [True, False, True, False]
