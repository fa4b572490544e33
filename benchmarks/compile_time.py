"""The first minutes of a new user: seconds of short comparisons with nothing compiled before, against another commit.

    python benchmarks/compile_time.py --base main
    python benchmarks/compile_time.py --base main --repeats 3 --cases scool-sbm
    python benchmarks/compile_time.py --base main --rounds 60        # with blocks of rounds, and stages of a method

Three rounds on 20 clients of digits, each in a process of its own with an empty cache, the two versions in turn. CPU
seconds of the process stand beside wall time, because others may be using the machine; of several repeats the smallest
counts. `programs` and `compiling` are XLA's programs and their wall time, `tracing` is what Python takes to write them
down, `training` the time inside them. A ratio below 1 is a gain over the base. Python's own compilation is not counted:
whoever installs the package has its bytecode.
"""

import argparse
import compileall
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import publish
from same_numbers import ROOT, source_of

CASES = {
    "local": "local",
    "local and scool-attention": "local,scool-attention",
    "scool-sbm": "scool-sbm",
    "pdbo-mtl": "pdbo-mtl",
}
COMPARE = ["compare", "--data", "digits", "--clients", "20", "--no-tune", "--splits", "1"]
COUNTED = """
import atexit, json, pathlib, sys
import jax
events, file = [], pathlib.Path(sys.argv.pop(1))
jax.monitoring.register_event_duration_secs_listener(lambda name, seconds, **_: events.append((name, seconds)))
atexit.register(lambda: file.write_text(json.dumps(events)))
from coterie.cli import main
main()
"""


def cold(source: Path, methods: str, rounds: int) -> dict[str, Any]:
    """Run a comparison in a fresh process with an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        out, events = Path(folder) / "out", Path(folder) / "events.json"
        environment = os.environ | {"PYTHONPATH": str(source), "XDG_CACHE_HOME": folder}
        settings = ["--methods", methods, "--rounds", str(rounds), "--out", str(out)]
        command = [sys.executable, "-c", COUNTED, str(events), *COMPARE, *settings]
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder)
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            sys.exit(f"compile-time: {methods} failed with the source in {source}:\n{done.stderr}")
        durations = [(name.rpartition("/")[2], seconds) for name, seconds in json.loads(events.read_text())]
        compiled = [seconds for name, seconds in durations if name == "backend_compile_duration"]
        written = ("jaxpr_trace_duration", "jaxpr_to_mlir_module_duration")
        timings = [json.loads(file.read_text().splitlines()[-1]) for file in out.rglob("timing.jsonl")]
        return {
            "wall": wall,
            "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            "programs": len(compiled),
            "compiling": sum(compiled),
            "tracing": sum(seconds for name, seconds in durations if name in written),
            "training": sum(timing["program"] for timing in timings),
            "device": timings[0]["device"],
        }


def best(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the smallest value of each figure."""
    return {name: round(min(run[name] for run in runs), 2) for name in runs[0] if name != "device"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", required=True, help="a commit")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    args = parser.parse_args()
    figures, device = {}, ""
    with tempfile.TemporaryDirectory() as folder:
        sources = {"base": source_of(args.base, Path(folder)), "this tree": source_of(None, Path(folder))}
        for source in sources.values():
            compileall.compile_dir(source, quiet=1)
        for case in args.cases:
            runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sources}
            for _ in range(args.repeats):
                for side, source in sources.items():
                    runs[side].append(cold(source, CASES[case], args.rounds))
                    device = runs[side][-1]["device"]
            sides = {side: best(each) for side, each in runs.items()}
            ratio = {name: round(sides["this tree"][name] / sides["base"][name], 3) for name in ("wall", "cpu")}
            figures[case] = {**sides, "ratio": ratio}
            print(f"{case}: {ratio}", file=sys.stderr)
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", args.base], capture_output=True, text=True)
    busy = round(os.getloadavg()[2], 1)
    about = {"base": commit.stdout.strip(), "repeats": args.repeats, "load_of_the_last_15_minutes": busy}
    name = "compile-time" if args.rounds == 3 else f"compile-time-{args.rounds}-rounds"
    publish(name, device, {**about, "rounds": args.rounds, "cases": figures})


if __name__ == "__main__":
    main()
