"""Data are read where their clients live: each of several processes reads the files in the rows of its own clients."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import coterie
from coterie.data.clients import Federation, Split
from coterie.data.mapped import open_federation, save_federation
from coterie.errors import CoterieError
from coterie.experiment.config import Experiment
from coterie.experiment.fingerprint import digest_of_common, fingerprint, joined, sum_of_digests
from coterie.experiment.folder import RunFolder
from coterie.experiment.job import Job
from coterie.experiment.result import Result
from coterie.experiment.run import execute
from coterie.processes.address import free_port
from coterie.storage.toml import dump_toml

PROGRAM = Path(__file__).parents[1] / "support" / "one_of_several.py"
CLIENTS, ROWS, FEATURES = 7, 8, 32_768  # 1 MB of training inputs for each client
TABLES = {
    "data": {"name": "mapped", "path": "values"},
    "model": {"name": "logistic"},
    "method": {"name": "fedavg", "lr": 0.01, "batch_size": 8},
    "run": {"rounds": 2, "mode": "exact"},
}


def federation():
    random = np.random.default_rng(0)

    def part(rows, count):
        x = random.normal(size=(CLIENTS, rows, FEATURES)).astype(np.float32)
        y = random.integers(0, 2, (CLIENTS, rows)).astype(np.int32)
        return Split(x, y, np.full(CLIENTS, count, np.int32))

    names = tuple(f"site-{i}" for i in range(CLIENTS))
    return Federation(names, part(ROWS, ROWS), part(1, 0), part(1, 1), "classification", 2)


@pytest.mark.parametrize("cuts", [[], [4], [0, 3, 3]])
def test_digests_of_parts_make_the_fingerprint_of_the_whole(cuts):
    whole = federation()
    edges = [0, *cuts, CLIENTS]
    sums = [sum_of_digests(whole, range(*pair)) for pair in itertools.pairwise(edges)]
    assert joined(digest_of_common(whole), sums) == fingerprint(whole)
    whole.train.x[5, 3, 7] += 1
    assert joined(digest_of_common(whole), sums) != fingerprint(whole)


def test_clients_that_swap_their_samples_are_other_data():
    whole, order = federation(), [1, 0, *range(2, CLIENTS)]
    parts = {part: getattr(whole, part).select(np.array(order)) for part in ("train", "validation", "test")}
    swapped = Federation(whole.names, **parts, kind="classification", classes=2)
    renamed = Federation(tuple(whole.names[i] for i in order), **parts, kind="classification", classes=2)
    assert len({fingerprint(whole), fingerprint(swapped), fingerprint(renamed)}) == 3
    assert fingerprint(renamed) == fingerprint(whole.select(order))


def test_samples_of_other_clients_are_neither_checked_nor_kept(tmp_path):
    whole = federation()
    save_federation(whole, tmp_path)
    values = np.load(tmp_path / "train_x.npy", mmap_mode="r+")
    values[5, 0, 0] = np.nan
    values.flush()
    with pytest.raises(CoterieError, match="inputs of client 'site-5' contain NaN"):
        open_federation(tmp_path)
    some = open_federation(tmp_path, lambda clients: slice(2, clients - 2))
    assert list(some.read_here) == [2, 3, 4]
    counts = whole.label_counts()
    np.testing.assert_array_equal(some.label_counts()[2:5], counts[2:5])
    kept = whole.only(slice(2, 5))
    np.testing.assert_array_equal(kept.train.x[2:5], whole.train.x[2:5])
    assert not kept.train.x[[0, 1, 5, 6]].any()
    assert sum_of_digests(kept, range(2, 5)) == sum_of_digests(whole, range(2, 5))
    assert digest_of_common(kept) == digest_of_common(whole)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two processes, each with files in which the samples of the other one's clients are missing."""
    pytest.importorskip("orbax.checkpoint")
    place = tmp_path_factory.mktemp("places")
    complete = save_federation(federation(), place / "complete" / "values")
    (place / "experiment.toml").write_text(dump_toml(TABLES))
    address, processes = f"127.0.0.1:{free_port()}", []
    for number, absent in enumerate((slice(4, None), slice(0, 4))):  # of seven clients, the first has four
        folder = shutil.copytree(complete, place / str(number) / "values")
        for name in ("train", "test"):
            values = np.load(folder / f"{name}_x.npy", mmap_mode="r+")
            values[absent] = np.nan
            values.flush()
        command = [sys.executable, PROGRAM, place / "experiment.toml", place / "run", address, "2", str(number)]
        where = {"cwd": folder.parent, "env": {**os.environ, "PYTHONPATH": str(Path(coterie.__file__).parents[1])}}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        processes.append(subprocess.Popen(command, text=True, **where, **pipes))
    said = [process.communicate(timeout=280) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    return place, [json.loads(output.splitlines()[-1]) for output, _ in said]


def test_each_process_reads_the_rows_of_its_own_clients(run):
    _, found = run
    for (first, last), one in zip(((0, 4), (4, 7)), found, strict=True):
        own = (last - first) * ROWS * FEATURES * 4 // 1024
        assert own <= one["files"]["train_x.npy"] <= own + 256  # the system maps some pages around those that are read


def test_together_they_have_the_fingerprint_and_the_numbers_of_one_process(run, device, monkeypatch):
    place, found = run
    whole = federation()
    assert {one["digest"] for one in found} == {fingerprint(whole)}
    about = RunFolder(place / "run").clients()
    assert about["digest"] == fingerprint(whole)
    assert about["label_counts"] == whole.label_counts().tolist()
    monkeypatch.chdir(place / "complete")
    alone = execute(Job.of(Experiment.from_dict(TABLES)), device=device)
    together = Result.read(place / "run")
    for name, values in alone.final.items():
        np.testing.assert_allclose(together.final[name], values, rtol=1e-5, err_msg=name)
    for name, scores in alone.scores.items():
        np.testing.assert_allclose(together.scores[name], scores, rtol=1e-5, err_msg=name)
