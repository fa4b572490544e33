"""From a federation or a folder to a result. Every run of every method goes through `execute` and one `Loop`."""

import contextlib
import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

from coterie.data.clients import Federation
from coterie.errors import CoterieError
from coterie.experiment.config import Experiment
from coterie.experiment.device import Device, choose_device
from coterie.experiment.engine import Engine
from coterie.experiment.evaluations import OnEvaluation, telling
from coterie.experiment.fingerprint import earlier_fingerprint, is_earlier
from coterie.experiment.folder import RunFolder
from coterie.experiment.job import Job, precision
from coterie.experiment.loop import Loop, Progress
from coterie.experiment.machine import keep_machine
from coterie.experiment.place import Place
from coterie.experiment.profiling import NO_PROFILE, NoProfile
from coterie.experiment.result import Result
from coterie.experiment.screen import shown_run
from coterie.graphs.measured import MeasuredGraph
from coterie.registry import names_from

__all__ = ["Job", "Progress", "execute", "resume", "run"]


def run(
    federation: Federation,
    model: Any = "mlp",
    method: Any = "fedavg",
    *,
    out: str | Path | None = None,
    device: str | Device = "auto",
    devices: int | None = None,
    progress: Progress | bool | None = None,
    on_evaluation: OnEvaluation | None = None,
    **options: Any,
) -> Result:
    """Train a personal model for every client of a federation.

    Args:
        federation: the clients and their data (`coterie.load`, `coterie.federation`).
        model: a name, a model spec, an Equinox module, or a function `key -> module`.
        method: a name or a method, for example `coterie.methods.Ditto(lr=0.1)`.
        out: folder of the run; None keeps everything in memory.
        device: "auto", "cpu", "cpu:2" (two virtual devices, on any number of cores), "gpu", "gpu:1". "auto" is a GPU
            if JAX finds one; a run that has begun continues on the kind and number of devices it began with.
        devices: spread the clients, with their models and data, over so many devices: GPUs, or with device="cpu"
            virtual ones, to try it. A run may continue on another number of them.
        progress: True shows a bar, False nothing, None (the default) a bar in a terminal and in a notebook; or a
            function, called as `progress(stage, round, rounds, metrics)` after every evaluation.
        on_evaluation: for loggers: called after every evaluation with a plain dict, {"method": "ditto", "seed": 0,
            "round": 5, "rounds": 50, "test_score": 0.91, ..., "clients": {"test_score": [...], ...}}.
        **options: any of the following.
            graph: for methods with neighbours: a name ("auto"), a spec, a `Graph` or a NetworkX graph.
            codec: how messages are encoded: a name ("none"), a table such as {"name": "qsgd", "bits": 2}, or a codec.
            personal: names of the parts of the model that stay with the client.
            members: models of each client, whose predictions are averaged (1).
            init: a safetensors file with the weights to start from: ours, or a PyTorch state dict of the same names.
            input_affine: put an affine layer called `input` before the model, the identity at first (False).
            augment: random crop and flip of training images (an `Augment`).
            faults: what goes wrong on the network: a file such as "faults.toml", or its tables.
            world: who takes part in a round, who fails in it, who is slow, for example {"participation": 0.5,
                "dropout": 0.05, "slow": 0.2, "late": 2} (docs, Clients that are away).
            rounds: communication rounds (50).
            seed: everything random is drawn from it (0).
            Other keys of the `[run]` section, for example `evaluate_every=5`.

    Returns:
        The result: metrics, personal models, graph, ledger. A folder that holds a part of this very run is continued.
    """
    place = _device(device, out, devices)  # before JAX is used: it counts the cores
    job = Job.of(Experiment.from_objects(federation, model, method, **options), federation)
    with _shown(job, progress) as notify:
        if on_evaluation is not None:
            name, seed = job.config["method"]["name"].rpartition(":")[2], job.settings.seed
            notify = partial(_called, telling(on_evaluation, None), notify, name, seed)
        return execute(job, out=out, device=place, progress=notify)


def _called(tell: Any, notify: Progress | None, name: str, seed: int, *event: Any) -> None:
    """Call both the screen of a run and the listener to its evaluations."""
    if notify is not None:
        notify(*event)
    tell(name, seed, *event)


def resume(
    path: str | Path,
    device: str | Device = "auto",
    progress: Progress | bool | None = None,
    *,
    devices: int | None = None,
    trust_code: bool = False,
) -> Result:
    """Continue the run in a folder; its end is bit-identical to that of a run that was never stopped.

    It is on the same kind of CPU or GPU, on any number of cores; where it cannot be, a warning says so.

    Args:
        path: the folder.
        device, devices, progress: as in `run`.
        trust_code: whether code that the folder names (FILE.py:CLASS) may run: it can do whatever you can do.
    """
    config = RunFolder(path).config()
    if RunFolder(path).members() is not None:
        raise CoterieError(f"{path} is of one member of a federation: continue it with coterie join, as it was begun")
    if config.get("data", {}).get("name") == "in-memory":
        raise CoterieError(
            f"{path} was started with data from Python: call coterie.run with the same data and out={str(path)!r}"
        )
    place = _device(device, path, devices)
    with names_from(RunFolder(path).path / "config.toml", trust_code):
        job = Job.of(Experiment.from_dict(config))
    with _shown(job, progress) as notify:
        return execute(job, out=path, device=place, progress=notify)


def execute(
    job: Job,
    *,
    out: str | Path | None = None,
    device: str | Device = "auto",
    progress: Progress | None = None,
    engine: Engine | None = None,
    place: Place | None = None,
    profile: NoProfile = NO_PROFILE,
) -> Result:
    """Run a job from its start or from its newest checkpoint; a folder that is complete is only read.

    `place` says where the clients live, if not all of them live here; `profile` times the parts of the run.
    """
    if out is None:
        return _train(job, None, device, progress, engine, place, profile)
    folder = RunFolder(out)
    if place is not None and not place.writes:
        return _follow(job, folder, device, progress, place)
    job = _as_begun(job, folder)
    digest = (place or Place()).fingerprint(job.federation)
    folder.check(job.config, job.federation, digest)
    if not folder.complete:
        existed = folder.exists()
        with folder.lock():
            if folder.exists() != existed:  # another process has made it in the meantime
                folder.check(job.config, job.federation, digest)
            folder.create(job.config, job.federation, None if place is None else place.members, digest)
            if not folder.complete:  # the process that had the lock before may have completed it
                if job.measured_graph is not None:  # a run continues with the graph it began with, on any machine
                    job = job.with_graph(MeasuredGraph.of(folder.network(job.measured_graph.arrays())))
                device = _device(device, out) if engine is None else engine.device
                keep_machine(folder.path, device.machine)
                if place is not None:
                    place.wait("folder")
                return _train(job, folder, device, progress, engine, place, profile)
    if place is not None:
        place.wait("folder")
    return Result.read(folder.path, job.method.adapt(job.task))


def _as_begun(job: Job, folder: RunFolder) -> Job:
    """Return the job as an earlier version has begun it, which had another fingerprint of the same data from Python."""
    if job.experiment.data.name != "in-memory" or not (folder.is_ours() and folder.exists()):
        return job
    known = folder.config().get("data", {}).get("digest", "")
    if not is_earlier(known) or known != earlier_fingerprint(job.federation):
        return job
    data = dataclasses.replace(job.experiment.data, about={"digest": known})
    return dataclasses.replace(job, experiment=dataclasses.replace(job.experiment, data=data))


def _follow(job: Job, folder: RunFolder, device: str | Device, progress: Progress | None, place: Place) -> Result:
    """Do what `execute` does in another process that shares the devices, and writes the files."""
    place.wait("folder")  # until it is there
    if folder.complete:
        return Result.read(folder.path, job.method.adapt(job.task))
    if job.measured_graph is not None:
        job = job.with_graph(MeasuredGraph.of(folder.network(job.measured_graph.arrays())))
    return _train(job, folder, device, progress, None, place, NO_PROFILE)


def _train(
    job: Job,
    folder: RunFolder | None,
    device: str | Device,
    progress: Progress | None,
    engine: Engine | None,
    place: Place | None,
    profile: NoProfile,
) -> Result:
    with precision(job.settings.precision):
        with profile.part("input and output"):
            engine = engine or Engine.of(job, _device(device))
        engine.profile = profile
        return Loop(job, engine, folder, progress or (lambda *_: None), place).run()


def _shown(job: Job, progress: Progress | bool | None) -> contextlib.AbstractContextManager[Progress | None]:
    """Show the progress of a job, unless a function of the caller's own takes it."""
    return shown_run(progress, job.config["method"]["name"].rpartition(":")[2], job.settings.seed)


def _device(device: str | Device, folder: str | Path | None = None, devices: int | None = None) -> Device:
    return device if isinstance(device, Device) else choose_device(device, folder=folder, devices=devices)
