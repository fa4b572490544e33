"""Named public data sets: read from the data folder, or downloaded from their official addresses.

All look in the folder `download.folder()`, first in its sub-folder with the set's name. A file that is there is used as
it is, without a download.
"""

import gzip
import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from coterie.data import text
from coterie.data.download import Remote, fetch, folder, locate, places
from coterie.data.formats import channel_statistics, read_cifar, read_idx, read_npz
from coterie.data.samples import Samples
from coterie.data.unpack import BROKEN, read_bytes
from coterie.errors import CoterieError
from coterie.spec import param, spec

__all__ = ["Cifar10", "Cifar100", "Emnist", "FashionMnist", "Mnist", "Shakespeare"]

IDX = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def _idx_remotes(set_: str, bases: Sequence[str], checksums: Sequence[str]) -> tuple[Remote, ...]:
    pairs = zip(IDX, checksums, strict=True)
    return tuple(Remote(set_, name, tuple(base + name for base in bases), f"md5:{md5}") for name, md5 in pairs)


MNIST = _idx_remotes(
    "mnist",
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
    (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
)
FASHION = _idx_remotes(
    "fashion-mnist",
    ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
)
CIFAR10 = Remote(
    "cifar10",
    "cifar-10-binary.tar.gz",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    "md5:c32a1d4ab5d03f1284b67883e8d87530",
)
CIFAR100 = Remote(
    "cifar100",
    "cifar-100-binary.tar.gz",
    ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
    "md5:03b5dce01913d631647c71ecec9e9cb8",
)
EMNIST = Remote(
    "emnist",
    "gzip.zip",
    (
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/gzip.zip",
    ),
    "md5:58c8d27c78d21e728a6bc7b3cc06412e",
)
SHAKESPEARE = Remote(
    "shakespeare",
    "tinyshakespeare.txt",
    ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
    "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)
DEBIAN_FASHION = Path("/usr/share/datasets/fashion-mnist")


def _idx_pair(remotes: Sequence[Remote], *more: Path) -> list[np.ndarray]:
    """Read four idx files: training images and labels, test images and labels."""
    arrays = []
    for remote in remotes:
        path = locate([remote.name], (folder() / remote.set, *more))
        common = folder() / remote.name  # MNIST and Fashion-MNIST use the same names: only the checksum tells which
        if path is None and common.is_file() and _md5(common) == remote.checksum:
            path = common
        path = path or fetch(remote)
        arrays.append(read_idx(read_bytes(path), str(path)))
    return arrays


def _md5(path: Path) -> str:
    return "md5:" + hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def _grey(arrays: Sequence[np.ndarray], classes: int, about: str, **more: tuple[float, ...]) -> Samples:
    """Make a pool of grey images from training images and labels, test images and labels."""
    x, y, x_test, y_test = arrays
    if x.ndim != 3 or x_test.ndim != 3 or len(x) != len(y) or len(x_test) != len(y_test):
        raise CoterieError(f"the files of {about} do not fit together; get them again")
    return Samples(
        x=x[:, None],
        y=y.astype(np.int32),
        kind="classification",
        classes=classes,
        test=(x_test[:, None], y_test.astype(np.int32)),
        about=about,
        **more,  # type: ignore[arg-type]
    )


@spec
class Mnist:
    """Handwritten digits of 28 by 28 pixels: 60,000 for training, 10,000 for testing (LeCun et al. 1998)."""

    def load(self) -> Samples:
        """Read the images."""
        packed = locate(["mnist.npz.xz", "mnist.npz"], places("mnist"))
        if packed is None:
            return _grey(_idx_pair(MNIST), 10, "MNIST digits", mean=(0.1307,), std=(0.3081,))
        arrays = read_npz(packed)
        names = ("x_train", "y_train", "x_test", "y_test")
        missing = [name for name in names if name not in arrays]
        if missing:
            raise CoterieError(f"{packed} holds no array {missing[0]}; it needs {', '.join(names)}")
        return _grey([arrays[name] for name in names], 10, "MNIST digits", mean=(0.1307,), std=(0.3081,))


@spec
class FashionMnist:
    """Pictures of clothes of 28 by 28 pixels: 60,000 for training, 10,000 for testing (Xiao et al. 2017)."""

    def load(self) -> Samples:
        """Read the images."""
        return _grey(_idx_pair(FASHION, DEBIAN_FASHION), 10, "Fashion-MNIST clothes", mean=(0.2860,), std=(0.3530,))


@spec
class Cifar10:
    """Colour photographs of 32 by 32 pixels: 50,000 for training, 10,000 for testing (Krizhevsky 2009)."""

    def load(self) -> Samples:
        """Read the images."""
        train = [f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)]
        test = "cifar-10-batches-bin/test_batch.bin"
        arrays = read_cifar(_cifar(CIFAR10, "cifar-10-batches-bin"), [*train, test], 1)
        return Samples(
            x=np.concatenate([arrays[name][0] for name in train]),
            y=np.concatenate([arrays[name][1][:, 0] for name in train]).astype(np.int32),
            kind="classification",
            classes=10,
            test=(arrays[test][0], arrays[test][1][:, 0].astype(np.int32)),
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2470, 0.2435, 0.2616),
            about="CIFAR-10 photographs",
        )


@spec
class Cifar100:
    """Colour photographs of 32 by 32 pixels, 100 classes in 20 coarse ones: 50,000 and 10,000 (Krizhevsky 2009)."""

    def load(self) -> Samples:
        """Read the images."""
        train, test = "cifar-100-binary/train.bin", "cifar-100-binary/test.bin"
        arrays = read_cifar(_cifar(CIFAR100, "cifar-100-binary"), [train, test], 2)
        return Samples(
            x=arrays[train][0],
            y=arrays[train][1][:, 1].astype(np.int32),
            kind="classification",
            classes=100,
            test=(arrays[test][0], arrays[test][1][:, 1].astype(np.int32)),
            coarse=arrays[train][1][:, 0].astype(np.int32),
            test_coarse=arrays[test][1][:, 0].astype(np.int32),
            mean=(0.5071, 0.4865, 0.4409),
            std=(0.2673, 0.2564, 0.2762),
            about="CIFAR-100 photographs",
        )


def _cifar(remote: Remote, unpacked: str) -> Path:
    """Find the binary archive or the folder it unpacks to, or download the archive."""
    existing = next((place / unpacked for place in places(remote.set) if (place / unpacked).is_dir()), None)
    return existing or locate([remote.name], places(remote.set)) or fetch(remote)


@spec
class Emnist:
    """Handwritten letters and digits of 28 by 28 pixels, up to 814,255 (Cohen et al. 2017)."""

    split: Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"] = param(
        "balanced", "which of the published arrangements: 62, 47, 47, 26, 10 or 10 classes"
    )

    def load(self) -> Samples:
        """Read the images."""
        classes = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}[self.split]
        parts = ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1")
        names = [f"emnist-{self.split}-{part}-ubyte.gz" for part in parts]
        where = (*places("emnist"), folder() / "emnist" / "gzip", folder() / "gzip")
        paths = [locate([name], where) for name in names]
        existing = [path for path in paths if path is not None]
        if len(existing) == len(names):
            arrays = [read_idx(read_bytes(path), str(path)) for path in existing]
        else:
            # a file called gzip.zip in the common folder could be anything: only the set's own folder counts
            arrays = _emnist_archive(fetch(EMNIST), names)
        first = 1 if self.split == "letters" else 0  # letters are numbered from 1
        arrays = [a.swapaxes(1, 2) if a.ndim == 3 else a.astype(np.int32) - first for a in arrays]  # stored by columns
        mean, std = channel_statistics(arrays[0][:, None])
        return _grey(arrays, classes, f"EMNIST {self.split}", mean=mean, std=std)


def _emnist_archive(path: Path, names: Sequence[str]) -> list[np.ndarray]:
    arrays = []
    try:
        with zipfile.ZipFile(path) as archive:
            for name in names:
                arrays.append(read_idx(gzip.decompress(archive.read(f"gzip/{name}")), f"{path} ({name})"))
    except KeyError:
        raise CoterieError(f"{path} holds no gzip/{name}; get the file again") from None
    except BROKEN as error:
        raise CoterieError(
            f"{path} cannot be read ({str(error) or type(error).__name__}); get the file again"
        ) from error
    return arrays


@spec
class Shakespeare:
    """The next character in the speeches of each role (McMahan et al. 2017), in the 80 characters of LEAF.

    "plays" are all plays by play and speaker, from a table `shakespeare_by_speaker.csv.xz` (columns play, act, scene,
    speaker, text) in the data folder; "excerpt" is the 1.1 MB text known as tinyshakespeare by speaker, which is
    downloaded. "auto" takes the plays if the table is there. The report names the text.
    """

    length: int = param(80, "characters in a window", at_least=1)
    source: Literal["auto", "plays", "excerpt"] = param("auto", "which text")

    def load(self) -> Samples:
        """Read the text."""
        where = (*places("shakespeare"), folder() / "text")
        table = locate(["shakespeare_by_speaker.csv.xz", "shakespeare_by_speaker.csv"], where)
        if self.source == "plays" and table is None:
            raise CoterieError(
                f"the plays are not here: put shakespeare_by_speaker.csv.xz into {where[0]}, or use source = 'excerpt'"
            )
        if table is not None and self.source != "excerpt":
            speech, about = text.plays_by_speaker(table), "Shakespeare's plays by role"
        else:
            path = locate([SHAKESPEARE.name, f"{SHAKESPEARE.name}.xz"], where) or fetch(SHAKESPEARE)
            speech, about = text.speeches(text.read_text(path)), "Shakespeare (excerpt) by speaker"
        x, y, owner = text.windows(speech, self.length)
        return Samples(x=x, y=y, kind="next-character", classes=len(text.ALPHABET), owner=owner, about=about)
