"""What the benchmarks share: a synthetic federation, timing, and a dated result file that names the hardware."""

import datetime
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from coterie.clients import Federation, stack

RESULTS = Path(__file__).parent / "results"


def federation(clients: int, samples: int, shape: tuple[int, ...], classes: int, seed: int = 0) -> Federation:
    """Random inputs and labels: for timing only."""
    random = np.random.default_rng(seed)

    def part(count: int) -> Any:
        pairs = []
        for _ in range(clients):
            x = random.normal(size=(count, *shape)).astype(np.float32)
            pairs.append((x, random.integers(0, classes, count).astype(np.int32)))
        return stack(pairs)

    names = tuple(f"client-{i}" for i in range(clients))
    return Federation(names, part(samples), part(1), part(2), "classification", classes)


def best_of(repeats: int, run: Callable[[], None]) -> float:
    """Return the shortest wall time of several calls, after one to warm up."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def hardware(device: str) -> str:
    """Name the device and the software."""
    import jax

    software = f"{platform.system()} Python {platform.python_version()}, JAX {jax.__version__}"
    return f"{device}; {software}, {os.cpu_count()} cores"


def publish(name: str, device: str, figures: dict[str, Any]) -> None:
    """Print the figures and write them to a dated file."""
    out = Path(os.environ.get("COTERIE_BENCHMARKS", RESULTS))
    out.mkdir(parents=True, exist_ok=True)
    today = datetime.date.today().isoformat()
    slug = "".join(c if c.isalnum() else "-" for c in device.split("(")[-1].split(",")[0].strip(")")).strip("-").lower()
    record = {"benchmark": name, "date": today, "hardware": hardware(device), "command": " ".join(sys.argv), **figures}
    (out / f"{today}-{name}-{slug}.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))
