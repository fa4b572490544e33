"""Real processes that share a run: one is killed, and what is left continues anywhere to the same end."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from coterie.experiment import sharded
from coterie.experiment.config import Experiment
from coterie.experiment.engine import Engine
from coterie.experiment.job import Job
from coterie.experiment.run import execute, resume
from coterie.storage.owned import Unreadable
from coterie.storage.toml import dump_toml

pytest.importorskip("orbax.checkpoint")

TABLES = {
    "partition": {"clients": 5},
    "model": {"name": "linear"},
    "method": {"name": "scool-sbm", "sparsify_after": 1},  # what is saved is of a later stage
    "run": {"rounds": 30, "evaluate_every": 1, "checkpoint_every": 1, "mode": "exact"},
}


@pytest.fixture(scope="module")
def job():
    return Job.of(Experiment.from_dict(TABLES))


def launched(file, out, *more, **others):
    command = [sys.executable, "-m", "coterie", "launch", str(file), "--out", str(out), "--device", "cpu", *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **others)


def steps(folder):
    return sorted(path for path in (folder / "checkpoints").glob("step-*") if sharded.NAME.fullmatch(path.name))


@pytest.mark.parametrize(
    ("rounds", "every", "signals", "status", "saved"),
    [
        (10**6, 200, 1, 130, True),  # they agree to end after the block of rounds, and write a checkpoint
        pytest.param(10**6, 10**6, 2, 130, False, marks=pytest.mark.soak),  # at once
    ],
)
def test_ctrl_c_reaches_every_process_once(rounds, every, signals, status, saved, tmp_path):
    """As from a terminal, where the signal goes to a whole group of processes, whatever stdin is."""
    run = {"rounds": rounds, "evaluate_every": every, "checkpoint_every": rounds, "mode": "exact"}
    (tmp_path / "experiment.toml").write_text(dump_toml({**TABLES, "method": {"name": "fedavg"}, "run": run}))
    group = {"start_new_session": True, "stdin": subprocess.DEVNULL}
    with launched(tmp_path / "experiment.toml", tmp_path / "run", "--processes", "2", **group) as process:
        evaluated = tmp_path / "run" / "metrics.jsonl"
        deadline = time.monotonic() + 120
        while (
            not (evaluated.exists() and len(evaluated.read_text().splitlines()) > saved) and time.monotonic() < deadline
        ):
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
        for _ in range(signals):
            time.sleep(1 if signals > 1 else 0.2)
            os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == status, errors
    assert bool(steps(tmp_path / "run")) == saved, errors
    assert "Traceback" not in errors


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The folder of a run of two processes, of which the second was killed; what was printed, and after how long."""
    place = tmp_path_factory.mktemp("launch")
    (place / "experiment.toml").write_text(dump_toml(TABLES))
    folder = place / "run"
    with launched(place / "experiment.toml", folder, "--processes", "2") as process:
        while len(steps(folder)) < 2 and process.poll() is None:
            time.sleep(0.01)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[1]), signal.SIGKILL)
        since = time.monotonic()
        _, errors = process.communicate(timeout=120)
    return folder, (process.returncode, errors), time.monotonic() - since


def test_a_killed_process_ends_all_and_is_named(killed):
    _, (status, errors), seconds = killed
    assert status == 2
    assert "coterie: process 1 of 2 was killed (SIGKILL), so the others were stopped" in errors
    assert "Traceback" not in errors
    assert seconds < 60


def test_one_process_continues_to_the_same_end(killed, job, device, tmp_path):
    shutil.copytree(killed[0], tmp_path / "run")
    resumed, straight = resume(tmp_path / "run", device=device, progress=False), execute(job, device=device)
    assert not steps(tmp_path / "run")  # it went on with checkpoints of a single process
    for name, value in straight.final.items():  # to the last bit
        np.testing.assert_array_equal(resumed.final[name], value, err_msg=name)
    for i in range(5):
        ours, theirs = resumed.model(i).variables.params, straight.model(i).variables.params
        np.testing.assert_array_equal(ours.weight, theirs.weight)
    np.testing.assert_equal(resumed.ledger.totals(), straight.ledger.totals())


@pytest.mark.soak
def test_another_number_of_processes_continues_to_the_same_end(killed, job, device, tmp_path):
    shutil.copytree(killed[0], tmp_path / "run")
    with launched(killed[0].parent / "experiment.toml", tmp_path / "run", "--processes", "3", "--json") as process:
        output, errors = process.communicate(timeout=280)
    assert process.returncode == 0, errors
    assert output.startswith('{"method": "scool-sbm"')  # nothing else, not even what libraries print
    finished, straight = execute(job, out=tmp_path / "run", device=device), execute(job, device=device)
    for name, value in straight.final.items():
        np.testing.assert_array_equal(finished.final[name], value, err_msg=name)


def test_damaged_checkpoints_of_several_processes(killed, job, device, tmp_path):
    engine = Engine.of(job, device)
    folder = tmp_path / "run"
    shutil.copytree(killed[0], folder)
    older, newest = (int(path.name[5:]) for path in steps(folder))
    whole = sharded.load(folder, engine)
    assert (whole.round, whole.notes) == (newest, [])
    rows = [array.shape[0] for name, array in whole.arrays.items() if name.startswith("['state'].variables")]
    assert rows == [5] * len(rows)  # three rows on each of two devices, and five clients
    files = [path for path in steps(folder)[1].rglob("*") if path.is_file() and path.name != "record.json"]
    data = bytearray(largest := max(files, key=lambda path: path.stat().st_size).read_bytes())
    data[len(data) // 2] ^= 1
    spoilt = max(files, key=lambda path: path.stat().st_size)
    spoilt.write_bytes(data)
    assert sharded.load(folder, engine).round == older
    spoilt.write_bytes(largest)
    (steps(folder)[1] / "arrays" / "more").write_bytes(b"")
    back = sharded.load(folder, engine)
    assert (back.round, "files are missing or added" in back.notes[0]) == (older, True)
    for path in steps(folder):
        (path / "record.json").write_text("{}")
    with pytest.raises(Unreadable, match=r"every checkpoint in .* is corrupt"):
        sharded.load(folder, engine)
