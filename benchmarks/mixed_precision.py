"""What training in bfloat16 does to accuracy: the same runs in float32 and bfloat16, seed by seed.

    python benchmarks/mixed_precision.py --data digits --clients 20 --samples 80      # and mnist, fashion-mnist
    python benchmarks/mixed_precision.py --data mnist --model cnn --device gpu

The table in docs/start/devices.md. A seed is a partition (three classes a client), its initial models and its batches;
both runs have the same. The difference is that of the clients' mean test accuracy; its interval is Student's, over
seeds. A second run in float32 with another seed of training, on the same partition, shows how large a difference
chance alone makes.
"""

import argparse
import time
from typing import Any

import numpy as np
from common import publish
from scipy import stats

import coterie as ct
from coterie.experiment.device import choose_device

METHODS = ("local", "fedavg", "scool-attention")
OTHER = 1000  # added to the seed of the run that shows what chance makes


def paired(differences: list[float]) -> dict[str, float]:
    """Return the mean difference in percentage points and half the width of its 95 % interval."""
    values = 100 * np.asarray(differences)
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0
    return {"mean_points": round(float(values.mean()), 2), "plus_minus": round(float(half), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--samples", type=int, default=100, help="per client")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    device, began = choose_device(args.device), time.time()
    rows: list[dict[str, Any]] = []
    for method in METHODS:
        scores: dict[str, list[float]] = {"float32": [], "bfloat16": [], "another seed": []}
        losses: dict[str, list[float]] = {name: [] for name in scores}
        for seed in range(args.seeds):
            data = ct.load(args.data, "classes", classes=3, clients=args.clients, samples=args.samples, seed=seed)
            for name in scores:
                result = ct.run(
                    data,
                    args.model,
                    method,
                    device=device,
                    progress=False,
                    rounds=args.rounds,
                    evaluate_every=args.rounds,
                    seed=seed + OTHER * (name == "another seed"),
                    precision="bfloat16" if name == "bfloat16" else "float32",
                )
                scores[name].append(float(result.final["test_score"].mean()))
                losses[name].append(float(result.final["test_loss"].mean()))
        row = {"method": method, "float32_accuracy": round(float(np.mean(scores["float32"])), 4)}
        row |= {"bfloat16_accuracy": round(float(np.mean(scores["bfloat16"])), 4)}
        for name in ("bfloat16", "another seed"):
            row[f"{name} minus float32"] = paired(list(np.subtract(scores[name], scores["float32"])))
        row["test_loss"] = {name: round(float(np.mean(losses[name])), 4) for name in ("float32", "bfloat16")}
        rows.append(row)
        print(row, flush=True)
    figures = {name: getattr(args, name) for name in ("data", "model", "clients", "samples", "rounds", "seeds")}
    figures |= {"rows": rows, "benchmark_seconds": round(time.time() - began, 1)}
    publish(f"mixed-precision-{args.data}-{args.model}", device.label, figures)


if __name__ == "__main__":
    main()
