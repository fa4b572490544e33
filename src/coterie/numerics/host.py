"""Compiled loops on the host over the rows of an array: by Numba, on all cores, also from inside a JAX program.

Some operators are one long chain of comparisons, which neither a GPU nor XLA's loops run well. They are compiled by
Numba and work on whole rows, one per client. Rows are divided among threads of our own and not by Numba's `prange`: its
default layer ends the process when two threads enter it at once, as two devices of one program may.
"""

import importlib
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from coterie.errors import CoterieError

__all__ = ["compiled", "cores", "in_program", "over_rows"]

BLOCK = 1 << 16  # elements per block of rows, the unit of work of a thread


def compiled(module: str, purpose: str) -> Any:
    """Import a module of compiled loops; without Numba, say which extra `purpose` needs."""
    try:
        import numba  # noqa: F401
    except ModuleNotFoundError as error:
        raise CoterieError(f"{purpose} needs Numba: pip install 'coterie[numba]'") from error
    return importlib.import_module(module)


def over_rows(work: Callable[[], Callable[[slice], None]], rows: int, size: int) -> None:
    """Process all rows, block by block, on as many threads as there are cores.

    Args:
        work: called once by every thread, returns the function that processes a block of rows; arrays that a thread
            reuses are allocated in between.
        rows: how many there are.
        size: elements in a row.
    """
    step = max(1, BLOCK // max(size, 1))
    blocks = deque(slice(start, min(start + step, rows)) for start in range(0, rows, step))

    def drain() -> None:
        todo = work()
        while True:
            try:
                block = blocks.popleft()
            except IndexError:
                return
            todo(block)

    threads = min(len(blocks), cores())
    if threads <= 1:
        drain()
        return
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(drain) for _ in range(threads)]:
            done.result()


def in_program(function: Callable[..., None], x: jax.Array, *more: jax.Array) -> jax.Array:
    """Call `function(out, x, *more)` on the host from inside a program; it fills `out`, which is like x `[..., d]`.

    One call for all rows that live on a device; `vmap` adds leading axes in front of all arguments. `function` gets
    NumPy arrays and must not raise.

    On a CPU the arrays are the program's own memory. (`jax.pure_callback` copies them on a thread pool with one thread
    per device; a program that all devices share then waits for itself forever.)
    """
    from jax.experimental.buffer_callback import buffer_callback  # experimental, hence imported only where needed

    like = jax.ShapeDtypeStruct(x.shape, x.dtype)

    def in_place(_: Any, out: Any, *arguments: Any) -> None:
        function(np.asarray(out), *(np.asarray(a) for a in arguments))

    def copied(*arguments: Any) -> np.ndarray:
        out = np.empty(arguments[0].shape, arguments[0].dtype)
        function(out, *(np.asarray(a) for a in arguments))
        return out

    return jax.lax.platform_dependent(
        x,
        *more,
        cpu=buffer_callback(in_place, like, vmap_method="broadcast_all"),
        default=lambda *a: jax.pure_callback(copied, like, *a, vmap_method="broadcast_all"),
    )


def cores() -> int:
    """Return how many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
