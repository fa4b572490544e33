"""Folders from somebody else: opening one runs nothing that it names, and nothing it holds steers the terminal."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import coterie as ct
from coterie.cli import options
from coterie.cli.terminal import LastingStream, console_for
from coterie.errors import CoterieError
from coterie.registry import find, names_from
from support.attacks import Attack, call, contents, refuse

EXPERIMENT = """
data = { name = "planted-groups", clients = 2, groups = 1 }
model = { name = "linear" }
method = { name = "local" }
graph = { name = "ring" }
run = { rounds = 1, seed = 0 }
compare = { methods = ["local"], tune = false, splits = 1 }
"""
EVIL = "from pathlib import Path\nPath('it-ran').touch()\n"
BASE = '"random-directed", base = "x/evil.py:X"'
WANTS = "wants to run code: {}.name = 'x/evil.py:X'; read that file, then add --trust-code"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folders of a run and of a comparison, and rows to predict."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "e.toml").write_text(EXPERIMENT)
    for command in ("run", "compare"):
        assert call(command, folder / "e.toml", "--out", folder / command).exit_code == 0
    return folder


@pytest.fixture
def sent(trained, tmp_path, monkeypatch):
    """A working folder that the folders were sent to, as `run` and `compare`."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def naming(section: str, kind: str = "run"):
    """Put code into a folder `x`, and its name into a section of the config."""

    def prepare(folder: Path) -> None:
        shutil.copytree(folder / kind, folder / "x")
        (folder / "x/evil.py").write_text(EVIL)
        np.save(folder / "new.npy", np.zeros((2, 10), np.float32))
        np.savez(folder / "new.npz", x=np.zeros((6, 10), np.float32), y=np.arange(6) % 2)
        file = folder / "x" / ("config.toml" if kind == "run" else "comparison.toml")
        head, table, rest = file.read_text().partition(f"[{section}]\n")
        assert table, head
        file.write_text(head + table + re.sub(r'^name = ".*"', 'name = "x/evil.py:X"', rest, count=1, flags=re.M))

    return prepare


def sweeping(folder: Path) -> None:
    """Put code into the folder `x` of a sweep, and its name among the values that it tries."""
    (folder / "x").mkdir()
    (folder / "x/evil.py").write_text(EVIL)
    (folder / "x/coterie.json").write_text('{"format": 1, "kind": "sweep"}')
    (folder / "x/sweep.toml").write_text("format = 1" + EXPERIMENT + 'sweep = { method = ["x/evil.py:X"] }\n')


SECTIONS = ("data", "partition", "model", "method", "graph", "codec")
LOCAL, MORE = 'methods."local"', ("compare", "e.toml", "--methods", "fedavg", "--out", "x")
PREDICT, EXPORT = ("predict", "x", "new.npy", "--client", "client-0"), ("export", "x", "--client", "client-0")
JOIN = ("join-trained", "x", "new.npz", "--name", "new")
ATTACKS = [
    *(Attack(f"resume {s}", naming(s), ("resume", "x"), WANTS.format(s)) for s in SECTIONS),
    *(Attack(f"run {s}", naming(s), ("run", "x/config.toml", "--out", "y"), WANTS.format(s)) for s in SECTIONS),
    *(Attack(f"check {s}", naming(s), ("check", "x/config.toml"), WANTS.format(s)) for s in SECTIONS),
    Attack("comparison data", naming("data", "compare"), ("resume", "x"), WANTS.format("data")),
    Attack("comparison method", naming(LOCAL, "compare"), ("resume", "x"), WANTS.format("method")),
    Attack("comparison again", naming(LOCAL, "compare"), ("compare", "x/comparison.toml"), WANTS.format("method")),
    Attack("sweep", sweeping, ("resume", "x"), WANTS.format("method")),
    Attack("sweep again", sweeping, ("sweep", "x/sweep.toml", "--dry-run"), WANTS.format("method")),
    Attack("comparison with more", naming(LOCAL, "compare"), MORE, WANTS.format("method")),
    *(
        Attack(f"{command[0]} {section}", naming(section), command, WANTS.format(section))
        for section in ("model", "method")
        for command in (PREDICT, EXPORT, JOIN)
    ),
]  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_code_that_a_folder_names_is_refused(attack, sent):
    refuse(attack, sent)


def test_a_graph_may_name_another_one(sent):
    naming("method")(sent)
    (sent / "x/config.toml").write_text(
        EXPERIMENT.replace('"local"', '"sgp"').replace('"ring"', BASE).split("compare")[0]
    )
    for command in (("resume", "x"), ("run", "x/config.toml", "--out", "y")):
        outcome = call(*command)
        assert outcome.exit_code == 2, outcome.output
        assert "wants to run code" in outcome.stderr, outcome.output
    assert not (sent / "it-ran").exists()


@pytest.mark.parametrize("command", [("report", "x"), ("graph", "x")], ids=lambda words: words[0])
@pytest.mark.parametrize("kind", ["run", "compare"])
def test_reports_and_graphs_need_no_code(command, kind, sent):
    naming("method" if kind == "run" else LOCAL, kind)(sent)
    outcome = call(*command)
    assert outcome.exit_code == (0 if command[0] == "report" else 2)  # training alone has no graph
    assert not (sent / "it-ran").exists()


def test_python_refuses_it_too_until_the_code_is_trusted(sent):
    naming("model")(sent)
    result, opened = ct.Result.read("x"), ct.open("x")
    for action in (lambda: ct.resume("x"), lambda: result.model(0), lambda: opened.model(opened.clients[0])):
        with pytest.raises(CoterieError, match=r"x/config\.toml wants to run code: model\.name = 'x/evil\.py:X'"):
            action()
    assert not (sent / "it-ran").exists()
    with pytest.raises(CoterieError, match="has no 'X'"):
        ct.Result.read("x", trust_code=True).model(0)
    assert (sent / "it-ran").exists()


def test_the_model_given_in_python_needs_no_trust(sent):
    naming("model")(sent)
    opened = ct.open("x", model=ct.models.Linear())
    assert opened.model(opened.clients[0]).variables is not None
    assert not (sent / "it-ran").exists()


def test_code_runs_with_trust_and_where_a_person_names_it(sent):
    (sent / "mine.py").write_text(
        "from coterie.extend import method\nfrom coterie.methods import Local\n\n"
        "@method\nclass Mine(Local):\n    'Mine.'\n"
    )
    assert call("run", "e.toml", "--set", "method.name=mine.py:Mine", "--out", "m").exit_code == 0
    assert "wants to run code" in call("resume", "m").stderr
    outcome = call("resume", "m", "--trust-code")
    assert outcome.exit_code == 0, outcome.output
    assert ct.resume("m", trust_code=True).names == ct.Result.read("m").names


def test_names_of_ours_are_found_in_every_folder():
    with names_from("x/config.toml"):
        assert find("methods", "local").target.endswith("Local")
        with names_from("y/config.toml", trust_code=True):
            assert find("methods", "a:B").target == "a:B"
        with pytest.raises(CoterieError, match=r"^x/config\.toml wants to run code"):
            find("methods", "a:B")


# -- the terminal ---------------------------------------------------------------------------------------------


def test_names_cannot_steer_the_terminal(capsys):
    from rich.table import Table

    console = console_for()
    table = Table("client\x1b[2J")
    table.add_row("a\x1b]0;title\x07b")
    console.print(table)
    console.print("\x9b2J", markup=False, style="bold")
    printed = capsys.readouterr().out
    assert not re.search("[\x1b\x07\x9b]", printed)
    assert r"\x1b]0;title\x07" in printed


def coterie(*words: str, cwd: Path, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "coterie", *words], cwd=cwd, stderr=subprocess.PIPE, **options)


def test_a_terminal_of_another_encoding_and_a_full_disk_behind_standard_output(tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n1,2\n")
    with open("/dev/full", "w") as full:
        ended = coterie("list", "codecs", cwd=tmp_path, stdout=full)
    assert ended.returncode == 2
    assert ended.stderr.decode() == (
        "coterie: standard output cannot be written (No space left on device); what was run is kept\n"
    )
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = coterie("show", "東京", cwd=tmp_path, stdout=subprocess.PIPE, env=ascii_only)
    assert ended.returncode == 2
    assert rb"there is nothing called '\u6771\u4eac'" in ended.stderr


def test_a_reader_that_leaves_does_not_end_a_run():
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        stream = LastingStream(pipe)
        for _ in range(3):
            stream.write("text\n")
            stream.flush()
    assert isinstance(stream.failure, BrokenPipeError)


# -- Ctrl-C ---------------------------------------------------------------------------------------------------


def test_ctrl_c_before_the_first_round_gives_advice_that_works(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    console, folder = console_for(as_json=True), Path("a b")
    start, resume = "stopped before it began; start it again", "continue with: coterie resume 'a b'"
    for begun, advice in ((False, start), (True, resume)):
        if begun:
            folder.mkdir()
            (folder / "config.toml").touch()
        with pytest.raises(options.typer.Exit) as ended, options.screen_for(console, folder):
            raise KeyboardInterrupt
        assert ended.value.exit_code == 130
        assert advice in capsys.readouterr().err


def test_ctrl_c_while_a_file_of_ones_own_is_imported_is_no_error_of_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow.py").write_text("raise KeyboardInterrupt\n")
    outcome = call("show", "slow.py:X")
    assert outcome.exit_code == 130
    assert outcome.stderr == "stopped; start it again\n"
    assert contents(tmp_path).keys() == {"slow.py"}
