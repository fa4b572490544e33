"""Folders of runs for the tests of serving: complete, but with random models, so that nothing is trained."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np

import coterie as ct
from coterie.experiment.folder import RunFolder
from coterie.experiment.intervals import interval_record
from coterie.experiment.personal_model import mean_model
from coterie.experiment.prediction import Answers
from coterie.experiment.result import SHARED_MODEL, Result
from coterie.peers.ledger import Ledger
from support.run_cases import make_job


def classes_federation():
    """Five clients with 30 rows of six numbers, three classes."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((3, 6)) * 1.5
    pairs = {}
    for k in range(5):
        y = np.arange(30) % 3
        pairs[f"client-{k}"] = ((centres[y] + random.standard_normal((30, 6))).astype(np.float32), y)
    return ct.federation(pairs)


def numbers_federation():
    """Four clients with 150 rows of three numbers; targets have mean 100 and deviation 7 in their unit."""
    random = np.random.default_rng(1)
    pairs = {}
    for k in range(4):
        x = random.standard_normal((150, 3)).astype(np.float32)
        pairs[f"client-{k}"] = (x, (x @ [1.0, -0.5, 0.2 * k] + 0.3 * random.standard_normal(150)).astype(np.float32))
    federation = ct.federation(pairs, validation=0.3)
    return dataclasses.replace(federation, target_mean=100.0, target_std=7.0)


def image_federation():
    """Two clients with 12 grey images of 8x8 bytes."""
    random = np.random.default_rng(2)
    images = random.integers(0, 256, (2, 12, 1, 8, 8), np.uint8)
    federation = ct.federation({f"client-{k}": (images[k], np.arange(12) % 2) for k in range(2)})
    return dataclasses.replace(federation, mean=(0.4,), std=(0.3,))


def saved_run(folder, federation, model="mlp", method="fedavg", models=None, score=0.5, **options):
    """Write the folder of a complete run whose models are random, or given as `[K, ...]`."""
    job = make_job(federation, model, method, rounds=1, **options)
    task = job.method.adapt(job.task)
    if models is None:
        made = [jax.device_get(task.init(jax.random.key(k))) for k in range(len(federation))]
        models = jax.tree.map(lambda *leaves: np.stack(leaves), *made)
    intervals = None
    if federation.kind == "regression":
        residuals = []
        for k, count in enumerate(federation.validation.count):
            own = jax.tree.map(lambda a, k=k: a[k], models)
            output = np.asarray(task.apply(own, jnp.asarray(federation.validation.x[k, :count]))[0], np.float64)
            errors = np.abs(output - federation.validation.y[k, :count].reshape(output.shape))
            residuals.append(errors * federation.target_std)
        intervals = interval_record(federation.names, residuals)
    measured = ("validation_loss", "validation_score", "test_loss", "test_score", "test_own_score")
    scores = dict.fromkeys(measured, [score] * len(federation))
    result = Result(
        config=job.config,
        names=federation.names,
        rows=[{"round": 1, **scores}],
        ledger=Ledger(federation.names, job.graph.neighbours),
        graphs={},
        seconds={"wall": 0.0, "compile": 0.0, "program": 0.0},
        best_round=1,
        metric=task.metric,
        device="cpu",
        role=job.method.role,
        folder=folder,
        task=task,
        variables=models,
        answers=Answers.of(federation, job.config, intervals),
    )
    run = RunFolder(folder)
    folder.mkdir(parents=True)
    run.create(job.config, federation)
    for file, data in result.model_files(models, range(len(result.names))):
        run.save_model(file, data)
    if job.method.newcomer == "shared":
        run.save_model(SHARED_MODEL, result.encode_shared(mean_model(models)))
    if intervals is not None:
        run.save_record("intervals.json", intervals)
    run.append("metrics.jsonl", {"round": 1, **{name: list(np.asarray(v, float)) for name, v in scores.items()}})
    run.finish(result.summary())
    return result


def changed_record(file, **entries):
    """Change entries of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


def softmax(logits):
    """Probabilities from logits."""
    odds = np.exp(np.asarray(logits, np.float64))
    return odds / odds.sum(1, keepdims=True)
