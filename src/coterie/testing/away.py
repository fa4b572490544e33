"""A check of the contract: clients that take no part in a round neither work nor send."""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from coterie.experiment.in_world import lives_in_world
from coterie.methods.base import Method
from coterie.methods.shared.hub import HubSGD
from coterie.peers.faults import Faults
from coterie.peers.injection import Injection
from coterie.peers.world import World

if TYPE_CHECKING:
    from coterie.testing.case import Case

__all__ = ["leaves_out_who_is_away"]

WORLD, SEED = World(participation=0.3), 0  # of 7 clients 2 take part in a round; some take part in none of a few


def leaves_out_who_is_away(case: "Case") -> None:
    """Let clients that take no part keep their state, except copies of what the hub has, and send nothing."""
    if not lives_in_world(case.method) or case.codec is not None:
        return
    injection = Injection.of(Faults.NONE, case.federation.names, world=WORLD, seed=SEED)
    assert injection is not None
    assert injection.schedule is not None
    training = case.training("fast", faults=injection)
    block = training.rounds_to_stage(1, 3)
    part = injection.schedule.presence(1, block).part  # [R, K]
    state, _ = training.init()
    before = jax.device_get(state)
    after, rounds = training.advance(state, 1, block)
    _refuse_work(case.method, before, jax.device_get(after), part)
    _refuse_messages(rounds.traffic, training.graph.neighbours, part)


def _refuse_work(method: Any, before: Any, after: Any, part: np.ndarray) -> None:
    """Refuse numbers of a client that never took part which are neither its first ones nor those of everybody."""
    if type(method).absent not in (Method.absent, HubSGD.absent):
        return  # it says itself what such a client fetches from the hub
    away, there = np.flatnonzero(~part.any(0)), np.flatnonzero(part[-1])
    assert away.size, "the schedule of this check must leave somebody out"
    hub = method.hub_state()
    for (path, old), new in zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True):
        if new.shape[:1] != part.shape[1:] or getattr(path[0], "name", None) in hub:
            continue
        kept = (new[away] == old[away]).all()
        copied = isinstance(method, HubSGD) and (new[away] == new[there[:1]]).all()
        name = jax.tree_util.keystr(path)
        assert kept or copied, f"the state{name} of a client that took no part in a round has changed"


def _refuse_messages(traffic: Any, neighbours: np.ndarray, part: np.ndarray) -> None:
    """Refuse messages of clients that took no part, and to them."""
    both = part[:, :, None] & part[:, neighbours]  # [R, K, D]
    for name, sent in traffic._asdict().items():
        if not isinstance(sent, tuple):
            allowed = both if np.ndim(sent) == 3 else part
            assert not np.any(np.asarray(sent)[~allowed]), f"{name} of a client that took no part in a round"
