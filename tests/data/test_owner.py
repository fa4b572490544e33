"""Whose sample it is: every loader says so if its source does, and the default partition follows it."""

import numpy as np
import pandas as pd
import pytest

from coterie.data import load, pool
from coterie.data.embedded import Digits
from coterie.data.files import Npz
from coterie.data.libsvm import Libsvm
from coterie.data.samples import Samples
from coterie.data.studies import Rows, Study
from coterie.data.synthetic import HierarchicalLinear, PlantedGroups
from coterie.data.tables.source import Csv, Parquet

OWNER = ["zoe", "ann", "bob"] * 20
X, Y = np.arange(120.0).reshape(60, 2), np.arange(60) % 4
MINE = """
import numpy as np
from coterie.data.samples import Samples
from coterie.spec import param, spec

@spec
class Mine:
    owned: bool = param(True, "whether the samples have owners")

    def load(self):
        owner = np.array(["zoe", "ann", "bob"] * 20) if self.owned else None
        return Samples(np.arange(120.0).reshape(60, 2), np.arange(60) % 4, "classification", 4, owner=owner)
"""


class School(Study):
    kind = "classification"

    def rows(self):
        return Rows(pd.DataFrame(X), Y % 2, np.array(OWNER), np.zeros(60, int))


def npz(folder, **arrays):
    np.savez(folder / "data.npz", **arrays)
    return Npz(path=str(folder / "data.npz"))


def table(folder, kind, **roles):
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": Y, "who": OWNER})
    path = folder / f"data.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    return {"csv": Csv, "parquet": Parquet}[kind](path=str(path), target="y", **roles)


def libsvm(folder, qid):
    numbers = {"zoe": 7, "ann": 8, "bob": 9}
    marks = [f"qid:{numbers[name]} " if qid else "" for name in OWNER]
    lines = [f"{y} {mark}1:{a} 2:{b}" for y, mark, (a, b) in zip(Y, marks, X, strict=True)]
    (folder / "data.txt").write_text("\n".join(lines) + "\n")
    return Libsvm(path=str(folder / "data.txt"))


def mine(folder, owned):
    (folder / "mine.py").write_text(MINE)
    return f"{folder / 'mine.py'}:Mine", {"owned": owned}


OWNED = {
    "npz": lambda folder: npz(folder, x=X, y=Y, client=OWNER),
    "npz with a test pool": lambda folder: npz(
        folder, x_train=X, y_train=Y, x_test=X, y_test=Y, client_train=OWNER, client_test=OWNER
    ),
    "csv": lambda folder: table(folder, "csv", client="who"),
    "parquet": lambda folder: table(folder, "parquet", client="who"),
    "pool": lambda folder: pool(X, Y, owner=OWNER),
    "study": lambda folder: School(),
}
NOT_OWNED = {
    "npz": lambda folder: npz(folder, x=X, y=Y),
    "npz with a test pool": lambda folder: npz(folder, x_train=X, y_train=Y, x_test=X, y_test=Y),
    "csv": lambda folder: table(folder, "csv", drop=("who",)),
    "parquet": lambda folder: table(folder, "parquet", drop=("who",)),
    "libsvm": lambda folder: libsvm(folder, qid=False),
    "pool": lambda folder: pool(X, Y),
    "digits": lambda folder: Digits(),
}


@pytest.mark.parametrize("make", OWNED.values(), ids=OWNED)
def test_owners_of_the_source_are_the_clients(tmp_path, make):
    source = make(tmp_path)
    samples = source if isinstance(source, Samples) else source.load()
    assert samples.owner.tolist() == OWNER
    assert load(source).names == ("zoe", "ann", "bob")


def test_qid_of_libsvm_is_the_client(tmp_path):
    source = libsvm(tmp_path, qid=True)
    assert source.load().owner.tolist() == [7, 8, 9] * 20
    assert load(source).names == ("7", "8", "9")


def test_a_data_class_of_the_users_own(tmp_path):
    name, options = mine(tmp_path, owned=True)
    assert load(name, **options).names == ("zoe", "ann", "bob")
    assert load(name, clients=5, owned=False).names == tuple(f"client-{i}" for i in range(5))


@pytest.mark.parametrize("source", [PlantedGroups(clients=6), HierarchicalLinear(clusters=2, clients_per_cluster=3)])
def test_synthetic_clients(source):
    assert load(source).names == tuple(dict.fromkeys(source.load().owner.tolist()))
    assert len(load(source)) == 6


@pytest.mark.parametrize("make", NOT_OWNED.values(), ids=NOT_OWNED)
def test_without_owners_clients_get_classes(tmp_path, make):
    source = make(tmp_path)
    samples = source if isinstance(source, Samples) else source.load()
    assert samples.owner is None
    federation = load(source, clients=4)
    assert federation.names == ("client-0", "client-1", "client-2", "client-3")
    assert np.all((federation.label_counts() > 0).sum(1) <= 2)
