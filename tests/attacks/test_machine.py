"""Attacks on what a run remembers of its machine, and on the name of a device."""

import json
import shutil
from pathlib import Path

import pytest

from support.attacks import Attack, call, refuse, small_experiment


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run without its end: `coterie resume run` has to continue it."""
    place = tmp_path_factory.mktemp("begun")
    small_experiment(place)
    outcome = call("run", place / "e.toml", "--out", place / "run", "--device", "cpu")
    assert outcome.exit_code == 0, outcome.output
    (place / "run" / "summary.json").unlink()
    return place


def record(**changes):
    """Change fields of the record; `None` removes one."""

    def prepare(folder: Path) -> None:
        path = folder / "run" / "machine.json"
        fields = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}))

    return prepare


def written(data: bytes):
    return lambda folder: (folder / "run" / "machine.json").write_bytes(data)


def linked(folder: Path) -> None:
    path = folder / "run" / "machine.json"
    path.rename(folder / "elsewhere.json")
    path.symlink_to(folder / "elsewhere.json")


def nothing(_: Path) -> None:
    pass


RESUME, ON = ("resume", "run", "--device", "cpu"), ("resume", "run", "--device")
DEVICES = '"devices" must be a whole number'
ATTACKS = [
    Attack("empty", written(b""), RESUME, "run/machine.json cannot be read"),
    Attack("garbage", written(b"\xff\x00"), RESUME, "run/machine.json cannot be read"),
    Attack("a list", written(b"[]"), RESUME, "must be a table, not a list"),
    Attack("deep", written(b"[" * 60_000), RESUME, "run/machine.json cannot be read"),
    Attack("a link", linked, RESUME, "is not followed"),
    Attack("no devices", record(devices=None), RESUME, '"devices" is missing'),
    Attack("devices are text", record(devices="2"), RESUME, DEVICES),
    Attack("devices are true", record(devices=True), RESUME, DEVICES),
    Attack("0 devices", record(devices=0), RESUME, '"devices" must be at least 1'),
    Attack("10**9 devices", record(devices=10**9), RESUME, '"devices" must be at most 1024'),
    Attack("no processor", record(processor=None), RESUME, '"processor" is missing'),
    Attack("a newer format", record(format=2), RESUME, '"format" must be 1'),
    Attack("device tpu", nothing, (*ON, "tpu"), "device must be auto, cpu, cpu:N, gpu or gpu:N, not 'tpu'"),
    Attack("device cpu:", nothing, (*ON, "cpu:"), "device must be auto, cpu"),
    Attack("device cpu:0", nothing, (*ON, "cpu:0"), "1 to 1024 virtual devices"),
    Attack("device cpu:9999", nothing, (*ON, "cpu:9999"), "1 to 1024 virtual devices"),
    Attack("device cpu:10**30", nothing, (*ON, f"cpu:{10**30}"), "device must be auto, cpu"),
]


@pytest.fixture
def copy(begun, tmp_path, monkeypatch):
    """A working folder with a copy of the run."""
    shutil.copytree(begun / "run", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_refused(attack, copy):
    refuse(attack, copy)


def test_a_machine_file_of_somebody_else_is_not_read(begun, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    own = lambda folder: (folder / "mine/machine.json").write_text('{"hostname": "x"}')  # noqa: E731
    command = ("run", str(begun / "e.toml"), "--out", "mine", "--device", "cpu")
    refuse(Attack("the user's own file", own, command, "mine exists and is not the folder of a run"), tmp_path)


@pytest.mark.parametrize("changes", [{"devices": 3}, {"platform": "gpu", "jax": "0"}], ids=str)
def test_other_devices_are_noted(changes, copy):
    record(**changes)(copy)
    outcome = call("resume", "run", "--device", "cpu")
    assert outcome.exit_code == 0, outcome.output
    assert outcome.stderr.startswith("coterie: run was begun on ")
    assert outcome.stderr.endswith("may differ from those of a run that was never stopped\n")
