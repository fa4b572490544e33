"""A codec at work inside a program; the verbs use it, methods do not know of it.

The large arrays of a message become one vector per client. The mode says how the codec treats it:
- `none`: not at all. There is no codec, or nothing in the message is worth encoding.
- `reduce`: the vector itself. For mass that is pushed: its sender keeps what the codec dropped.
- `update`: a change since a value everybody knows, or a gradient. What the codec drops is sent next time, if the codec
  has error feedback.
- `mirror`: a model that changes slowly. Sender and receiver both keep the receiver's copy of it, and the codec encodes
  the difference (Koloskova, Stich, Jaggi 2019; Richtarik et al. 2021); what is dropped stays in the difference. The
  first message is whole. Since the copies must stay equal, carriers repeat these messages until they arrive.

Between rounds one `CallSite` is remembered for each place of a round where a verb is called; together they are part of
the run's state.
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie.numerics.tree import flat
from coterie.peers.mirrors import is_whole

__all__ = [
    "CallSite",
    "Coder",
    "Memory",
    "Mode",
    "Outgoing",
    "open_vector",
    "unpacked",
    "vector_bytes",
    "wrap_vector",
]

Tree = Any
Memory = dict[str, "CallSite"]
Mode = Literal["none", "reduce", "update", "mirror"]


class CallSite(NamedTuple):
    """What is remembered at one place of a round where a verb sends a message."""

    held: jax.Array  # [C, d] the receivers' copy of my vector; for a mean, the hub's vector
    begun: jax.Array  # [C] whether they have one
    error: jax.Array  # [C, d] what error feedback adds next time; [C, 0] without
    others: Any = ()  # my copies of the others' vectors, where they live elsewhere: [C, S, d], or at the hub [K, d]


class Outgoing(NamedTuple):
    """A message of each client about `x`, and what its receivers make of it."""

    value: Tree  # [C, ...] what stands for x where the message arrived
    size: Any  # bytes of the message: one number, or one per client `[C]`
    mode: Mode = "none"  # none: not encoded
    vector: Any = None  # [C, d] what is encoded; None where nothing is
    whole: Any = None  # [C] whether the vector is sent as it is
    rest: Any = None  # the arrays that are not encoded
    join: Any = None  # puts vector and rest together
    site: str = ""


class Coder:
    """A codec at work in one round.

    Args:
        codec: see `coterie.codecs`.
        key: the key of this round.
        memory: the call sites; None: discover them by tracing one round.
    """

    def __init__(self, codec: Any, key: jax.Array, memory: Memory | None):
        self.codec, self.discovering = codec, memory is None
        self.memory: Memory = {} if memory is None else dict(memory)
        self.count: Any = jnp.int32(0)  # messages so far in this round, every pass of a loop counted
        self._key = key
        self._names = _names("")

    def site(self, clients: int, vector: jax.Array, others: tuple[int, ...] | None) -> str:
        """Return the name of the call site that is reached next; while discovering, it is created."""
        name, size = next(self._names), vector.shape[1]
        if name not in self.memory:
            mine = jnp.zeros((clients, size), vector.dtype)
            theirs = () if others is None else jnp.zeros((*others, size), vector.dtype)
            error = self.codec.memory(clients, size, vector.dtype)
            self.memory[name] = CallSite(mine, jnp.zeros(clients, bool), error, theirs)
        return name

    def within(self, part: str, body: Callable[[], Tree]) -> Tree:
        """Run a part of a round (a loop, a branch) whose call sites are named apart, however often it is traced."""
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
    """Split `x [C, ...]` into one vector `[C, d]` of its real arrays and the rest; and return how to join them.

    Single numbers (a weight, a count) are not worth encoding and must often be exact: they are part of the rest. The
    vector is None where nothing is left.
    """
    leaves, structure = jax.tree.flatten(x)
    real = [jnp.issubdtype(a.dtype, jnp.floating) and a.ndim > 1 and a.size > 0 for a in leaves]
    large = [a for a, chosen in zip(leaves, real, strict=True) if chosen]
    rest = [a for a, chosen in zip(leaves, real, strict=True) if not chosen]
    if not large:
        return None, rest, lambda vector, rest: jax.tree.unflatten(structure, rest)
    vector, split = flat(large)

    def join(vector: jax.Array, rest: list[jax.Array]) -> Tree:
        pieces, others = iter(split(vector)), iter(rest)
        return jax.tree.unflatten(structure, [next(pieces) if chosen else next(others) for chosen in real])

    return vector, rest, join


def vector_bytes(count: int, dtype: Any) -> int:
    """Return the size of a vector as it is."""
    return count * np.dtype(dtype).itemsize


def wrap_vector(codec: Any, vector: np.ndarray, number: int) -> bytes:
    """Return the bytes of one vector, the first of which is `number` (see `mirrors.py`): encoded, or as it is where
    that is not longer or the vector goes whole."""
    first = bytes([number])
    if not is_whole(number):
        coded = codec.encode(vector)
        if len(coded) < vector_bytes(len(vector), vector.dtype):
            return first + coded
    return first + np.ascontiguousarray(vector, vector.dtype.newbyteorder("<")).tobytes()


def open_vector(codec: Any, data: bytes, like: Any) -> np.ndarray:
    """Return the vector that was wrapped; anything else raises `CoterieError`."""
    from coterie.errors import CoterieError

    (count,), dtype = like.shape, np.dtype(like.dtype)
    if data and not is_whole(data[0]) and len(data) < 1 + vector_bytes(count, dtype):
        return codec.decode(data[1:], count, dtype)
    if len(data) != 1 + vector_bytes(count, dtype):
        raise CoterieError(f"a vector of {count} numbers cannot have {len(data)} bytes")
    return np.frombuffer(data, dtype.newbyteorder("<"), count, 1).astype(dtype)
