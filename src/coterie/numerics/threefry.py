"""JAX's random numbers on a CPU in fewer, larger kernels: the same bits, a fifth less to compile.

JAX writes the five rounds of Threefry (Salmon et al. 2011) as a loop on a CPU: some ten kernels for every key that is
derived and every array that is drawn, and a quarter of all kernels of a first run. Written out, a hash is one. The
barrier keeps it one: without it every kernel that reads a key would compute that key anew.
"""

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core.primitives import threefry2x32_p
from jax.interpreters import mlir

__all__ = ["hash_pairs", "write_out_on_cpu"]

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = np.uint32(0x1BD11BDA)


def hash_pairs(key0: Array, key1: Array, x0: Array, x1: Array) -> tuple[Array, Array]:
    """Return Threefry-2x32 with 20 rounds of the pairs (x0, x1) under the keys (key0, key1); all are uint32."""
    keys = (key0, key1, key0 ^ key1 ^ PARITY)
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for block in range(5):
        for bits in ROTATIONS[block % 2]:
            x0 = x0 + x1
            x1 = x0 ^ (lax.shift_left(x1, _like(bits, x1)) | lax.shift_right_logical(x1, _like(32 - bits, x1)))
        x0 = x0 + keys[(block + 1) % 3]
        x1 = x1 + keys[(block + 2) % 3] + np.uint32(block + 1)
    return tuple(lax.optimization_barrier((x0, x1)))


def _like(bits: int, x: Array) -> Array:
    return jnp.full_like(x, np.uint32(bits))


def write_out_on_cpu() -> None:
    """Let JAX compile its hash in this form on a CPU, in all of this process; random numbers stay what they are."""
    mlir.register_lowering(threefry2x32_p, mlir.lower_fun(hash_pairs, multiple_results=True), platform="cpu")
