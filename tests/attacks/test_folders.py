"""Folders of the user's and of strangers: only what is ours is touched, and no link leads out of a folder."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import coterie as ct
from coterie.comparison.folder import ComparisonFolder
from coterie.experiment.folder import RunFolder
from coterie.storage.blocks import read_blocks
from support.attacks import Attack, call, contents, refuse
from support.folder_cases import OUTSIDE, REPORT, RESUME, RUN, chain, earlier_form, link, made, stopped

COMPARE = ("compare", "e.toml", "--methods", "local", "--no-tune", "--out", "x", "--device", "cpu")
EXPORT = ("export", "x", "--client", "client-0")
REPORT_C, RESUME_C = ("report", "c"), ("resume", "c", "--device", "cpu")
NO_RUN = "x exists and is not the folder of a run; choose another --out"
NO_COMPARISON = "x exists and is not the folder of a comparison; choose another --out"
LEFT = "is a link to a place outside of x, which is not followed"
MARKER = '{"format": 1, "kind": "comparison"}'
COMPARISON = "[data]\nname = 'digits'\n[run]\nseed = 0\n[compare]\nmethods = ['local']\nseeds = 1\n"
TARGET = f"{OUTSIDE}/precious.npz"


def no_run(folder):
    """Leave only the experiment."""
    shutil.rmtree(folder / "x")


def user(**files):
    """Let x be a folder of the user's with these files."""
    return chain(no_run, made({f"x/{name}": content for name, content in files.items()}))


def linked(folder):
    """Let a method of a comparison be a link."""
    made({"c/comparison.toml": COMPARISON, f"{OUTSIDE}/a": "b"})(folder)
    (folder / "c" / "local").symlink_to(folder / OUTSIDE)


def compared(old="", new="", failure=None):
    """Write a comparison.toml, with one text replaced, and maybe a failure.json."""
    files = {"c/comparison.toml": COMPARISON.replace(old, new) if old else new}
    return made(files | ({} if failure is None else {"c/local/failure.json": failure}))


FOLDERS = [
    Attack("ledger and graph of the user", user(**{"ledger/2024.xlsx": "a", "graph/family.dot": "b"}), RUN, NO_RUN),
    Attack("models of the user", user(**{"models/00000-client-0.safetensors": "a"}), RUN, NO_RUN),
    Attack("checkpoints of another program", user(**{"checkpoints/step-1.tmp": "a"}), RUN, NO_RUN),
    Attack("clients.json of another program", user(**{"clients.json": "a"}), RUN, NO_RUN),
    Attack("config.toml of another program", user(**{"config.toml": "[a]", "clients.json": "{}"}), RUN, NO_RUN),
    Attack("marker of another program", user(**{"coterie.json": '{"name": "a package"}'}), RUN, NO_RUN),
    Attack("marker of a comparison", user(**{"coterie.json": MARKER}), RUN, NO_RUN),
    Attack("marker of a newer version", user(**{"coterie.json": MARKER.replace("1", "2")}), COMPARE, "newer format"),
    Attack("lock of another program", user(lock="pid 7"), RUN, NO_RUN),
    Attack("--out is a file", chain(no_run, made({"x": "a"})), RUN, NO_RUN),
    Attack("--out of 300 letters", no_run, (*RUN[:3], "x" * 300, *RUN[4:]), "is too long a name; choose a shorter one"),
    Attack("only temporary files", user(**{"comparison.toml.tmp": "a"}), COMPARE, NO_COMPARISON),
    Attack("comparison.toml of another program", user(**{"comparison.toml": "[a]"}), COMPARE, NO_COMPARISON),
    Attack("a run as --out of a comparison", lambda folder: None, COMPARE, NO_COMPARISON),
    Attack("resume: nothing there", no_run, RESUME, "x is not the folder of a run: it has no config.toml"),
    Attack("export: a link", link("exports"), EXPORT, LEFT),
    Attack(
        "export: a folder of the user's", made({"y/model.json": "{}"}), (*EXPORT, "--out", "y"), "y exists and is not"
    ),
    Attack("report: a method is a link", linked, REPORT_C, "c/local/seed-0 is a link to a place outside of c"),
    *(
        Attack(f"resume: {name} is a link", chain(stopped, link(name, to)), RESUME, f"x/{name} {LEFT}")
        for to, names in {
            OUTSIDE: ("models", "checkpoints", "ledger", "graph"),
            TARGET: ("ledger.blocks", "graph.blocks", "metrics.jsonl", "timing.jsonl", "clients.json", "lock"),
        }.items()
        for name in names
    ),
    *(
        Attack(f"report: {name} is a link", link(name, TARGET), REPORT, f"x/{name} {LEFT}")
        for name in ("ledger.blocks", "graph.blocks", "metrics.jsonl", "summary.json", "scores.npz", "config.toml")
    ),
]

COMPARISONS = [
    Attack("report: empty", compared(), REPORT_C, 'c/comparison.toml: "run" is missing'),
    Attack("resume: empty", compared(), RESUME_C, 'c/comparison.toml: "run" is missing'),
    Attack("report: without [compare]", compared("[compare]", "[other]"), REPORT_C, '"compare" is missing'),
    Attack("resume: data.name gone", compared("name", "nom"), RESUME_C, 'c/comparison.toml: "data.name" is missing'),
    Attack(
        "report: seeds = 10**10",
        compared("seeds = 1", f"seeds = {10**10}"),
        REPORT_C,
        '"compare.seeds" must be at most',
    ),
    Attack("report: seeds = 10**5", compared("seeds = 1", f"seeds = {10**5}"), REPORT_C, "c is not complete"),
    Attack("report: seeds = 'x'", compared("seeds = 1", "seeds = 'x'"), REPORT_C, '"compare.seeds" must be a whole'),
    Attack("report: a label leaves", compared("'local'", "'../x'"), REPORT_C, '"compare.methods.1" must have letters'),
    Attack("report: failure {}", compared("l", "l", "{}"), REPORT_C, 'failure.json: "failure" is missing'),
    Attack("report: failure torn", compared("l", "l", "{"), REPORT_C, "remove it to train the method again"),
]


@pytest.mark.parametrize("attack", [*FOLDERS, *COMPARISONS], ids=str)
def test_refused(attack, work):
    refuse(attack, work)


# -- what must be right -----------------------------------------------------------------------------------------------


def test_files_of_the_user_in_a_run_stay(work):
    theirs = ["x/notes.txt", "x/ledger/2024.xlsx", "x/graph/notes.npz", "x/models/old.pt", "x/checkpoints/step-1.tmp"]
    made(dict.fromkeys(theirs, "precious"))(work)
    stopped(work)
    for file in (work / "x" / "checkpoints").glob("*.safetensors"):
        file.unlink()  # so that everything is made anew
    before = contents(work)
    outcome = call(*RESUME)
    assert outcome.exit_code == 0, outcome.output
    assert call(*REPORT).exit_code == 0
    assert {name: contents(work)[name] for name in theirs} == {name: before[name] for name in theirs}
    run = RunFolder(work / "x")
    run.remove()
    assert sorted(str(path.relative_to(work)) for path in (work / "x").rglob("*") if path.is_file()) == sorted(
        [*theirs, "x/coterie.json", "x/lock"]
    )
    assert run.is_ours()


def test_a_folder_given_as_a_link_is_followed(work):
    (work / "x").rename(work / "elsewhere")
    (work / "x").symlink_to(work / "elsewhere")
    assert call(*REPORT).exit_code == 0
    assert (work / "elsewhere" / "report.html").is_file()


@pytest.mark.parametrize("name", ["report.html", "report.html.tmp", "summary.json.tmp"])
def test_a_link_in_the_way_is_replaced_and_not_written_through(work, name):
    stopped(work)
    (work / "mine").write_text("precious")
    (work / "x" / name).unlink(missing_ok=True)
    (work / "x" / name).symlink_to(work / "mine")
    outcome = call(*RESUME)
    assert outcome.exit_code == 0, outcome.output
    assert (work / "mine").read_text() == "precious"


def test_a_run_of_an_earlier_version_is_read_and_continued(work):
    expected = ct.Result.read("x")
    earlier_form(work / "x")
    read = ct.Result.read("x")
    assert read.ledger.edges().equals(expected.ledger.edges())
    np.testing.assert_array_equal(read.graphs[2]["weights"], expected.graphs[2]["weights"])
    (work / "x" / "graph" / "00000009.npz").write_bytes(b"written after the checkpoint")
    stopped(work)
    newest = work / "x" / "checkpoints" / "step-00000002.safetensors"
    newest.unlink()
    outcome = call(*RESUME)
    assert outcome.exit_code == 0, outcome.output
    again = ct.Result.read("x")
    assert again.rows == expected.rows
    assert again.ledger.edges().equals(expected.ledger.edges())
    assert sorted(path.name for path in (work / "x" / "graph").iterdir()) == ["00000001.npz"]
    file = work / "x" / "graph.blocks"
    assert [number for number, _ in read_blocks(file.read_bytes(), file)] == [2]
    assert RunFolder("x").owned.marked


def test_an_interrupted_beginning_is_taken(work):
    shutil.rmtree(work / "x")
    made({"x/lock": "", "x/coterie.json.tmp": '{"format": 1'})(work)
    outcome = call(*RUN)
    assert outcome.exit_code == 0, outcome.output


def test_a_method_without_a_result_is_forgotten_but_not_the_users_files(tmp_path):
    folder = ComparisonFolder(tmp_path / "c")
    folder.write({"data": {"name": "digits"}, "run": {"seed": 0}}, {"local": {}}, {"seeds": 1})
    folder.fail("local", "it diverged", {})
    run = RunFolder(folder.run("local", 0))
    run.path.mkdir()
    run.owned.mark()
    made({"c/local/seed-0/clients.json": "{}", "c/local/tuning-0.json": "{}"})(tmp_path)
    made({"c/local/notes.txt": "mine", "c/local/seed-1/data.csv": "mine"})(tmp_path)
    folder.forget("local")
    left = sorted(str(path.relative_to(tmp_path)) for path in Path(tmp_path).rglob("*") if path.is_file())
    assert left == ["c/comparison.toml", "c/coterie.json", "c/local/notes.txt", "c/local/seed-1/data.csv"]


HOLDING = """
import fcntl, sys
stream = open(sys.argv[1], "a")
fcntl.flock(stream, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("begun", [True, False])
def test_a_comparison_that_another_process_writes_is_left_alone(begun, work):
    (work / "c").mkdir()
    if begun:
        settings = {"seeds": 1, "splits": 1, "tune": False}
        ComparisonFolder("c").write({"data": {"name": "digits"}, "run": {"seed": 0}}, {"local": {}}, settings)
    command = [sys.executable, "-c", HOLDING, "c/lock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"locked\n"
        words = ("compare", "e.toml", "--methods", "fedavg", "--no-tune", "--out", "c", "--device", "cpu")
        refuse(
            Attack("", lambda folder: None, words, "c is in use by another process; wait until that has ended"), work
        )


def test_many_evaluations_are_few_files(work):
    run = RunFolder(work / "x")
    graph, block = run.graphs()[2], run.ledger().blocks[-1]
    for number in range(3, 203):
        run.save_arrays("graph", number, graph)
        run.save_arrays("ledger", number, block)
    assert len(run.graphs()) == 202
    assert len(run.ledger().blocks) == 203
    assert sum(path.is_file() for path in (work / "x").rglob("*")) < 30
