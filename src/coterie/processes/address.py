"""Which process of how many this one is, and where they meet. No JAX here."""

import os
import socket
import time
from collections.abc import Mapping
from typing import NamedTuple

from coterie.errors import CoterieError, shown

__all__ = ["AUTO", "PATIENCE", "Address", "address_of", "free_port", "gpus_in_words", "refuse_unreachable", "share_of"]

AUTO = "auto"  # the coordinator, if JAX shall find out from the variables of Slurm or Open MPI
PATIENCE = 20.0  # seconds until all processes must have met, unless told otherwise
LONGEST = 86_400.0  # a day: a cluster may start them one after another
MOST = 4096


class Address(NamedTuple):
    """Process number `process` of `processes`, which meet at the coordinator: process 0, at HOST:PORT.

    With "auto" the other two are those of Slurm or Open MPI. They wait for each other for `patience` seconds.
    """

    coordinator: str
    processes: int
    process: int
    patience: float = PATIENCE

    @property
    def host(self) -> str:
        """The coordinator's host, without the brackets of an IPv6 address."""
        return self.coordinator.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The coordinator's port."""
        return int(self.coordinator.rpartition(":")[2])


def address_of(
    coordinator: str | None, count: int | None, index: int | None, patience: float | None = None
) -> Address | None:
    """Check what was given on the command line, or by variables such as COTERIE_COORDINATOR (cli/options.py)."""
    if coordinator is None:
        if count is not None or index is not None:
            raise CoterieError(
                "--processes and --process need --coordinator HOST:PORT, where they meet; on one machine use coterie "
                "launch --processes N"
            )
        return None
    patience = PATIENCE if patience is None else patience
    if not 1 <= patience <= LONGEST:
        raise CoterieError(f"--meet-within must be from 1 to {LONGEST:,.0f} seconds, not {patience:g}")
    if coordinator == AUTO:
        return _of_a_cluster(os.environ)._replace(patience=patience)
    if count is None or index is None:
        raise CoterieError("--coordinator needs --processes N and --process I, the number of this one, counted from 0")
    host, _, port = coordinator.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise CoterieError(f"--coordinator must be HOST:PORT of process 0, or auto, not {shown(coordinator)}")
    if not 1 <= count <= MOST:
        raise CoterieError(f"--processes must be a whole number from 1 to {MOST}, not {count}")
    if not 0 <= index < count:
        last = "there is only process 0" if count == 1 else f"the processes are 0 to {count - 1}"
        raise CoterieError(f"--process {index}: {last}, because --processes is {count}")
    return Address(coordinator, count, index, patience)


def _of_a_cluster(variables: Mapping[str, str]) -> Address:
    """Return the address that JAX finds in the variables of a cluster's job."""
    for count, index in (("SLURM_NTASKS", "SLURM_PROCID"), ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")):
        if count in variables and index in variables:
            return Address(AUTO, int(variables[count]), int(variables[index]))
    raise CoterieError(
        "--coordinator auto finds no job of Slurm (SLURM_NTASKS, SLURM_PROCID) or Open MPI here; start it with srun or "
        "mpirun, or give --coordinator HOST:PORT"
    )


def share_of(devices: int | None, processes: int) -> int:
    """Return how many of the devices each process has; one if their number is not given."""
    if devices is None:
        return 1
    if devices < processes:
        raise CoterieError(f"--devices {devices} are too few for {processes} processes: each needs one of its own")
    if devices % processes:
        raise CoterieError(
            f"--devices {devices} cannot be shared out evenly among {processes} processes; use a multiple"
        )
    return devices // processes


def gpus_in_words(number: int) -> str:
    """Say how many GPUs there are."""
    return "there is 1 GPU" if number == 1 else f"there are {number} GPUs"


def free_port() -> int:
    """Return a port of this machine that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def refuse_unreachable(address: Address) -> None:
    """Say in a sentence, before JAX would wait or abort, that the coordinator cannot be reached or has no free port.

    A name that nobody knows yet is tried again, too: a cluster gives a process its name when it starts it.
    """
    if address.process == 0:
        _refuse_used_port(address.port)
        return
    until, why = time.monotonic() + address.patience, ""
    while time.monotonic() < until:
        try:
            socket.create_connection((address.host, address.port), timeout=2).close()
            return
        except OSError as error:
            why = error.strerror or str(error)
        time.sleep(0.2)
    raise CoterieError(
        f"process {address.process}: the coordinator {address.coordinator} cannot be reached ({why}); start process 0 "
        "there, and let the port through"
    )


def _refuse_used_port(port: int) -> None:
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise CoterieError(
                f"process 0: port {port} of the coordinator cannot be used ({error.strerror}); choose another one"
            ) from None
