"""Processes of different machines reach each other, whatever a machine's own name points to."""

import json
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.experiment.config import Experiment
from coterie.experiment.job import Job
from coterie.experiment.run import execute
from coterie.processes import meeting as module
from coterie.processes.address import Address
from coterie.processes.group import Group
from coterie.processes.meeting import told
from coterie.processes.reachable import both_ends, listen_at_own_address, unreachable
from coterie.storage.toml import dump_toml
from support.namespaces import TwoHosts, can_cut

BARRED = (
    "UNKNOWN: Gloo context initialization failed: [external/gloo/gloo/transport/tcp/pair.cc:152] timed out connecting: "
    "SO_ERROR: Connection refused, remote=[127.0.1.1]:428"
)


class Others:
    """What the other processes say; keeps what this one has said."""

    def __init__(self, index, addresses):
        self.index, self.addresses, self.said = index, addresses, None

    def exchange(self, what, text=""):
        self.said = text
        return [text if i == self.index else address for i, address in enumerate(self.addresses)]


@pytest.fixture
def listened(monkeypatch):
    """A function that lets JAX make its collectives, and returns where they were told to listen."""
    from jax._src.lib import _jax

    monkeypatch.setattr(_jax, "make_gloo_tcp_collectives", lambda hostname=None: hostname)
    return lambda: _jax.make_gloo_tcp_collectives()


def test_a_process_listens_where_it_reaches_the_coordinator(listened):
    with socket.create_server(("127.0.0.1", 0)) as server:
        coordinator = f"127.0.0.1:{server.getsockname()[1]}"
        assert both_ends(coordinator) == ("127.0.0.1", "127.0.0.1")
        others = Others(1, ["", ""])
        assert listen_at_own_address(others, coordinator) == others.said == "127.0.0.1"
    assert listened() == "127.0.0.1"


def test_the_first_process_listens_where_the_others_reach_it(listened):
    assert listen_at_own_address(Others(0, ["", "", "10.0.0.1"]), "node-a:1") == "10.0.0.1"
    assert listened() == "10.0.0.1"


def test_a_process_beside_the_first_one_listens_where_other_machines_reach_that(listened):
    """It reaches process 0 by a loopback address, at which no other machine would find it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        coordinator = f"127.0.0.1:{server.getsockname()[1]}"
        assert listen_at_own_address(Others(1, ["", "", "10.0.0.1"]), coordinator) == "10.0.0.1"
        assert listened() == "10.0.0.1"
        assert listen_at_own_address(Others(0, ["", "127.0.1.1", "10.0.0.1"]), coordinator) == "10.0.0.1"


def test_where_nobody_knows_an_address_the_name_of_the_machine_is_used(listened):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # it does not listen
        assert listen_at_own_address(Others(1, ["", ""]), f"127.0.0.1:{nobody.getsockname()[1]}") == ""
    assert listened() is None


def test_processes_that_met_and_cannot_reach_each_other_end_in_a_sentence(monkeypatch):
    said = []
    group = Group(Address("host:1", 2, 1), None)
    monkeypatch.setattr(group, "leave", said.append)
    monkeypatch.setattr(module, "_joined", [group])
    with pytest.raises(CoterieError, match=r"process 1 cannot reach .* on all ports"), told():
        raise RuntimeError(BARRED)
    assert said[0].startswith("process 1 cannot reach another one, though they have met (timed out connecting")
    assert unreachable(1, RuntimeError("something else")) is None


@pytest.mark.timeout(300)
def test_two_hosts_whose_own_names_are_loopback_addresses(tmp_path, device):
    """The same numbers as one process has, over a network between two namespaces; the first has two processes."""
    if not can_cut():
        pytest.skip("needs root and network namespaces")
    tables = {
        "partition": {"clients": 5},
        "model": {"name": "linear"},
        "method": {"name": "gossip-sgd"},
        "run": {"rounds": 2, "mode": "exact"},
    }
    (tmp_path / "experiment.toml").write_text(dump_toml(tables))
    started = []
    with TwoHosts() as hosts:
        for i, host in enumerate((0, 0, 1)):
            words = [sys.executable, "-m", "coterie", "run", tmp_path / "experiment.toml", "--out", tmp_path / "run"]
            words += ["--device", "cpu", "--json", "--coordinator", "node-a:8476", "--processes", "3", "--process", i]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            started.append(subprocess.Popen(hosts.command(host, words), **pipes))
        with ThreadPoolExecutor() as pool:
            printed = list(pool.map(lambda process: process.communicate(timeout=200), started))
    assert [process.returncode for process in started] == [0, 0, 0], printed
    assert json.loads(printed[0][0])["method"] == "gossip-sgd"
    straight = execute(Job.of(Experiment.from_dict(tables)), device=device)
    ours = execute(Job.of(Experiment.from_dict(tables)), out=tmp_path / "run", device=device)
    np.testing.assert_array_equal(ours.final["test_loss"], straight.final["test_loss"])
