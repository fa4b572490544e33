"""The contract every method keeps, as checks anyone can run on a method of their own.

    from coterie import check_method
    check_method(Mine)            # or check_method("gossip-sgd", order="mix-and-step")

A small federation of unequal clients is trained for a few rounds in every way the engine has: batched or one by one,
in one process or two, with and without lost messages, stopped and resumed. Results that must not differ are compared.
A check raises `AssertionError` (or `CoterieError`) with the reason; `checking.py` runs all of them and makes a table. A
method that is solved outside the program (`Solved`) has to keep those checks that are not about rounds and messages
(`SOLVED`).
"""

import dataclasses
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie.data.clients import Split
from coterie.experiment.returned import poisoned, refuse_spread
from coterie.experiment.training import Training
from coterie.graphs.directed import RandomDirected
from coterie.graphs.graph import Graph
from coterie.learning.task import Task
from coterie.methods.base import Solved
from coterie.peers.line import HUB
from coterie.storage import checkpoint
from coterie.testing.away import leaves_out_who_is_away
from coterie.testing.case import CLIENTS, ROUNDS, SEED, Case
from coterie.testing.small import small_federation
from coterie.testing.two_processes import arrivals_of, merge, train

__all__ = ["CHECKS", "SOLVED", "checks_of"]

ELSEWHERE = (
    "clients in two processes get other models; take means and sums over clients with a verb (peers.mean, blend), not "
    "over the first axis, and seal products that are added to something (docs/concepts/verbs.md)"
)


# -- the checks ---------------------------------------------------------------------------------------------------


def compiles_once(case: Case) -> None:
    """Compile once for a block of rounds, whatever the round and the real-valued hyper-parameters."""
    training = case.training("fast")
    block = training.rounds_to_stage(1, ROUNDS)  # the program that other checks use, too
    state, _ = training.init()
    state, _ = training.advance(state, 1, block)
    before = training.engine.traces
    state, _ = training.advance(state, 1 + block, block)
    if "lr" in {field.name for field in dataclasses.fields(case.method)}:
        slower = dataclasses.replace(case.method, lr=case.method.lr / 2)
        other = case.training(engine=training.engine, method=slower)
        other.advance(other.init()[0], 1, block)
    assert training.engine.traces == before, "a later round or another learning rate compiles the program again"


def stays_finite(case: Case) -> None:
    """Keep models, losses and metrics finite."""
    outcome = case.straight("fast")
    metrics = case.training("fast").evaluate(outcome.state, ROUNDS)
    for leaf in [*jax.tree.leaves(outcome.models), outcome.loss, *metrics.values()]:
        assert np.isfinite(leaf).all(), "a model, a loss or a metric is not finite"


def sends_what_it_mixes(case: Case) -> None:
    """Let no number of one client reach another without a verb: here, where the method sends nothing."""
    if case.method.topology != "none":
        return  # that it calls a verb is checked while its round is traced; what it does besides, by `lives_anywhere`
    training = case.training("fast")
    block = training.rounds_to_stage(1, ROUNDS)
    state, _ = training.init()
    after, _ = training.advance(training.engine.place(poisoned(state, CLIENTS)), 1, block)
    refuse_spread(case.method, case.method.models(training.inner(after)).params)


def permutes_with_clients(case: Case) -> None:
    """Store the clients in another order: the results move with them."""
    order = np.random.default_rng(1).permutation(CLIENTS)
    models = jax.tree.map(lambda a: a[order], case.straight("exact").models)
    moved = train(case.training("exact", case.federation.select(order), ids=order), ROUNDS).models
    _assert_close(models, moved, 1e-6, "the order of storage changes the result")


def alone_without_others(case: Case) -> None:
    """Equal plain gradient descent when there is nobody to talk to: no neighbours, or a federation of one."""
    if not case.method.alone_is_sgd:
        return
    alone = case.method.topology == "hub" or case.method.uses_hub
    clients = 1 if alone else CLIENTS
    federation = small_federation(clients, validation=False)
    method = case.method.plain()
    training = case.training("exact", federation, method=method, graph=case._graph(clients, reach=0))
    state, _ = training.init()
    state, _ = training.advance(state, 1, ROUNDS)
    init_key = jax.random.split(jax.random.key(SEED), 3)[0]
    descend = jax.jit(lambda data: _descend(training.task, init_key, data, method))  # compiled once for all clients
    expected = [descend(Split(*(jnp.asarray(a[i]) for a in federation.train))) for i in range(clients)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *expected)
    _assert_close(stacked, method.models(training.inner(state)).params, 2e-6, "without others it is not training alone")


def _descend(task: Task, key: jax.Array, data: Split, method: Any) -> Any:
    """Run gradient descent on one client's data, written independently of the engine."""
    params, statistics = task.init(key)
    real = jnp.arange(data.x.shape[0]) < data.count
    slope = jax.grad(lambda p: task.loss(p, statistics, data.x, data.y, real)[0])
    step = lambda params: jax.tree.map(lambda p, g: p - method.lr * g, params, slope(params))  # noqa: E731
    for _ in range(ROUNDS):
        if method.in_turns:  # a step of the personal layers, then one of the others
            params = task.join(task.shared(params), step(params))
            params = task.join(task.shared(step(params)), params)
        else:
            params = step(params)
    return params


def lives_anywhere(case: Case) -> None:
    """Give the same bits when half of the clients live in another process."""
    outcome, halves = case.straight("exact"), case.halves(0.0)
    _assert_close(outcome.models, merge(halves, "models"), 0.0, ELSEWHERE)
    assert (outcome.loss == merge(halves, "loss").T).all(), "clients in two processes see other losses"


def repeats_loss(case: Case) -> None:
    """Give the same bits as a simulation that loses the same tenth of the messages."""
    for run in range(20):  # a method with few messages may lose none of them at first
        halves = case.halves(0.1, run)
        arrivals = arrivals_of(halves, ROUNDS)
        if case.method.topology == "none" or not all(np.asarray(a).all() for a in jax.tree.leaves(arrivals)):
            break
    else:
        raise AssertionError("no message was ever lost: is its topology right?")
    models = train(case.training("exact"), ROUNDS, arrivals).models
    _assert_close(models, merge(halves, "models"), 0.0, "a simulation with the same loss gets other models")


def fast_equals_exact(case: Case) -> None:
    """Differ between the two modes by rounding only."""
    exact, fast = (case.straight(mode).models for mode in ("exact", "fast"))
    _assert_close(exact, fast, 1e-5, "fast and exact mode differ by more than rounding")


def resumes(case: Case) -> None:
    """Continue from a checkpoint with the same bits, in a later stage, too."""
    training = case.training("fast")
    block = training.rounds_to_stage(1, ROUNDS)
    state, _ = training.init()
    state, _ = training.advance(state, 1, block)
    restored = _from_checkpoint(training, state, state)
    straight, _ = training.advance(state, 1 + block, block)
    resumed, _ = training.advance(restored, 1 + block, block)
    _assert_close(jax.device_get(straight), jax.device_get(resumed), 0.0, "a resumed run differs")
    for end in case.method.stages()[:1]:
        narrowed, _ = training.next_stage(straight, end)
        graph = training.graph
        later = case.training("fast", engine=training.engine, graph=(graph, np.zeros(graph.present.shape)))
        later.return_to_stage(end + 1)
        forms = [
            {jax.tree_util.keystr(path): (a.shape, a.dtype) for path, a in jax.tree_util.tree_leaves_with_path(state)}
            for state in (narrowed, later.outline())
        ]
        assert forms[0] == forms[1], "after a stage the state has another form than a run that is resumed there expects"
        restored = _from_checkpoint(later, narrowed, later.outline())
        both = ((training, narrowed), (later, restored))
        straight, resumed = jax.device_get([each.models(state, end) for each, state in both])
        _assert_close(straight, resumed, 0.0, "models of a run that is resumed after a stage differ")
        straight, resumed = jax.device_get([each.advance(state, end + 1, 1)[0] for each, state in both])
        _assert_close(straight, resumed, 0.0, "a run that is resumed after a stage differs")


def _from_checkpoint(training: Training, state: Any, like: Any) -> Any:
    """Return a state as it is read from a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(Path(folder), 1, checkpoint.pack(jax.device_get(state)), {})
        saved = checkpoint.load(Path(folder))
    assert saved is not None
    return training.engine.place(checkpoint.unpack(saved[1], like))


def ledger_is_right(case: Case) -> None:
    """Charge exactly the bytes of the frames that two processes really send."""
    outcome = case.straight("exact")
    charged: dict[tuple[int, int], int] = {}
    for traffic, graph in outcome.traffic:
        for pair, size in _by_pair(traffic, graph):
            charged[pair] = charged.get(pair, 0) + size
    sent: dict[tuple[int, int], int] = {}
    for half in case.halves(0.0):
        sent |= half.sent
    assert {pair: size for pair, size in charged.items() if size} == sent, "the ledger differs from what was sent"
    assert (case.method.topology == "none") == (not sent), "its topology says otherwise than its messages"


def links_come_and_go(case: Case) -> None:
    """Keep the bits and the ledger on a random directed network too, where the method says that it can."""
    if not case.method.random_links:
        return
    other = case.on(RandomDirected(base="ring").build(CLIENTS, 0))
    permutes_with_clients(other)
    lives_anywhere(other)
    ledger_is_right(other)


def _by_pair(traffic: Any, graph: Graph) -> Iterable[tuple[tuple[int, int], int]]:
    total = {name: np.asarray(value).astype(np.int64).sum(0) for name, value in traffic._asdict().items()}
    for i in range(graph.clients):
        for k, j in enumerate(graph.neighbours[i].tolist()):
            yield (j, i), int(total["heard_bytes"][i, k])
            yield (i, j), int(total["told_bytes"][i, k])
        yield (i, HUB), int(total["up_bytes"][i])
        yield (HUB, i), int(total["down_bytes"][i])


def _assert_close(a: Any, b: Any, tolerance: float, message: str) -> None:
    for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        gap = np.max(np.abs(np.asarray(u, np.float64) - np.asarray(v, np.float64)), initial=0.0)
        assert gap <= tolerance, f"{message} (by {gap:.3g}, allowed {tolerance:g})"


CHECKS: dict[str, Callable[[Case], None]] = {
    check.__name__: check
    for check in (
        compiles_once,
        stays_finite,
        sends_what_it_mixes,
        permutes_with_clients,
        alone_without_others,
        fast_equals_exact,
        lives_anywhere,
        repeats_loss,
        resumes,
        ledger_is_right,
        links_come_and_go,
        leaves_out_who_is_away,
    )
}

SOLVED = ("stays_finite", "permutes_with_clients", "fast_equals_exact", "resumes")  # the checks of a `Solved` method


def checks_of(method: Any) -> dict[str, Callable[[Case], None]]:
    """Return the checks that a method has to pass."""
    return {name: check for name, check in CHECKS.items() if name in SOLVED or not isinstance(method, Solved)}
