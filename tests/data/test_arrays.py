"""Arrays in memory, and `load`, which puts a data set and a partition together."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data import Samples, federation, load, pool
from coterie.data.dirichlet import Dirichlet
from coterie.data.embedded import Digits
from coterie.errors import CoterieError


def pairs(sizes=(10, 6, 8), start=0):
    """Make one pair per client; all inputs are different."""
    made, at = [], start
    for size in sizes:
        x = np.arange(at, at + size, dtype=np.float32)[:, None]
        made.append((x, (x[:, 0] % 3).astype(np.int64)))
        at += size
    return made


class TestFederation:
    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.integers(2, 30), min_size=1, max_size=6), st.integers(0, 50))
    def test_every_sample_stays_with_its_client(self, sizes, seed):
        given_pairs = pairs(sizes)
        made = federation(given_pairs, seed=seed)
        for client, (x, _) in enumerate(given_pairs):
            values = []
            for split in (made.train, made.validation, made.test):
                n = split.count[client]
                assert np.array_equal(split.y[client, :n], split.x[client, :n, 0].astype(int) % 3)
                values += split.x[client, :n, 0].tolist()
            assert sorted(values) == x[:, 0].tolist()

    def test_defaults(self):
        made = federation(pairs())
        assert made.names == ("client-0", "client-1", "client-2")
        assert (made.kind, made.classes) == ("classification", 3)
        assert made.test.count.tolist() == [2, 1, 2]  # a fifth, rounded
        assert made.validation.count.tolist() == [1, 1, 1]  # a tenth of all, rounded

    def test_by_name_with_test_pairs_and_groups(self):
        a, b = pairs((4, 5))
        made = federation(
            {"north": a, "south": b},
            test={"south": pairs((3,), 100)[0], "north": pairs((2,), 200)[0]},
            validation=0,
            groups=[7, 9],
        )
        assert made.names == ("north", "south")
        assert made.train.count.tolist() == [4, 5]
        assert made.test.x[0, :2, 0].tolist() == [200, 201]
        assert made.test.x[1, :3, 0].tolist() == [100, 101, 102]
        assert made.groups.tolist() == [0, 1]  # numbered in sorted order

    def test_words_are_numbered_in_sorted_order(self):
        x = np.zeros((4, 1))
        made = federation([(x, ["cat", "ant", "cat", "ant"]), (x, ["bee"] * 4)], test_fraction=0.5, validation=0)
        assert made.classes == 3
        assert sorted(set(made.train.y[0].tolist())) == [0, 2]
        assert made.train.y[1].tolist() == [1, 1]

    def test_floats_are_a_regression(self):
        made = federation([(np.zeros((5, 2)), np.linspace(0, 1, 5))])
        assert (made.kind, made.classes) == ("regression", 1)
        two = federation([(np.zeros((5, 2)), np.zeros((5, 2)))])
        assert two.classes == 2

    def test_text(self):
        x = np.arange(40).reshape(10, 4)
        made = federation([(x, x + 1)], kind="next-character")
        assert (made.kind, made.classes, made.train.x.dtype) == ("next-character", 41, np.int32)

    def test_grey_images_get_their_channel(self):
        made = federation([(np.zeros((5, 8, 8), np.uint8), [0, 1, 0, 1, 0])])
        assert made.sample_shape == (1, 8, 8)
        assert made.train.x.dtype == np.uint8

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            ({"pairs": []}, "the federation has no clients"),
            ({"pairs": [pairs()[0], (np.zeros((3, 1)), [0, 1])]}, "client 'client-1' has 3 inputs but 2 targets"),
            ({"pairs": [pairs()[0], (np.zeros((3, 2)), [0, 1, 2])]}, r"inputs of client 'client-1' have shape \(2,\)"),
            ({"pairs": [pairs()[0], (np.zeros((0, 1)), [])]}, "client 'client-1' has no sample"),
            ({"pairs": [pairs()[0], 3]}, r"client 'client-1' must bring a pair of arrays \(x, y\)"),
            ({"pairs": [(["a", "b"], [0, 1])]}, "inputs of client 'client-0' must be numbers"),
            ({"pairs": [([[1], [2, 3]], [0, 1])]}, "inputs of client 'client-0' have rows of different lengths"),
            ({"pairs": [(5, 1)]}, "inputs of client 'client-0' are a single value"),
            (
                {"pairs": [(np.array([[1.0], [np.nan], [2], [3]]), [0, 1, 0, 1])]},
                "inputs of client 'client-0' contain NaN",
            ),
            ({"pairs": pairs(), "names": ["a", "b"]}, "names has 2 entries but there are 3 clients"),
            ({"pairs": pairs(), "names": ["a", "b", "a"]}, "two clients are called 'a'"),
            ({"pairs": pairs(), "groups": [1]}, "groups has 1 entries but there are 3 clients"),
            ({"pairs": pairs(), "groups": [0, None, 1]}, "groups has none for client .*; give every client one"),
            ({"pairs": pairs(), "groups": [0.0, 1.0, float("nan")]}, "groups has none for client"),
            ({"pairs": pairs(), "test": pairs()[:2]}, "test has 2 entries but there are 3 clients"),
            ({"pairs": {"a": pairs()[0]}, "test": {"b": pairs()[0]}}, "test has nothing for client 'a'"),
            ({"pairs": {"a": pairs()[0]}, "names": ["b"]}, "names must be left out"),
            ({"pairs": [(np.zeros((1, 1)), [0])]}, "client 'client-0' would have 1 sample"),
            (
                {"pairs": [(np.zeros((2, 1)), ["a", "b"]), (np.zeros((2, 1)), [0, 1])]},
                "targets: some are numbers and some are words",
            ),
        ],
    )
    def test_wrong_input_gets_one_sentence(self, arguments, sentence):
        with pytest.raises(CoterieError, match=sentence):
            federation(**arguments)


class TestPool:
    def test_lengths(self):
        with pytest.raises(CoterieError, match="y has 2 entries but x has 3 samples"):
            pool(np.zeros((3, 1)), [0, 1])
        with pytest.raises(CoterieError, match=r"test inputs have shape \(2,\), training inputs \(1,\)"):
            pool(np.zeros((3, 1)), [0, 1, 0], test=(np.zeros((1, 2)), [0]))

    def test_fractional_labels(self):
        with pytest.raises(CoterieError, match="targets must be whole numbers or words for classification"):
            pool(np.zeros((2, 1)), [0.5, 1.0], kind="classification")

    @pytest.mark.parametrize(
        ("labels", "names"),
        [
            ([2019, 2020, 2019], ("2019", "2020")),
            ([0.0, 2.0, 0.0], ("0", "2")),
            ([1, -1, 1], ("-1", "1")),
            ([0, 2**32, 0], ("0", "4294967296")),
            ([True, False, True], ("False", "True")),
        ],
    )
    def test_classes_are_indexed_by_value(self, labels, names):
        samples = pool(np.zeros((3, 1)), labels)
        assert (samples.kind, samples.classes, samples.class_names) == ("classification", 2, names)
        assert [names[code] for code in samples.y] == [str(int(v) if type(v) is float else v) for v in labels]


class TestLoad:
    def test_the_first_federation(self):
        made = load()
        assert len(made) == 20
        assert np.all((made.label_counts() > 0).sum(1) == 2)
        assert made.sample_shape == (1, 8, 8)
        assert made.train.x.dtype == np.float32
        assert made.train.x.max() == 1

    def test_digits_are_the_embedded_images(self):
        from sklearn.datasets import load_digits

        samples, reference = Digits().load(), load_digits()
        assert np.array_equal(samples.x[:, 0] * 16, reference.images)
        assert np.array_equal(samples.y, reference.target)

    def test_options_go_where_they_belong(self):
        made = load("planted-groups", "iid", clients=6, groups=2, dims=6, samples=5)
        assert made.sample_shape == (6,)  # dims is of the data
        assert np.all(made.train.count <= 5)  # samples is of the partition
        assert np.all((load("digits", classes=4, clients=10).label_counts() > 0).sum(1) == 4)

    def test_configured_things_and_pools(self):
        made = load(Digits(), Dirichlet(alpha=5.0), clients=4, seed=2)
        assert "Dirichlet(5)" in made.about
        samples = pool(np.zeros((20, 1)), [0, 1] * 10, owner=["a"] * 10 + ["b"] * 10)
        assert isinstance(samples, Samples)
        assert load(samples).names == ("a", "b")
        assert len(load(samples, "iid", clients=3)) == 3

    @pytest.mark.parametrize(
        ("arguments", "options", "sentence"),
        [
            (("digit",), {}, "there is no dataset called 'digit'; did you mean digits"),
            (("digits", "clases"), {}, "there is no partition called 'clases'; did you mean classes"),
            (("digits",), {"clases": 3}, "unknown setting clases; did you mean classes"),
            (("digits", "iid"), {"qqq": 3}, "unknown setting qqq; known: validation, test"),
            (("digits", "classes"), {"classes": "three"}, "partition.classes must be integer"),
            (("digits", "classes"), {"classes": 11}, "classes must be at most 10"),
            (("planted-groups", "groups"), {"groups": 2}, "both the data set and the partition have a setting groups"),
            (("csv",), {"path": "x.csv"}, "csv.target is required"),
            ((7,), {}, "7 is not a data set"),
        ],
    )
    def test_wrong_input_gets_one_sentence(self, arguments, options, sentence):
        with pytest.raises(CoterieError, match=sentence):
            load(*arguments, **options)

    def test_nothing_heavy_is_imported(self):
        code = "import sys, coterie.data, coterie.data.public, coterie.data.files; print(*sys.modules)"
        loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        assert not {"jax", "pandas", "sklearn", "scipy", "pyarrow", "rich"} & set(loaded)
