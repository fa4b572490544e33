"""JAX's random numbers on a CPU in fewer, larger kernels: the same bits, a fifth less to compile.

JAX writes the five rounds of Threefry (Salmon et al. 2011) as a loop on a CPU: some ten kernels for every key that is
derived and every array that is drawn, and a quarter of all kernels of a first run. Written out, a hash is one or two.
The barrier keeps it apart: without it every kernel that reads a key would compute that key anew. XLA heeds it if it is
told to (`experiment/programs.py`).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core.primitives import threefry2x32_p
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

__all__ = ["hash_pairs", "write_out_on_cpu"]

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
FEW = 512  # pairs


class Words(NamedTuple):
    """What the hash does with words of 32 bits."""

    add: Callable[[Any, Any], Any]
    xor: Callable[[Any, Any], Any]
    either: Callable[[Any, Any], Any]
    left: Callable[[Any, Any], Any]
    right: Callable[[Any, Any], Any]
    number: Callable[[int], Any]


def _hash(words: Words, key0: Any, key1: Any, x0: Any, x1: Any) -> tuple[Any, Any]:
    add, xor, either, left, right, number = words
    turns = {bits: (number(bits), number(32 - bits)) for block in ROTATIONS for bits in block}
    keys = (key0, key1, xor(xor(key0, key1), number(PARITY)))
    x0, x1 = add(x0, keys[0]), add(x1, keys[1])
    for block in range(5):
        for bits in ROTATIONS[block % 2]:
            forth, back = turns[bits]
            x0 = add(x0, x1)
            x1 = xor(x0, either(left(x1, forth), right(x1, back)))
        x0 = add(x0, keys[(block + 1) % 3])
        x1 = add(add(x1, keys[(block + 2) % 3]), number(block + 1))
    return x0, x1


def hash_pairs(key0: Array, key1: Array, x0: Array, x1: Array) -> tuple[Array, Array]:
    """Return Threefry-2x32 with 20 rounds of the pairs (x0, x1) under the keys (key0, key1); all are uint32."""
    words = Words(jnp.add, jnp.bitwise_xor, jnp.bitwise_or, jnp.left_shift, jnp.right_shift, jnp.uint32)
    return _hash(words, key0, key1, x0, x1)


def _lower(context: Any, *operands: Any) -> Any:
    """Write the hash down in the compiler's own words: to trace 130 steps of it takes Python ten times longer.

    The barrier is for few pairs, as where keys are derived; many are drawn and used in one kernel.
    """
    shapes, word = [aval.shape for aval in context.avals_in], ir.IntegerType.get_unsigned(32)
    shape = np.broadcast_shapes(*shapes)
    kind = ir.RankedTensorType.get(shape, word)

    def number(value: int) -> Any:
        return stablehlo.constant(ir.DenseElementsAttr.get_splat(kind, ir.IntegerAttr.get(word, value)))

    def whole(operand: Any, own: tuple[int, ...]) -> Any:
        places = ir.DenseI64ArrayAttr.get(range(len(shape) - len(own), len(shape)))
        return operand if own == shape else stablehlo.broadcast_in_dim(kind, operand, places)

    shifts = (stablehlo.shift_left, stablehlo.shift_right_logical)
    words = Words(stablehlo.add, stablehlo.xor, stablehlo.or_, *shifts, number)
    x = _hash(words, *(whole(operand, own) for operand, own in zip(operands, shapes, strict=True)))
    return stablehlo.optimization_barrier(x) if math.prod(shape) <= FEW else x


def write_out_on_cpu() -> None:
    """Let JAX compile its hash in this form on a CPU, in all of this process; random numbers stay what they are."""
    mlir.register_lowering(threefry2x32_p, _lower, platform="cpu")
