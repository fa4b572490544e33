"""Repeat a run on a network in a simulation, from the record of what arrived, and compare the models.

    for agreement in replay(["runs/north", "runs/south"]):
        print(agreement.name, agreement.difference)          # 0.0: bit for bit

Every round is one step of the simulation, in `exact` mode, in which just those messages arrive that arrived then. A
client whose site was away does nothing; one whose site started again continues with the state it had after the round of
its checkpoint. What the record does not determine is refused, with the reason.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie.data.clients import Federation
from coterie.errors import CoterieError
from coterie.experiment.config import Experiment
from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.experiment.folder import RunFolder, model_file
from coterie.experiment.job import Job, precision
from coterie.experiment.personal_model import read_model
from coterie.experiment.training import Training
from coterie.methods.base import Solved
from coterie.numerics.tree import for_each
from coterie.peers.base import Arrivals
from coterie.peers.pushed import push_steps
from coterie.sites.deliveries import Restored, Round, arrivals_in_round, read_log
from coterie.sites.federation import EACH_SITE
from coterie.sites.gather import read_members, site_folders
from coterie.storage.owned import holds, inside

__all__ = ["Agreement", "Model", "repeat", "replay"]

Log = Sequence[Round | Restored]


class Agreement(NamedTuple):
    """How a client's model compares with the one that the simulation gives."""

    name: str
    round: int
    difference: float | None  # the largest, relative to the largest number of the same array; None: there is no model


class Model(NamedTuple):
    """A client's model in a folder."""

    name: str
    round: int
    file: Path | None  # None: the client has none


def replay(paths: Sequence[str | Path], data: str | None = None) -> list[Agreement]:
    """Repeat the run of a gathered folder, or of the folders of all its sites.

    Args:
        paths: one gathered folder, or the sites' folders, or the one that holds them.
        data: the table of all clients; default: the data that the run's config names.
    """
    config, names, logs, models = _read(paths)
    experiment, everyone = _loaded(config, data, names)
    job = Job.of(experiment, everyone)
    if isinstance(job.method, Solved):
        raise CoterieError(f"{experiment.method.name} is solved at once: there are no deliveries to repeat")
    with precision(job.settings.precision):
        engine = Engine.of(job, choose_device("cpu"))
        training = Training(
            engine,
            job.method,
            job.graph,
            job.weights,
            job.settings.seed,
            codec=job.codec,
            peers=job.simulation(engine.plan),
            faults=job.injection(),
            robust=job.robust,
        )
        kept = repeat(training, names, logs, {model.round for model in models if model.file is not None})
        return [_compared(model, place, kept, training) for place, model in enumerate(models)]


def repeat(training: Training, names: Sequence[str], logs: Sequence[Log], wanted: set[int]) -> dict[int, Any]:
    """Run a training as the logs of its sites say; returns everybody's models after the rounds wanted."""
    history = _History(names, logs)
    history.refuse(training)
    state, _ = training.init(history.arrivals(0, training))
    saved, models = dict[int, Any](), dict[int, Any]()
    for number in range(1, history.last + 1):
        for ids, back in history.restarts(number):
            state = _with_rows(training, state, saved[back], ids)
        before = jax.tree.map(jnp.copy, state)  # the program uses its argument up
        arrivals = history.arrivals(number, training)
        state, _ = training.advance(state, number, 1, jax.tree.map(lambda a: a[None], arrivals))
        away = history.away(number)
        if away.any():
            state = training.without(jnp.asarray(away), before, state)
        if number in training.method.stages() and away.any():
            raise CoterieError(f"the graph changed after round {number}, when {_first(names, away)} was away")
        state, _ = training.next_stage(state, number)
        if number in history.needed:
            saved[number] = jax.tree.map(jnp.copy, state)
        if number in wanted:
            models[number] = for_each(jax.device_get(training.models(state, number)), training.engine.size)
    return models


class _History:
    """The logs of all sites, by round."""

    def __init__(self, names: Sequence[str], logs: Sequence[Log]):
        self.names, self._rounds = names, dict[int, list[Round]]()
        self._restarts: dict[int, list[tuple[np.ndarray, int]]] = {}
        for log in logs:
            self._enter(log)
        self.last = max(self._rounds, default=0)
        self.needed = {back for restarts in self._restarts.values() for _, back in restarts}

    def _enter(self, log: Log) -> None:
        restored: Restored | None = None
        done, last = set[int](), 0
        for one in log:
            if isinstance(one, Restored):
                restored = one
                continue
            name = self.names[int(one.ids[0])]
            if one.round in done:
                raise CoterieError(f"{name} ran round {one.round} twice, so what it sent then is not determined")
            if restored is not None and restored.round != last:
                self._restarts.setdefault(one.round, []).append((one.ids, restored.round))
            restored, last = None, one.round
            done.add(one.round)
            self._rounds.setdefault(one.round, []).append(one)

    def restarts(self, number: int) -> list[tuple[np.ndarray, int]]:
        """Return who begins this round with an older state: ids, and the round it is from."""
        return self._restarts.get(number, [])

    def away(self, number: int) -> np.ndarray:
        """Say whose site did not run a round: `[K]`."""
        away = np.ones(len(self.names), bool)
        for part in self._rounds.get(number, []):
            away[part.ids] = False
        return away

    def arrivals(self, number: int, training: Training) -> Arrivals:
        """Return what arrived in a round, with what was sent on purpose in place of messages."""
        found = arrivals_in_round(self._rounds.get(number, []), len(self.names))
        away = self.away(number)
        self._refuse_broken(number, away, training)
        if training.faults is None:
            return found
        return found._replace(faults=jax.tree.map(lambda a: a[0], training.faults.tables(number)))

    def _refuse_broken(self, number: int, away: np.ndarray, training: Training) -> None:
        """Refuse a round in which somebody stopped after its first exchange: what it sent then is not determined."""
        graph, later = training.graph, np.zeros(len(self.names), bool)
        for part in self._rounds.get(number, []):
            steps = itertools.cycle(push_steps(len(self.names)))  # a mean takes all of its steps
            pushed = {id(one): next(steps) for one in part.exchanges if one.pushed is not None}
            for delivery in [one for one in part.exchanges if one.down is None][1:]:
                if delivery.pushed is not None:
                    later[pushed[id(delivery)].hears[part.ids][delivery.pushed]] = True
                elif delivery.up is not None:
                    later |= delivery.up
                elif delivery.edges is not None:
                    later[graph.neighbours[part.ids][delivery.edges & graph.present[part.ids]]] = True
        if (later & away).any():
            raise CoterieError(
                f"{_first(self.names, later & away)} stopped in the middle of round {number}, so what it sent then is "
                "not determined"
            )

    def refuse(self, training: Training) -> None:
        """Refuse what the simulation cannot repeat."""
        gone = [number for number in range(1, self.last + 1) if self.away(number).any()]
        if not self._rounds:
            raise CoterieError("there are no deliveries to repeat; `coterie join` records them")
        if gone and training.codec is not None:
            raise CoterieError(
                f"{_first(self.names, self.away(gone[0]))} was away in round {gone[0]}, and with a codec both ends "
                "began anew then, which the record does not say"
            )
        if gone and training.method.hub_state():
            raise CoterieError(f"the hub of this method remembers, and somebody was away in round {gone[0]}")


def _first(names: Sequence[str], which: np.ndarray) -> str:
    return names[int(np.flatnonzero(which)[0])]


def _with_rows(training: Training, state: Any, older: Any, ids: np.ndarray) -> Any:
    """Return the state with some clients' rows from an older one."""
    rows = np.isin(np.arange(training.engine.size), ids)
    return training.without(jnp.asarray(rows), older, state)


def _read(paths: Sequence[str | Path]) -> tuple[dict[str, Any], tuple[str, ...], list[Log], list[Model]]:
    """Read config, members, logs and models of the folders."""
    paths = site_folders(paths)
    first = RunFolder(paths[0])
    if len(paths) == 1 and first.members() is None:
        return _read_gathered(first)
    sites = read_members(paths)
    names, models = sites[0].members.names, []
    for site in sites:
        number = site.folder.summary()["round"] if site.folder.complete else 0
        for place, name in enumerate(site.names):
            file = inside(site.path, "models", model_file(place, name)) if number else None
            models.append(Model(name, number, file))
    return sites[0].folder.config(), names, [read_log(site.path, len(names)) for site in sites], models


def _read_gathered(folder: RunFolder) -> tuple[dict[str, Any], tuple[str, ...], list[Log], list[Model]]:
    names, number = tuple(folder.clients()["names"]), folder.summary()["round"]
    files = [("models", model_file(place, name)) for place, name in enumerate(names)]
    models = [
        Model(name, number, inside(folder.path, *file) if holds(folder.path, *file) else None)
        for name, file in zip(names, files, strict=True)
    ]
    if not any(model.file for model in models):
        raise CoterieError(f"{folder.path} has no models to compare; gather them with --with-models, or name the sites")
    by_site: dict[tuple[int, ...], list[Round | Restored]] = {}
    for record in read_log(folder.path, len(names)):
        by_site.setdefault(tuple(record.ids.tolist()), []).append(record)
    return folder.config(), names, list(by_site.values()), models


def _loaded(config: dict[str, Any], data: str | None, names: tuple[str, ...]) -> tuple[Experiment, Federation]:
    """Load the data of all clients, in the order of the members."""
    if config["data"]["name"] == EACH_SITE:
        raise CoterieError("the data of this run stay at the sites, and a replay needs them in one place")
    changes = {"run": {"mode": "exact"}} | ({} if data is None else {"data": {"path": data}})
    experiment, federation = Experiment.from_dict(config).replace(changes).load()
    if len(federation) != len(names):
        raise CoterieError(f"the data are of {len(federation)} clients and the run of {len(names)}")
    return experiment, dataclasses.replace(federation, names=names, redraw=None)


def _compared(model: Model, place: int, kept: Mapping[int, Any], training: Training) -> Agreement:
    if model.file is None or model.round not in kept:
        return Agreement(model.name, model.round, None)
    theirs = read_model(model.file, training.task)
    ours = jax.tree.map(lambda a: np.asarray(a[place]), kept[model.round])
    gaps = jax.tree.map(_gap, ours, theirs)
    return Agreement(model.name, model.round, max(jax.tree.leaves(gaps), default=0.0))


def _gap(a: np.ndarray, b: Any) -> float:
    """Return the largest difference of two arrays, relative to the largest number in them; 0 for the same bits."""
    b = np.asarray(b)
    if a.tobytes() == b.tobytes():
        return 0.0
    scale = max(float(np.abs(a).max()), float(np.abs(b).max()), np.finfo(np.float64).tiny)
    return float(np.abs(a.astype(np.float64) - b).max() / scale)
