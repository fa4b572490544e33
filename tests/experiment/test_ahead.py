"""Programs compiled ahead, as on a GPU: they are those that the run needs, and nothing else changes."""

from concurrent.futures import Future

import jax
import numpy as np
import pytest

from coterie.codecs import QSGD
from coterie.experiment import engine as engines
from coterie.experiment.ahead import compile_ahead
from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.experiment.training import Training
from coterie.graphs.graph import Graph
from coterie.learning.task import Task
from coterie.methods import FedAvg, ScoolAttention, ScoolSBM
from coterie.models.linear import Linear
from coterie.peers.local import Plan
from coterie.testing.small import small_federation

ROUNDS = 5
SIX = small_federation(clients=6)


@pytest.fixture
def beside(monkeypatch):
    """Compile in threads here, too."""
    monkeypatch.setattr(Engine, "compiles_aside", property(lambda self: True))


def started(method, **how):
    engine = Engine(Task.of(SIX, Linear()), SIX, choose_device("cpu"), Plan("fast"))
    graph = Graph.complete(6) if method.topology == "graph" else Graph.empty(6)
    training = Training(engine, method, graph, np.zeros(graph.neighbours.shape), 0, **how)
    training.longest = 2
    return training, training.init()[0]


def trained(training, state):
    done, scores = 0, []
    while done < ROUNDS:
        count = training.rounds_to_stage(done + 1, min(2, ROUNDS - done))
        state, _ = training.advance(state, done + 1, count)
        done += count
        scores.append(training.evaluate(state, done)["validation_loss"])
        state, _ = training.next_stage(state, done)
    return jax.device_get(training.models(state, done)), np.stack(scores)


@pytest.mark.parametrize(
    ("method", "programs"),
    [
        (FedAvg(lr=0.1), 2),
        (ScoolSBM(lr=0.1, sparsify_after=3, fraction=0.4), 5),  # rounds and evaluation, twice, and who is kept
        pytest.param(ScoolAttention(lr=0.1, sparsify_after=3, fraction=0.4), 5, marks=pytest.mark.soak),
        pytest.param(
            ScoolSBM(lr=0.1, sparsify_after=ROUNDS, fraction=0.4), 2, marks=pytest.mark.soak
        ),  # no round follows
    ],
)
def test_all_programs_of_a_run_are_compiled_before_its_first_round(beside, method, programs):
    training, state = started(method)
    before = training.engine.traces
    compile_ahead(training, state, 1, ROUNDS)
    assert training.engine.traces == before + programs
    models, scores = trained(training, state)
    later = 1 + (method.topology == "graph" and programs == 2)  # the models at the end; who is kept in the last round
    assert training.engine.traces == before + programs + later
    others, expected = trained(*started(method))
    np.testing.assert_array_equal(scores, expected)
    jax.tree.map(np.testing.assert_array_equal, models, others)


def test_a_second_run_waits_for_nothing(beside):
    training, state = started(ScoolSBM(lr=0.1, sparsify_after=3, fraction=0.4))
    compile_ahead(training, state, 1, ROUNDS)
    trained(training, state)
    again = Training(
        training.engine, ScoolSBM(lr=0.05, sparsify_after=3, fraction=0.4), Graph.complete(6), np.zeros((6, 5)), 1
    )
    again.longest, before = 2, training.engine.traces
    state = again.init()[0]
    compile_ahead(again, state, 1, ROUNDS)
    trained(again, state)
    assert training.engine.traces == before


def test_what_a_thread_could_not_compile_is_compiled_when_it_is_needed(beside, monkeypatch):
    """There may be too little memory beside a program that runs."""

    def full(lowered, options):
        failed = Future()
        failed.set_exception(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory"))
        return failed

    monkeypatch.setattr(engines, "compiled_aside", full)
    training, state = started(FedAvg(lr=0.1))
    compile_ahead(training, state, 1, ROUNDS)
    models, scores = trained(training, state)
    others, expected = trained(*started(FedAvg(lr=0.1)))
    np.testing.assert_array_equal(scores, expected)
    jax.tree.map(np.testing.assert_array_equal, models, others)


@pytest.mark.parametrize("device", [False, True])
def test_not_on_a_cpu_and_not_with_a_codec(monkeypatch, device):
    """A stage with a codec has a memory of messages, whose shapes are known when it begins."""
    if device:
        monkeypatch.setattr(Engine, "compiles_aside", property(lambda self: True))
    training, state = started(FedAvg(lr=0.1), codec=QSGD() if device else None)
    before = training.engine.traces
    compile_ahead(training, state, 1, ROUNDS)
    assert training.engine.traces == before


@pytest.mark.parametrize(("platform", "used", "aside"), [("gpu", 25, True), ("gpu", 26, False), ("cpu", 0, False)])
def test_only_on_a_gpu_with_memory_to_spare(platform, used, aside):
    class Chip:
        def memory_stats(self):
            return {"bytes_in_use": used, "bytes_limit": 100}

    training, _ = started(FedAvg(lr=0.1))
    training.engine.device = training.engine.device._replace(platform=platform, devices=(Chip(),))
    assert training.engine.compiles_aside is aside
