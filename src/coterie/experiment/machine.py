"""What of a machine the last bits of a run depend on, kept in `machine.json` of the run's folder. No JAX here.

Clients are shared out among the devices, and sums over clients are taken device by device: another number of devices
rounds differently. So the number is part of the run, and not of its config, which is the same on every machine.
"""

import json
import warnings
from pathlib import Path
from typing import NamedTuple

from coterie.errors import CoterieError, CoterieWarning
from coterie.storage.durable import durable_write
from coterie.storage.owned import holds, inside
from coterie.storage.schema import read_json, table, text, whole, word

__all__ = ["FILE", "MOST_DEVICES", "Machine", "keep_machine", "read_machine"]

FILE = "machine.json"
FORMAT = 1
MOST_DEVICES = 1024  # virtual devices; each has threads and memory of its own
SCHEMA = table(
    {"format": word(FORMAT), "platform": text, "devices": whole(1, MOST_DEVICES), "processor": text, "jax": text}
)


class Machine(NamedTuple):
    """The devices a run began on."""

    platform: str  # "cpu" or "gpu"
    devices: int
    processor: str  # its name
    jax: str  # the version

    def __str__(self) -> str:
        devices = f"{self.devices} {'device' if self.devices == 1 else 'devices'}"
        return f"{self.platform} ({self.processor}, {devices}, JAX {self.jax})"


def read_machine(folder: str | Path) -> Machine | None:
    """Return the machine that a run, a comparison or a sweep began on; None where nothing says so."""
    root = Path(folder)
    ours = any(holds(root, name) for name in ("config.toml", "comparison.toml", "sweep.toml"))
    if not ours or not holds(root, FILE):
        return None
    try:
        record = read_json(root, FILE, SCHEMA)
    except CoterieError as error:
        raise CoterieError(f"{error}; remove the file to continue with the devices that are here") from None
    return Machine(*(record[field] for field in Machine._fields))


def keep_machine(folder: Path, here: Machine) -> None:
    """Write down where a run, a comparison or a sweep begins; warn if it continues on other devices."""
    began = read_machine(folder)
    if began is None:
        durable_write(inside(folder, FILE), json.dumps({"format": FORMAT, **here._asdict()}).encode(), run=folder)
    elif began != here:
        warnings.warn(
            f"{folder} was begun on {began} and continues on {here}: the last bits of its numbers may differ from "
            "those of a run that was never stopped",
            CoterieWarning,
            stacklevel=3,
        )
