"""Data larger than the memory they may take: clients are read in groups, and the numbers are those of all at once."""

import json

import numpy as np
import pytest

import coterie
from coterie.data.clients import Federation, stack
from coterie.data.mapped import open_federation, save_federation
from coterie.data.streams import Reader
from coterie.errors import CoterieError


@pytest.fixture(scope="module")
def images():
    """40 clients with up to 6 images of 8 x 8 bytes."""
    random = np.random.default_rng(0)

    def part(least, most):
        sizes = random.integers(least, most + 1, 40)
        rows = [random.integers(0, 256, (n, 1, 8, 8)).astype(np.uint8) for n in sizes]
        return stack([(x, (x.mean((1, 2, 3)) > 127).astype(np.int32)) for x in rows])

    return Federation(tuple(f"c{i}" for i in range(40)), part(2, 6), part(0, 2), part(1, 3), "classification", 2)


@pytest.fixture(scope="module")
def folder(images, tmp_path_factory):
    return save_federation(images, tmp_path_factory.mktemp("mapped") / "images")


@pytest.mark.parametrize(
    "method",
    ["fedavg", pytest.param("gossip-sgd", marks=pytest.mark.soak), pytest.param("ditto", marks=pytest.mark.soak)],
)
def test_clients_in_groups_give_the_numbers_of_all_at_once(folder, method):
    data = coterie.load(folder)
    assert isinstance(data.train.x, np.memmap)
    options = {"rounds": 2, "evaluate_every": 1, "device": "cpu:1", "mode": "exact"}
    whole = coterie.run(data, "logistic", method, **options)
    groups = coterie.run(data, "logistic", method, memory="20 kB", **options)  # 3 kB: 7 clients of 388 bytes
    for one, other in zip(whole.rows, groups.rows, strict=True):
        for name, values in one.items():
            np.testing.assert_allclose(other[name], values, rtol=1e-6, err_msg=name)
    np.testing.assert_allclose(groups.scores["accuracy"], whole.scores["accuracy"])


def test_batches_in_groups_give_the_numbers_of_all_at_once(folder):
    data = coterie.load(folder)
    options = {"rounds": 2, "evaluate_every": 1, "device": "cpu:1", "mode": "fast"}
    whole = coterie.run(data, "logistic", "fedavg", **options)
    groups = coterie.run(data, "logistic", "fedavg", memory="20 kB", chunk=3, **options)  # of 7: 3, 3 and 1
    for one, other in zip(whole.rows, groups.rows, strict=True):
        for name, values in one.items():
            np.testing.assert_allclose(other[name], values, rtol=1e-5, err_msg=name)


def test_the_next_group_is_read_ahead(images):
    reader, first, second = Reader(images.train, 7), np.arange(7), np.arange(7, 14)
    x, y = reader.fetch(first, second)
    assert (x == images.train.x[:7]).all()
    assert (y == images.train.y[:7]).all()
    assert reader._next is not None
    ahead = reader._next[1].result()
    assert reader.fetch(second, second)[0] is ahead[0]
    assert (reader.fetch(np.array([3, 1]), second)[0] == images.train.x[[3, 1]]).all()  # not the one read ahead


def test_a_folder_keeps_a_federation(images, folder):
    found = open_federation(folder)
    assert found.names == images.names
    for part in ("train", "validation", "test"):
        for one, other in zip(getattr(found, part), getattr(images, part), strict=True):
            np.testing.assert_array_equal(one, other)


def test_misuse_is_one_sentence(images, folder, tmp_path):
    with pytest.raises(CoterieError, match=r'run\.memory must be a size such as "2 GB"'):
        coterie.run(images, "logistic", memory="lots", rounds=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(CoterieError, match="one client's samples take"):
        coterie.run(images, "logistic", memory="1 kB", rounds=1)
    with pytest.raises(CoterieError, match="divided already"):
        coterie.load(folder, clients=3)
    (tmp_path / "federation.json").write_text(json.dumps({"kind": "classification"}))
    with pytest.raises(CoterieError, match="must have kind and classes"):
        coterie.load(tmp_path)
    (tmp_path / "federation.json").write_text(json.dumps({"kind": "classification", "classes": 2}))
    with pytest.raises(CoterieError, match=r"train_x.npy cannot be mapped"):
        coterie.load(tmp_path)
