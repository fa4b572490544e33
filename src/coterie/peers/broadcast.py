"""Arrays that the first process has and the others need: they go over the devices that all share, piece by piece.

JAX has no other way to send this many bytes between processes. All pieces have one size, whatever the arrays
are, so that one small program serves for all of them and nobody holds more than a piece of what others need.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

__all__ = ["hand_out"]

PIECE = 8 << 20  # bytes; each device has one, and the sum of all


def hand_out(mesh: Mesh, arrays: Iterable[np.ndarray | int], piece: int = PIECE) -> None:
    """Copy arrays from the first process to the others; all must call this, with as many bytes in the same order.

    Args:
        mesh: the devices of all processes.
        arrays: in the first process, what the others need; elsewhere arrays to write to, without gaps in memory, or how
            many bytes are not needed here.
        piece: bytes that are sent at a time.
    """
    gives, send = jax.process_index() == 0, _sender(mesh, piece)
    buffer = np.zeros(piece, np.uint8)
    used = 0 if gives else piece  # bytes of the buffer that are written (by the first process), or were read
    for array in arrays:
        values = None if isinstance(array, int) else array.reshape(-1).view(np.uint8)
        size, done = array if isinstance(array, int) else array.nbytes, 0
        while done < size:
            if used == piece:
                buffer, used = send(buffer), 0
            some = min(size - done, piece - used)
            if values is not None and gives:
                buffer[used : used + some] = values[done : done + some]
            elif values is not None:
                values[done : done + some] = buffer[used : used + some]
            done, used = done + some, used + some
    if gives and used:
        send(buffer)


def _sender(mesh: Mesh, piece: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return what gives every process the bytes of the first one, and the first one its buffer back."""
    spread, whole = NamedSharding(mesh, PartitionSpec(*mesh.axis_names)), NamedSharding(mesh, PartitionSpec())
    first = next(place for place, device in enumerate(mesh.devices.flat) if device.process_index == 0)
    total = jax.jit(lambda rows: rows.sum(0, dtype=rows.dtype), out_shardings=whole)  # of bytes: exact
    nothing = np.zeros((1, piece), np.uint8)

    def send(buffer: np.ndarray) -> np.ndarray:
        def row(index: Any) -> np.ndarray:
            return buffer[None] if index[0].start in (first, None) else nothing

        rows = jax.make_array_from_callback((mesh.size, piece), spread, row)
        received = jax.block_until_ready(total(rows))
        return buffer if jax.process_index() == 0 else np.asarray(received.addressable_data(0))

    return send
