"""Attacks that a second look found: other names for the same file, pipes, and numbers that only look like numbers."""

import json
import os
import shutil

import pytest

from support.attacks import Attack, call, contents, refuse, small_experiment


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    place = tmp_path_factory.mktemp("trained")
    small_experiment(place)
    before = os.getcwd()
    os.chdir(place)
    outcome = call("run", "e.toml", "--out", "x", "--device", "cpu")
    os.chdir(before)
    assert outcome.exit_code == 0, outcome.output
    return place


@pytest.fixture
def work(trained, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path / "work", symlinks=True)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def record(file, **changes):
    def prepare(folder):
        path = folder / "x" / file
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return prepare


def score(value):
    def prepare(folder):
        path = folder / "x" / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        lines[-1]["test_score"][0] = value
        path.write_text("\n".join(map(json.dumps, lines)) + "\n")

    return prepare


def theirs(folder):
    (folder / "proj").mkdir()
    for name in ("clients.json", "metrics.jsonl", "preparation.json", "predict.py"):
        (folder / "proj" / name).write_text("precious")


def pipe(folder):
    os.mkfifo(folder / "pipe.toml")


def array(shape):
    def prepare(folder):
        header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({shape},), }}".ljust(117) + "\n"
        (folder / "n.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())

    return prepare


PREDICT = ("predict", "x", "rows.csv")
ATTACKS = [
    Attack("a way to their folder", theirs, ("run", "e.toml", "--out", "nowhere/../proj"), "is not the folder", True),
    Attack(
        "export into it", theirs, ("export", "x", "--client", "s0", "--out", "none/../proj"), "choose another", True
    ),
    Attack("a pipe as experiment", pipe, ("run", "pipe.toml"), "is not a plain file"),
    Attack("400 digits", score(10**400), ("report", "x"), '"test_score" must be finite numbers'),
    Attack("1e308", score(1e308), ("report", "x"), '"test_score" must be numbers of at most 1e+140'),
    Attack("-1e308", score(-1e308), ("report", "x"), '"test_score" must be numbers of at most 1e+140'),
    Attack("a mean of 1e308", record("summary.json", mean=1e308), ("report", "x"), '"mean" must be between -1e+140'),
    Attack("three names of two classes", record("clients.json", class_names=["a", "b", "c"]), PREDICT, "class_names"),
    Attack("float8", record("clients.json", dtype="float8"), PREDICT, '"dtype" must be'),
    Attack("inputs of no numbers", record("clients.json", sample_shape=[0]), PREDICT, '"sample_shape'),
    Attack("npy of 10**30", array(10**30), ("predict", "x", "n.npy"), "get the file again"),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_refused(attack, work):
    refuse(attack, work)
    if (work / "proj").exists():
        assert {path.read_text() for path in (work / "proj").glob("*.*")} == {"precious"}


def test_a_new_member_called_like_a_way_out_stays_in_its_folder(work):
    before = contents(work / "x")
    outcome = call("join-trained", "x", "rows.csv", "--name", "..")
    assert outcome.exit_code in (0, 2), outcome.output
    after = contents(work / "x")
    assert {name: after[name] for name in before} == before
    assert all(name.startswith("joined") for name in after.keys() - before.keys())


def test_a_file_with_another_name_elsewhere_is_not_changed(work):
    (work / "x" / "summary.json").unlink()
    for name in ("scores.npz", "metrics.jsonl"):
        (work / "mine").write_bytes((work / "x" / name).read_bytes() + b"mine")
        (work / "x" / name).unlink()
        os.link(work / "mine", work / "x" / name)
        assert call("resume", "x", "--device", "cpu").exit_code in (0, 2)
        assert (work / "mine").read_bytes().endswith(b"mine"), name
        (work / "mine").unlink()


@pytest.mark.parametrize(
    "command", [("report", "x", "--out", "n.html"), (*PREDICT, "--out", "n.html")], ids=lambda c: c[0]
)
def test_a_temporary_file_of_the_user_stays(command, work):
    (work / "n.html.tmp").write_text("precious")
    assert call(*command).exit_code == 0
    assert (work / "n.html.tmp").read_text() == "precious"


def test_a_run_whose_report_cannot_be_written_shows_its_scores(work):
    (work / "x" / "report.html").unlink()
    (work / "x" / "report.html").mkdir()
    outcome = call("run", "e.toml", "--out", "x", "--device", "cpu")
    assert outcome.exit_code == 0, outcome.output
    assert "there is no report: " in outcome.output
    assert "accuracy" in outcome.output
