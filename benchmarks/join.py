"""Join a trained federation or train alone: test accuracy of a new site by its number of labelled rows.

    python benchmarks/join.py --methods fedavg,pfedgraph,local

Handwritten digits at sites of three kinds (images as they are, turned by a quarter, inverted); of each kind five sites
with 40 training images train together, and a new site arrives with few images. "alone" trains a fresh model for 100
passes, with the step size that is best on the test rows (which favours it); "unchanged" is the model of a new client
without training.
"""

import argparse
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import publish
from sklearn.datasets import load_digits

import coterie as ct
from coterie import registry
from coterie.data.clients import Split
from coterie.experiment.personal_model import PersonalModel
from coterie.learning.local_sgd import LocalSGD
from coterie.serving.opening import TrainedRun

SITES, NEW, IMAGES = 5, 1, 40
KINDS = (lambda x: x, lambda x: np.rot90(x, axes=(1, 2)), lambda x: 16 - x)


def sites(seed: int) -> tuple[dict[str, Any], list[tuple[Any, Any]]]:
    """Return the pairs of the sites that train, and for each new site its pool of rows and its test rows."""
    random = np.random.default_rng(seed)
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8)
    order = random.permutation(len(labels))
    trained, new = {}, []
    for kind, turn in enumerate(KINDS):
        rows = order[kind :: len(KINDS)]
        x = (np.ascontiguousarray(turn(images[rows])) / 16).astype(np.float32)[:, None]
        y = labels[rows]
        size = IMAGES * 10 // 7  # a tenth for validation, a fifth for testing
        for k in range(SITES):
            trained[f"kind{kind}-{k}"] = (x[k * size : (k + 1) * size], y[k * size : (k + 1) * size])
        rest_x, rest_y = x[SITES * size :], y[SITES * size :]
        for k in range(NEW):
            pool = slice(40 * k, 40 * (k + 1))
            new.append(((rest_x[pool], rest_y[pool]), (rest_x[40 * NEW :], rest_y[40 * NEW :])))
    return trained, new


def accuracy(model: Any, rows: tuple[Any, Any]) -> float:
    """Return the share of test rows whose class is predicted."""
    return float((model.predict(rows[0])["prediction"].astype(int).to_numpy() == rows[1]).mean())


def alone(run: TrainedRun, rows: tuple[Any, Any], test: tuple[Any, Any]) -> float:
    """Return the best test accuracy, over step sizes, of a fresh model after 100 passes over the rows."""
    fresh = jax.device_get(run.task.init(jax.random.key(0)))
    data = Split(jnp.asarray(rows[0]), jnp.asarray(rows[1], jnp.int32), jnp.int32(len(rows[0])))
    scores = []
    for lr in (0.02, 0.05, 0.1, 0.3):
        sgd = LocalSGD(lr=lr, epochs=100)
        train = jax.jit(lambda model, sgd=sgd: sgd.train(run.task, model, data, jax.random.key(1)).variables)
        scores.append(accuracy(PersonalModel(run.task, train(fresh), lambda: run.answers, "alone"), test))
    return max(scores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="fedavg,pfedgraph,local")
    parser.add_argument("--rows", default="10,20,40")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--lr", type=float, default=0.2)
    given = parser.parse_args()
    trained, new = sites(0)
    federation, table = ct.federation(trained), []
    for method in given.methods.split(","):
        with tempfile.TemporaryDirectory() as folder:
            configured = registry.load("methods", method)(lr=given.lr)
            ct.run(federation, "mlp", configured, rounds=given.rounds, out=f"{folder}/run", device="cpu", progress=None)
            run = ct.open(f"{folder}/run")
            for count in map(int, given.rows.split(",")):
                scores: dict[str, list[float]] = {"alone": [], "joined": [], "unchanged": []}
                starts = []
                for pool, test in new:
                    rows = (pool[0][:count], pool[1][:count])
                    member = ct.join_trained(run, rows)
                    starts.append(member.joined["start"])
                    scores["joined"].append(accuracy(member.model("new"), test))
                    scores["alone"].append(alone(run, rows, test))
                    if method != "local":
                        scores["unchanged"].append(accuracy(run.new_client(rows), test))
                means = {name: round(float(np.mean(values)), 3) for name, values in scores.items() if values}
                table.append({"method": method, "rows": count, **means, "starts": " ".join(sorted(starts))})
                print(table[-1], flush=True)
    publish("join", "cpu", {"table": table})


if __name__ == "__main__":
    main()
