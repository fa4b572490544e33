"""How processes that share a run end: whoever stops alone says so, and nobody speaks for another one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

import coterie
from coterie.errors import CoterieError
from coterie.processes import meeting as module
from coterie.processes.address import Address, free_port
from coterie.processes.group import BEATS, Group
from coterie.processes.meeting import told

PROGRAM = Path(__file__).parents[1] / "support" / "meeting.py"


class Service(dict):
    """The texts that processes leave, without JAX."""

    def key_value_set(self, key, text, allow_overwrite=False):
        assert allow_overwrite or key not in self
        self[key] = text


class Exit(RuntimeError):  # noqa: N818 (as Typer's)
    """As the command line ends after a signal."""

    exit_code = 143


@pytest.mark.parametrize(
    ("error", "agreed", "said"),
    [
        (None, False, "done"),
        (KeyboardInterrupt(), False, "stopped:it was asked to end"),
        (Exit(), False, "stopped:it was asked to end"),
        (Exit(), True, "done"),
        (CoterieError("the disk is full"), False, "stopped:the disk is full"),
        (ValueError("first line\nsecond line"), False, "stopped:ValueError: first line"),
    ],
)
def test_others_are_told_why_a_process_stops(error, agreed, said, monkeypatch):
    service = Service()
    group = Group(Address("host:1", 2, 1), service)
    group.agreed = agreed
    monkeypatch.setattr(group, "_hang_up", lambda: None)
    monkeypatch.setattr(module, "_joined", [group])
    if error is None:
        with told():
            pass
    else:
        with pytest.raises(type(error)), told():
            raise error
    assert service == {"coterie/beat/1": said}


def test_a_process_without_memory_does_not_wait_for_news(monkeypatch):
    service, waited = Service(), []
    group = Group(Address("host:1", 2, 1), service)
    monkeypatch.setattr(group, "_hang_up", lambda: None)
    monkeypatch.setattr(group, "wait_for_news", lambda: waited.append(True))
    monkeypatch.setattr(module, "_joined", [group])
    with pytest.raises(jax.errors.JaxRuntimeError), told():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes")
    assert not waited
    assert service == {BEATS + "1": "stopped:JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes"}


@pytest.fixture
def start():
    """Return a function that starts a real process of this number, of so many, and one that waits for its end."""
    address, started = f"127.0.0.1:{free_port()}", []
    environment = {**os.environ, "PYTHONPATH": str(Path(coterie.__file__).parents[1])}

    def start(number, *words, count=2):
        command = [sys.executable, PROGRAM, address, str(count), str(number), *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env=environment, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def met(*processes):
    assert [process.stdout.readline() for process in processes] == ["met\n"] * len(processes)


def end_of(process):
    errors = process.communicate(timeout=60)[1]
    return process.returncode, errors


def test_a_number_given_twice_and_a_process_that_is_asked_to_end(start):
    """A second one with number 1 is sent away; the first one ends alone, and process 0 says so."""
    first, second = start(0), start(1)
    met(first, second)
    status, errors = end_of(start(1))
    assert status == 2
    assert errors.startswith("coterie: process 1 of 2 is not let in at 127.0.0.1:")
    assert "where another one may have the same number" in errors
    assert len(errors.splitlines()) == 1
    assert first.poll() is second.poll() is None
    second.send_signal(signal.SIGTERM)
    assert end_of(first) == (1, "coterie: process 1 has stopped: it was asked to end; process 0 ends, too\n")
    assert end_of(second)[0] != 0


def test_a_process_that_was_killed_and_is_started_again_ends_the_others(start):
    first, second = start(0), start(1)
    met(first, second)
    second.kill()
    since = time.monotonic()
    status, errors = end_of(start(1))
    assert (status, errors.startswith("coterie: process 1 was lost and started again, so the others are told")) == (
        2,
        True,
    )
    assert end_of(first) == (1, "coterie: process 1 has stopped: it was lost and started again; process 0 ends, too\n")
    assert time.monotonic() - since < 25  # not only after 30 s of silence


def test_a_process_that_a_library_aborts_says_so_itself(start):
    first, second = start(0), start(1, "abort")
    met(first, second)
    second.send_signal(signal.SIGUSR1)
    status, errors = end_of(second)
    assert (status, errors) == (1, "coterie: process 1 was aborted by a library; what it printed before may say why\n")
    assert end_of(first) == (1, "coterie: process 1 has stopped: a library has aborted it; process 0 ends, too\n")


def test_another_number_of_processes_is_refused(start):
    """Process 1 would wait for a process 2 that nobody starts."""
    first, second = start(0), start(1, count=3)
    assert "CoterieError: process 1 has --processes 3 and process 0 has 2" in end_of(second)[1]
    assert "process 1 has stopped: process 1 has --processes 3 and process 0 has 2" in end_of(first)[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_still_waits_for_the_others_can_be_ended(start, number):
    waiting = start(0)
    deadline = time.monotonic() + 60
    while not listens(waiting) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)
    waiting.send_signal(number)
    since = time.monotonic()
    assert end_of(waiting)[0] == -number
    assert time.monotonic() - since < 5


def listens(process):
    """Return whether a process listens on a port."""
    ports = Path(f"/proc/{process.pid}/net/tcp").read_text() + Path(f"/proc/{process.pid}/net/tcp6").read_text()
    listening = {line.split()[9] for line in ports.splitlines() if " 0A " in line}
    opened = (os.readlink(file) for file in Path(f"/proc/{process.pid}/fd").iterdir() if file.exists())
    return bool(listening & {name[8:-1] for name in opened if name.startswith("socket:[")})
