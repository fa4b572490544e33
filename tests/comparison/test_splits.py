"""Splits and defaults of a comparison: test sets change with the split, and no default refuses another."""

import dataclasses

import numpy as np
import pytest

import coterie as ct
from coterie.comparison.config import DEFAULT_METHODS, ComparisonConfig, choice_of
from coterie.comparison.plan import Asked, Plan, _usual
from coterie.comparison.splits import draw_splits, number_of_splits, same_programs
from coterie.errors import CoterieError, CoterieWarning
from coterie.experiment.config import Experiment
from coterie.experiment.job import make_graph, measure_graph
from coterie.graphs.similarity import Similarity
from coterie.methods.component import Component
from coterie.methods.gossip_sgd import GossipSGD
from coterie.methods.network_lasso import NetworkLasso


def sites(sizes, seed=0):
    """Sites whose samples are all different numbers, so that a sample is known by its value."""
    random = np.random.default_rng(seed)
    values = np.arange(sum(sizes), dtype=np.float32)
    parts = np.split(random.permutation(values), np.cumsum(sizes)[:-1])
    return {f"site-{i}": (part[:, None], (part > values.mean()).astype(int)) for i, part in enumerate(parts)}


def rows(federation, part, client):
    split = getattr(federation, part)
    return set(split.x[client, : split.count[client], 0].tolist())


def test_a_split_divides_the_same_samples_of_the_same_clients_anew():
    federation = ct.federation(sites([20, 30, 25]))
    drawn = draw_splits(federation, 3)
    assert drawn[0] is federation
    for client in range(3):
        whole = [set().union(*(rows(f, part, client) for part in ("train", "validation", "test"))) for f in drawn]
        assert whole[0] == whole[1] == whole[2]
        tests = {frozenset(rows(f, "test", client)) for f in drawn}
        assert len(tests) == 3
    again = ct.federation(sites([20, 30, 25]), seed=1)
    np.testing.assert_array_equal(drawn[1].test.x, again.test.x)  # the next seed
    assert all(f.train.x.shape == federation.train.x.shape and same_programs(f, federation) for f in drawn)


def test_small_test_sets_of_real_clients_are_drawn_five_times_by_default():
    pool = sites([20, 30, 25])
    assert number_of_splits(ct.federation(pool), None) == 5
    assert number_of_splits(ct.federation(pool), 2) == 2
    assert number_of_splits(ct.federation(sites([600, 600])), None) == 1  # 120 test samples each
    given = ct.federation(pool, test=pool)
    assert number_of_splits(given, None) == 1
    with pytest.raises(CoterieError, match="splits is 2, but these data cannot be divided again"):
        number_of_splits(given, 2)
    # clients that are made up from a pool would be others in every draw
    digits = ct.load("digits", clients=3)
    assert number_of_splits(digits, None) == 1
    assert len(draw_splits(digits, number_of_splits(digits, 2))) == 2
    assert number_of_splits(dataclasses.replace(ct.federation(pool), redraw=None), None) == 1


def test_a_limit_on_the_clients_chooses_the_same_ones_for_every_split():
    x, y = np.arange(60.0)[:, None], np.arange(60) % 2
    federation = ct.load(ct.pool(x, y, owner=np.repeat(np.arange(12), 5)), "natural", clients=3)
    drawn = draw_splits(federation, 4)
    assert {f.names for f in drawn} == {federation.names}
    assert len({f.test.x.tobytes() for f in drawn}) > 1


def test_run_r_has_its_seed_and_takes_the_splits_in_turn():
    tables = {"run": {"seed": 7, "rounds": 1}, "partition": {"clients": 4, "seed": 3}}
    planned = ComparisonConfig.from_dict(tables | {"compare": {"methods": ["local"], "seeds": 5, "splits": 2}})
    plan = Plan.of(Asked.of(planned, None, 1, None, True, {}), None)
    assert (list(plan.runs), plan.first_seed) == ([0, 1, 2, 3, 4], 7)
    assert [plan.experiment("local", r % 2).partition.common.seed for r in plan.runs] == [3, 4, 3, 4, 3]
    np.testing.assert_array_equal(plan.federations[1].train.x, ct.load("digits", clients=4, classes=3, seed=4).train.x)
    assert len(dataclasses.replace(plan, seeds=1).runs) == 2  # at least one run for every split


# -- defaults that must not contradict each other ----------------------------------------------------------------------


class Task:
    """All that a graph of data summaries asks of a task."""

    dtype = np.float32


TASK = Task()


@pytest.mark.parametrize("clients", [2, 4, 7])
def test_the_usual_graph_suits_any_number_of_clients(clients):
    federation = ct.federation(sites([12] * clients))
    auto = Experiment.from_dict({}).graph
    measured = measure_graph(NetworkLasso(), auto, federation, TASK)
    graph, _ = make_graph(NetworkLasso(), auto, clients, measured)
    assert graph.degree.min() >= min(5, clients - 1)


def test_the_number_of_neighbours_can_be_set_without_naming_the_graph():
    federation = ct.federation(sites([12] * 8))
    given = Experiment.from_dict({"graph": {"k": 2}}).graph
    named = Experiment.from_dict({"graph": {"name": "similarity", "k": 2, "connect": True}}).graph
    for method in (NetworkLasso(), Component()):
        one, other = (measure_graph(method, part, federation, TASK) for part in (given, named))
        np.testing.assert_array_equal(one.edges, other.edges)
    make_graph(GossipSGD(), given, 8)  # its graph has no such number
    with pytest.raises(CoterieError, match=r"graph.k must be less than the number of clients, 8, not 8"):
        Similarity(k=8).build_from(federation)
    assert "k" not in Experiment.from_dict({}).to_dict()["graph"]


def test_usual_methods_that_do_not_suit_the_clients_are_left_out():
    usual = [choice_of(name) for name in DEFAULT_METHODS]
    few, many = ct.federation(sites([4] * 3)), ct.federation(sites([4] * 301))
    assert _usual(usual, few) == usual
    with pytest.warns(CoterieWarning, match="scool-sbm is left out: with 301 clients"):
        assert [c.label for c in _usual(usual, many)] == [n for n in DEFAULT_METHODS if n != "scool-sbm"]
    numbers = ct.federation({name: (x, x[:, 0]) for name, (x, _) in sites([4] * 3).items()})
    assert [c.label for c in _usual(usual, numbers)] == [n.replace("scool-sbm", "pfedgraph") for n in DEFAULT_METHODS]
