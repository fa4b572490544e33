"""The interface of a codec: a lossy part inside the program and a lossless part on the host.

    x', memory' = codec.squeeze(x, memory, keys)      # x' is sent in place of x; pure, compiled, [C, d]
    data = codec.encode(x')                           # bytes, on the host, one client's vector
    x' = codec.decode(data, count, dtype)             # bit for bit
    codec.size(x') == len(codec.encode(x'))           # computed in the program; the ledger of a simulation counts it

A message is one byte that names its layout, the sections of the layout, and a checksum of four bytes. The checksum also
covers the codec and the number and type of the values, so that a message that was truncated, changed or meant for
another vector is refused. Layout 0 is the plain numbers. Every vector can be encoded, also one that `reduce` would not
return (with an infinity, say).
"""

import abc
import binascii
from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from coterie.codecs.bits import Broken, Reader, array_module, bits_of
from coterie.errors import CoterieError
from coterie.numerics import tree

__all__ = ["OVERHEAD", "Codec", "by_rows", "hidden_zero", "if_fits", "seal"]

RAW, CHECKSUM = 0, 4
OVERHEAD = 1 + CHECKSUM  # bytes of a message in addition to the sections of its layout
UNFIT = np.uint32(2**32 - 1 - OVERHEAD)  # the size of a layout that cannot represent a vector
ELEMENTS = 2**22  # numbers processed at once: many rows of a small model, but single rows of a large one


class Codec(abc.ABC):
    """Base class; a codec is a `traced` spec with `reduce`, and `sizes`, `write` and `read` for its layouts."""

    name: ClassVar[str]
    feedback: bool = False

    # -- lossy, inside the program ------------------------------------------------------------------------------------

    def at_round(self, number: jax.Array | int) -> Self:
        """Return the codec as it is in round `number`, counted from 1."""
        return self

    @abc.abstractmethod
    def reduce(self, x: jax.Array, keys: jax.Array) -> jax.Array:
        """Return the vectors to send in place of `x [C, d]`; row i depends on nothing but x[i] and `keys[i]`."""

    def squeeze(self, x: jax.Array, memory: jax.Array, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the vectors to send in place of `x [C, d]`, and the new memory: with error feedback, the error."""
        if not self.feedback:
            return self.reduce(x, keys), memory
        wanted = seal(x) + memory  # sealed: the compiler may round a product that is added once or twice
        sent = seal(self.reduce(wanted, keys))
        return sent, wanted - sent

    def memory(self, clients: int, size: int, dtype: Any) -> jax.Array:
        """Return the memory before the first message."""
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

    def sizes(self, x: Any) -> list[Any]:
        """Return how many bytes the sections of layouts 1, 2, ... take for one vector `x [d]`, d > 0.

        Called with JAX arrays inside a program and with NumPy arrays by `encode`: the one place that says how long a
        layout is (see `array_module`, `if_fits` and the helpers in `places.py` and `indices.py`, which take both).
        """
        return []

    # -- lossless, on the host ----------------------------------------------------------------------------------------

    def encode(self, x: np.ndarray) -> bytes:
        """Return the bytes of one vector, in its shortest layout."""
        if x.ndim != 1 or x.dtype not in (np.float32, np.float64):
            raise CoterieError(f"a codec takes vectors of float32 or float64, not {x.dtype} of shape {x.shape}")
        sizes = [x.nbytes, *(int(size) for size in self.sizes(x))] if len(x) else [0]
        layout = sizes.index(min(sizes))
        body = x.astype(x.dtype.newbyteorder("<")).tobytes() if layout == RAW else self.write(layout, x)
        if len(body) != sizes[layout]:
            raise CoterieError(
                f"the codec {self.name} wrote {len(body)} bytes in layout {layout}, but its `sizes` says "
                f"{sizes[layout]}; correct one of them"
            )
        data = bytes([layout]) + body
        return data + self._checksum(data, len(x), x.dtype).to_bytes(CHECKSUM, "little")

    def write(self, layout: int, x: np.ndarray) -> bytes:
        """Return the sections of a layout, for a vector that is not empty and that the layout can represent."""
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
        """Return the settings that the receiver needs to read a message."""
        return ()

    def _checksum(self, data: bytes, count: int, dtype: np.dtype) -> int:
        known = f"{self.name} {self.settings()} {count} {dtype.itemsize}"  # known to both ends, so it is not sent
        return binascii.crc32(data, binascii.crc32(known.encode()))


def by_rows(fn: Callable, *arrays: jax.Array) -> jax.Array:
    """Run `fn` on each row, on so few rows at a time that its intermediate arrays stay small."""
    rows, size = arrays[0].shape
    at_once = max(1, ELEMENTS // max(1, size))
    if at_once >= rows:
        return jax.vmap(fn)(*arrays)
    return lax.map(lambda each: fn(*each), arrays, batch_size=at_once)


def seal(x: jax.Array) -> jax.Array:
    """Fix the bits of `x [..., d]`, so that the compiler cannot fuse its last operation with the next one.

    It would fuse a product and a sum, or skip a rounding to float16 and back, depending on the surrounding code, and
    then results depend on where clients live. (`Peers.seal` does the same for a method.)
    """
    return tree.seal(x, hidden_zero(x))


def hidden_zero(x: jax.Array) -> jax.Array:
    """Return False for each vector of `x [..., d]`, `[..., 1]`, in a form that the compiler cannot know to be False."""
    unused = np.uint32(0x7FA5A5A5).astype(f"uint{8 * x.dtype.itemsize}") << (8 * x.dtype.itemsize - 32)
    return bits_of(x[..., :1]) == unused  # a NaN that no computation returns


def if_fits(fits: Any, size: Any) -> Any:
    """Return the size of a layout, or `UNFIT` where it cannot represent the vector."""
    if array_module(fits, size) is jnp:
        return jnp.where(fits, jnp.asarray(size, jnp.uint32), UNFIT)
    return int(size) if fits else int(UNFIT)
