"""Members as real processes over mutual TLS on loopback: the numbers of a simulation; some die, freeze and come back.

`benchmarks/soak_peers.py` does the same with more members, many times.
"""

import json
import os
import signal

import numpy as np
import pytest
from typer.testing import CliRunner

from coterie.cli import app
from coterie.experiment.result import Result
from coterie.sites.local import LocalFederation
from coterie.sites.network import read_network_record
from support.cables import Cables
from support.group import Group
from support.peer_runs import STAGED, Watch, differences, listens, simulate, write_federation

NAMES = ("north", "east", "south")
# Equal to the bit (`make soak`); with the quicker programs of `make test` the losses of an evaluation are summed in
# another order where one client has a program of its own.
ROUNDING = 1e-6 if "fusion_emitters" in os.environ.get("XLA_FLAGS", "") else 0.0
RUN = {"rounds": 5, "evaluate_every": 2}
DEADLINE = 4.0
# Slots, questions, a hub and a stage; the others in `make soak` (tests/peers has all methods over the same network).
CASES = {
    "a stage": {"method": {"name": STAGED}, "graph": {"name": "complete"}, "federation": {"hub": "east"}},
    "a codec": {"method": {"name": "fedavg"}, "codec": {"name": "qsgd"}, "federation": {"hub": "south"}},
    "no hub": {"method": {"name": "fedavg", "participation": 0.7}},
    "partners": {"method": {"name": "fedavg", "participation": 0.7}, "run": RUN | {"all_to_all": 1}},
    "random links": {"method": {"name": "sgp"}, "graph": {"name": "random-directed"}},
    "SCooL": {"method": {"name": "scool-sbm", "sparsify_after": 3, "fraction": 0.5}, "graph": {"name": "complete"}},
}


@pytest.mark.parametrize(
    "case", [name if i == 0 else pytest.param(name, marks=pytest.mark.soak) for i, name in enumerate(CASES)]
)
def test_peers_give_the_numbers_and_bytes_of_a_simulation(tmp_path, device, case):
    path = write_federation(tmp_path, NAMES, **{"run": RUN} | CASES[case])
    words = ["peers", str(path), "--local", "--out", str(tmp_path / "peers"), "--trust-code", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    simulated = simulate(path, tmp_path / "simulation", device)
    folders = [tmp_path / "peers" / name for name in NAMES]
    assert differences(folders, simulated, ROUNDING) == []
    totals = simulated.ledger.totals()
    for i, folder in enumerate(folders):
        part = Result.read(folder)
        for way, total in part.ledger.totals().items():  # the frames that really left and came
            assert total.tolist() == [totals[way][i]]
        sent = [json.loads(line) for line in (folder / "sent.jsonl").read_text().splitlines()]
        assert {line["sender"] for line in sent} <= {NAMES[i], "hub"}
        assert all(len(line["digest"]) == 64 for line in sent)
    again = CliRunner().invoke(app, ["resume", str(folders[0])])  # it would be a simulation of one client
    assert again.exit_code == 2


def test_a_slow_member_leaves_out_no_round_where_nobody_missed_it(tmp_path, device):
    """Members of `l2gd` talk in some rounds only: in between the quick ones get ahead of the slow one, by several."""
    method = {"name": "l2gd", "p": 0.3, "iterations": 1, "lr": 0.01, "smoothness": 1.0}
    with Group(tmp_path, NAMES) as group:
        for seed, slow in enumerate(NAMES):
            run = {"rounds": 20, "evaluate_every": 10, "seed": seed}
            path = write_federation(tmp_path, NAMES, method=method, run=run, federation={"deadline": 60.0})
            folders, wrong = group.run(path, tmp_path / f"peers-{seed}", pace={slow: 0.05})
            assert wrong == {}
            assert differences(folders, simulate(path, tmp_path / f"simulation-{seed}", device), ROUNDING) == []


@pytest.fixture
def ctrl_c():
    """Let processes that are started here hear SIGINT: those of a job in the background of a shell ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_members_die_freeze_leave_and_come_back(tmp_path, ctrl_c):
    """One run: a full disk, a frozen process, SIGTERM, Ctrl-C, and three times each of another member kill -9, and a
    network that is cut in two.

    Nobody waits longer than a deadline, and who was away is back within three rounds. South has no address: it only
    opens connections, to members that can be reached.
    """
    names = (*NAMES, "west")
    path = write_federation(
        tmp_path,
        names,
        outbound=["south"],
        federation={"deadline": DEADLINE},
        run={"rounds": 100_000, "checkpoint_every": 1},
    )
    with Cables(path, tmp_path / "peers", options=["--pace", "0.1"], limits={"west": 20_000}) as local:
        watch = Watch(local)
        local.start()
        assert watch.until(lambda w: all(w.round(name) >= 3 for name in names), 240)[0], _why(local)
        assert [listens(local.processes[name].pid) for name in names] == [True, True, False, True]
        assert watch.until(lambda w: "west" in w.exits, 60)[0]
        assert watch.exits["west"] == 2
        assert "a file is too large" in local.why("west")
        assert "start this member again" in local.why("west")
        assert "Traceback" not in local.log("west").read_text()
        local.limits.clear()
        _kill_and_start_again(local, watch, "south", also=["west"])
        local.send(signal.SIGSTOP, "east")
        before = watch.round("north")
        assert watch.until(lambda w: w.round("north") >= before + 4, 60)[0]
        assert watch.longest < 1.25 * DEADLINE
        local.send(signal.SIGCONT, "east")
        assert watch.until(lambda w: w.round("east") > before + 4 and _level(w, names), 60)[0], _why(local)
        watch.longest = 0.0  # of east, which slept
        for half in (["north", "east"], ["north", "south"], ["north", "west"]):
            _cut_and_heal(local, watch, half)
        local.send(signal.SIGTERM, "south")
        assert watch.until(lambda w: "south" in w.exits, 30)[0]
        assert watch.exits["south"] == 128 + signal.SIGTERM
        assert (tmp_path / "peers" / "south" / "checkpoints").is_dir()
        _kill_and_start_again(local, watch, "west", also=["south"])
        _kill_and_start_again(local, watch, "north")
        assert watch.exits == {}
        assert watch.longest < 1.25 * DEADLINE
        local.send(signal.SIGINT, *names)
        assert watch.until(lambda w: w.exits == dict.fromkeys(names, 130), 60)[0], watch.exits


def _kill_and_start_again(local, watch, victim, also=()):
    """Kill a member; the others go on, and once it is started again (with those `also` away) all are together."""
    local.send(signal.SIGKILL, victim)
    there = [name for name in local.names if name not in (victim, *also)]
    assert watch.until(lambda w: all(victim not in w.connected(name) for name in there), 30)[0]
    before = max(watch.round(name) for name in there)
    assert watch.until(lambda w: all(w.round(name) >= before + 3 for name in there), 60)[0], _why(local)
    watch.forget(victim, *also)
    local.start(victim, *also)
    assert watch.until(lambda w: _level(w, local.names), 240)[0], _why(local)


def _cut_and_heal(local, watch, half):
    """Cut the network in two; both halves go on with their own members, and all are together once it is whole again."""
    halves = (half, [name for name in local.names if name not in half])
    local.cut(*halves)
    apart = {name: [other for other in part if other != name] for part in halves for name in part}
    assert watch.until(lambda w: all(w.connected(name) == apart[name] for name in apart), 60)[0], _why(local)
    before = {name: watch.round(name) for name in local.names}
    assert watch.until(lambda w: all(w.round(name) >= before[name] + 3 for name in before), 60)[0], _why(local)
    local.heal()
    assert watch.until(lambda w: _level(w, local.names), 60)[0], _why(local)


@pytest.mark.soak
def test_a_mean_from_partner_to_partner_goes_on_without_a_member(tmp_path):
    """One of five is killed and never comes back: through it went the sums of others, who then have means of some."""
    names = (*NAMES, "west", "mid")
    path = write_federation(
        tmp_path, names, method={"name": "fedavg"}, federation={"deadline": 4.0},
        run={"rounds": 60, "evaluate_every": 5, "all_to_all": 1, "mode": "exact"},
    )  # fmt: skip
    with LocalFederation(path, tmp_path / "peers", options=["--pace", "0.2"]) as local:
        watch = Watch(local)
        local.start()
        assert watch.until(lambda w: all(w.round(name) >= 5 for name in names), 240)[0], _why(local)
        local.send(signal.SIGKILL, "east")
        others = [name for name in names if name != "east"]
        assert watch.until(lambda w: all(w.exits.get(name) == 0 for name in others), 240)[0], _why(local)
    CliRunner().invoke(app, ["gather", str(tmp_path / "peers"), "--out", str(tmp_path / "all")], catch_exceptions=False)
    together = Result.read(tmp_path / "all")
    scores = np.array([row["test_score"] for row in together.rows])
    assert np.isfinite(scores).all()
    ended = [i for i, name in enumerate(names) if name != "east"]
    assert scores[-1][ended].mean() > scores[0][ended].mean()
    assert read_network_record(tmp_path / "all")["missing"]["east"] > 0
    replayed = CliRunner().invoke(app, ["replay", str(tmp_path / "peers")])
    # Killed between two steps of a mean, what it sent is not determined; otherwise the models are the same.
    assert "the models agree" in replayed.output or "stopped in the middle of round" in replayed.output


def _level(watch, names):
    """Whether everybody is connected to everybody, and nobody is three rounds behind."""
    rounds = [watch.round(name) for name in names]
    return min(rounds) >= 0 and max(rounds) - min(rounds) <= 3 and all(len(watch.connected(n)) == 3 for n in names)


def _why(local):
    return {name: local.why(name) for name in local.names}
