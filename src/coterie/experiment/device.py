"""Which device a run uses, and how JAX is set up for it; call it before JAX uses a device."""

import contextlib
import os
import platform
from pathlib import Path
from typing import Any, NamedTuple

import platformdirs

from coterie.errors import CoterieError

__all__ = ["Device", "choose_device"]


class Device(NamedTuple):
    """The device of a run: its JAX devices (several on a CPU with several cores) and its name for people."""

    platform: str
    devices: tuple[Any, ...]
    label: str


def choose_device(name: str = "auto", *, preallocate: bool = False, cores: int | None = None) -> Device:
    """Choose where to run.

    Args:
        name: "auto" (a GPU if JAX finds one), "cpu", "gpu", or "gpu:1".
        preallocate: let JAX take most of the GPU's memory in advance (faster allocation, unfriendly to others).
        cores: how many virtual CPU devices share the clients; default one per core.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "true" if preallocate else "false")
    import jax

    from coterie.numerics import host

    cores = cores or host.cores()
    with contextlib.suppress(RuntimeError):  # JAX was used before: the number of CPU devices cannot change
        jax.config.update("jax_num_cpu_devices", cores)
    _keep_compiled_programs(jax)
    kind, _, index = name.partition(":")
    if kind not in ("auto", "cpu", "gpu") or (index and not (kind == "gpu" and index.isdigit())):
        raise CoterieError(f"device must be auto, cpu, gpu or gpu:N, not {name!r}")
    if kind != "cpu":
        gpus, number = _gpus(jax), int(index or 0)
        if gpus and number >= len(gpus):
            there = "is 1 GPU" if len(gpus) == 1 else f"are {len(gpus)} GPUs"
            raise CoterieError(f"device {name} does not exist: there {there}; use gpu:0 .. gpu:{len(gpus) - 1}")
        if gpus:
            device = gpus[number]
            return Device("gpu", (device,), f"{name if index else 'gpu'} ({device.device_kind})")
        if kind == "gpu":
            raise CoterieError("device gpu: JAX finds no GPU; install coterie[cuda12] or coterie[cuda13], or use cpu")
    devices = tuple(jax.devices("cpu")[:cores])
    return Device("cpu", devices, f"cpu ({_cpu_name()}, {len(devices)} of {os.cpu_count()} cores)")


def _gpus(jax: Any) -> list:
    try:
        return jax.devices("gpu")
    except RuntimeError:
        return []


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _keep_compiled_programs(jax: Any) -> None:
    """Turn on JAX's persistent compilation cache, unless the user has set one up or switched it off."""
    if jax.config.jax_compilation_cache_dir is None and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(Path(platformdirs.user_cache_dir("coterie")) / "programs"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
