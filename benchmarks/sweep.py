"""A sweep of 16 learning rates, trained together as one program, against the same 16 runs one after another.

    python benchmarks/sweep.py --device cpu
    python benchmarks/sweep.py --device gpu --model cnn --mode fast

Three ways, each in a process of its own with an empty folder of compiled programs: `together` (`coterie.sweep`),
`in turn` (`coterie.sweep(batch=1)`: one after another by the same programs) and `apart` (16 calls of `coterie.run`).
Cold is the first time, compilation included; warm the second time in the same process, with the programs that JAX has
kept. CPU seconds are those of all cores, which other work on the machine disturbs less than wall time.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

WAYS = ("together", "in turn", "apart")


def measure(way: str, args: argparse.Namespace) -> dict:
    """Run one way twice, in this process."""
    import coterie as ct

    federation = ct.load("digits", "classes", clients=20, classes=3)
    rates = np.geomspace(0.001, 1.0, args.rates).round(6).tolist()
    options = {"model": args.model, "rounds": args.rounds, "mode": args.mode, "device": args.device, "progress": False}
    figures: dict = {}
    for when in ("cold", "warm"):
        wall, cpu = time.perf_counter(), time.process_time()
        if way == "apart":
            results = [ct.run(federation, method=ct.methods.Ditto(lr=rate), **options) for rate in rates]
        else:
            batch = 1 if way == "in turn" else None
            swept = ct.sweep(federation, {"method.lr": rates}, method="ditto", batch=batch, **options)
            results = [swept.result(number) for number in range(1, len(rates) + 1)]
        figures[when] = {
            "seconds": round(time.perf_counter() - wall, 2),
            "cpu_seconds": round(time.process_time() - cpu, 2),
            "program_seconds": round(sum(result.seconds["program"] for result in results), 2),
        }
        figures["scores"] = [float(result.final["test_score"].mean()) for result in results]
        figures["device"] = results[0].device
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--model", default="logistic")
    parser.add_argument("--mode", default="auto")
    parser.add_argument("--rates", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--way", choices=WAYS)
    args = parser.parse_args()
    if args.way:
        print(json.dumps(measure(args.way, args)))
        return
    from common import publish

    found = {}
    for way in WAYS:
        with tempfile.TemporaryDirectory() as folder:
            kept = {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3"}
            command = [sys.executable, *sys.argv, "--way", way]
            done = subprocess.run(command, env=os.environ | kept, stdout=subprocess.PIPE, check=True, text=True)
            found[way] = json.loads(done.stdout.splitlines()[-1])
    device = found["together"].pop("device")
    scores = {way: np.array(figures.pop("scores")) for way, figures in found.items()}
    for figures in found.values():
        figures.pop("device", None)
    ratios = {
        f"{way}, {when}": {
            name: round(found[way][when][name] / found["together"][when][name], 2) for name in found[way][when]
        }
        for way in WAYS[1:]
        for when in ("cold", "warm")
    }
    publish(
        f"sweep-{args.model}",
        device,
        {
            "rates": args.rates,
            "rounds": args.rounds,
            "ways": found,
            "times_as_long_as_together": ratios,
            "largest_difference_of_scores": max(float(np.abs(s - scores["together"]).max()) for s in scores.values()),
            "load_at_the_end": round(os.getloadavg()[0], 1),
        },
    )


if __name__ == "__main__":
    main()
