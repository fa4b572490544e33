"""`coterie launch`: one experiment in several processes of this machine."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.options import (
    CodecName,
    Devices,
    FaultsFile,
    Json,
    MeetWithin,
    Out,
    Preallocate,
    Precision,
    Profiled,
    Rounds,
    Seed,
    Set,
    TrustCode,
    Where,
    WorldDropout,
    WorldLate,
    WorldParticipation,
    WorldSlow,
    changed,
)

__all__ = ["launch"]


def launch(
    experiment: Annotated[Path, typer.Argument(help="The experiment, a TOML file.")],
    processes: Annotated[int, typer.Option(help="How many processes share the run.")],
    changes: Set = None,
    rounds: Rounds = None,
    seed: Seed = None,
    codec: CodecName = None,
    faults: FaultsFile = None,
    participation: WorldParticipation = None,
    dropout: WorldDropout = None,
    slow: WorldSlow = None,
    late: WorldLate = None,
    out: Out = None,
    where: Where = "auto",
    devices: Devices = None,
    meet_within: MeetWithin = None,
    precision: Precision = None,
    preallocate: Preallocate = False,
    profiled: Profiled = False,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Run one experiment in several processes of this machine, each with a share of the devices and of the clients.

    GPUs are shared out; with --device cpu every process has one virtual device, or its share of --devices. The result
    is that of `coterie run`; the same command continues what was stopped. For several machines, see the docs.
    """
    from coterie.processes.launch import gpus_here, refuse_more_than_clients, shares
    from coterie.processes.launch import launch as start
    from coterie.storage.toml import read_toml

    own = shares(processes, where.partition(":")[0], devices, gpus_here())
    partition = changed(read_toml(experiment), {}, changes).get("partition", {})  # before many processes read the same
    if isinstance(partition, dict) and isinstance(partition.get("clients"), int):
        refuse_more_than_clients(processes, partition["clients"])
    given = {
        "rounds": rounds, "seed": seed, "codec": codec, "faults": faults, "participation": participation,
        "dropout": dropout, "slow": slow, "late": late, "out": out, "device": where, "devices": devices,
        "precision": precision, "meet-within": meet_within,
    }  # fmt: skip
    flags = {"preallocate": preallocate, "profile": profiled, "trust-code": trust_code, "json": as_json}
    words = ["run", str(experiment)]
    words += [f"--set={change}" for change in changes or []]
    words += [f"--{name}={value}" for name, value in given.items() if value is not None]
    words += [f"--{name}" for name, wanted in flags.items() if wanted]
    status = start(processes, words, own)
    if status:
        sys.stderr.flush()
        raise typer.Exit(status)
