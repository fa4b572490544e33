"""Read how long each operation of a compiled program took from a trace of JAX's profiler, without TensorFlow.

A trace is a folder with one `*.xplane.pb` for each host. On a GPU the operations are the kernels of its streams; on a
CPU they are the steps of XLA's own runtime. Both carry the name of the operation in the compiled program (`hlo_op`) and
of the program (`hlo_module`). Operations that only hold others (loops, calls, branches) are left out, so that no time
counts twice; operations that run at the same time each count with their own.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Operation", "operations", "scopes"]

HOLDERS = re.compile(r"^(while|call|conditional|async|fusion_call)([._-]|$)")
INSTRUCTION = re.compile(r'^\s*(?:ROOT )?%?([\w.\-]+) = .*metadata=\{[^}]*?op_name="([^"]*)"')


class Operation(NamedTuple):
    """All calls of one operation of a program.

    Attributes:
        program: the name of the compiled program, such as `jit_program`.
        name: of the operation in it; empty where the trace does not say.
        kernel: what ran: the name of the GPU's kernel, or that of the operation.
        calls: how often.
        seconds: together.
    """

    program: str
    name: str
    kernel: str
    calls: int
    seconds: float


def operations(folder: Path) -> list[Operation]:
    """Return the operations of a trace, the longest first; none where the trace has no such events."""
    from jax.profiler import ProfileData

    found: dict[tuple[str, str, str], tuple[int, float]] = {}
    for file in sorted(folder.rglob("*.xplane.pb")):
        planes = list(ProfileData.from_file(str(file)).planes)
        on_device = [plane for plane in planes if plane.name.startswith("/device:GPU")]
        for event, stats in _events(on_device or [plane for plane in planes if plane.name == "/host:CPU"]):
            name = str(stats.get("hlo_op", ""))
            if HOLDERS.match(name) or not (on_device or name):
                continue
            key = (str(stats.get("hlo_module", "")), name, event.name)
            count, seconds = found.get(key, (0, 0.0))
            found[key] = count + 1, seconds + event.duration_ns / 1e9
    rows = [Operation(*key, *value) for key, value in found.items()]
    return sorted(rows, key=lambda row: -row.seconds)


def _events(planes: list[Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    for plane in planes:
        lines = list(plane.lines)
        # Where a device has both, its other lines repeat what is in its streams.
        streams = [line for line in lines if line.name.startswith("Stream")]
        for line in streams or lines:
            for event in line.events:
                yield event, dict(event.stats)


def scopes(program: str) -> dict[str, str]:
    """Return the scopes (`jax.named_scope`) of a compiled program's operations, from its text."""
    return {m.group(1): m.group(2) for m in map(INSTRUCTION.match, program.splitlines()) if m}
