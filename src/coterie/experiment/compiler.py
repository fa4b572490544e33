"""What XLA is told about a program: passes that it leaves out, and how long it looks for faster code.

Options are names in XLA, which come and go with its versions. One that a version does not know is left out, and a pass
that it does not have is ignored, so that a new version of JAX costs speed, not the run.
"""

import functools
import re
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

__all__ = ["compiled", "compiled_aside", "options_for"]

# On a CPU XLA removes barriers before it decides what becomes one kernel, so that the hash of a key (see
# `numerics/threefry.py`) would be a part of every kernel that reads the key. Loops over a few numbers, which it makes
# one kernel each, may not contain barriers, and stay loops.
KEEP_BARRIERS = ("cse_barrier_expander", "small-while-loop-hoisting")
# A light program as it is written. With JAX 0.10 compiling takes a quarter to a half of the time, and what is computed
# three to seven times as long.
LIGHT_ON_CPU = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
OLDER_LOOPS = {"xla_cpu_use_fusion_emitters": False}  # quicker to compile; JAX 0.11 and later have only the newer way
# On a GPU XLA tries kernels before it chooses, in arrays with 8 MB of padding on both sides to see what writes beyond
# them: some 190 MB that a limit on memory would not know of.
ON_GPU = {"xla_gpu_redzone_padding_bytes": 1 << 16}
# Of a light program it does not write kernels of its own for every product, dozens of each to try: compiling takes a
# third of the time, and the products of a CNN's step a quarter longer.
LIGHT_ON_GPU = {"xla_gpu_enable_triton_gemm": False}

UNKNOWN = re.compile(r"No such compile option: '(\w+)'")


def options_for(platform: str, light: bool, left_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the options of a program.

    Args:
        platform: "cpu", "gpu", ...
        light: whether the program takes longer to compile than to run.
        left_out: passes that it must not do, so that it rounds as another program does.
    """
    if platform == "gpu":
        passes, options = left_out, ON_GPU | (LIGHT_ON_GPU if light else {})
    elif platform == "cpu":
        older = OLDER_LOOPS if jax.__version_info__ < (0, 11) else {}
        passes, options = (*KEEP_BARRIERS, *left_out), (LIGHT_ON_CPU | older if light else {})
    else:
        passes, options = left_out, {}
    return options | ({"xla_disable_hlo_passes": ",".join(passes)} if passes else {})


def compiled(lowered: jax.stages.Lowered, options: dict[str, Any]) -> jax.stages.Compiled:
    """Compile a program with the options that this version of XLA knows."""
    try:
        return lowered.compile(options or None)
    except jax.errors.JaxRuntimeError as error:
        unknown = UNKNOWN.search(str(error))
        if unknown is None or unknown[1] not in options:
            raise
        return compiled(lowered, {name: value for name, value in options.items() if name != unknown[1]})


def compiled_aside(lowered: jax.stages.Lowered, options: dict[str, Any]) -> Future:
    """Begin to compile a program in a thread, and return what will be the program."""
    return _threads().submit(compiled, lowered, options)


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(4, thread_name_prefix="compile")  # the rounds and evaluations of two stages
