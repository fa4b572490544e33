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

__all__ = ["MOST_DEVICES", "Machine", "keep_machine", "read_machine"]

FILE = "machine.json"
FORMAT = 1
MOST_DEVICES = 1024  # virtual devices; each has threads and memory of its own
LONGEST = 1 << 16  # bytes of a file


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
    """Return the machine that a run or a comparison began on; None where nothing says so."""
    path = Path(folder) / FILE
    ours = any(path.with_name(name).is_file() for name in ("config.toml", "comparison.toml"))
    if not ours or not (path.is_symlink() or path.exists()):
        return None
    remedy = "remove the file to continue with the devices that are here"
    try:
        if path.is_symlink() or not path.is_file():
            raise ValueError("it is not a plain file")
        with open(path, "rb") as stream:
            record = json.loads(stream.read(LONGEST))
        if not isinstance(record, dict):
            raise ValueError("it is not a record")
    except (OSError, ValueError, RecursionError) as error:
        raise CoterieError(f"{path} cannot be read ({error}); {remedy}") from None
    if record.get("format") != FORMAT:
        raise CoterieError(f'{path}: "format" must be {FORMAT}; resume with a newer version of coterie, or {remedy}')
    for field in ("platform", "processor", "jax"):
        if not isinstance(record.get(field), str) or not record[field].isprintable():
            raise CoterieError(f'{path}: "{field}" must be text; {remedy}')
    devices = record.get("devices")
    if type(devices) is not int or not 1 <= devices <= MOST_DEVICES:
        raise CoterieError(f'{path}: "devices" must be a whole number from 1 to {MOST_DEVICES}; {remedy}')
    return Machine(*(record[field] for field in Machine._fields))


def keep_machine(folder: Path, here: Machine) -> None:
    """Write down where a run or a comparison begins; warn if it began on other devices than it continues on."""
    began = read_machine(folder)
    if began is None:
        durable_write(folder / FILE, json.dumps({"format": FORMAT, **here._asdict()}).encode(), run=folder)
    elif began != here:
        warnings.warn(
            f"{folder} was begun on {began} and continues on {here}: the last bits of its numbers may differ from "
            "those of a run that was never stopped",
            CoterieWarning,
            stacklevel=3,
        )
