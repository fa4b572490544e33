"""What programs measured, as the rows of a table and a dated file."""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import by_hand
import numpy as np
from workload import Workload

sys.path.append(str(Path(__file__).parent.parent))

__all__ = ["difference", "read", "row", "short", "timed", "write"]


def read(place: Path, error: str | None) -> dict[str, Any]:
    """Return what a program wrote, with its weights; or, if it wrote nothing, its error."""
    file = place.with_name(place.name + ".json")
    if not file.exists():
        return {"error": error or "ended without a result"}
    with np.load(place.with_name(place.name + ".npz")) as stored:
        return {**json.loads(file.read_text()), "weights": dict(stored)}


def difference(weights: dict[str, np.ndarray], answer: dict[str, np.ndarray]) -> float:
    """Return the largest difference of a weight."""
    return float(max(np.abs(weights[name] - value).max() for name, value in answer.items()))


def timed(one: dict[str, Any]) -> dict[str, Any]:
    """Return seconds per round after the first block, and the seconds of that one; or the error."""
    if "error" in one:
        return {"error": one["error"]}
    scale = one["block"] * one.get("share", 1)
    rest = {name: [value / scale for value in one[name][1:]] for name in ("wall_s", "cpu_s")}
    found = {name: round(statistics.median(values), 6) for name, values in rest.items()}
    return {**found, "blocks": rest, "first_block_s": round(one["wall_s"][0], 3)}


def short(one: dict[str, Any]) -> str:
    """Say what was measured in a few words."""
    found = timed(one)
    return found.get("error") or f"{found['wall_s']:.3f} s a round, {found['cpu_s']:.3f} CPU seconds"


def row(rival: str, way: str, found: list[dict[str, Any]], exact: Any, work: Workload) -> dict[str, Any]:
    """Return a row of the table: a rival with one setting, over all repeats."""
    said = {"rival": rival, "way": way, "difference_to_exact": exact}
    errors = [one["error"] for one in found if "error" in one]
    if errors or not found:
        return {**said, "error": errors[0] if errors else "not run"}
    times = [timed(one) for one in found]
    several = len(times) > 1
    spread = {
        name: [one[name] for one in times] if several else [round(v, 6) for v in times[0]["blocks"][name]]
        for name in ("wall_s", "cpu_s")
    }
    whole = all(one["block"] == work.block and one.get("share", 1) == 1 for one in found)
    accuracy = [round(100 * by_hand.score(one["weights"], work), 2) for one in found] if whole else None
    first = [one["first_block_s"] for one in times]
    more = {"software": found[0]["software"]}
    more |= {"hardware": found[0]["hardware"]} if "hardware" in found[0] else {}
    return {**said, **spread, "first_block_s": first, "accuracy": accuracy, **more}


def _with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add how many times more seconds a rival takes than coterie did in the same repeat."""
    ours = next((row for row in rows if row["rival"] == "coterie" and "error" not in row), None)
    for row in rows:
        if ours is None or "error" in row:
            continue
        for name in ("wall_s", "cpu_s"):
            pairs = zip(row[name], ours[name], strict=True)
            row[f"times_{name[:-2]}"] = [round(theirs / own, 3) for theirs, own in pairs]
    return rows


def write(
    asked: argparse.Namespace,
    model: str,
    work: Workload,
    data: str,
    rows: list[dict[str, Any]],
    trials: list[dict[str, Any]],
    load: list[float],
    seconds: float,
) -> None:
    """Write the dated file of a model; `load` says how busy the machine was in each repeat."""
    import common

    device = next((row.pop("hardware") for row in rows if "hardware" in row), asked.device)
    figures = {
        "model": model,
        "data": data,
        "clients": work.clients,
        "samples_of_a_client": work.samples,
        "batch": work.batch,
        "local_steps": work.steps,
        "lr": work.lr,
        "rounds": work.block * work.blocks,
        "rounds_of_a_block": work.block,
        "repeats": asked.repeats,
        "load_average": load,
        "rows": _with_ratios(rows),
        "trials": [{k: v for k, v in one.items() if k != "blocks"} for one in trials],
        "benchmark_seconds": round(seconds, 1),
    }
    common.publish(f"rivals-{model}", device, figures)
