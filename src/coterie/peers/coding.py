"""What a codec does to messages inside a program; the verbs know it, methods do not.

The large arrays of a message are one vector a client. How it is squeezed depends on what it is:
- `reduce`: as it is. For mass that is pushed: its sender keeps what the codec dropped.
- `update`: a change since something everybody knows, or a gradient; what the codec drops comes next time, if the codec
  has error feedback.
- `mirror`: a model that changes slowly. Both ends keep what the receiver holds of it, and the codec squeezes the
  difference (Koloskova, Stich, Jaggi 2019; Richtarik et al. 2021); what is dropped stays in the difference. The first
  message is whole, and since both ends must agree, none may get lost: carriers repeat them until they arrive.

What must be remembered between rounds is a `Site` for each place of a round where a verb is called; together they are
part of the run's state.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["Coder", "Memory", "Site", "Told", "open_vector", "unpacked", "vector_bytes", "wrap_vector"]

Tree = Any
Memory = dict[str, "Site"]
WHOLE, CODED = b"\x00", b"\x01"  # the first byte of a vector on the wire


class Site(NamedTuple):
    """What a verb remembers at one place of a round."""

    held: jax.Array  # [C, d] what the receivers hold of me; for a mean, what the hub holds
    begun: jax.Array  # [C] whether they hold anything
    error: jax.Array  # [C, d] what error feedback adds next time; [C, 0] without
    others: Any = ()  # what I hold of them, where they live elsewhere: [C, S, d], or at the hub [K, d]


class Told(NamedTuple):
    """What a client says of `x`, and what its receivers make of it."""

    value: Tree  # [C, ...] what stands for x where everything arrived
    size: Any  # bytes of the message, a number or one for each client `[C]`
    vector: Any = None  # [C, d] what is encoded; None where nothing is
    whole: Any = None  # [C] whether it goes as it is
    rest: Any = None  # the arrays that are not encoded
    join: Any = None  # puts vector and rest together
    site: str = ""


class Coder:
    """A codec at work in one round.

    Args:
        codec: see `coterie.codecs`.
        key: the key of this round.
        memory: the sites; None finds out which there will be, in a trial run of a round.
    """

    def __init__(self, codec: Any, key: jax.Array, memory: Memory | None):
        self.codec, self.finding_out = codec, memory is None
        self.memory: Memory = {} if memory is None else dict(memory)
        self.count: Any = jnp.int32(0)  # messages so far in this round, however often a loop has gone round
        self._key = key
        self._names = _names("")

    def site(self, clients: int, vector: jax.Array, others: tuple[int, ...] | None) -> str:
        """Return the name of the place that is reached next; a trial run makes it."""
        name, size = next(self._names), vector.shape[1]
        if name not in self.memory:
            held = jnp.zeros((clients, size), vector.dtype)
            theirs = () if others is None else jnp.zeros((*others, size), vector.dtype)
            error = self.codec.memory(clients, size, vector.dtype)
            self.memory[name] = Site(held, jnp.zeros(clients, bool), error, theirs)
        return name

    def within(self, part: str, body: Callable[[], Tree]) -> Tree:
        """Run a part of a round (a loop, a branch) whose places have names of their own, however often it is traced."""
        outside, self._names = self._names, _names(f"{part}/")
        value = body()
        self._names = outside
        return value

    def next_name(self) -> str:
        """Return a name for such a part."""
        return next(self._names)

    def keys(self, ids: jax.Array) -> jax.Array:
        """Return a key for each client: another for each message."""
        key, self.count = jax.random.fold_in(self._key, self.count), self.count + 1
        return jax.vmap(lambda i: jax.random.fold_in(key, i))(ids)

    def reduce(self, x: jax.Array, key: jax.Array) -> jax.Array:
        """Squeeze one client's vector `[d]`."""
        return self.codec.reduce(x[None], key[None])[0]

    def squeeze(self, x: jax.Array, memory: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Squeeze one client's vector, with what was not sent before; returns also what is not sent now."""
        sent, memory = self.codec.squeeze(x[None], memory[None], key[None])
        return sent[0], memory[0]

    def bytes(self, vector: jax.Array, whole: jax.Array) -> jax.Array:
        """Return the bytes that a vector `[d]` takes on the wire, its first byte included."""
        raw = jnp.uint32(vector_bytes(vector.size, vector.dtype))
        return 1 + jnp.where(whole, raw, jnp.minimum(raw, self.codec.size(vector[None])[0]))


def _names(prefix: str) -> Iterator[str]:
    number = 0
    while True:
        yield f"{prefix}{number}"
        number += 1


def unpacked(x: Tree) -> tuple[jax.Array | None, list[jax.Array], Callable[[jax.Array, list[jax.Array]], Tree]]:
    """Split `x [C, ...]` into one vector `[C, d]` of its real arrays and the rest; and the way back.

    A number a client has (a weight, a count) is not worth coding, and must often be exact: it is part of the rest. The
    vector is None where nothing is left.
    """
    leaves, structure = jax.tree.flatten(x)
    real = [jnp.issubdtype(a.dtype, jnp.floating) and a.ndim > 1 and a.size > 0 for a in leaves]
    large = [a for a, chosen in zip(leaves, real, strict=True) if chosen]
    rest = [a for a, chosen in zip(leaves, real, strict=True) if not chosen]
    if not large:
        return None, rest, lambda vector, rest: jax.tree.unflatten(structure, rest)
    shapes, dtypes = [a.shape[1:] for a in large], [a.dtype for a in large]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    common = jnp.result_type(*dtypes)
    vector = jnp.concatenate([a.reshape(a.shape[0], -1).astype(common) for a in large], axis=1)

    def join(vector: jax.Array, rest: list[jax.Array]) -> Tree:
        parts = iter(jnp.split(vector, ends[:-1], axis=-1))
        pieces = (
            (next(parts).reshape(*vector.shape[:-1], *shape).astype(dtype))
            for shape, dtype in zip(shapes, dtypes, strict=True)
        )
        others = iter(rest)
        return jax.tree.unflatten(structure, [next(pieces) if chosen else next(others) for chosen in real])

    return vector, rest, join


def vector_bytes(count: int, dtype: Any) -> int:
    """Return the size of a vector as it is."""
    return count * np.dtype(dtype).itemsize


def wrap_vector(codec: Any, vector: np.ndarray, whole: bool) -> bytes:
    """Return the bytes of one vector: encoded, or as it is where that is shorter or asked for."""
    if not whole:
        coded = codec.encode(vector)
        if len(coded) < vector_bytes(len(vector), vector.dtype):
            return CODED + coded
    return WHOLE + np.ascontiguousarray(vector, vector.dtype.newbyteorder("<")).tobytes()


def open_vector(codec: Any, data: bytes, like: Any) -> np.ndarray:
    """Return the vector that was wrapped; anything else raises `CoterieError`."""
    from coterie.errors import CoterieError

    (count,), dtype = like.shape, np.dtype(like.dtype)
    if data[:1] == CODED:
        return codec.decode(data[1:], count, dtype)
    if data[:1] != WHOLE or len(data) != 1 + vector_bytes(count, dtype):
        raise CoterieError(f"a vector of {count} numbers cannot have {len(data)} bytes")
    return np.frombuffer(data, dtype.newbyteorder("<"), count, 1).astype(dtype)
