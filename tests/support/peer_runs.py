"""Federations as processes of this machine: their files, the same as a simulation, what differs, how far they are."""

import contextlib
import os
import textwrap
import time
from pathlib import Path

import numpy as np
import pandas as pd
import safetensors.numpy

from coterie.experiment.job import Job
from coterie.experiment.result import Result
from coterie.experiment.run import execute
from coterie.sites.data import load_everyone
from coterie.sites.federation import FederationFile
from coterie.sites.local import LocalFederation
from coterie.storage.toml import dump_toml
from support.killing import LIMITED
from support.site_cases import federation_tables

__all__ = ["STAGED", "SmallDisk", "Watch", "differences", "listens", "simulate", "write_federation"]

STAGED = f"{Path(__file__).parent / 'staged_method.py'}:Halving"  # a method whose graph is cut down
WARM = 3  # rounds of a federation, in which programs are compiled and nobody's waiting counts
NOT_OF_A_SITE = {"graph_l1", "graph_auroc", "graph_ari"}  # compares a whole graph with the truth


def write_federation(folder, names, **changes):
    """Write a federation.toml of these members; a keyword changes keys of a section. Returns the file.

    `outbound` names members without an address, who only open connections themselves.
    """
    outbound = changes.pop("outbound", ())
    addresses = {name: {"address": f"127.0.0.1:{7000 + i}"} for i, name in enumerate(names) if name not in outbound}
    members = [{"name": name, **addresses.get(name, {})} for name in names]
    defaults = {"federation": {"name": "local", "deadline": 30.0, "start_deadline": 240.0}, "members": members}
    tables = federation_tables(**defaults)
    for section, values in changes.items():
        named = "name" in values and section != "federation"
        tables[section] = dict(values) if named else {**tables.get(section, {}), **values}
    path = Path(folder) / "federation.toml"
    path.write_text(dump_toml(tables))
    return path


def simulate(path, out, device):
    """Run the same configuration as a simulation whose clients have the members' names."""
    federation = FederationFile.read(path, trust_code=True)
    return execute(Job.of(*load_everyone(federation)), out=out, device=device)


def differences(folders, simulated, tolerance=0.0):
    """Say where the folders of all members, in the order of their ids, and a simulation differ.

    By more than `tolerance`, relative to a number or to the largest of an array; the default is: in any bit.
    """
    found, parts = [], [Result.read(folder) for folder in folders]
    for i, (part, folder) in enumerate(zip(parts, folders, strict=True)):
        name = part.names[0]
        if [row["round"] for row in part.rows] != [row["round"] for row in simulated.rows]:
            found.append(f"rounds of {name}")
            continue
        for ours, theirs in zip(part.rows, simulated.rows, strict=True):
            for key in theirs.keys() - NOT_OF_A_SITE - {"round"}:
                # The loss during training is only shown: with all optimisations the compiler may sum it in another
                # order where several clients share a program. Nothing that is trained or scored depends on it.
                allowed = max(tolerance, 1e-6 if key == "train_loss" else 0.0)
                if not np.allclose(ours[key], [theirs[key][i]], rtol=allowed, atol=0.0, equal_nan=True):
                    far = float(np.max(np.abs(np.asarray(ours[key]) - theirs[key][i])))
                    found.append(f"{key} of {name} in round {theirs['round']} by {far:.1e}")
        model, other = (_arrays(root, name) for root in (folder, simulated.folder))
        if model.keys() != other.keys():
            found.append(f"model of {name}")
        elif any(not np.array_equal(model[key], other[key]) for key in other):
            far = max(float(np.abs(model[key] - other[key]).max() / np.abs(other[key]).max()) for key in other)
            if far > tolerance:
                found.append(f"model of {name} by {far:.1e} of its largest number")
    keys = ["round", "sender", "receiver"]
    together = pd.concat([part.ledger.edges() for part in parts]).groupby(keys, as_index=False).sum()
    if not together.equals(simulated.ledger.edges()):
        found.append("ledger")
    return found


def _arrays(folder, client):
    (file,) = Path(folder, "models").glob(f"?????-{client}.safetensors")
    return safetensors.numpy.load(file.read_bytes())


class SmallDisk(LocalFederation):
    """A federation in which some members cannot write files beyond `limits[name]` bytes: their disk is full then."""

    def __init__(self, *args, limits, **options):
        super().__init__(*args, **options)
        self.limits = limits

    def command(self, name):
        """Limit what the process of a member may write."""
        python, _, _, *words = super().command(name)
        limited = [python, "-c", textwrap.dedent(LIMITED), str(self.limits.get(name))]
        return [*limited, *words] if name in self.limits else super().command(name)


def listens(number):
    """Say whether a process waits for connections (Linux)."""
    waiting = set()
    for table in ("tcp", "tcp6"):
        rows = [line.split() for line in Path(f"/proc/{number}/net/{table}").read_text().splitlines()[1:]]
        waiting |= {f"socket:[{row[9]}]" for row in rows if row[3] == "0A"}
    for file in Path(f"/proc/{number}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(file) in waiting:
                return True
    return False


class Watch:
    """The last report of every member, what went wrong on the way, and the longest wait.

    That is the longest time that a member waited for others in one round, after its first ones.
    """

    def __init__(self, local):
        self.local, self.reports, self.exits, self.notes = local, {}, {}, []
        self.longest = 0.0

    def until(self, condition, seconds):
        """Follow the members until `condition(watch)` holds; returns whether it did, and after how many seconds."""
        began = time.monotonic()
        if condition(self):
            return True, 0.0
        for event in self.local.events(seconds):
            self._note(event)
            if condition(self):
                return True, time.monotonic() - began
        return False, time.monotonic() - began

    def follow(self, seconds):
        """Follow the members for some seconds."""
        self.until(lambda watch: False, seconds)

    def round(self, name):
        """Return the last round that a member has ended in its present process; -1 before the first."""
        return self.reports.get(name, {}).get("round", -1)

    def connected(self, name):
        """Return whom a member sees."""
        return self.reports.get(name, {}).get("connected", [])

    def forget(self, *names):
        """Forget what members have reported, because they are started again."""
        for name in names:
            self.reports.pop(name, None)
            self.exits.pop(name, None)

    def _note(self, event):
        if event.exit is not None:
            self.exits[event.name] = event.exit
        elif event.report.get("event") == "note":
            self.notes.append((event.name, event.report["note"]))
        elif event.report.get("event") == "round":
            before, after = self.reports.get(event.name), event.report
            if before is not None and before["round"] >= WARM:
                rounds = max(1, after["round"] - before["round"])
                self.longest = max(self.longest, (after["waited"] - before["waited"]) / rounds)
            self.reports[event.name] = after
