"""Signals: SIGTERM and SIGHUP end like Ctrl-C, and a short block of rounds is saved before."""

import gc
import json
import signal
import subprocess
import sys
import threading

import pytest

from coterie.experiment.interruption import ENDING, Terminated, held_back, termination
from coterie.experiment.machine import read_machine
from coterie.experiment.screen import Screen
from support.attacks import call, small_experiment


@pytest.fixture(autouse=True)
def _same_handlers_afterwards():
    usual = dict.fromkeys(ENDING, signal.SIG_DFL) | {signal.SIGINT: signal.default_int_handler}
    found = {number: signal.signal(number, handler) for number, handler in usual.items()}  # `nohup` ignores SIGHUP
    yield
    after = {number: signal.getsignal(number) for number in ENDING}
    for number, handler in found.items():
        signal.signal(number, handler)
    assert after == usual


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_is_an_interruption(name):
    number = getattr(signal, name)
    with pytest.raises(KeyboardInterrupt) as stop, termination():
        signal.raise_signal(number)
    assert isinstance(stop.value, Terminated)
    assert stop.value.number == number


def test_a_signal_that_is_ignored_stays_so():
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    try:
        with termination():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, former)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_what_is_held_back_comes_at_the_end(name):
    seen = []

    def work():
        with termination(), held_back() as stopping:
            seen.append(stopping())
            signal.raise_signal(getattr(signal, name))
            seen.append(stopping())

    with pytest.raises(KeyboardInterrupt):
        work()
    assert seen == [False, True]


def test_a_second_signal_comes_at_once():
    seen = []

    def work():
        with termination(), held_back():
            for number in range(3):
                seen.append(number)
                signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Terminated):
        work()
    assert seen == [0, 1]


def test_nothing_is_held_back_where_it_is_not_wanted():
    seen = []

    def work():
        with held_back(False):
            signal.raise_signal(signal.SIGINT)
            seen.append("still here")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert not seen


def test_without_our_handler_sigterm_is_left_alone():
    with held_back():  # as in a program of the user's own
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_off_the_main_thread_nothing_is_set():
    seen = []

    def work():
        with termination(), held_back():
            seen.extend(signal.getsignal(number) for number in ENDING)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(number) for number in ENDING]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_callback_of_the_garbage_collector_loses_no_signal(name):
    def callback(phase, info):
        if phase == "start":
            gc.callbacks.remove(callback)
            signal.raise_signal(getattr(signal, name))

    def work():
        with termination():
            gc.collect()
            threading.Event().wait(10)

    gc.callbacks.append(callback)
    with pytest.raises(KeyboardInterrupt):
        work()


@pytest.mark.parametrize(("moment", "name"), [("typer", "SIGINT"), ("numpy", "SIGTERM"), ("jaxlib", "SIGINT")])
def test_a_signal_while_modules_are_imported_ends_a_command_with_a_sentence(moment, name, tmp_path):
    small_experiment(tmp_path)
    number = getattr(signal, name)
    command = [sys.executable, "-X", "importtime", "-m", "coterie", "run", "e.toml", "--out", "out"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line.split("|")[-1].strip().startswith(moment):  # the first module of that name is there
                process.send_signal(number)
                break
        said = [line for line in process.stderr if not line.startswith("import time:")]
    # A busy machine may be slow to send it, and the run be about to begin.
    assert said in (["stopped; start it again\n"], ["stopped before it began; start it again\n"])
    assert process.returncode in (128 + number, -number)  # a shell shows both as the same
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("command", "folder"),
    [("run e.toml --out done", "done"), ("compare e.toml --methods local --no-tune --out done", "done/local/seed-0")],
)
def test_a_run_that_is_asked_to_end_saves_its_rounds_first(command, folder, tmp_path, monkeypatch, device):
    monkeypatch.chdir(tmp_path)
    small_experiment(tmp_path, rounds=4)
    update = Screen.update

    def ask(screen, label, seed, stage, number, rounds, metrics):
        update(screen, label, seed, stage, number, rounds, metrics)
        if stage == "round" and number == 3:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Screen, "update", ask)
    outcome = call(*command.split(), "--device", "cpu")
    assert outcome.exit_code == 128 + signal.SIGTERM, outcome.output
    assert outcome.stderr == "stopped after round 3; continue with: coterie resume done\n"
    assert max((tmp_path / folder / "checkpoints").iterdir()).name == "step-00000003.safetensors"
    assert read_machine(tmp_path / "done") == read_machine(tmp_path / folder) == device.machine
    monkeypatch.setattr(Screen, "update", update)
    outcome = call("resume", "done", "--device", "cpu")
    assert outcome.exit_code == 0, outcome.output
    lines = (tmp_path / folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 4]
