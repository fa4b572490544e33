"""Sparse text files: small ones by hand; with COTERIE_DATA also the real a9a."""

import bz2
import gzip
import hashlib
import lzma
import os
from pathlib import Path

import numpy as np
import pytest

from coterie.data import libsvm, load
from coterie.data.libsvm import A9A, ATTRIBUTES, A9a, Libsvm
from coterie.errors import CoterieError

real = [pytest.mark.data, pytest.mark.skipif(not os.environ.get("COTERIE_DATA"), reason="COTERIE_DATA is not set")]


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a file and makes the data set."""

    def written(text: str, **options) -> Libsvm:
        (tmp_path / "rows.txt").write_text(text)
        return Libsvm(path=str(tmp_path / "rows.txt"), **options)

    return written


class TestLibsvm:
    def test_hand_computed(self, write):
        samples = write("+1 1:0.5 4:-2 # a remark\n\n-1 2:1e3\n+1\n").load()
        assert samples.x.tolist() == [[0.5, 0, 0, -2], [0, 1000, 0, 0], [0, 0, 0, 0]]
        assert samples.x.dtype == np.float32
        assert samples.y.tolist() == [1, 0, 1]
        assert (samples.kind, samples.classes, samples.owner) == ("classification", 2, None)

    @pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.compress), ("xz", lzma.compress), ("bz2", bz2.compress)])
    def test_packed(self, tmp_path, ending, pack):
        (tmp_path / f"rows.{ending}").write_bytes(pack(b"3 1:1\n7 2:1\n"))
        assert Libsvm(path=str(tmp_path / f"rows.{ending}")).load().x.tolist() == [[1, 0], [0, 1]]

    def test_indices_from_0(self, write):
        assert write("1 0:5 2:6\n0 1:7\n").load().x.tolist() == [[5, 0, 6], [0, 7, 0]]

    def test_numbers_are_a_regression(self, write):
        samples = write("1.5 1:1\n2 1:2\n").load()
        assert (samples.y.tolist(), samples.kind) == ([1.5, 2.0], "regression")
        wished = write("1 1:1\n2 1:2\n", kind="regression").load()
        assert (wished.y.tolist(), wished.kind) == ([1.0, 2.0], "regression")

    def test_test_file_shares_features_and_labels(self, write, tmp_path):
        """Features are those of both files, and label 5, which only the test file has, is a class of its own."""
        (tmp_path / "test.txt").write_text("5 3:1\n-1 1:2\n")
        samples = write("-1 1:1\n9 2:1\n", test_path=str(tmp_path / "test.txt")).load()
        assert samples.x.tolist() == [[1, 0, 0], [0, 1, 0]]
        assert samples.test[0].tolist() == [[0, 0, 1], [2, 0, 0]]
        assert (samples.y.tolist(), samples.test[1].tolist(), samples.classes) == ([0, 2], [1, 0], 3)

    def test_more_features_than_occur(self, write):
        assert write("1 1:1\n0 2:1\n", features=4).load().x.shape == (2, 4)

    def test_qid_says_whose_row_it_is(self, write):
        text = "".join(f"{i % 2} qid:{7 + i % 3} 1:{i}\n" for i in range(30))
        samples = write(text).load()
        assert samples.owner.tolist() == [7, 8, 9] * 10
        assert load(samples).names == ("7", "8", "9")

    @pytest.mark.parametrize(
        ("text", "options", "sentence"),
        [
            ("1 1:1\n0 2:1\nx 1:1\n1 1:1\n", {}, "is not in LIBSVM's format in line 3"),
            ("1 1:1\n1 2:1 1:1\n" + "1 1:1\n" * 9, {}, "is not in LIBSVM's format in line 2"),
            ("1 a:1\n1 1:1\n", {}, "is not in LIBSVM's format in line 1"),
            ("1 1:1\n1 2\n", {}, "is not in LIBSVM's format in line 2"),
            ("1 1:1\n1 99999999999999:1\n", {}, "is not in LIBSVM's format in line 2"),
            ("", {}, "has no rows"),
            ("# nothing\n", {}, "has no rows"),
            ("1 1:1\n1 1:1 2:nan\n", {}, "not a finite number in row 2"),
            ("1 1:1\ninf 1:1\n", {}, "not a finite number in row 2"),
            ("1 qid:1 1:1\n1 1:1\n", {}, "has a qid in 1 of 2 rows"),
            ("1 5:1\n", {"features": 3}, "features is 3 but .* has feature 5; use at least 5"),
            ("1.5 1:1\n", {"kind": "classification"}, "labels that are not whole numbers; use kind = 'regression'"),
            (
                "1 2000000000:1\n" * 999,
                {},
                r"999 rows of 2,000,000,000 features as a dense array, needs about 23,976\.0 GB",
            ),
        ],
    )
    def test_wrong_input_gets_one_sentence(self, write, text, options, sentence):
        with pytest.raises(CoterieError, match=sentence) as caught:
            write(text, **options).load()
        assert "\n" not in str(caught.value)

    def test_missing(self, tmp_path, write):
        with pytest.raises(CoterieError, match=r"path: there is no file .*nowhere"):
            Libsvm(path=str(tmp_path / "nowhere")).load()
        with pytest.raises(CoterieError, match=r"test_path: .* is not a file"):
            write("1 1:1\n", test_path=str(tmp_path)).load()


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    monkeypatch.setenv("COTERIE_MIRROR", "http://127.0.0.1:9")
    return tmp_path


# The first row of UCI's adult.data: 39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family,
# White, Male, 2174, 0, 40, United-States, <=50K; and one whose workclass, occupation and country are not known.
FIRST = "-1 3:1 11:1 14:1 19:1 39:1 42:1 55:1 64:1 67:1 73:1 75:1 76:1 80:1 83:1 \n"
OTHER = "+1 1:1 14:1 20:1 39:1 40:1 61:1 71:1 72:1 74:1 76:1 82:1 \n"


class TestA9a:
    @pytest.mark.parametrize(
        ("client", "owners"),
        [
            ("occupation", ["Adm-clerical", "unknown"]),
            ("workclass", ["State-gov", "unknown"]),
            ("education", ["Bachelors", "Some-college"]),
            ("marital-status", ["Never-married", "Married-civ-spouse"]),
            ("relationship", ["Not-in-family", "Wife"]),
            ("race", ["White", "Black"]),
            ("sex", ["Male", "Female"]),
            ("native-country", ["United-States", "unknown"]),
        ],
    )
    def test_owners_are_the_values_of_an_attribute(self, data, client, owners):
        (data / "a9a").mkdir()
        (data / "a9a" / "a9a").write_text(FIRST + OTHER)
        (data / "a9a" / "a9a.t").write_text(OTHER)
        samples = A9a(client=client).load()
        assert samples.x.shape == (2, 123)
        assert np.flatnonzero(samples.x[0]).tolist() == [2, 10, 13, 18, 38, 41, 54, 63, 66, 72, 74, 75, 79, 82]
        assert (samples.y.tolist(), samples.test[1].tolist()) == ([0, 1], [1])
        assert samples.owner.tolist() == owners
        assert samples.test_owner.tolist() == owners[1:]

    def test_another_file_of_that_name(self, data):
        (data / "libsvm").mkdir()
        (data / "libsvm" / "a9a").write_text("1 47:1 48:1\n")
        (data / "libsvm" / "a9a.t").write_text("1 47:1\n")
        with pytest.raises(CoterieError, match="has two values of occupation in row 1"):
            A9a().load()

    def test_absent(self, data):
        with pytest.raises(CoterieError) as caught:
            A9a().load()
        assert f"put the file a9a into {data / 'a9a'}" in str(caught.value)
        (data / "a9a" / "a9a").write_text(FIRST)  # the folder was made by the attempt to download
        with pytest.raises(CoterieError, match=r"put the file a9a\.t into"):
            A9a().load()

    def test_blocks_follow_each_other(self):
        """Fourteen attributes fill 123 columns: eight categories, and six quantiles between them."""
        quantiles = {1: 5, 14: 5, 35: 5, 74: 2, 76: 2, 78: 5}
        sizes = {first: len(words.split()) for first, words in ATTRIBUTES.values()} | quantiles
        column = 1
        for first in sorted(sizes):
            assert first == column
            column += sizes[first]
        assert column - 1 == 123


class TestReal:
    pytestmark = real

    def test_the_published_bytes_have_the_known_checksums(self):
        """Where a copy lacks the blank before each end of a line, it is put back."""
        for remote in A9A:
            folder = Path(str(os.environ["COTERIE_DATA"])) / "libsvm"
            content = libsvm.read_bytes(folder / f"{remote.name}.xz").replace(b" \n", b"\n").replace(b"\n", b" \n")
            assert "sha256:" + hashlib.sha256(content).hexdigest() == remote.checksum

    @pytest.mark.parametrize(
        ("client", "counts"),
        [
            ("workclass", {"Private": 22696, "unknown": 1836, "Never-worked": 7}),
            ("education", {"HS-grad": 10501, "Some-college": 7291, "Bachelors": 5355, "Doctorate": 413}),
            ("marital-status", {"Married-civ-spouse": 14976, "Never-married": 10683, "Married-AF-spouse": 23}),
            ("occupation", {"Prof-specialty": 4140, "unknown": 1843, "Armed-Forces": 9, "Priv-house-serv": 149}),
            ("relationship", {"Husband": 13193, "Wife": 1568}),
            ("race", {"White": 27816, "Black": 3124}),
            ("sex", {"Male": 21790, "Female": 10771}),
            ("native-country", {"United-States": 29170, "Mexico": 643, "unknown": 583, "Holand-Netherlands": 1}),
        ],
    )
    def test_columns_mean_what_we_say(self, client, counts):
        """The values of UCI's adult.data are as frequent as the columns that we take for them."""
        samples = A9a(client=client).load()
        assert samples.x.shape == (32_561, 123)
        assert samples.test[0].shape == (16_281, 123)
        names, counted = np.unique(samples.owner, return_counts=True)
        frequency = dict(zip(names.tolist(), counted.tolist(), strict=True))
        assert {name: frequency[name] for name in counts} == counts

    def test_federation_of_occupations(self):
        federation = load("a9a")
        assert len(federation) == 15
        assert federation.test.count.sum() == 16_281
