"""What a codec is: something lossy inside the program, and something lossless on the host.

    x', memory' = codec.squeeze(x, memory, keys)      # what is sent stands for x; pure, compiled, [C, d]
    data = codec.encode(x')                           # bytes, on the host, one client's vector
    x' = codec.decode(data, count, dtype)             # bit for bit
    codec.size(x') == len(codec.encode(x'))           # computed in the program: what the ledger of a simulation counts

A message is one byte that names its layout, the layout's sections, and four bytes of checksum over everything, with
which codec and how many numbers of which type too: what was truncated, changed or meant for another vector is refused.
Layout 0 is the numbers as they are. Every vector can be encoded, also one that the codec did not make (an infinity).
"""

import abc
import binascii
from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from coterie.codecs.bits import Broken, Reader
from coterie.errors import CoterieError

__all__ = ["OVERHEAD", "UNFIT", "Codec", "bits_of", "by_rows", "hidden_zero", "host_bits", "seal"]

RAW, CHECKSUM = 0, 4
OVERHEAD = 1 + CHECKSUM  # bytes of a message beside the sections of its layout
UNFIT = np.uint32(2**32 - 1 - OVERHEAD)  # the size of a layout that cannot hold a vector
ELEMENTS = 2**22  # numbers handled at once: many rows of a small model, one after the other of a large one


class Codec(abc.ABC):
    """Base class; a codec is a `traced` spec with `reduce`, and `sizes`, `write`, `read` for its layouts."""

    name: ClassVar[str]
    feedback: bool = False

    # -- lossy, inside the program ------------------------------------------------------------------------------------

    def at_round(self, number: jax.Array | int) -> Self:
        """Return the codec as it is in round `number`, counted from 1."""
        return self

    @abc.abstractmethod
    def reduce(self, x: jax.Array, keys: jax.Array) -> jax.Array:
        """Return what is sent for `x [C, d]`; a row depends on nothing but itself and its key `keys[i]`."""

    def squeeze(self, x: jax.Array, memory: jax.Array, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return what is sent for `x [C, d]` and what is remembered: with error feedback, what was not sent."""
        if not self.feedback:
            return self.reduce(x, keys), memory
        wanted = seal(x) + memory  # sealed: a product that is added may be rounded once or twice, as the compiler likes
        sent = seal(self.reduce(wanted, keys))
        return sent, wanted - sent

    def memory(self, clients: int, size: int, dtype: Any) -> jax.Array:
        """Return what is remembered before the first message."""
        return jnp.zeros((clients, size if self.feedback else 0), dtype)

    def size(self, x: jax.Array) -> jax.Array:
        """Return the length of `encode` for each row of `x [C, d]`, `uint32`."""
        raw = np.uint32(x.shape[1] * x.dtype.itemsize)
        if x.shape[1] == 0:
            return jnp.full(x.shape[0], OVERHEAD, jnp.uint32)

        def of_row(row: jax.Array) -> jax.Array:
            sizes = [jnp.asarray(size, jnp.uint32) for size in (raw, *self.sizes(row))]
            return OVERHEAD + jnp.min(jnp.stack(sizes))

        return by_rows(of_row, x)

    def sizes(self, x: jax.Array) -> list[Any]:
        """Return how many bytes the sections of layouts 1, 2, ... take for one vector `x [d]`."""
        return []

    # -- lossless, on the host ----------------------------------------------------------------------------------------

    def encode(self, x: np.ndarray) -> bytes:
        """Return the bytes of one vector, in its shortest layout."""
        if x.ndim != 1 or x.dtype not in (np.float32, np.float64):
            raise CoterieError(f"a codec takes vectors of float32 or float64, not {x.dtype} of shape {x.shape}")
        layout, body = RAW, b""
        sizes = self.sizes_on_host(x) if len(x) else []
        if sizes and min(sizes) < x.nbytes:
            layout = 1 + sizes.index(min(sizes))
            body = self.write(layout, x)
        else:
            body = x.astype(x.dtype.newbyteorder("<")).tobytes()
        data = bytes([layout]) + body
        return data + self._checksum(data, len(x), x.dtype).to_bytes(CHECKSUM, "little")

    def sizes_on_host(self, x: np.ndarray) -> list[int]:
        """Return what `sizes` returns, for a vector that is not empty."""
        return []

    def write(self, layout: int, x: np.ndarray) -> bytes:
        """Return the sections of a layout, for a vector that is not empty and fits it."""
        raise CoterieError(f"the codec {self.name} has sizes for layout {layout} but does not write it")

    def decode(self, data: bytes, count: int, dtype: Any) -> np.ndarray:
        """Return the `count` numbers that were encoded, bit for bit; anything else raises `CoterieError`."""
        dtype = np.dtype(dtype)
        try:
            if len(data) < OVERHEAD:
                raise Broken("it ends too early")
            content, checksum = data[:-CHECKSUM], int.from_bytes(data[-CHECKSUM:], "little")
            if checksum != self._checksum(content, count, dtype):
                raise Broken("its checksum is wrong")
            reader = Reader(content)
            layout = reader.number(1)
            x = reader.values(count, dtype) if layout == RAW else self.read(layout, reader, count, dtype)
            if reader.left:
                raise Broken("it is too long")
        except Broken as broken:
            raise CoterieError(
                f"a message of {len(data)} bytes in codec {self.name} does not hold {count} numbers of type {dtype}, "
                f"{broken}: it was truncated or changed on its way, or sent with other settings"
            ) from None
        return x

    def read(self, layout: int, reader: Reader, count: int, dtype: np.dtype) -> np.ndarray:
        """Return the numbers that `write` wrote."""
        raise Broken("its layout is unknown")

    def settings(self) -> tuple[int, ...]:
        """Return the settings without which a message cannot be read."""
        return ()

    def _checksum(self, data: bytes, count: int, dtype: np.dtype) -> int:
        known = f"{self.name} {self.settings()} {count} {dtype.itemsize}"  # both ends know it: it need not be sent
        return binascii.crc32(data, binascii.crc32(known.encode()))


def by_rows(fn: Callable, *arrays: jax.Array) -> jax.Array:
    """Run `fn` on each row; only so many at a time that what it computes on the way stays small."""
    rows, size = arrays[0].shape
    at_once = max(1, ELEMENTS // max(1, size))
    if at_once >= rows:
        return jax.vmap(fn)(*arrays)
    return lax.map(lambda each: fn(*each), arrays, batch_size=at_once)


def seal(x: jax.Array) -> jax.Array:
    """Fix the bits of `x [..., d]`, so that the compiler cannot join its last operation with the next one.

    It would join a product and a sum, or leave out a rounding to float16 and back, where the code around suggests it;
    then results depend on where clients live. A zero is added to the bits that the compiler cannot know to be one.
    (`Peers.seal` does the same for a method.)
    """
    bits = bits_of(x)
    return lax.bitcast_convert_type(bits + hidden_zero(x).astype(bits.dtype), x.dtype)


def hidden_zero(x: jax.Array) -> jax.Array:
    """Return False for each vector of `x [..., d]`, `[..., 1]`; in a program nobody can tell before it runs."""
    strange = np.uint32(0x7FA5A5A5).astype(f"uint{8 * x.dtype.itemsize}") << (8 * x.dtype.itemsize - 32)
    return bits_of(x[..., :1]) == strange  # a NaN that no computation returns


def bits_of(x: jax.Array) -> jax.Array:
    """Return the bits of floating numbers as unsigned integers: they compare as they are, also -0.0 and NaN."""
    return lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))


def host_bits(x: np.ndarray) -> np.ndarray:
    """Return what `bits_of` does, of a NumPy array."""
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")
