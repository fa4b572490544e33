"""Public data sets, from small files in their real formats; with COTERIE_DATA also from the real files."""

import gzip
import io
import lzma
import os
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from coterie.data import load, public, text
from coterie.data.formats import channel_statistics, read_bytes, read_idx
from coterie.data.public import Cifar10, Cifar100, Emnist, FashionMnist, Mnist, Shakespeare
from coterie.errors import CoterieError

REAL = os.environ.get("COTERIE_DATA")
real = [pytest.mark.data, pytest.mark.skipif(not REAL, reason="COTERIE_DATA is not set")]


@pytest.fixture
def data(tmp_path, monkeypatch) -> Path:
    """Give the test an empty data folder and a mirror that does not exist, so that nothing is downloaded."""
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    monkeypatch.setenv("COTERIE_MIRROR", "http://127.0.0.1:9")
    monkeypatch.setattr(public, "DEBIAN_FASHION", tmp_path / "debian")
    return tmp_path


def idx(array: np.ndarray) -> bytes:
    """Write LeCun's format by hand: two zeros, type 8 (bytes), the number of dimensions, their sizes, the bytes."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def four_arrays(rng: np.random.Generator) -> list[np.ndarray]:
    return [
        rng.integers(256, size=(6, 28, 28)),
        np.arange(6) % 10,
        rng.integers(256, size=(3, 28, 28)),
        np.arange(3) % 10,
    ]


def write_four(place: Path, arrays: list[np.ndarray]) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, array in zip(public.IDX, arrays, strict=True):
        (place / name).write_bytes(gzip.compress(idx(array)))


class TestIdx:
    @pytest.mark.parametrize("spec", [Mnist(), FashionMnist()])
    def test_four_files_in_the_sets_own_folder(self, data, spec):
        arrays = four_arrays(np.random.default_rng(0))
        write_four(data / ("mnist" if isinstance(spec, Mnist) else "fashion-mnist"), arrays)
        samples = spec.load()
        assert samples.x.shape == (6, 1, 28, 28)
        assert samples.x.dtype == np.uint8
        assert np.array_equal(samples.x[:, 0], arrays[0])
        assert samples.y.tolist() == [0, 1, 2, 3, 4, 5]
        assert samples.y.dtype == np.int32
        assert np.array_equal(samples.test[0][:, 0], arrays[2])
        assert samples.test[1].tolist() == [0, 1, 2]

    def test_fashion_from_the_system(self, data):
        write_four(data / "debian", four_arrays(np.random.default_rng(1)))
        assert len(FashionMnist().load()) == 6

    def test_files_of_unknown_content_are_not_mistaken_for_the_set(self, data):
        """Two sets use the same four names; in the common folder only the right checksum counts."""
        write_four(data, four_arrays(np.random.default_rng(0)))
        with pytest.raises(CoterieError, match="mnist could not be downloaded"):
            Mnist().load()

    def test_packed_arrays(self, data):
        arrays = four_arrays(np.random.default_rng(2))
        buffer = io.BytesIO()
        names = ("x_train", "y_train", "x_test", "y_test")
        np.savez(buffer, **{n: a.astype(np.uint8) for n, a in zip(names, arrays, strict=True)})
        with lzma.open(data / "mnist.npz.xz", "wb") as file:
            file.write(buffer.getvalue())
        samples = Mnist().load()
        assert np.array_equal(samples.x[:, 0], arrays[0])
        assert samples.test[1].tolist() == [0, 1, 2]

    def test_packed_without_an_array(self, data):
        np.savez(data / "mnist.npz", x_train=np.zeros(1))
        with pytest.raises(CoterieError, match="holds no array y_train"):
            Mnist().load()

    def test_another_file_behind_the_address_is_refused(self, data, tmp_path_factory, monkeypatch):
        mirror = tmp_path_factory.mktemp("mirror")
        write_four(mirror / "mnist", four_arrays(np.random.default_rng(0)))
        monkeypatch.setenv("COTERIE_MIRROR", mirror.as_uri())
        with pytest.raises(CoterieError, match=r"its md5 checksum is .* not f68b3c2dcbeaaa9fbdd348bbdeb94873"):
            Mnist().load()

    def test_offline_and_absent_says_which_file_to_put_where(self, data):
        with pytest.raises(CoterieError) as caught:
            FashionMnist().load()
        assert f"put the file train-images-idx3-ubyte.gz into {data / 'fashion-mnist'}" in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("content", "sentence"),
        [
            (b"not gzip", "cannot be read"),
            (gzip.compress(idx(np.zeros((6, 28, 28))))[:-9], "cannot be read"),
            (gzip.compress(b"\x00\x00\x0d\x03"), "is not an idx file"),
            (gzip.compress(b"\x00\x00\x08\x03\x00"), "is cut short"),
            (gzip.compress(idx(np.zeros((6, 28, 28)))[:-1]), "holds 4703 bytes but its header says"),
            (gzip.compress(idx(np.zeros((5, 28, 28)))), "do not fit together"),
        ],
        ids=["no gzip", "torn", "wrong type", "no header", "short", "too few"],  # bytes would hold the time of day
    )
    def test_broken_file(self, data, content, sentence):
        write_four(data / "mnist", four_arrays(np.random.default_rng(0)))
        (data / "mnist" / public.IDX[0]).write_bytes(content)
        with pytest.raises(CoterieError, match=sentence):
            Mnist().load()


def cifar_records(labels: list[tuple[int, ...]], first: int) -> bytes:
    """Write records whose red, green and blue planes are constant: first, first + 1, first + 2."""
    planes = b"".join(bytes([first + channel]) * 1024 for channel in range(3))
    return b"".join(bytes(label) + planes for label in labels)


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


class TestCifar:
    members10 = {
        f"cifar-10-batches-bin/data_batch_{i}.bin": cifar_records([(i,), (9,)], 10 * i) for i in range(1, 6)
    } | {
        "cifar-10-batches-bin/readme.html": b"hello",
        "cifar-10-batches-bin/test_batch.bin": cifar_records([(7,)], 100),
    }

    @pytest.mark.parametrize("place", ["cifar10/cifar-10-binary.tar.gz", "cifar-10-binary.tar.gz", "unpacked"])
    def test_ten(self, data, place):
        if place == "unpacked":
            (data / "cifar-10-batches-bin").mkdir()
            for name, content in self.members10.items():
                (data / name).write_bytes(content)
        else:
            write_tar(data / place, self.members10)
        samples = Cifar10().load()
        assert samples.x.shape == (10, 3, 32, 32)
        assert samples.y.tolist() == [1, 9, 2, 9, 3, 9, 4, 9, 5, 9]
        assert samples.x[4, :, 5, 5].tolist() == [30, 31, 32]
        assert samples.test[1].tolist() == [7]
        assert samples.test[0][0, :, 0, 31].tolist() == [100, 101, 102]

    def test_hundred_has_coarse_and_fine_labels(self, data):
        members = {
            "cifar-100-binary/train.bin": cifar_records([(3, 42), (19, 99)], 0),
            "cifar-100-binary/test.bin": cifar_records([(1, 2)], 50),
        }
        write_tar(data / "cifar100" / "cifar-100-binary.tar.gz", members)
        samples = Cifar100().load()
        assert (samples.y.tolist(), samples.coarse.tolist()) == ([42, 99], [3, 19])
        assert (samples.test[1].tolist(), samples.test_coarse.tolist()) == ([2], [1])
        assert samples.classes == 100

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ({"cifar-10-batches-bin/test_batch.bin": None}, "holds no cifar-10-batches-bin/test_batch.bin"),
            (
                {"cifar-10-batches-bin/test_batch.bin": b"\x00" * 3072},
                "has a broken cifar-10-batches-bin/test_batch.bin",
            ),
        ],
    )
    def test_broken_archive(self, data, change, sentence):
        members = {name: content for name, content in (self.members10 | change).items() if content is not None}
        write_tar(data / "cifar-10-binary.tar.gz", members)
        with pytest.raises(CoterieError, match=sentence):
            Cifar10().load()

    @pytest.mark.parametrize("keep", [0, 100])
    def test_cut_archive(self, data, keep):
        write_tar(data / "cifar-10-binary.tar.gz", self.members10)
        path = data / "cifar-10-binary.tar.gz"
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(CoterieError, match=r"cifar-10-binary\.tar\.gz"):
            Cifar10().load()


class TestEmnist:
    def members(self, split, first):
        images = np.arange(2 * 28 * 28).reshape(2, 28, 28) % 251
        labels = np.array([first, first + 4])
        parts = {
            "train-images-idx3": images,
            "train-labels-idx1": labels,
            "test-images-idx3": images[:1],
            "test-labels-idx1": labels[:1],
        }
        return images, {f"emnist-{split}-{part}-ubyte.gz": gzip.compress(idx(a)) for part, a in parts.items()}

    @pytest.mark.parametrize(
        ("split", "first", "classes"), [("letters", 1, 26), ("balanced", 0, 47), ("byclass", 0, 62)]
    )
    def test_archive(self, data, split, first, classes):
        images, members = self.members(split, first)
        (data / "emnist").mkdir()
        with zipfile.ZipFile(data / "emnist" / "gzip.zip", "w") as archive:
            for name, content in members.items():
                archive.writestr(f"gzip/{name}", content)
        samples = Emnist(split=split).load()
        assert samples.classes == classes
        assert samples.y.tolist() == [0, 4]  # letters are numbered from 1 in the file
        assert np.array_equal(samples.x[1, 0], images[1].T)  # images are stored by columns
        assert samples.mean[0] == pytest.approx((images / 255).mean())
        assert samples.std[0] == pytest.approx((images / 255).std())

    def test_unpacked_files(self, data):
        _, members = self.members("digits", 0)
        (data / "emnist").mkdir()
        for name, content in members.items():
            (data / "emnist" / name).write_bytes(content)
        assert Emnist(split="digits").load().y.tolist() == [0, 4]

    def test_broken_archive(self, data):
        (data / "emnist").mkdir()
        (data / "emnist" / "gzip.zip").write_bytes(b"PK")
        with pytest.raises(CoterieError, match=r"gzip\.zip cannot be read"):
            Emnist().load()
        with zipfile.ZipFile(data / "emnist" / "gzip.zip", "w") as archive:
            archive.writestr("other", b"")
        with pytest.raises(CoterieError, match="holds no gzip/emnist-balanced-train-images"):
            Emnist().load()

    def test_unknown_split(self):
        with pytest.raises(CoterieError, match=r"split must be one of byclass.*did you mean letters"):
            Emnist(split="letter")


def decode(codes: np.ndarray) -> str:
    return "".join(text.ALPHABET[c] for c in codes)


class TestShakespeare:
    def test_alphabet_of_leaf(self):
        assert len(text.ALPHABET) == len(set(text.ALPHABET)) == 80

    def test_speeches(self):
        speech = text.speeches("ANN:\nOne line,\nanother.\n\nBOB:\nHo!\n\nANN:\n\nANN:\nStill.\n\nand more.\n")
        assert speech == {"ANN": "One line,\nanother.\nStill.\nand more.", "BOB": "Ho!"}

    def test_windows_hand_computed(self):
        x, y, owner = text.windows({"a": "abcdefgh", "b": "xyz", "c": "$$$$"}, 3)
        assert [decode(row) for row in x] == [
            "abc",
            "def",
            "}}}",
        ]  # a character that is not in the alphabet is the last
        assert [decode(row) for row in y] == ["bcd", "efg", "}}}"]
        assert owner.tolist() == ["a", "a", "c"]
        assert x.dtype == y.dtype == np.int32

    def test_too_short(self):
        with pytest.raises(CoterieError, match="no speaker says more than length = 5"):
            text.windows({"a": "abcde"}, 5)

    def test_plays(self, data):
        speeches = 'hamlet,0,0,HAM,"To be,\nor"\nlear,1,1,HAM,Nay\nhamlet,0,1,HAM,not\nlear,0,0,,Prologue\n'
        (data / "text").mkdir()
        with lzma.open(data / "text" / "shakespeare_by_speaker.csv.xz", "wt") as file:
            file.write(f"play,act,scene,speaker,text\n{speeches}")
        samples = Shakespeare(length=2).load()
        assert samples.kind == "next-character"
        assert samples.owner.tolist() == ["hamlet/HAM"] * 6 + ["lear/HAM"]
        assert decode(samples.x[:6].ravel()) == "To be,\nor\nno"
        assert decode(samples.y[:6].ravel()) == "o be,\nor\nnot"

    def test_excerpt(self, data):
        (data / "shakespeare").mkdir()
        (data / "shakespeare" / "tinyshakespeare.txt").write_text("ANN:\nGood day, sir.\n\nBOB:\nAnd to you, madam.\n")
        federation = load("shakespeare", length=4, source="excerpt")
        assert federation.names == ("ANN", "BOB")
        assert federation.classes == 80
        assert decode(federation.train.x[0, 0]) == "Good"

    def test_absent(self, data):
        with pytest.raises(CoterieError, match=r"put shakespeare_by_speaker\.csv\.xz into"):
            Shakespeare(source="plays").load()
        with pytest.raises(CoterieError, match=r"put the file tinyshakespeare\.txt into"):
            Shakespeare().load()

    def test_broken_files(self, data):
        (data / "shakespeare_by_speaker.csv").write_text("play,text\na,b\n")
        with pytest.raises(CoterieError, match="has no column 'speaker'"):
            Shakespeare().load()
        (data / "tinyshakespeare.txt").write_bytes(b"\xff\xff")
        with pytest.raises(CoterieError, match="is not text in UTF-8"):
            Shakespeare(source="excerpt").load()


def test_channel_statistics():
    images = np.random.default_rng(0).integers(256, size=(5000, 2, 3, 3), dtype=np.uint8)
    mean, std = channel_statistics(images)
    assert mean == pytest.approx((images / 255).mean(axis=(0, 2, 3)))
    assert std == pytest.approx((images / 255).std(axis=(0, 2, 3)))


def test_read_idx_round_trip():
    array = np.arange(24).reshape(2, 3, 4)
    assert np.array_equal(read_idx(idx(array), "a"), array)


def test_read_bytes_of_nothing(tmp_path):
    with pytest.raises(CoterieError, match="there is no file"):
        read_bytes(tmp_path / "nothing")


class TestReal:
    pytestmark = real

    def test_mnist(self):
        samples = Mnist().load()
        assert samples.x.shape == (60_000, 1, 28, 28)
        assert samples.test[0].shape == (10_000, 1, 28, 28)
        assert np.bincount(samples.y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
        mean, std = channel_statistics(samples.x)
        assert (round(mean[0], 4), round(std[0], 4)) == (samples.mean[0], samples.std[0])

    def test_mnist_in_groups(self):
        federation = load("mnist", "groups", clients=20, groups=5, samples=50)
        assert federation.train.count.tolist() == [45] * 20
        assert federation.test.count[0] == 980 + 1135  # the official test images of 0 and 1

    def test_the_excerpt_is_downloaded_and_has_the_known_checksum(self, tmp_path, monkeypatch):
        """A folder replaces the official address; the file must be the known one, byte for byte."""
        content = read_bytes(Path(str(REAL)) / "text" / "tinyshakespeare.txt.xz")
        (tmp_path / "mirror" / "shakespeare").mkdir(parents=True)
        (tmp_path / "mirror" / "shakespeare" / "tinyshakespeare.txt").write_bytes(content)
        monkeypatch.setenv("COTERIE_MIRROR", (tmp_path / "mirror").as_uri())
        monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "data"))
        federation = load("shakespeare", clients=10, at_least=20)
        assert len(federation) == 10
        assert (tmp_path / "data" / "shakespeare" / "tinyshakespeare.txt").read_bytes() == content

    def test_shakespeares_plays_by_role(self):
        federation = load("shakespeare", source="plays", at_least=26, clients=20)
        assert len(federation) == 20
        assert all("/" in name for name in federation.names)
        assert federation.train.rows(0)[0].shape[1:] == (80,)

    def test_every_role_with_more_than_2000_characters(self):
        """446 roles say at least 2,000 characters, so those with 25 windows of 80 characters are hardly fewer."""
        samples = Shakespeare(source="plays").load()
        _, counts = np.unique(samples.owner, return_counts=True)
        assert 430 <= np.sum(counts >= 25) <= 460
