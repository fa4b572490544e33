"""Clients that are away, fail or are slow: rounds of least squares against NumPy, and the settings around a run."""

import numpy as np
import pytest

from coterie.errors import CoterieError, CoterieWarning
from coterie.experiment.config import Experiment
from coterie.experiment.in_world import check_world
from coterie.experiment.job import Job
from coterie.graphs.mixing import metropolis
from coterie.graphs.topologies import Ring
from coterie.methods.fedavg import FedAvg
from coterie.methods.gossip_sgd import GossipSGD
from coterie.methods.local import Local
from coterie.methods.scaffold import Scaffold
from coterie.peers.faults import Faults
from coterie.peers.injection import Injection
from coterie.peers.world import World
from support.cases import own, regression, run, slope, training, weights_of

pytestmark = pytest.mark.usefixtures("x64")
SIZES, LR, SEED = (6, 9, 4, 12, 7), 0.2, 2


@pytest.fixture(scope="module")
def federation():
    return regression(SIZES)


def injected(federation, **world):
    return Injection.of(Faults.NONE, federation.names, world=World(**world), seed=SEED)


def stepped(federation, client, w):
    return w - LR * slope(w, *own(federation, client))


def test_fedavg_averages_those_drawn_and_gives_the_mean_to_all(federation, device):
    """w <- sum over S of n_k (w - lr g_k(w)) / sum over S of n_k, and a message up and down for each of S."""
    faults = injected(federation, participation=0.5)
    method = FedAvg(lr=LR, batch_size=0)
    started = training(federation, method, device, faults=faults)
    state, block = started.advance(started.init()[0], 1, 4)
    part, w = faults.schedule.presence(1, 4).part, np.zeros(3)
    for there in part:
        who = np.flatnonzero(there)
        w = np.average([stepped(federation, k, w) for k in who], axis=0, weights=np.array(SIZES)[who])
    np.testing.assert_allclose(weights_of(state.variables), np.tile(w, (5, 1)), rtol=1e-12)
    for link in ("up", "down"):
        assert (np.asarray(getattr(block.traffic, f"{link}_messages")) == part).all()
    assert not np.any(block.traffic.hub_lost)


def test_what_a_slow_client_sends_rests_on_the_model_that_it_began_with(federation, device):
    """With one slow client, late = 1: it trains the model of round 1 and is averaged in round 2."""
    faults = injected(federation, slow=0.2, late=1)
    (slow,) = np.flatnonzero(faults.schedule.slow)
    started = training(federation, FedAvg(lr=LR, batch_size=0), device, faults=faults)
    others, n, start = [k for k in range(5) if k != slow], np.array(SIZES), np.zeros(3)
    first = np.average([stepped(federation, k, start) for k in others], axis=0, weights=n[others])
    trained = [stepped(federation, k, start if k == slow else first) for k in range(5)]
    second = np.average(trained, axis=0, weights=n)
    state, models = run(started, 1)
    np.testing.assert_allclose(models, np.where(np.arange(5)[:, None] == slow, start, first), rtol=1e-12)
    _, models = run(started, 1, state, first=2)
    np.testing.assert_allclose(models, np.tile(second, (5, 1)), rtol=1e-12)


@pytest.mark.parametrize("method", [FedAvg(lr=LR, batch_size=0), GossipSGD(lr=LR, batch_size=0)])
def test_if_all_are_slow_three_rounds_are_one(federation, device, method):
    graph = Ring().build(5, 0) if method.topology == "graph" else None
    weights = None if graph is None else metropolis(graph)[0]
    slow = training(federation, method, device, graph, weights, faults=injected(federation, slow=1.0, late=2))
    plain = training(federation, method, device, graph, weights)
    np.testing.assert_allclose(run(slow, 6)[1], run(plain, 2)[1], rtol=1e-13)


def test_what_is_sent_by_clients_that_drop_out_is_lost_and_their_work_stays_with_them(federation, device):
    graph = Ring().build(5, 0)
    started = training(
        federation, GossipSGD(lr=LR, batch_size=0), device, graph, metropolis(graph)[0],
        faults=injected(federation, dropout=1.0),
    )  # fmt: skip
    state, block = started.advance(started.init()[0], 1, 3)
    alone = run(training(federation, Local(lr=LR, batch_size=0), device), 3)[1]
    np.testing.assert_allclose(weights_of(state.variables), alone, rtol=1e-12)
    assert (np.asarray(block.traffic.lost) == np.asarray(block.traffic.heard_messages)).all()
    assert np.asarray(block.traffic.heard_messages).sum() == 3 * 10  # a message on each directed edge in each round


def test_scaffold_counts_the_clients_that_are_there(federation, device):
    """c moves by |S| / N times the weighted mean of c_k+ - c_k; in one round of one step c_k+ is the gradient."""
    faults = injected(federation, participation=0.6, slow=0.2, late=1)
    started = training(federation, Scaffold(lr=LR, batch_size=0, renew="gradient"), device, faults=faults)
    state, _ = started.advance(started.init()[0], 1, 1)
    who = np.flatnonzero(faults.schedule.presence(1).part[0])
    gradients = [slope(np.zeros(3), *own(federation, k)) for k in who]
    expected = len(who) / 5 * np.average(gradients, axis=0, weights=np.array(SIZES)[who])
    control = np.asarray(state.control.w)[:, 0]
    busy = faults.schedule.tables(1).busy[0, :5]
    np.testing.assert_allclose(control, np.where(busy[:, None], 0, expected), rtol=1e-12)


# -- around a run ---------------------------------------------------------------------------------------------------

TABLES = {"data": {"name": "digits"}, "model": {"name": "logistic"}, "run": {"rounds": 2}}


def experiment(method="fedavg", codec="none", **world):
    method = method if isinstance(method, dict) else {"name": method}
    return Experiment.from_dict({**TABLES, "method": method, "codec": codec, "world": world})


def test_a_world_in_which_all_take_part_is_none():
    """The file, and so its hash and its run, are those without the section."""
    assert experiment(participation=1.0, late=3).to_dict() == Experiment.from_dict(
        {**TABLES, "method": {"name": "fedavg"}}
    ).to_dict()  # fmt: skip
    chosen = experiment(participation=0.5)
    assert Experiment.from_dict(chosen.to_dict()).world == World(participation=0.5)
    assert chosen.replace({"world": {"participation": 1.0}}) == experiment()


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (({"name": "fedavg", "participation": 0.5}, "none", {"dropout": 0.1}), "write participation in .world. alone"),
        (("fedavg", "top-k", {"dropout": 0.1}), "world.dropout needs codec none for fedavg"),
        (("gossip-sgd", "top-k", {"participation": 0.5}), "world.participation needs codec none for gossip-sgd"),
    ],
)
def test_what_cannot_be_combined_is_refused(chosen, words):
    method, codec, world = chosen
    with pytest.raises(CoterieError, match=words):
        check_world(experiment(method, codec, **world), codec != "none")


def test_baselines_without_rounds_are_not_touched():
    check_world(experiment("pooled", participation=0.5), coded=False)
    with pytest.warns(CoterieWarning, match="changes nothing for hierarchical"):
        check_world(experiment("hierarchical", participation=0.5), coded=False)
    job = Job.of(experiment("pooled", participation=0.5))
    assert job.injection() is None
