"""The number of devices is part of a run: it continues on as many, on any number of cores, to the same bits."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from coterie.errors import CoterieWarning
from coterie.experiment import run
from coterie.experiment.config import Experiment
from coterie.experiment.device import choose_device
from coterie.experiment.machine import keep_machine, read_machine

ONE_CORE = """
import os, runpy, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
sys.argv[1:] = ["resume", "cut", "--json"]
runpy.run_module("coterie", run_name="__main__")
"""


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """Two clients: on one device they are a batch of two, on two devices each is alone, which rounds differently."""
    file = tmp_path_factory.mktemp("data") / "two.npz"
    x = np.random.default_rng(0).normal(size=(60, 3))
    np.savez(file, x=x, y=(x[:, 0] > 0).astype(int), client=np.arange(60) // 30)
    settings = {"rounds": 8, "evaluate_every": 1, "checkpoint_every": 1}
    tables = {"data": {"name": "npz", "path": str(file)}, "model": {"name": "linear"}, "method": {"name": "local"}}
    return Experiment.from_dict({"format": 1, **tables, "run": settings})


def stopped(experiment, out, device, after):
    """Run and stop as if by Ctrl-C once a round was shown."""

    def stop(stage, number, rounds, metrics):
        if stage == "round" and number == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(experiment, out, device, stop)


def execute(experiment, out, device, progress=None):
    return run.execute(run.Job.of(experiment), out=out, device=device, progress=progress)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot bind a process to a core")
def test_a_run_begun_on_two_devices_continues_on_one_core_to_the_same_bits(experiment, device, tmp_path):
    execute(experiment, tmp_path / "whole", device)
    stopped(experiment, tmp_path / "cut", device, after=3)
    assert read_machine(tmp_path / "cut").devices == 2
    done = subprocess.run([sys.executable, "-c", ONE_CORE], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "2 devices on 1 core)" in done.stderr
    assert "may differ" not in done.stderr
    assert json.loads(done.stdout)["round"] == 8
    assert (tmp_path / "cut/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


def test_auto_is_the_kind_of_device_a_run_began_on(device, tmp_path):
    (tmp_path / "config.toml").touch()
    keep_machine(tmp_path, device.machine._replace(devices=1))
    assert read_machine(tmp_path).devices == 1
    assert choose_device("auto", folder=tmp_path).devices == device.devices[:1]
    assert choose_device("cpu:2", folder=tmp_path).devices == device.devices
    with pytest.warns(CoterieWarning, match=r"1 device, .* continues on .*2 devices, "):
        keep_machine(tmp_path, device.machine)
