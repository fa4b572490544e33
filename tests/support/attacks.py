"""Attacks on the product as rows of tables: what is done to a folder, the command, and the sentence that must answer.

A new attack is one line in a table of `tests/attacks/`. "Refused" means exit status 2, one line on standard error that
has the sentence in it, no traceback, and no file in the folder made, changed or removed.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from typer.testing import CliRunner

from coterie.cli import app

__all__ = ["Attack", "call", "contents", "refuse", "small_experiment"]

EXPERIMENT = """
format = 1
[data]
name = "table"
path = '{}'
target = "y"
client = "site"
[model]
name = "linear"
[method]
name = "local"
[run]
"""


class Attack(NamedTuple):
    """One row of a table.

    Attributes:
        name: what is attacked; the test's name.
        prepare: makes or damages files; called with the working folder.
        command: the words after `coterie`.
        sentence: a part of the line that must answer.
        changes: whether files may change before the command refuses (a run that had to begin, say).
    """

    name: str
    prepare: Callable[[Path], Any]
    command: tuple[str, ...]
    sentence: str
    changes: bool = False

    def __str__(self) -> str:
        return self.name


def call(*words: object) -> Any:
    """Run the command line in this process."""
    return CliRunner().invoke(app, [str(word) for word in words])


def small_experiment(folder: Path, rounds: int = 2) -> None:
    """Write the experiment e.toml and its rows.csv: one number and two classes, at two sites that train alone."""
    x = np.random.default_rng(0).normal(size=80)
    rows = [f"s{i % 2},{value:.3f},{'yes' if value > 0 else 'no'}" for i, value in enumerate(x)]
    (folder / "rows.csv").write_text("\n".join(["site,x,y", *rows]))
    settings = f"rounds = {rounds}\nevaluate_every = 1\n"
    (folder / "e.toml").write_text(EXPERIMENT.format(folder / "rows.csv") + settings)


def contents(folder: Path) -> dict[str, str]:
    """Return a digest of every file below a folder; links are not followed, their targets are their contents."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"link to {os.readlink(path)}"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[name] = "folder"
    return found


def refuse(attack: Attack, folder: Path) -> None:
    """Carry out an attack in the working folder `folder` and expect that it is refused."""
    attack.prepare(folder)
    before = contents(folder)
    outcome = call(*attack.command)
    assert outcome.exit_code == 2, (outcome.exit_code, outcome.output, outcome.exception)
    assert attack.sentence in outcome.stderr, outcome.stderr
    assert len(outcome.stderr.strip().splitlines()) == 1, outcome.stderr
    assert len(outcome.stderr) < 3_000, "what was given is quoted in full"
    assert "Traceback" not in outcome.output
    if not attack.changes:
        after = contents(folder)
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        assert not changed, changed
