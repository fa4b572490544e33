"""Arrays of the user's own in .npz files: what is read, and the error for what cannot be."""

import lzma

import numpy as np
import pytest

from coterie.data import load
from coterie.data.files import Npz
from coterie.errors import CoterieError


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
        assert samples.class_names == ("-1", "5", "9")
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
