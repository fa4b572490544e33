"""The user's own files: what is read, and the error for what cannot be."""

import lzma

import numpy as np
import pandas as pd
import pytest

from coterie.data import load
from coterie.data.files import Npz
from coterie.data.tables.source import Csv, Parquet
from coterie.errors import CoterieError

TABLE = pd.DataFrame(
    {
        "site": ["b", "b", "a", "a", "b", "a"],
        "age": [10, 20, 30, 40, 50, 60],
        "colour": ["red", "blue", "red", "green", "blue", "red"],
        "constant": [7.0] * 6,
        "outcome": ["no", "yes", "no", "no", "yes", "yes"],
        "part": ["train", "Train", "val", "test", "TEST", "training"],
    }
)


@pytest.fixture(params=["csv", "csv.xz", "parquet"])
def table(request, tmp_path):
    """Write a table; returns a function that makes the data set."""
    path = tmp_path / f"t.{request.param}"

    def write(frame=TABLE, **options):
        frame.to_parquet(path) if request.param == "parquet" else frame.to_csv(path, index=False)
        return (Parquet if request.param == "parquet" else Csv)(path=str(path), **options)

    return write


class TestTables:
    def test_hand_computed(self, table):
        """Standardised over the rows marked train: ages 10, 20, 60 have mean 30 and deviation sqrt(1400 / 3)."""
        samples = table(target="outcome", client="site", split="part").load()
        age = (np.array([10, 20, 30, 40, 50, 60]) - 30) / np.sqrt((400 + 100 + 900) / 3)
        assert np.allclose(samples.x[:, 0], age)
        blue_green_red = [[0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 1]]
        assert samples.x[:, 1:4].tolist() == blue_green_red
        assert samples.x[:, 4].tolist() == [0] * 6
        assert samples.x.dtype == np.float32
        assert samples.y.tolist() == [0, 1, 0, 0, 1, 1]
        assert (samples.kind, samples.classes) == ("classification", 2)
        assert samples.owner.tolist() == TABLE["site"].tolist()
        assert samples.ready.tolist() == ["train", "train", "validation", "test", "test", "train"]

    def test_without_a_split_all_rows_count(self, table):
        samples = table(TABLE.drop(columns="part"), target="outcome", drop=("site",)).load()
        assert np.allclose(samples.x[:, 0], (TABLE["age"] - 35) / TABLE["age"].std(ddof=0))
        assert samples.owner is None

    def test_numbers_as_they_are(self, table):
        samples = table(target="outcome", standardise=False, drop=("part", "site", "colour")).load()
        assert samples.x.tolist() == [[a, 7] for a in (10, 20, 30, 40, 50, 60)]

    def test_kinds(self, table):
        assert table(target="constant").load().kind == "regression"
        whole = table(target="age").load()
        assert (whole.kind, whole.classes) == ("classification", 6)
        wished = table(target="age", kind="regression").load()
        assert wished.y.tolist() == [10, 20, 30, 40, 50, 60]
        assert (wished.kind, wished.y.dtype) == ("regression", np.float32)

    def test_groups_of_clients(self, table):
        frame = TABLE.assign(district=["west", "west", "east", "east", "west", "east"])
        samples = table(frame, target="outcome", client="site", group="district").load()
        assert samples.group == {"b": 1, "a": 0}
        frame.loc[0, "district"] = "east"
        with pytest.raises(CoterieError, match="client 'b' is in groups east and west"):
            table(frame, target="outcome", client="site", group="district").load()

    @pytest.mark.parametrize(
        ("change", "options", "sentence"),
        [
            ({}, {"target": "outcom"}, "has no column 'outcom'; did you mean outcome"),
            ({}, {"target": "zzz"}, "has no column 'zzz'; it has site, age"),
            ({}, {"target": "outcome", "client": "sites"}, "has no column 'sites'; did you mean site"),
            ({}, {"target": "site", "client": "site"}, "one column of .* has two roles"),
            ({"age": [1, None, 3, 4, 5, 6]}, {"target": "outcome"}, "has no value in column 'age', row 2 of the data"),
            (
                {"site": ["a", "b", None, "a", "b", "a"]},
                {"target": "outcome", "client": "site"},
                "in column 'site', row 3",
            ),
            (
                {"age": [1.0, 2, 3, np.inf, 5, 6]},
                {"target": "outcome"},
                "has an infinite number in column 'age', row 4",
            ),
            ({"part": ["train"] * 5 + ["tset"]}, {"target": "outcome", "split": "part"}, "says 'tset' in row 6"),
            ({"part": ["test"] * 6}, {"target": "outcome", "split": "part"}, "has no row marked train"),
            ({}, {"target": "outcome", "group": "site"}, "needs to know whose sample it is"),
            ({}, {"target": "outcome", "drop": ("site", "age", "colour", "constant", "part")}, "no column left"),
        ],
    )
    def test_wrong_input_gets_one_sentence(self, table, change, options, sentence):
        with pytest.raises(CoterieError, match=sentence):
            table(TABLE.assign(**change), **options).load()

    def test_no_rows(self, table):
        with pytest.raises(CoterieError, match="has no rows"):
            table(TABLE.iloc[:0], target="outcome").load()

    def test_too_many_words(self, table):
        frame = pd.DataFrame({"name": [f"n{i}" for i in range(1001)], "y": [0, 1] * 500 + [0]})
        with pytest.raises(CoterieError, match=r"column 'name' of .* holds 1001 different words"):
            table(frame, target="y").load()

    def test_times(self, tmp_path):
        TABLE.assign(when=pd.Timestamp("2024-01-01")).to_parquet(tmp_path / "t.parquet")
        with pytest.raises(CoterieError, match=r"column 'when' of .* holds times"):
            Parquet(path=str(tmp_path / "t.parquet"), target="outcome").load()

    def test_natural_federation(self, tmp_path):
        pd.concat([TABLE] * 3).to_csv(tmp_path / "t.csv", index=False)
        federation = load("csv", path=tmp_path / "t.csv", target="outcome", client="site", drop=("part",))
        assert federation.names == ("b", "a")
        assert (federation.train.count + federation.validation.count + federation.test.count).tolist() == [9, 9]


@pytest.mark.parametrize(("kind", "name"), [(Csv, "CSV"), (Parquet, "Parquet")])
class TestUnreadable:
    def test_missing(self, kind, name, tmp_path):
        with pytest.raises(CoterieError, match=r"path: there is no file .*nowhere"):
            kind(path=str(tmp_path / "nowhere"), target="y").load()
        with pytest.raises(CoterieError, match="is not a file"):
            kind(path=str(tmp_path), target="y").load()

    def test_garbage(self, kind, name, tmp_path):
        (tmp_path / "t").write_bytes(b"\xff\xfe\x00\x81garbage\n" * 3)
        with pytest.raises(CoterieError, match=f"is not a readable {name} table"):
            kind(path=str(tmp_path / "t"), target="y").load()

    def test_empty(self, kind, name, tmp_path):
        (tmp_path / "t").touch()
        with pytest.raises(CoterieError, match=f"is not a readable {name} table"):
            kind(path=str(tmp_path / "t"), target="y").load()


class TestNpz:
    def save(self, tmp_path, **arrays):
        np.savez(tmp_path / "a.npz", **arrays)
        return str(tmp_path / "a.npz")

    def test_pool_with_clients_splits_and_groups(self, tmp_path):
        path = self.save(
            tmp_path,
            x=np.arange(8.0).reshape(4, 2),
            y=np.array([5, -1, 5, 9]),
            client=np.array(["p", "q", "p", "q"]),
            split=np.array(["train", "train", "test", "test"]),
            group=np.array([3, 8, 3, 8]),
        )
        samples = Npz(path=path).load()
        assert samples.y.tolist() == [1, 0, 1, 2]
        assert samples.classes == 3
        federation = load(samples, validation=0)
        assert federation.names == ("p", "q")
        assert federation.groups.tolist() == [0, 1]
        assert federation.test.x[:, 0].tolist() == [[4, 5], [6, 7]]

    def test_official_test_pool(self, tmp_path):
        path = self.save(
            tmp_path,
            x_train=np.zeros((6, 4, 4), np.uint8),
            y_train=np.array(["b", "a"] * 3),
            x_test=np.ones((2, 4, 4), np.uint8),
            y_test=np.array(["c", "b"]),
            client_train=np.array([1, 1, 1, 2, 2, 2]),
            client_test=np.array([2, 1]),
        )
        samples = Npz(path=path).load()
        assert samples.x.shape == (6, 1, 4, 4)
        assert samples.classes == 3
        assert samples.y.tolist() == [1, 0] * 3
        assert samples.test[1].tolist() == [2, 1]
        assert load(samples).test.y.tolist() == [[1], [2]]

    def test_channels_last(self, tmp_path):
        x = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
        samples = Npz(path=self.save(tmp_path, x=x, y=np.array([0, 1])), channels="last").load()
        assert samples.x.shape == (2, 3, 4, 5)
        assert np.array_equal(samples.x[1, 2], x[1, :, :, 2])

    def test_packed_with_xz(self, tmp_path):
        path = self.save(tmp_path, x=np.eye(3), y=np.array([0.5, 1.5, 2.5]))
        with lzma.open(tmp_path / "a.npz.xz", "wb") as file:
            file.write((tmp_path / "a.npz").read_bytes())
        plain, packed = Npz(path=path).load(), Npz(path=f"{path}.xz").load()
        assert plain.kind == packed.kind == "regression"
        assert np.array_equal(plain.x, packed.x)

    def test_text(self, tmp_path):
        x = np.arange(12).reshape(3, 4)
        samples = Npz(path=self.save(tmp_path, x=x, y=x + 1)).load()
        assert (samples.kind, samples.classes, samples.x.dtype) == ("next-character", 13, np.int32)

    @pytest.mark.parametrize(
        ("arrays", "sentence"),
        [
            ({"a": np.zeros(3)}, r"holds no array 'x' \(it has a\)"),
            ({"x": np.zeros((3, 1))}, "holds no array 'y'"),
            ({"x_train": np.zeros((3, 1)), "y_train": np.zeros(3)}, "holds no array 'x_test'"),
            ({"x": np.zeros((3, 1)), "y": np.zeros(2, int)}, "y has 2 entries but x has 3 samples"),
            ({"x": np.zeros((3, 1)), "y": np.array(1)}, "y must have one entry per sample"),
            ({"x": np.array(["a", "b"]), "y": np.zeros(2, int)}, "x in .* must be numbers"),
            ({"x": np.zeros((2, 1)), "y": np.zeros((2, 2), int)}, r"must have one label per sample, not shape \(2,\)"),
            ({"x": np.array([{}, {}]), "y": np.zeros(2)}, "holds Python objects"),
            ({"x": np.zeros((2, 1)), "y": np.zeros(2, int), "client": np.arange(3)}, "owner has 3 entries"),
            ({"x": np.zeros((2, 1)), "y": np.zeros(2, int), "split": np.array(["a", "b"])}, "says 'a' in row 1"),
        ],
    )
    def test_wrong_input_gets_one_sentence(self, tmp_path, arrays, sentence):
        with pytest.raises(CoterieError, match=sentence):
            Npz(path=self.save(tmp_path, **arrays)).load()

    @pytest.mark.parametrize(
        ("name", "data"), [("a.npz", b"garbage"), ("a.npz", b"PK\x03\x04bad"), ("a.npz.xz", b"garbage")]
    )
    def test_unreadable(self, tmp_path, name, data):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(CoterieError, match=r"cannot be read|not a readable \.npz|not an \.npz"):
            Npz(path=str(tmp_path / name)).load()

    def test_single_array(self, tmp_path):
        np.save(tmp_path / "a.npy", np.zeros(3))
        with pytest.raises(CoterieError, match="holds a single array"):
            Npz(path=str(tmp_path / "a.npy")).load()

    def test_missing(self, tmp_path):
        with pytest.raises(CoterieError, match="path: there is no file"):
            Npz(path=str(tmp_path / "a.npz")).load()
