"""Sparse text files of LIBSVM ("label index:value index:value ..."): the user's own, and the data set a9a.

a9a is the Adult census of 1994 (Becker and Kohavi 1996, UCI Machine Learning Repository, licence CC BY 4.0) in the
form of Platt, "Fast training of support vector machines using sequential minimal optimization", 1998: 14 attributes
as 123 columns of 0 and 1, from the data page of LIBSVM (Chang and Lin 2011).
"""

import io
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from coterie.data.download import Remote, fetch, folder, locate, places
from coterie.data.labels import judged_kind, numbers, targets
from coterie.data.samples import Samples
from coterie.data.unpack import existing, first_line, read_bytes
from coterie.errors import CoterieError
from coterie.spec import param, spec
from coterie.storage.memory import refuse_beyond

__all__ = ["A9a", "Libsvm"]

COPIES = 3  # of the inputs as a dense array, which is what models train on, until they are divided among clients


class Sparse(NamedTuple):
    """A file: `x [N, d]` (a SciPy matrix whose column is the index in the file), `y [N]`, `owner [N]` or None."""

    x: Any
    y: np.ndarray
    owner: np.ndarray | None


@spec
class Libsvm:
    """A file in LIBSVM's sparse text format (also .gz, .xz, .bz2).

    A line is a label and pairs index:value in rising order; all other features are 0. Indices count from 1, or from 0
    if the file has a feature 0. `qid:NUMBER` after the label is the client of the row. A few different
    whole numbers are classes, numbered in sorted order, other labels a regression, unless `kind` says otherwise. The
    inputs become a dense array, which must fit into memory.
    """

    path: str = param(help="the file")
    test_path: str | None = param(None, "a second file, with the official test samples")
    features: int | None = param(
        None, "number of features, if the last ones do not occur in the file; the highest index if none", at_least=1
    )
    kind: Literal["auto", "classification", "regression"] = param("auto", "what is predicted")

    def load(self) -> Samples:
        """Read the files."""
        paths = [existing(name, field) for name, field in ((self.path, "path"), (self.test_path, "test_path")) if name]
        return _samples(paths, self.features, self.kind, paths[0].name)


# The categorical attributes: the index of the first column, and the values in the order of the columns, which is that
# of UCI's adult.names. Between them lie quantiles of age (1-5), weight (14-18), years of education (35-39),
# capital gain and loss (74-77) and hours (78-82). A row has at most one 1 in a block; none means "not known".
ATTRIBUTES = {
    "workclass": (6, "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked"),
    "education": (
        19,
        "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters 1st-4th 10th "
        "Doctorate 5th-6th Preschool",
    ),
    "marital-status": (
        40,
        "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse",
    ),
    "occupation": (
        47,
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
        "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv Armed-Forces",
    ),
    "relationship": (61, "Wife Own-child Husband Not-in-family Other-relative Unmarried"),
    "race": (67, "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black"),
    "sex": (72, "Female Male"),
    "native-country": (
        83,
        "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India Japan "
        "Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal "
        "Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua "
        "Scotland Thailand Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands",
    ),
}
A9A_FEATURES = 123
A9A = tuple(
    Remote("a9a", name, (f"https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/{name}",), f"sha256:{sha256}")
    for name, sha256 in (
        ("a9a", "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906"),
        ("a9a.t", "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9"),
    )
)


@spec
class A9a:
    """Income above 50,000 dollars or not: 32,561 rows of the census of 1994 and 16,281 for testing (Platt 1998).

    123 inputs of 0 and 1, two classes (24 % earn more). Owners are the values of one attribute; rows where it is
    missing belong to "unknown". The attribute's columns stay among the inputs.
    """

    client: Literal[
        "occupation", "education", "workclass", "marital-status", "relationship", "race", "sex", "native-country"
    ] = param("occupation", "the attribute whose values are the clients: 15, 16, 9, 7, 6, 5, 2 or 42 of them")

    def load(self) -> Samples:
        """Read both files."""
        where = (folder() / "a9a", folder() / "libsvm", *places("a9a")[1:])
        endings = ("", ".xz", ".gz", ".bz2")
        paths = [locate([remote.name + e for e in endings], where) or fetch(remote) for remote in A9A]
        return _samples(paths, A9A_FEATURES, "classification", "census incomes (a9a)", self.client)


def _samples(
    paths: list[Path],
    features: int | None,
    kind: Literal["auto", "classification", "regression"],
    about: str,
    attribute: str | None = None,
) -> Samples:
    """Make a pool from one file, or from one and its test file."""
    files = [_read(path) for path in paths]
    first = 0 if any(file.x[:, :1].nnz for file in files) else 1  # indices count from 1 unless there is a 0
    highest = max(file.x.shape[1] for file in files) - first
    if features is not None and highest > features:
        raise CoterieError(f"features is {features} but {paths[0]} has feature {highest}; use at least {highest}")
    features = features or max(1, highest)
    x = [_dense(file.x, first, features, path) for file, path in zip(files, paths, strict=True)]
    y = np.concatenate([file.y for file in files])
    judged, note = judged_kind(y, images=False) if kind == "auto" else (kind, "")
    if judged == "classification" and np.any(y != np.floor(y)):
        raise CoterieError(f"{paths[0]} has labels that are not whole numbers; use kind = 'regression'")
    encoded, classes, names = targets(y, judged, f"the labels of {paths[0]}")
    parts = np.split(encoded, [len(files[0].y)])
    owners = [file.owner for file in files]
    if attribute is not None:
        owners = [_values(rows, attribute, path) for rows, path in zip(x, paths, strict=True)]
    tested = len(files) > 1
    return Samples(
        x=x[0],
        y=parts[0],
        kind=judged,
        classes=classes,
        test=(x[1], parts[1]) if tested else None,
        owner=owners[0],
        test_owner=owners[1] if tested else None,
        about="; ".join(part for part in (about, note) if part),
        class_names=names,
    )


def _read(path: Path) -> Sparse:
    data = read_bytes(path)
    try:
        x, y, query = _parse(data)
    except (ValueError, OverflowError) as error:
        line = _first_bad(data.splitlines(keepends=True))
        what = f"{path} is not in LIBSVM's format in line {line} ({first_line(error)})"
        raise CoterieError(f"{what}; a line is a label and index:value pairs") from error
    if len(y) == 0:
        raise CoterieError(f"{path} has no rows")
    if len(query) not in (0, len(y)):
        raise CoterieError(f"{path} has a qid in {len(query)} of {len(y)} rows; give all rows one or none")
    finite = np.isfinite(y)
    finite[np.repeat(np.arange(len(y)), np.diff(x.indptr))[~np.isfinite(x.data)]] = False
    if not finite.all():
        raise CoterieError(f"{path} has a value that is not a finite number in row {np.argmin(finite) + 1}; replace it")
    return Sparse(x, y, query if len(query) else None)


def _parse(data: bytes) -> tuple[Any, np.ndarray, np.ndarray]:
    from sklearn.datasets import load_svmlight_file

    return load_svmlight_file(io.BytesIO(data), query_id=True, zero_based=True)


def _first_bad(lines: list[bytes]) -> int:
    """Find the first line that cannot be read, counted from 1, by bisection."""
    good, bad = 0, len(lines)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            _parse(b"".join(lines[:middle]))
            good = middle
        except (ValueError, OverflowError):
            bad = middle
    return bad


def _dense(x: Any, first: int, features: int, path: Path) -> np.ndarray:
    values = numbers(x.data, f"the values of {path}")
    exact = np.array_equal(values.astype(np.float32), values)
    dtype, rows = np.dtype(np.float32 if exact else np.float64), x.shape[0]
    size = COPIES * rows * features * dtype.itemsize
    what = f"{path}, which has {rows:,} rows of {features:,} features as a dense array,"
    refuse_beyond(size, what, "leave out rows or features")
    out = np.zeros((rows, features), dtype)
    known = x[:, first:].tocoo()
    out[known.row, known.col] = known.data
    return out


def _values(x: np.ndarray, attribute: str, path: Path) -> np.ndarray:
    """Return the name of every row's value of an attribute."""
    first, words = ATTRIBUTES[attribute]
    names = words.split()
    block = x[:, first - 1 : first - 1 + len(names)]
    wrong = np.flatnonzero((block != 0).sum(axis=1) > 1)
    if wrong.size:
        raise CoterieError(f"{path} has two values of {attribute} in row {wrong[0] + 1}; get the file again")
    return np.where(block.any(axis=1), np.array(names)[block.argmax(axis=1)], "unknown")
