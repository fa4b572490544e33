"""THE loop: rounds, evaluation, ledger, checkpoint, resume. Every run of every method goes through `execute`."""

import contextlib
import dataclasses
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from coterie import checkpoint
from coterie.clients import Federation
from coterie.config import DEFAULTS, SECTIONS, Experiment, GraphSettings, RunSettings, _part
from coterie.engine import Engine, Training, plan_for
from coterie.errors import CoterieError, Diverged
from coterie.graph import Graph, require_connected
from coterie.ledger import Ledger
from coterie.mixing import laplacian, lazy_metropolis, metropolis
from coterie.models.augment import Augment
from coterie.models.naming import save
from coterie.result import Result
from coterie.runtime import Device, choose_device
from coterie.spec import build, to_dict
from coterie.storage import RunFolder, model_file
from coterie.task import Task

__all__ = ["Job", "Progress", "execute", "resume", "run"]

MODEL_FILES = 2000  # clients up to which every model gets a file of its own
CHECKPOINT_SECONDS = 10.0
MIXING = {"metropolis": metropolis, "lazy-metropolis": lazy_metropolis, "laplacian": laplacian}

Progress = Callable[[str, int, int, dict[str, Any]], None]  # (stage, round, rounds, metrics)


@dataclasses.dataclass
class Job:
    """One run, ready to execute: objects, and the config that describes them."""

    federation: Federation
    task: Task
    method: Any
    graph: Graph
    weights: np.ndarray
    settings: RunSettings
    config: dict[str, Any]

    @classmethod
    def of(cls, experiment: Experiment, federation: Federation | None = None, task: Task | None = None) -> "Job":
        """Make a job of an experiment: load its data (unless given), build its model and its graph."""
        federation = federation or load_federation(experiment)
        task = task or make_task(experiment, federation)
        graph, weights = make_graph(experiment.method.spec, experiment.graph, len(federation))
        return cls(
            federation, task, experiment.method.spec, graph, weights, experiment.run, experiment.to_dict()
        )

    @classmethod
    def from_objects(
        cls,
        federation: Federation,
        model: Any = "mlp",
        method: Any = "fedavg",
        *,
        graph: Any = "exponential",
        personal: tuple[str, ...] = (),
        augment: Augment | None = None,
        **settings: Any,
    ) -> "Job":
        """Make a job of what was passed from Python (the arguments are those of `run`)."""
        chosen = build(RunSettings, settings, "run")
        augment = augment or Augment()
        parts = {"model": model, "method": method}
        named = {key: _part(key, {"name": value}) for key, value in parts.items() if isinstance(value, str)}
        specs = {key: named[key].spec if key in named else value for key, value in parts.items()}
        if not isinstance(graph, str | Graph) and hasattr(graph, "adjacency"):
            graph = Graph.from_networkx(graph)
        graph_part = _part("graph", {"name": graph}) if isinstance(graph, str) else graph
        if hasattr(graph_part, "build"):
            graph_part = dataclasses.replace(_part("graph", {}), name=type(graph).__name__, spec=graph)
        task = _task(federation, specs["model"], personal, augment, chosen)
        table, weights = make_graph(specs["method"], graph_part, len(federation))
        config = {
            "format": 1,
            "data": {"name": "in-memory", "digest": _digest(federation)},
            "model": {"name": _name_of("model", model), "personal": list(personal), **_settings_of(specs["model"])},
            "method": {"name": _name_of("method", method), **_settings_of(specs["method"])},
            "graph": {"name": "given", "edges": table.edges()} if isinstance(graph_part, Graph) else graph_part.to_dict(),
            "augment": to_dict(augment),
            "run": to_dict(chosen),
        }
        return cls(federation, task, specs["method"], table, weights, chosen, config)


def load_federation(experiment: Experiment) -> Federation:
    """Load the data of an experiment and share them out."""
    common = experiment.partition.common
    return experiment.partition.spec(experiment.data.spec.load(), common.clients, common.seed)


def make_task(experiment: Experiment, federation: Federation) -> Task:
    """Build the task of an experiment."""
    return _task(federation, experiment.model.spec, experiment.model.common.personal, experiment.augment, experiment.run)


def _task(federation: Federation, model: Any, personal: tuple, augment: Augment, settings: RunSettings) -> Task:
    with precision(settings.precision):
        return Task.of(
            federation,
            model,
            personal=personal,
            augment=augment if augment.crop or augment.flip else None,
            dtype=np.dtype(settings.precision),
        )


def make_graph(method: Any, part: Any, clients: int) -> tuple[Graph, np.ndarray]:
    """Build the graph a method needs, and its mixing weights; methods without neighbours get an empty one."""
    if method.topology != "graph":
        return Graph.empty(clients), np.zeros((clients, 0))
    graph = part if isinstance(part, Graph) else part.spec.build(clients, part.common.seed)
    if graph.clients != clients:
        raise CoterieError(f"the graph has {graph.clients} nodes but the federation {clients} clients")
    require_connected(graph, type(method).__name__)
    rule = "metropolis" if isinstance(part, Graph) else part.common.weights
    return graph, MIXING[rule](graph)[0]


def precision(name: str) -> contextlib.AbstractContextManager:
    """Return the scope in which arrays keep the asked precision."""
    return jax.enable_x64(True) if name == "float64" else contextlib.nullcontext()


def run(
    federation: Federation,
    model: Any = "mlp",
    method: Any = "fedavg",
    *,
    graph: Any = "exponential",
    rounds: int = 50,
    seed: int = 0,
    personal: tuple[str, ...] = (),
    augment: Augment | None = None,
    out: str | Path | None = None,
    device: str | Device = "auto",
    progress: Progress | None = None,
    **settings: Any,
) -> Result:
    """Train a personal model for every client of a federation.

    Args:
        federation: the clients and their data (`coterie.load`, `coterie.federation`).
        model: a name, a model spec, an Equinox module, or a function `key -> module`.
        method: a name or a method, for example `coterie.methods.Ditto(lr=0.1)`.
        graph: for methods with neighbours: a name, a spec, a `Graph` or a NetworkX graph.
        rounds: communication rounds.
        seed: everything random is drawn from it.
        personal: names of the parts of the model that stay with the client.
        augment: random crop and flip of training images.
        out: folder of the run; None keeps everything in memory.
        device: "auto", "cpu", "gpu", "gpu:1".
        progress: called as `progress(stage, round, rounds, metrics)` after every evaluation.
        **settings: other keys of the `[run]` section, for example `evaluate_every=5`.

    Returns:
        The result: metrics, personal models, graph, ledger. A folder that holds a part of this very run is continued.
    """
    place = device if isinstance(device, Device) else choose_device(device)  # before JAX is used: it counts the cores
    options = {"rounds": rounds, "seed": seed, **settings}
    job = Job.from_objects(federation, model, method, graph=graph, personal=personal, augment=augment, **options)
    return execute(job, out=out, device=place, progress=progress)


def resume(path: str | Path, device: str | Device = "auto", progress: Progress | None = None) -> Result:
    """Continue the run in a folder; its end is bit-identical to that of a run that was never stopped."""
    folder = RunFolder(path)
    config = folder.config()
    if config["data"]["name"] == "in-memory":
        raise CoterieError(f"{path} was started with data from Python: call coterie.run with the same data and out={path!s}")
    place = device if isinstance(device, Device) else choose_device(device)
    return execute(Job.of(Experiment.from_dict(config)), out=path, device=place, progress=progress)


def execute(
    job: Job,
    *,
    out: str | Path | None = None,
    device: str | Device = "auto",
    progress: Progress | None = None,
    engine: Engine | None = None,
) -> Result:
    """Run a job from its start or from its newest checkpoint; a folder that is complete is only read."""
    folder = None
    if out is not None:
        folder = RunFolder(out)
        folder.create(job.config, job.federation)
        if folder.complete:
            return Result.read(folder.path)
    with precision(job.settings.precision):
        if engine is None:
            place = device if isinstance(device, Device) else choose_device(device)
            plan = plan_for(job.task, job.federation, place, job.settings.mode, job.settings.chunk)
            engine = Engine(job.task, job.federation, place, plan)
        return _Loop(job, engine, folder, progress or (lambda *_: None)).run()


class _Loop:
    """The state of a run between two blocks of rounds."""

    def __init__(self, job: Job, engine: Engine, folder: RunFolder | None, progress: Progress):
        self.job, self.engine, self.folder, self.progress = job, engine, folder, progress
        self.training = Training(engine, job.method, job.graph, job.weights, job.settings.seed)
        self.ledger = Ledger(job.federation.names, job.graph.neighbours)
        self.rows: list[dict[str, Any]] = []
        self.graphs: dict[int, dict[str, np.ndarray]] = {}
        self.round = self.best_round = self.waited = 0
        self.best: Any = None
        self.best_score = -np.inf
        self.started = self.last_saved = time.monotonic()
        self.clock = dict(engine.seconds)

    def run(self) -> Result:
        settings = self.job.settings
        every = settings.evaluate_every or max(1, -(-settings.rounds // 20))
        self.progress("start", 0, settings.rounds, {})
        self.state, opening = self.training.init()
        if not self._restore():
            self._record(0, opening, None)
        while self.round < settings.rounds and not self._given_up():
            count = min(every, settings.rounds - self.round)
            self.state, block = self.training.advance(self.state, self.round + 1, count)
            self._refuse_nan(block.loss)
            self.round += count
            row = self.training.evaluate(self.state, self.round)
            self._record(self.round, block, row | {"train_loss": block.loss[-1]})
            self._save()
            self.progress("round", self.round, settings.rounds, row)
        return self._finish()

    def _given_up(self) -> bool:
        return bool(self.job.settings.patience) and self.waited >= self.job.settings.patience

    def _record(self, number: int, block: Any, row: dict[str, np.ndarray] | None) -> None:
        """Write down a block of rounds and the evaluation after it."""
        entry = self.ledger.add(max(1, number - len(block.loss) + 1) if row else 0, block.traffic)
        if row is not None:
            totals = self.ledger.totals()
            line = {"round": number} | {name: value.tolist() for name, value in row.items()}
            line |= {"bytes_sent": totals["sent"].tolist(), "bytes_received": totals["received"].tolist()}
            self.rows.append(line)
            self._judge(number, row)
        if block.weights is not None:
            table = {"neighbours": self.job.graph.neighbours, "present": self.job.graph.present}
            self.graphs[number] = table | {"weights": block.weights}
        if self.folder is None:
            return
        if row is not None:
            self.folder.append("metrics.jsonl", self.rows[-1])
            self.folder.append("timing.jsonl", {"round": number, **self._seconds(), "device": self.engine.device.label})
        self.folder.save_arrays("ledger", number, entry if row else entry | {"neighbours": self.job.graph.neighbours})
        if number in self.graphs:
            self.folder.save_arrays("graph", number, self.graphs[number])

    def _judge(self, number: int, row: dict[str, np.ndarray]) -> None:
        """Remember the best evaluation when the run may stop early; otherwise the last one counts."""
        if not self.job.settings.patience:
            self.best_round = number
            return
        counted = self.job.federation.validation.count > 0
        if not counted.any():
            raise CoterieError("run.patience needs validation samples: raise partition.validation or set run.patience = 0")
        score = float(row["validation_score"][counted].mean()) * (1 if self.job.task.higher_is_better else -1)
        if score > self.best_score:
            self.best_score, self.best_round, self.waited = score, number, 0
            self.best = jax.device_get(self.state)
        else:
            self.waited += 1

    def _refuse_nan(self, loss: np.ndarray) -> None:
        bad = np.argwhere(~np.isfinite(loss))
        if len(bad):
            late, client = bad[0]
            name = self.job.federation.names[client]
            raise Diverged(
                f"the training loss of client {name!r} is not finite in round {self.round + 1 + late}; "
                "try a smaller method.lr (the last checkpoint is from before)"
            )

    def _save(self) -> None:
        """Write a checkpoint when it is time: after the metrics it covers, so that these are never ahead of it."""
        if self.folder is None:
            return
        last = self.round >= self.job.settings.rounds or self._given_up()
        every = self.job.settings.checkpoint_every
        count = len(self.rows)
        due = count % every == 0 if every else time.monotonic() - self.last_saved > CHECKPOINT_SECONDS
        if not (last or due):
            return
        arrays = checkpoint.pack({"state": jax.device_get(self.state), "best": self.best})
        meta = {"round": self.round, "best_round": self.best_round, "waited": self.waited, "best_score": self.best_score}
        checkpoint.save(self.folder.path, self.round, arrays, {key: repr(value) for key, value in meta.items()})
        self.last_saved = time.monotonic()

    def _restore(self) -> bool:
        """Continue from the newest checkpoint that is whole; what was written after it is cut off."""
        if self.folder is None:
            return False
        found = checkpoint.load(self.folder.path)
        if found is None:
            self.folder.cut(-1)
            return False
        number, arrays, meta, notes = found
        for note in notes:
            self.progress("note", number, self.job.settings.rounds, {"note": note})
        self.round, self.best_round = number, int(meta["best_round"])
        self.waited, self.best_score = int(meta["waited"]), float(meta["best_score"])
        has_best = any(name.startswith("['best']") for name in arrays)
        like = {"state": self.state, "best": self.state if has_best else None}
        held = checkpoint.unpack(arrays, like)
        self.state, self.best = self.engine.place(held["state"]), held["best"]
        self.folder.cut(number)
        self.rows = self.folder.lines("metrics.jsonl")
        self.ledger = self.folder.ledger()
        self.graphs = self.folder.graphs()
        return True

    def _seconds(self) -> dict[str, float]:
        inside = {name: round(value - self.clock[name], 4) for name, value in self.engine.seconds.items()}
        return {"wall": round(time.monotonic() - self.started, 4), **inside}

    def _finish(self) -> Result:
        job, kept = self.job, self.engine.place(self.best) if self.best is not None else self.state
        models = jax.device_get(self.training.models(kept, self.best_round))
        result = Result(
            config=job.config,
            names=job.federation.names,
            rows=self.rows,
            ledger=self.ledger,
            graphs=self.graphs,
            seconds=self._seconds(),
            best_round=self.best_round,
            metric=job.task.metric,
            higher_is_better=job.task.higher_is_better,
            device=self.engine.device.label,
            folder=None if self.folder is None else self.folder.path,
            task=job.task,
            variables=models,
        )
        if self.folder is not None:
            if len(job.federation) <= MODEL_FILES:
                result.save_models(self.folder.path / "models")
            else:
                save(self.folder.path / "models" / model_file(0, "all-clients"), models.params, {"clients": "all"})
            self.folder.finish(result.summary())
        self.progress("end", self.round, job.settings.rounds, result.final)
        return result


def _digest(federation: Federation) -> str:
    """Return a fingerprint of data that were passed from Python, so that a run is not continued with others."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(federation.arrays()):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()[:16]


def _name_of(section: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    from coterie import registry

    cls = type(value)
    for row in registry.rows(SECTIONS[section][0]):
        if row.target == f"{cls.__module__}:{cls.__name__}":
            return row.name
    return getattr(value, "__name__", cls.__name__)


def _settings_of(value: Any) -> dict[str, Any]:
    is_spec = dataclasses.is_dataclass(value) and hasattr(value, "__post_init__") and not hasattr(value, "__jax_array__")
    return to_dict(value) if is_spec and (hasattr(value, "build") or hasattr(value, "round")) else {}
