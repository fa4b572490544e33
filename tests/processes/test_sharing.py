"""The first of several processes reads the data, and each gets the samples of its own clients: those of one process."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import coterie
from coterie.data.clients import PARTS
from coterie.experiment import sharing
from coterie.experiment.config import Experiment
from coterie.experiment.fingerprint import digest_of_common, fingerprint, sum_of_digests
from coterie.experiment.job import Job
from coterie.experiment.run import execute, resume
from coterie.peers import broadcast
from coterie.processes.address import free_port
from coterie.storage.toml import dump_toml

PROGRAM = Path(__file__).parents[1] / "support" / "one_of_several.py"
SITES = 6
TABLES = {
    "data": {"name": "table", "path": "visits.csv", "target": "cost", "client": "site"},
    "model": {"name": "mlp", "hidden": [4]},
    "method": {"name": "ditto", "batch_size": 8},
    "run": {"rounds": 3, "evaluate_every": 1, "checkpoint_every": 1, "mode": "exact"},
}


def visits():
    """A table with numbers, words, dates and missing values, of six sites of different sizes in mixed order."""
    random = np.random.default_rng(0)
    site = random.permutation(np.repeat(np.arange(SITES), [30, 12, 41, 20, 25, 17]))
    rows = len(site)
    table = pd.DataFrame({"site": [f"ward é{i}" for i in site], "age": random.integers(20, 80, rows)})
    table["kind"] = random.choice(["ab", "c d", "rare"], rows, p=[0.6, 0.3, 0.1])
    table["since"] = pd.date_range("2024-01-01", periods=rows).astype(str)
    table["dose"] = random.normal(size=rows).round(3)
    table.loc[random.choice(rows, 9, replace=False), "dose"] = np.nan
    table["region"] = [("west", "east")[i % 2] for i in site]
    table["cost"] = (table["age"] * 1.5 + 10 * site + random.normal(size=rows)).round(2)
    table["high"] = np.where(table["cost"] > table["cost"].median(), "yes", "no")
    return table


# -- without other processes: what the first one sends is recorded, and read by the second --------------------------


class Recorded:
    """Two processes, one after the other: `exchange` and `_sender` of the second give what the first has said."""

    def __init__(self, monkeypatch):
        self.index, self.texts, self.pieces = 0, [], []
        monkeypatch.setattr(broadcast.jax, "process_index", lambda: self.index)
        monkeypatch.setattr(broadcast, "_sender", lambda *_: self._send)

    def exchange(self, what, text=""):
        if self.index == 0:
            self.texts.append(text)
            return [text, ""]
        return [self.texts.pop(0), text]

    def _send(self, buffer):
        if self.index == 0:
            self.pieces.append(buffer.copy())
            return buffer
        return self.pieces.pop(0)


@given(
    sizes=st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=12),
    piece=st.integers(1, 32),
)
def test_arrays_arrive_whatever_their_sizes(sizes, piece):
    with pytest.MonkeyPatch.context() as monkeypatch:
        both = Recorded(monkeypatch)
        sent = [np.arange(size, dtype=np.int16) - 7 for size, _ in sizes]
        broadcast.hand_out(None, sent, piece)
        assert len(both.pieces) == -(-sum(a.nbytes for a in sent) // piece)
        both.index = 1
        got = [np.zeros_like(a) if wanted else a.nbytes for a, (_, wanted) in zip(sent, sizes, strict=True)]
        broadcast.hand_out(None, got, piece)
        assert not both.pieces
        for a, b in zip(sent, got, strict=True):
            assert isinstance(b, int) or a.tolist() == b.tolist()


@pytest.mark.parametrize(
    "tables",
    [
        {"data": TABLES["data"]},
        {"data": {**TABLES["data"], "target": "high", "group": "region", "drop": ["cost"]}},
        {"data": {**TABLES["data"], "standardise": "local"}, "partition": {"name": "natural", "samples": 9}},
        {"data": {**TABLES["data"], "standardise": "none"}, "partition": {"clients": 4, "seed": 3}},
        {"data": {"name": "table", "path": "visits.csv", "target": "high"}, "partition": {"clients": 5}},
        {"data": {"name": "digits"}, "partition": {"name": "dirichlet", "clients": 7}},
        {"method": {"name": "gossip-sgd"}, "graph": {"name": "similarity"}},
    ],
    ids=["regression", "classes", "local", "unscaled", "no owner", "pool", "graph of all data"],
)
def test_what_is_received_is_what_a_single_process_loads(tables, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    visits().to_csv("visits.csv", index=False)
    asked = Experiment.from_dict(tables)
    experiment, whole = asked.load()
    both, cut = Recorded(monkeypatch), len(whole) // 2 + 1
    first = sharing.load_together(asked, both, None, lambda clients: slice(0, cut))
    both.index = 1
    (tmp_path / "visits.csv").unlink()
    second = sharing.load_together(asked, both, None, lambda clients: slice(cut, clients))
    everyone = "graph" in tables
    for (found, some), rows in zip((first, second), (range(cut), range(cut, len(whole))), strict=True):
        assert found.to_dict() == experiment.to_dict()
        assert digest_of_common(some) == digest_of_common(whole)
        assert some.preparation == whole.preparation
        assert (some.names, some.about, some.class_names) == (whole.names, whole.about, whole.class_names)
        np.testing.assert_array_equal(some.groups, whole.groups)
        assert (some.here is None) == everyone
        rows = range(len(whole)) if everyone else rows
        assert sum_of_digests(some, rows) == sum_of_digests(whole, rows)
        for part in PARTS:
            mine, theirs = getattr(some, part), getattr(whole, part)
            assert (mine.x.shape, mine.y.dtype) == (theirs.x.shape, theirs.y.dtype)
            assert not np.delete(mine.x, rows, 0).any()


# -- with another process, which has no table -----------------------------------------------------------------------


def together(place):
    """Run in two processes, of which only the first can reach the table; returns what each says at its end."""
    address, processes = f"127.0.0.1:{free_port()}", []
    for number in range(2):
        command = [sys.executable, PROGRAM, place / "experiment.toml", place / "run", address, "2", str(number)]
        environment = {**os.environ, "PYTHONPATH": str(Path(coterie.__file__).parents[1])}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(command, cwd=place / str(number), env=environment, **pipes))
    said = [process.communicate(timeout=280) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    return [json.loads(output.splitlines()[-1]) for output, _ in said]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    pytest.importorskip("orbax.checkpoint")
    place = tmp_path_factory.mktemp("places")
    for number in range(2):
        (place / str(number)).mkdir()
    visits().to_csv(place / "0" / "visits.csv", index=False)
    (place / "experiment.toml").write_text(dump_toml(TABLES))
    return place, together(place)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, device):
    """The folder of the same run in one process."""
    place = tmp_path_factory.mktemp("alone")
    visits().to_csv(place / "visits.csv", index=False)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(place)
        execute(Job.of(Experiment.from_dict(TABLES)), out=place / "run", device=device)
    return place / "run"


def same(ours, theirs):
    """Compare the files of two runs to the last bit."""
    for file in ("clients.json", "preparation.json", "config.toml", "metrics.jsonl", "intervals.json", "ledger.blocks"):
        assert (ours / file).read_bytes() == (theirs / file).read_bytes(), file
    models = sorted(path.name for path in (theirs / "models").iterdir())
    assert sorted(path.name for path in (ours / "models").iterdir()) == models
    for name in models:
        assert (ours / "models" / name).read_bytes() == (theirs / "models" / name).read_bytes(), name


def test_a_process_without_the_table_trains_its_clients_to_the_same_bits(run, alone):
    place, found = run
    same(place / "run", alone)
    whole = coterie.load(visits(), target="cost", client="site")
    assert {one["digest"] for one in found} == {fingerprint(whole)}


def test_nothing_else_is_left_in_the_folder(run, alone):
    left = {path.name for path in (run[0] / "run").iterdir()}
    assert left == {path.name for path in alone.iterdir()}


def test_its_models_predict(run, alone):
    rows = visits().iloc[:20]
    ours, theirs = (coterie.open(folder).predict(rows) for folder in (run[0] / "run", alone))
    pd.testing.assert_frame_equal(ours, theirs)


@pytest.fixture
def stopped(run, tmp_path):
    """What a kill after the second round leaves."""
    place = shutil.copytree(run[0], tmp_path / "places")
    (place / "run" / "summary.json").unlink()
    shutil.rmtree(place / "run" / "checkpoints" / "step-00000003")
    return place


def test_one_process_continues(stopped, alone, device, monkeypatch):
    monkeypatch.chdir(stopped / "0")
    resume(stopped / "run", device=device, progress=False)
    same(stopped / "run", alone)


@pytest.mark.soak
def test_two_processes_continue(stopped, alone):
    together(stopped)
    same(stopped / "run", alone)
