"""Which device a run uses, and how JAX is set up for it; call it before JAX uses a device."""

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from coterie.errors import CoterieError
from coterie.experiment.machine import MOST_DEVICES, Machine, read_machine
from coterie.experiment.programs import keep_programs
from coterie.processes.address import Address, gpus_in_words, share_of

__all__ = ["Device", "choose_device"]

# For each virtual device over which clients are spread: one that waits for others in a collective holds a thread, and
# with one for each device XLA might have none left to start those others.
THREADS = 8

NO_GPU = "device gpu: JAX finds no GPU; install coterie[cuda12] or coterie[cuda13], or use cpu"


class Device(NamedTuple):
    """The device of a run: its JAX devices (several on a CPU with several cores) and its name for people.

    With `spread`, each of them holds the models and data of its own clients only (`peers/mesh.py`).
    """

    platform: str
    devices: tuple[Any, ...]
    label: str
    spread: bool = False

    @property
    def here(self) -> Any:
        """A device of this process."""
        return next(device for device in self.devices if device.process_index == device.client.process_index())

    @property
    def machine(self) -> Machine:
        """What of it the last bits of a run depend on."""
        import jax

        name = _cpu_name() if self.platform == "cpu" else self.devices[0].device_kind
        return Machine(self.platform, len(self.devices), name, jax.__version__)


def choose_device(
    name: str = "auto",
    *,
    preallocate: bool = False,
    cores: int | None = None,
    folder: str | Path | None = None,
    devices: int | None = None,
    address: Address | None = None,
) -> Device:
    """Choose where to run.

    Args:
        name: "auto" (a GPU if JAX finds one), "cpu", "cpu:2" for two virtual devices, "gpu", or "gpu:1".
        preallocate: let JAX take most of the GPU's memory in advance (faster allocation, unfriendly to others).
        cores: how many virtual CPU devices share the clients; default one per core.
        folder: that of a run or a comparison. If it has begun, "auto" is the kind of device it began on, and a CPU has
            as many virtual devices as then, on any number of cores: that gives the same bits.
        devices: spread the clients, their models and their data over so many devices: GPUs, or virtual ones of a CPU.
        address: which of several processes this is; the devices are then those of all of them, by default one virtual
            device of a CPU for each process, or all GPUs that a process sees. They meet here.
    """
    if devices is not None and not (isinstance(devices, int) and 1 <= devices <= MOST_DEVICES):
        raise CoterieError(f"devices must be a whole number from 1 to {MOST_DEVICES}, not {devices!r}")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "true" if preallocate else "false")
    import jax

    from coterie.numerics import host
    from coterie.numerics.threefry import write_out_on_cpu

    kind, index = _kind_and_number(name)
    if devices is not None and index is not None:
        raise CoterieError(f"device {name} is one choice and devices {devices} another; use device {kind}")
    if address is not None:
        return _of_all_processes(address, kind, index, devices)
    began = None if folder is None else read_machine(folder)
    on_cpu = began is not None and began.platform == "cpu"
    if kind == "auto" and on_cpu:
        kind = "cpu"
    cores = (
        devices or (index if kind == "cpu" else None) or cores or (began.devices if began and on_cpu else host.cores())
    )
    with contextlib.suppress(RuntimeError):  # JAX was used before: the number of CPU devices cannot change
        jax.config.update("jax_num_cpu_devices", cores)
    keep_programs()
    write_out_on_cpu()
    with _threads(cores if devices is None else THREADS * cores):
        if kind != "cpu":
            gpus, number = _gpus(jax), index or 0
            if gpus and number >= len(gpus):
                there = gpus_in_words(len(gpus))
                raise CoterieError(f"device {name} does not exist: {there}; use gpu:0 .. gpu:{len(gpus) - 1}")
            if gpus and devices is not None:
                return _several(gpus, devices)
            if gpus:
                device = gpus[number]
                return Device("gpu", (device,), f"{'gpu' if index is None else name} ({device.device_kind})")
            if kind == "gpu":
                raise CoterieError(NO_GPU)
        found = tuple(jax.devices("cpu")[:cores])
    if devices is not None and len(found) < devices:
        raise CoterieError(
            f"devices {devices}: JAX is already in use in this process with {len(found)}; ask for them first, or set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={devices}"
        )
    label = f"cpu ({_cpu_name()}, {_share(len(found), host.cores())})"
    return Device("cpu", found, label, spread=devices is not None)


def _of_all_processes(address: Address, kind: str, index: int | None, devices: int | None) -> Device:
    """Meet the other processes, and return the devices of all of them: those of one process stand together."""
    import jax

    from coterie import __version__
    from coterie.numerics.threefry import write_out_on_cpu
    from coterie.processes.code import code_digest
    from coterie.processes.meeting import join

    count = address.processes
    if index is not None:
        raise CoterieError(f"device {kind}:{index} is of one process; with several use device {kind} and --devices")
    each = share_of(devices, count)
    jax.config.update("jax_num_cpu_devices", each)
    keep_programs()
    write_out_on_cpu()
    versions = {"version of coterie": __version__, "version of JAX": jax.__version__, "code of coterie": code_digest()}
    join(address, {**versions, "--devices": str(devices)})
    with _threads(each):
        gpus = [] if kind == "cpu" else _gpus(jax)
        if kind == "gpu" and not gpus:
            raise CoterieError(NO_GPU)
        found = sorted(gpus or jax.devices("cpu"), key=lambda device: (device.process_index, device.id))
    owners = [[device for device in found if device.process_index == owner] for owner in range(count)]
    few = next((owner for owner, own in enumerate(owners) if len(own) < each), None)
    if few is not None:
        raise CoterieError(
            f"process {few} has {len(owners[few])} devices, and --devices {devices} needs {each} of each"
        )
    chosen = found if devices is None else [device for own in owners for device in own[:each]]
    name = chosen[0].device_kind if gpus else _cpu_name()
    label = f"{len(chosen)} x {'gpu' if gpus else 'cpu'} ({name}) in {count} processes"
    return Device("gpu" if gpus else "cpu", tuple(chosen), label, spread=True)


def _several(gpus: list, devices: int) -> Device:
    """Return some GPUs of this host that share the clients."""
    if devices > len(gpus):
        there = gpus_in_words(len(gpus))
        raise CoterieError(f"devices {devices}: {there}; use --devices {len(gpus)}, or --device cpu")
    return Device("gpu", tuple(gpus[:devices]), f"{devices} x gpu ({gpus[0].device_kind})", spread=True)


def _kind_and_number(name: str) -> tuple[str, int | None]:
    """Return the two parts of a name such as gpu:1."""
    kind, colon, index = name.partition(":")
    numbered = kind in ("cpu", "gpu") and index.isascii() and index.isdigit() and len(index) <= 4
    if kind not in ("auto", "cpu", "gpu") or (colon and not numbered):
        raise CoterieError(f"device must be auto, cpu, cpu:N, gpu or gpu:N, not {name!r}")
    if kind == "cpu" and colon and not 1 <= int(index) <= MOST_DEVICES:
        raise CoterieError(f"device {name}: a CPU has 1 to {MOST_DEVICES} virtual devices")
    return kind, int(index) if colon else None


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """Give XLA so many threads: as there are virtual devices, not as there are cores.

    It divides long sums among its threads, so that their last bits depend on the number; it reads this variable once,
    when the first device is asked for.
    """
    before = os.environ.get("NPROC")
    os.environ["NPROC"] = str(count)
    try:
        yield
    finally:
        if before is None:
            del os.environ["NPROC"]
        else:
            os.environ["NPROC"] = before


def _gpus(jax: Any) -> list:
    try:
        return jax.devices("gpu")
    except RuntimeError:
        return []


def _share(devices: int, cores: int) -> str:
    if devices <= cores:
        return f"{devices} of {os.cpu_count()} cores"
    return f"{devices} devices on {cores} {'core' if cores == 1 else 'cores'}"


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
