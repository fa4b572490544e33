"""Which kind of checkpoint a run writes and reads: one file of a single process, or one of several (`sharded.py`)."""

from pathlib import Path
from typing import Any

import jax

from coterie.experiment import sharded
from coterie.experiment import snapshot as single
from coterie.experiment.engine import Engine
from coterie.experiment.sharded import SavedShards
from coterie.experiment.snapshot import Record, Saved, Snapshot
from coterie.experiment.states import have_clients, on_host
from coterie.numerics.tree import of_clients
from coterie.peers.mesh import padded_rows
from coterie.peers.shards import elsewhere
from coterie.storage.checkpoint import steps
from coterie.storage.owned import inside

__all__ = ["best_kept", "load", "save"]


def save(folder: Path, step: int, training: Any, snapshot: Snapshot, record: Record) -> None:
    """Write the checkpoint of round `step`: `snapshot` has the state on the devices and the best models as kept."""
    engine = training.engine
    if not elsewhere(engine.plan.mesh):
        single.save(folder, step, snapshot._replace(state=on_host(training, snapshot.state)), record)
        sharded.remove(folder)  # they are older, or damaged
        return
    best = None if snapshot.best is None else engine.place_kept(snapshot.best)
    graph = None if snapshot.graph is None else engine.put(snapshot.graph)
    rows = [have_clients(training, snapshot.state), have_clients(training, best), jax.tree.map(lambda _: False, graph)]
    sharded.save(folder, step, Snapshot(snapshot.state, best, graph), Snapshot(*rows), record, engine)


def load(folder: Path, engine: Engine) -> Saved | SavedShards | None:
    """Read the newest checkpoint that is whole, of either kind; of several processes all must call this."""
    of_one = max(steps(inside(folder, "checkpoints")), default=-1)
    return sharded.load(folder, engine) if sharded.newest(folder) > of_one else single.load(folder)


def best_kept(saved: Saved | SavedShards, best: Any, engine: Engine) -> Any:
    """Return the best models of a checkpoint as `Engine.kept` has them."""
    if isinstance(saved, SavedShards) or not elsewhere(engine.plan.mesh):
        return best
    return of_clients(lambda a: padded_rows(a, engine.rows)[engine.mine], best)
