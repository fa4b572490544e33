"""Real `coterie` processes that are killed, stopped or starved of disk, and what must come out the same all the while.

Shared by `test_kill.py` (a few kills) and `benchmarks/soak_kill.py` (hundreds).
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

SAME = (
    "metrics.jsonl",
    "scores.npz",
    "graph.blocks",
    "ledger.blocks",
    "models",
    "clients.json",
    "config.toml",
)  # times and pictures may differ

ROUNDS = 60
EXPERIMENT = """
format = 1
[data]
name = "digits"
[partition]
name = "classes"
clients = 6
classes = 3
[model]
name = "linear"
[run]
rounds = {rounds}
evaluate_every = 1
checkpoint_every = 1
{run}
[method]
lr = 0.05
momentum = 0.9
{method}
"""
CASES = {
    "gossip-sgd": EXPERIMENT.format(rounds=ROUNDS, run="", method='name = "gossip-sgd"'),
    # patience: the best models so far are a part of the checkpoint
    "ditto": EXPERIMENT.format(rounds=ROUNDS, run="patience = 50", method='name = "ditto"\nparticipation = 0.5'),
}
LIMITED = """
    import resource, runpy, sys
    size = int(sys.argv.pop(1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    runpy.run_module("coterie", run_name="__main__", alter_sys=True)
"""


class Moment(NamedTuple):
    """When to strike: once this round (or a later one) was shown, and so many seconds later; 0 waits for no round."""

    round: int
    delay: float


class Run:
    """A run of real processes in a folder of its own.

    Args:
        case: which experiment.
        place: where to put files.
        cache: the folder of compiled programs, so that a process which starts again begins to train at once.
    """

    def __init__(self, case: str, place: Path, cache: Path):
        place.mkdir(parents=True, exist_ok=True)
        self.file, self.folder, self.cache = place / "experiment.toml", place / "run", cache
        self.file.write_text(CASES[case])

    def start(self, limit: int | None = None) -> subprocess.Popen:
        """Start the run, or resume it once its folder is made; no file may grow beyond `limit` bytes."""
        begun = (self.folder / "config.toml").exists()
        words = ["resume", self.folder] if begun else ["run", self.file, "--out", self.folder]
        program = ["-m", "coterie"] if limit is None else ["-c", textwrap.dedent(LIMITED), limit]
        keep = {"JAX_COMPILATION_CACHE_DIR": str(self.cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        command = [sys.executable, *map(str, [*program, *words, "--device", "cpu"])]
        environment = os.environ | keep
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    def kill(self, moment: Moment) -> bool:
        """Start (or resume) the run and kill it at a moment; returns whether it still ran."""
        with self.start() as process:
            wait_for(process, moment.round)
            try:
                process.wait(moment.delay)
            except subprocess.TimeoutExpired:
                process.kill()
            process.communicate()
            return process.returncode == -9

    def finish(self) -> str:
        """Let the run come to its end; returns what it printed."""
        with self.start() as process:
            out, errors = process.communicate()
        if process.returncode:
            raise AssertionError(f"exit status {process.returncode}: {errors}")
        return out

    def contents(self) -> dict[str, bytes]:
        """Return everything that must not differ, by file."""
        files = [path for name in SAME for path in [self.folder / name, *(self.folder / name).glob("*")]]
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in files if path.is_file()}


def wait_for(process: subprocess.Popen, number: int) -> None:
    """Read what a process prints until it has shown a round as late as this, or ends."""
    assert process.stdout is not None
    while number > 0 and (line := process.stdout.readline()):
        if (round_of(line) or 0) >= number:
            return


def round_of(line: str) -> int | None:
    """Return the round of a line such as `ditto seed 0: round 7 of 60, score 0.9`."""
    words = line.split(": round ")
    return int(words[1].split()[0]) if len(words) == 2 else None


def rounds_of(text: str) -> list[int]:
    """Return the rounds a process has shown."""
    return [number for line in text.splitlines() if (number := round_of(line))]


def differences(left: dict[str, bytes], right: dict[str, bytes]) -> list[str]:
    """List the files that differ or are only on one side."""
    return sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))
