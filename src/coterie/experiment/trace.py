"""Read how long each operation of a compiled program took from a trace of JAX's profiler, without TensorFlow.

A trace is a folder with one `*.xplane.pb` for each host. On a GPU the operations are the kernels of its streams; on a
CPU they are the steps of XLA's own runtime. Both carry the name of the operation in the compiled program (`hlo_op`) and
of the program (`hlo_module`). Operations that only hold others (loops, calls, branches) are left out, so that no time
counts twice; operations that run at the same time each count with their own.
"""

import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Operation", "operations", "part_of", "parts_of", "scopes"]

HOLDERS = re.compile(r"^(while|call|conditional|async|fusion_call)([._-]|$)")
COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")
CALLED = re.compile(r"(?:calls|to_apply|body)=%?([\w.\-]+)")
MENTIONED = re.compile(r"%([\w.\-]+)")
SIGN = re.compile(r"[^\w]")
NAME = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")
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
    """Return the operations of the newest trace in a folder, the longest first; none where it has no such events."""
    with warnings.catch_warnings():
        # Python 3.12 and newer warn of the types of jaxlib's reader, which ends the process where warnings are errors.
        warnings.filterwarnings("ignore", "builtin type .* has no __module__ attribute", DeprecationWarning)
        return _operations(folder)


def _operations(folder: Path) -> list[Operation]:
    from jax.profiler import ProfileData

    found: dict[tuple[str, str, str], tuple[int, float]] = {}
    files = sorted(folder.rglob("*.xplane.pb"))
    for file in [file for file in files if file.parent == files[-1].parent]:
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


def parts_of(program: str, scope_names: Sequence[str]) -> dict[str, str]:
    """Return to which of some scopes each operation of a compiled program belongs: the outermost one around it.

    A group of operations (a fusion) that is not in any belongs where most of the group does. The compiler also makes
    operations of its own, without a name: they belong where what they are for does, or else where most operations
    beside them do. What is in none is left out.
    """
    paths = scopes(program)
    known = {name: _scope(path, scope_names) for name, path in paths.items()}
    inside: dict[str, list[str]] = {}  # the operations of each computation
    groups: dict[str, str] = {}  # the computation that an operation stands for
    users: dict[str, list[str]] = {}
    here: list[str] = []
    for line in program.splitlines():
        if (start := COMPUTATION.match(line)) is not None:
            here = inside.setdefault(start.group(1), [])
        elif (named := NAME.match(line)) is not None:
            name, (_, _, rest) = named.group(1), line.partition(" = ")
            here.append(name)
            for other in MENTIONED.findall(rest.partition("metadata=")[0]):
                users.setdefault(other, []).append(name)
            if (called := CALLED.search(rest)) is not None:
                groups[name] = called.group(1)
    usual = {group: _most(known.get(name, "") for name in names) for group, names in inside.items()}
    found = {
        name: known.get(name) or usual.get(groups.get(name, ""), "") for names in inside.values() for name in names
    }
    for group, names in inside.items():
        for name in reversed(names):  # what an operation is for comes after it
            if not found[name] and name not in paths:
                found[name] = _most(found.get(user, "") for user in users.get(name, ())) or usual[group]
    # A GPU runs groups of kernels as one command buffer, by whose name its trace calls those that have none.
    return {name: part for name, part in (usual | found).items() if part}


def part_of(operation: Operation, parts: dict[str, str]) -> str:
    """Return the part of an operation by its name, or by its kernel's, in which signs are underscores; "": in none."""
    plain = {SIGN.sub("_", name): part for name, part in parts.items()}
    return parts.get(operation.name) or plain.get(operation.kernel) or plain.get(operation.name, "")


def _scope(path: str, scope_names: Sequence[str]) -> str:
    return next((part for part in path.split("/") if part in scope_names), "")


def _most(values: Iterator[str]) -> str:
    counted = Counter(value for value in values if value)
    return max(counted, key=lambda value: counted[value], default="")
