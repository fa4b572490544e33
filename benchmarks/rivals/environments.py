"""The rivals: which program runs them, what it needs, and the settings among which the best is taken."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

__all__ = ["RIVALS", "Rival", "python_of"]

HERE = Path(__file__).parent
ROOT = HERE.parent.parent / ".venv-bench"
CORES = os.cpu_count() or 1
ONE, ALL = ("--threads", "1"), ("--threads", str(CORES))


@dataclasses.dataclass(frozen=True)
class Rival:
    """A way to run the experiment.

    Attributes:
        program: its file in this folder.
        environment: the folder of its packages under .venv-bench; empty: the Python that is running.
        needs: what is installed there besides NumPy.
        cpu, gpu: settings by name, as words of the program's command line; the best of them is measured.
        launcher: names of settings whose program is started by a module of Python, and that module with its options.
    """

    program: str
    environment: str
    needs: tuple[str, ...]
    cpu: dict[str, tuple[str, ...]]
    gpu: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    launcher: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


THREADS = {"1 thread": ONE, f"{CORES} threads": ALL}
APART = f"{CORES} processes"
RIVALS = {
    "coterie": Rival("with_coterie.py", "", (), {"default": ()}, {"default": ()}),
    "torch-loop": Rival("torch_loop.py", "torch", ("torch",), THREADS, {"5 clients": ("--part", "5", "--block", "1")}),
    "torch-vmap": Rival(
        "torch_vmap.py",
        "torch",
        ("torch",),
        {**THREADS, "compiled": (*ALL, "--compile")},
        {"default": ("--block", "1")},
    ),
    "torch-graph": Rival("torch_vmap.py", "torch", ("torch",), {}, {"CUDA graph": ("--graph",)}),
    "flower": Rival(
        "with_flower.py",
        "flower",
        ("torch", "flwr[simulation]"),
        {f"{CORES} actors": (*ONE, "--actors", str(CORES)), f"1 actor of {CORES} threads": (*ALL, "--actors", "1")},
    ),
    "pfl": Rival(
        "with_pfl.py",
        "pfl",
        ("torch", "pfl[pytorch]"),
        {"1 process": ONE, APART: ONE},
        launcher={APART: ("torch.distributed.run", "--nproc-per-node", str(CORES))},
    ),
    # FedJAX 0.0.17 calls functions of JAX that newer versions do not have.
    "fedjax": Rival(
        "with_fedjax.py",
        "fedjax",
        ("fedjax", "jax<0.5"),
        {"jit": ("--backend", "jit"), "pmap": ("--backend", "pmap")},
        {"jit": ("--backend", "jit", "--block", "1")},
    ),
}


def python_of(rival: Rival, torch: str, torch_index: str, active: bool) -> str:
    """Return the Python that runs a rival; its environment is made and filled if it is not there.

    Raises RuntimeError with the last line of what the installation said.
    """
    if active or not rival.environment:
        return sys.executable
    folder = ROOT / rival.environment
    python, stamp = folder / "bin" / "python", folder / "installed"
    if not stamp.exists():
        print(f"installing {', '.join(rival.needs)} into {folder} (once; minutes on a slow line)", flush=True)
        if not python.exists():
            _checked([sys.executable, "-m", "venv", str(folder)])
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if "torch" in rival.needs:  # first, so that what needs it does not fetch the one with CUDA
            _checked([*pip, torch, *(("--index-url", torch_index) if torch_index else ())])
        _checked([*pip, "numpy", *(torch if name == "torch" else name for name in rival.needs)])
        stamp.touch()
    return str(python)


def _checked(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise RuntimeError(f"does not install: {said[-1] if said else f'exit code {done.returncode}'}")
