"""The share of a run's wall time, without compilation, that is spent inside the compiled program.

    python benchmarks/overhead.py --device cpu

A real `coterie run` of 100 rounds with evaluation, metrics, ledger and checkpoints in a run folder; the times are from
the run's timing.jsonl. 1.0 would be a program that never leaves the device.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from common import publish

EXPERIMENT = """
format = 1
[data]
name = "digits"
[partition]
name = "classes"
clients = 20
classes = 3
[model]
name = "mlp"
hidden = [{hidden}]
[method]
name = "{method}"
epochs = 5
[run]
rounds = 100
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--methods", nargs="+", default=["fedavg", "gossip-sgd"])
    args = parser.parse_args()
    figures, device = {}, ""
    with tempfile.TemporaryDirectory() as folder:
        for method in args.methods:
            file, out = Path(folder) / f"{method}.toml", Path(folder) / method
            file.write_text(EXPERIMENT.format(hidden=args.hidden, method=method))
            command = [sys.executable, "-m", "coterie", "run", str(file), "--out", str(out), "--device", args.device]
            subprocess.run([*command, "--json"], check=True, capture_output=True)
            last = json.loads((out / "timing.jsonl").read_text().splitlines()[-1])
            device = last["device"]
            share = last["program"] / (last["wall"] - last["compile"])
            figures[method] = {**{k: last[k] for k in ("wall", "compile", "program")}, "share": round(share, 4)}
    publish("overhead", device, {"runs": figures, "smallest_share": min(f["share"] for f in figures.values())})


if __name__ == "__main__":
    main()
