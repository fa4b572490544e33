"""Folders for attacks: a trained run, and small functions that damage one of its files.

Each function returns what an `Attack` prepares with: it is called with the working folder, in which the run is `x`.
"""

import hashlib
import io
import json
import os
from pathlib import Path

import numpy as np

from coterie.storage import checkpoint
from coterie.storage.blocks import append_to, read_blocks

EXPERIMENT = """
format = 1
[data]
name = "planted-groups"
clients = 3
groups = 3
train_size = 8
test_size = 8
[model]
name = "linear"
[method]
name = "gossip-sgd"
[graph]
name = "ring"
[run]
rounds = 2
evaluate_every = 1
checkpoint_every = 1
"""
DEEP = "[" * 100_000
RUN = ("run", "e.toml", "--out", "x", "--device", "cpu")
RESUME, REPORT = ("resume", "x", "--device", "cpu"), ("report", "x")
OUTSIDE = "outside"  # a folder of the user's, with a file in it


def chain(*steps):
    """Do several things, one after the other."""
    return lambda folder: [step(folder) for step in steps]


def stopped(folder):
    """Let the run be one that was killed after its last checkpoint."""
    (folder / "x" / "summary.json").unlink()


def nothing(folder):
    """Leave everything as it is."""


def text(file, content):
    """Write a file of the run."""
    return lambda folder: (folder / file).write_text(content)


def made(files):
    """Make files of the user's, by path."""

    def prepare(folder):
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)

    return prepare


def replaced(file, old, new):
    """Change a text in a file of the run."""

    def prepare(folder):
        content = (folder / file).read_text()
        assert old in content
        (folder / file).write_text(content.replace(old, new))

    return prepare


def entries(file, **changes):
    """Change entries of a JSON file; None of them may be absent afterwards, `...` removes one."""

    def prepare(folder):
        record = json.loads((folder / file).read_text()) | changes
        (folder / file).write_text(json.dumps({key: value for key, value in record.items() if value is not ...}))

    return prepare


def line(number, file="x/metrics.jsonl", **changes):
    """Change entries of a line."""

    def prepare(folder):
        lines = (folder / file).read_text().splitlines()
        record = json.loads(lines[number - 1]) | changes
        lines[number - 1] = json.dumps({key: value for key, value in record.items() if value is not ...})
        (folder / file).write_text("\n".join(lines) + "\n")

    return prepare


def folder_instead(file):
    """Put a folder in the place of a file."""

    def prepare(folder):
        (folder / file).unlink()
        (folder / file).mkdir()

    return prepare


def pipe_instead(file):
    """Put a pipe in the place of a file: reading it would wait for ever."""

    def prepare(folder):
        (folder / file).unlink(missing_ok=True)
        os.mkfifo(folder / file)

    return prepare


def link(name, target=OUTSIDE):
    """Let a name in the run be a link to something outside of it."""

    def prepare(folder):
        (folder / OUTSIDE).mkdir(exist_ok=True)
        (folder / OUTSIDE / "precious.npz").write_text("mine")
        path = folder / "x" / name
        if path.exists() and not path.is_dir():
            path.unlink()
        elif path.exists():
            path.rename(folder / "moved")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(folder / target)

    return prepare


def npz(**arrays):
    """Return the bytes of arrays."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def block(kind, change, number=2):
    """Change the arrays of a record of graph.blocks or ledger.blocks: a table of arrays, or bytes."""

    def prepare(folder):
        file = folder / "x" / f"{kind}.blocks"
        records = []
        for at, content in read_blocks(file.read_bytes(), file):
            if at == number:
                with np.load(io.BytesIO(content)) as arrays:
                    given = change(dict(arrays))
                content = given if isinstance(given, bytes) else npz(**given)
            records.append(append_to(at, content))
        file.write_bytes(b"".join(records))

    return prepare


def saved(change):
    """Write the newest checkpoint again with other texts; `change` gets the record."""

    def prepare(folder):
        step, arrays, meta, _ = checkpoint.load(folder / "x")
        checkpoint.save(folder / "x", step, arrays, change(meta))

    return prepare


def record(**changes):
    """Change entries of the record of the newest checkpoint; `...` removes one."""

    def change(meta):
        content = json.loads(meta["record"]) | changes
        return {"record": json.dumps({key: value for key, value in content.items() if value is not ...})}

    return saved(change)


def forged(tensors, body=b"\0" * 8):
    """Put a file with a right digest and any header in the place of all checkpoints."""

    def prepare(folder):
        place = folder / "x" / "checkpoints"
        for file in place.iterdir():
            file.unlink()
        meta = {"coterie.sha256": "0" * 64, "coterie.step": "2", "record": "{}"}
        head = json.dumps({"__metadata__": meta, **tensors}, separators=(",", ":")).encode()
        data = len(head).to_bytes(8, "little") + head + body
        digest = hashlib.sha256(data).hexdigest().encode()
        (place / "step-00000002.safetensors").write_bytes(data.replace(b"0" * 64, digest))

    return prepare


def earlier_form(run: Path):
    """Give a run the form of earlier versions: no marker, and a file for each record of graph and ledger."""
    (run / "coterie.json").unlink()
    for kind in ("graph", "ledger"):
        file = run / f"{kind}.blocks"
        (run / kind).mkdir()
        for number, content in read_blocks(file.read_bytes(), file):
            (run / kind / f"{number:08d}.npz").write_bytes(content)
        file.unlink()
