"""How processes that share a run end: whoever stops alone says so, and nobody speaks for another one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import coterie
from coterie.errors import CoterieError
from coterie.processes import group as module
from coterie.processes.address import Address, free_port
from coterie.processes.group import Group, told

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


def test_a_number_given_twice_and_a_process_that_is_asked_to_end():
    """Real processes: a second one with number 1 is sent away; the first one ends alone, and process 0 says so."""
    address, started = f"127.0.0.1:{free_port()}", []
    environment = {**os.environ, "PYTHONPATH": str(Path(coterie.__file__).parents[1])}

    def start(number):
        command = [sys.executable, PROGRAM, address, "2", str(number)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env=environment, **pipes))
        return started[-1]

    try:
        first, second = start(0), start(1)
        assert (first.stdout.readline(), second.stdout.readline()) == ("met\n", "met\n")
        another = start(1)
        _, errors = another.communicate(timeout=60)
        assert another.returncode == 2
        assert errors.startswith(f"coterie: process 1 of 2 is not let in at {address}, where another one may have")
        assert len(errors.splitlines()) == 1
        assert first.poll() is second.poll() is None
        second.send_signal(signal.SIGTERM)
        _, errors = first.communicate(timeout=60)
        assert first.returncode == 1
        assert errors == "coterie: process 1 has stopped: it was asked to end; process 0 ends, too\n"
        second.communicate(timeout=60)
        assert second.returncode != 0
    finally:
        for process in started:
            process.kill()
