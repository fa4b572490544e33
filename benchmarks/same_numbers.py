"""Checks that two versions give the same numbers, to the bit, for changes that must not affect any.

    python benchmarks/same_numbers.py BASE           # a commit against this working tree
    python benchmarks/same_numbers.py BASE HEAD      # a commit against another

Every method that both versions have runs for a few rounds on embedded data, each version with its own source: batched
on a linear model, one client after another on a network, and the exact regressions on a table.
Every number of the metrics, graphs, ledgers and models is compared bit for bit; differences are printed, and the exit
status is 1. A file with the same numbers in other bytes is printed, too, but does not count as a difference.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import safetensors.numpy

from coterie.storage.blocks import read_blocks

ROOT = Path(__file__).parent.parent
SAME = ("metrics.jsonl", "graph", "ledger", "graph.blocks", "ledger.blocks", "models")  # folders: earlier versions
EXPERIMENT = """
format = 1
[data]
name = "{data}"
[partition]
{partition}
[model]
name = "{model}"
[method]
lr = 0.05
momentum = 0.9
batch_size = 10
[graph]
name = "ring"
[run]
rounds = 5
evaluate_every = 2
mode = "{mode}"
"""
DIGITS = {"data": "digits", "partition": 'name = "classes"\nclients = 7\nclasses = 3'}
TABLE = {"data": "hierarchical-linear", "partition": 'name = "natural"'}
TOGETHER = 10  # methods in one process: the programs of thirty need more memory maps than Linux allows by default
EXACT = ("local-exact", "pooled-exact", "hierarchical")  # regressions: they refuse images
LAYERED = ("spdb", "fedper", "fedrep", "component")  # they need a model of several layers
# settings of the experiment, the methods that run in it, those that do not
VARIANTS: dict[str, tuple[dict[str, str], tuple[str, ...], tuple[str, ...]]] = {
    "linear-fast": (DIGITS | {"model": "linear", "mode": "fast"}, (), (*EXACT, *LAYERED)),
    "mlp-exact": (DIGITS | {"model": "mlp", "mode": "exact"}, (), EXACT),
    "table": (TABLE | {"model": "linear", "mode": "fast"}, EXACT, ()),
}


def source_of(commit: str | None, place: Path) -> Path:
    """Unpack the source of a commit, or return that of this tree."""
    if commit is None:
        return ROOT / "src"
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "src"], capture_output=True)
    if packed.returncode:
        sys.exit(f"same-numbers: git has no {commit}: {packed.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(place, filter="data")
    return place / "src"


def coterie(source: Path, cache: Path, *words: object) -> str:
    """Run the command line of a version."""
    environment = os.environ | {"PYTHONPATH": str(source), "JAX_COMPILATION_CACHE_DIR": str(cache)}
    command = [sys.executable, "-m", "coterie", *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=source)
    if done.returncode:
        sys.exit(f"same-numbers: {' '.join(command)} failed with the source in {source}:\n{done.stderr}")
    return done.stdout


def methods_of(source: Path, cache: Path) -> list[str]:
    """Return the methods of a version."""
    return [row["name"] for row in json.loads(coterie(source, cache, "list", "methods", "--json"))]


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files that must not differ, of all runs below a folder."""
    files = [path for path in folder.rglob("*") if path.is_file() and any(name in path.parts for name in SAME)]
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(files)}


def explain(name: str, base: bytes | None, head: bytes | None) -> str | None:
    """Describe the first difference between the numbers of two files; None if there is none."""
    if base is None or head is None:
        return "is missing in " + ("the first" if base is None else "the second")
    tables = [dict(arrays(name, data)) for data in (base, head)]
    for key in sorted(tables[0].keys() | tables[1].keys()):
        first, second = tables[0].get(key), tables[1].get(key)
        if first is None or second is None:
            return f"{key} is only in " + ("the second" if first is None else "the first")
        if first.dtype.kind in "iu" and second.dtype.kind in "iu":  # a ledger's counts may be stored more narrowly
            first, second = first.astype(np.int64), second.astype(np.int64)
        if first.shape != second.shape or first.dtype != second.dtype:
            return f"{key} is {first.dtype}{list(first.shape)} and {second.dtype}{list(second.shape)}"
        if first.tobytes() != second.tobytes():
            gap = np.max(np.abs(first.astype(np.float64) - second.astype(np.float64)))
            return f"{key} differs by up to {gap:.3g}"
    return None


def arrays(name: str, data: bytes) -> Iterator[tuple[str, np.ndarray]]:
    """Read a file of a run as named arrays."""
    if name.endswith(".jsonl"):
        for line in map(json.loads, data.decode().splitlines()):
            yield from ((f"{key} of round {line['round']}", np.array(value)) for key, value in line.items())
    elif name.endswith(".blocks"):
        for number, content in read_blocks(data, name):
            yield from ((f"{key} of round {number}", value) for key, value in arrays(".npz", content))
    elif name.endswith(".npz"):
        with np.load(io.BytesIO(data)) as file:
            yield from file.items()
    else:
        yield from safetensors.numpy.load(data).items()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", help="a commit")
    parser.add_argument("head", nargs="?", help="another; without it, this working tree")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", help="only these, with commas between")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        cache = place / "programs"  # shared: programs that both versions have are compiled once
        sources = [source_of(args.base, place / "base"), source_of(args.head, place / "head")]
        known = [methods_of(source, cache) for source in sources]
        asked = known[0] if args.methods is None else args.methods.split(",")
        methods = [name for name in known[0] if name in known[1] and name in asked]
        left_out = sorted(({*known[0], *known[1]} - set(methods)) if args.methods is None else ())
        for label, (settings, only, without) in VARIANTS.items():
            file = place / f"{label}.toml"
            file.write_text(EXPERIMENT.format(**settings))
            chosen = [name for name in methods if name not in without and (not only or name in only)]
            for start in range(0, len(chosen), TOGETHER):
                words = ["--methods", ",".join(chosen[start : start + TOGETHER]), "--device", args.device, "--json"]
                for side, source in zip(("base", "head"), sources, strict=True):
                    out = place / "runs" / side / label / str(start)
                    coterie(source, cache, "compare", file, *words, "--out", out)
        base, head = (contents(place / "runs" / side) for side in ("base", "head"))
    differences = {name: explain(name, base.get(name), head.get(name)) for name in differing(base, head)}
    for name, why in differences.items():
        print(f"{name}: {why or 'the same numbers in other bytes'}")
    print(f"{args.base} and {args.head or 'this tree'}: {', '.join(methods)} with {', '.join(VARIANTS)}")
    if left_out:
        print(f"only one of them has {', '.join(left_out)}, which was left out")
    wrong = sum(why is not None for why in differences.values())
    print(
        f"{wrong} of {len(base.keys() | head.keys())} files differ" if wrong else f"{len(base)} files: the same numbers"
    )
    sys.exit(1 if wrong or not base else 0)


def differing(base: dict[str, bytes], head: dict[str, bytes]) -> list[str]:
    return [name for name in sorted(base.keys() | head.keys()) if base.get(name) != head.get(name)]


if __name__ == "__main__":
    main()
