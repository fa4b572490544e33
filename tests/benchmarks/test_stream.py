"""A limit of memory is kept: what a round and an evaluation of data from files take was measured, not computed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "stream.py"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how much memory is a process's own")
def test_a_round_takes_no_more_than_the_limit(tmp_path):
    command = [sys.executable, PROGRAM, "--one-limit", "--clients", "20000", "--folder", tmp_path, "--memory", "64MB"]
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"}  # so that what is freed is given back at once
    run = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
    found = json.loads(run.stdout.splitlines()[-1])
    images = sum(file.stat().st_size for file in (tmp_path / "images-20000").glob("*_x.npy"))
    assert found["limit_bytes"] == 64e6 < images / 2
    assert 0 < found["own_bytes_beyond"] <= found["limit_bytes"]
