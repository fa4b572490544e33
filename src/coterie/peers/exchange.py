"""One exchange as a callback out of a compiled program: values become frames, and frames that came become values."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import io_callback

from coterie.codecs.frame import frame_bytes
from coterie.peers.coding import wrap_vector
from coterie.peers.line import Address, Delivery, Line, Message
from coterie.peers.mirrors import CHANGE, is_whole
from coterie.peers.records import Pair

__all__ = ["Vectors", "Ways", "exchange_values"]

Tree = Any


class Ways(NamedTuple):
    """Which pairs may carry a frame of an exchange, as the tables of the present stage say."""

    outgoing: list[Pair]
    incoming: list[tuple[tuple[int, ...], Pair]]  # with the place in the answer


class Vectors(NamedTuple):
    """How the last array of a message is encoded."""

    codec: Any
    whole: jax.Array  # [C] where it goes as it is
    site: str | None = None  # the place in the round where both ends keep a copy,
    held: Any = None  # [C, d] and the copy that receivers have after this message


def exchange_values(
    line: Line,
    x: Tree,
    active: jax.Array,
    send: Callable[[np.ndarray], Iterable[Address]],
    ways: Callable[[], Ways],
    shape: tuple[int, ...],
    note: str | None,
    leading: int = 1,
    vectors: Vectors | None = None,
    acknowledges: bool = False,
) -> tuple[Any, ...]:
    """Leave the program, hand the frames that `send` addresses to the line, and return what came back.

    Args:
        line: this process's end of the network.
        x: the values; their first `leading` axes are those of the places that `send` names.
        active: who sends at all; `send` gets it.
        send: where messages go, and where in `x` they are.
        ways: which pairs may carry a frame, and where in the answer it belongs.
        shape: the leading axes of the answer.
        note: the field of `Delivery` that records what arrived.
        leading: 1 where all receivers of a client get the same, 2 where each gets its own.
        vectors: how the last array of x is encoded; the answer then also says which ones came whole.
        acknowledges: these are acknowledgements; the answer then also says which of them are used at their ends.

    Returns:
        the values, `arrived`, and more: with `vectors` which came whole and, of the shape of `active`, how many went
        whole although nobody asked for it, since their receivers had no copy; for acknowledgements which were taken.
    """
    leaves, structure = jax.tree.flatten(x)
    each = [jax.ShapeDtypeStruct(a.shape[leading:], a.dtype) for a in leaves]
    answer = [jax.ShapeDtypeStruct((*shape, *a.shape), a.dtype) for a in each]
    line.largest = max(line.largest, frame_bytes(each) + 1)  # a codec's vector has one byte before it
    codec, site = (None, None) if vectors is None else (vectors.codec, vectors.site)
    flags = [] if vectors is None else [jax.ShapeDtypeStruct(shape, bool)]
    sent = [jax.ShapeDtypeStruct(active.shape, bool if acknowledges else np.uint32)]
    more = 0 if vectors is None and not acknowledges else 1 + len(flags)  # values that are returned besides
    room: list[np.ndarray] = []  # for the answer, which JAX copies at once: new memory costs more than filling it

    def messages(
        active: np.ndarray, values: list[np.ndarray], whole: Any, held: Any, forced: np.ndarray
    ) -> Iterable[Message]:
        for kind, pair, place in send(active):
            arrays = [v[place[:leading]] for v in values]
            if codec is None:
                yield kind, pair, arrays, b"", None
                continue
            vector, number = arrays.pop(), CHANGE
            if site is not None:
                number = line.mirrors.number(site, pair, bool(whole[place[0]]), line.round)
                forced[place] += is_whole(number) and not whole[place[0]] and pair[0] != pair[1]
                vector = held[place[0]] if is_whole(number) else vector
            yield kind, pair, arrays, wrap_vector(codec, vector, number), each[-1]

    def callback(active: Any, values: Any, extra: Any) -> list[np.ndarray]:
        arrays, (whole, held) = [np.asarray(v) for v in values], [np.asarray(e) for e in extra] or (None, None)
        outgoing, incoming = ways()
        pairs, active = [pair for _, pair in incoming], np.asarray(active)
        about_sent = np.zeros(active.shape, np.uint32)
        received = line.exchange_frames(messages(active, arrays, whole, held, about_sent), outgoing, pairs)
        if not room:
            room.extend(np.empty(a.shape, a.dtype) for a in (*answer, *flags))
        out = room
        arrived = np.zeros(shape, bool)
        for place, pair in incoming:
            opened = line.open(received.get(pair), pair, each, codec, site)
            if opened is not None:
                arrived[place] = True
                for target, value in zip(out, opened, strict=True):
                    target[place] = value
        for target in out:
            target[~arrived] = 0
        if note is not None:
            line.deliveries.append(Delivery(line.round, **{note: arrived}))
        if acknowledges:
            about_sent = line.taken(active, [(place, pair) for _, pair, place in send(active)])
        return [*out, about_sent, arrived]

    extra = [] if vectors is None else [vectors.whole, vectors.whole if vectors.held is None else vectors.held]
    outputs = [*answer, *flags, *sent, jax.ShapeDtypeStruct(shape, bool)]
    *arrays, arrived = io_callback(callback, outputs, active, leaves, extra, ordered=True)
    value = jax.tree.unflatten(structure, arrays[: len(leaves)])
    return (value, arrived, *arrays[len(arrays) - more :])
