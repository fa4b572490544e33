"""Inputs and outputs of a program beside a method's state: who talks to whom, what was sent, what arrived.

C = clients living here, K = all clients, D = slots for the neighbours one hears, L = slots for the listeners.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

__all__ = [
    "WATCHED", "Arrivals", "Centres", "Pair", "Tables", "Traffic", "nothing_sent", "on_host", "one_for_all",
    "over_rounds",
]  # fmt: skip

Pair = tuple[int, int]  # (sender, receiver): ids of clients, or that of the hub


class Tables(NamedTuple):
    """Who may talk to whom, for the clients living here; arguments of the program, never constants.

    `back[i, k]` is the slot of i among the listeners of its k-th neighbour, `twin[i, k]` its slot among that
    neighbour's own neighbours (-1: it does not hear i), `seat[i, l]` its slot among its l-th listener's neighbours.
    """

    ids: jax.Array  # [C]
    neighbours: jax.Array  # [C, D] ids
    present: jax.Array  # [C, D]
    listeners: jax.Array  # [C, L] ids
    listening: jax.Array  # [C, L]
    back: jax.Array  # [C, D]
    twin: jax.Array  # [C, D]
    seat: jax.Array  # [C, L]
    weights: jax.Array  # [C, D] the mixing weights of the graph; a client keeps 1 - the sum of its row
    strength: jax.Array  # [C, D] the strength of the tie to each neighbour; 0 where there is none
    chance: jax.Array  # [C, L] the probability of reaching each listener in a step; 1 where links are certain
    schedule: jax.Array  # [T, C, L] whom a client reaches in step t, t + T, ...; T = 0 without a schedule
    order: jax.Array  # [K] where the client with id k is stored, when all live here


class Traffic(NamedTuple):
    """Messages and bytes of one round: from each neighbour, to each neighbour, to and from the hub.

    What went wrong is only counted where somebody watches: in a run with faults, or with robust sums. A message that
    did not come is lost, one that came and is no message is refused, one whose value was too far away is clipped.

    Inside a program bytes have one more axis, the low and the high word, because a round may send more than 4 GiB;
    `on_host` joins the two.
    """

    heard_messages: jax.Array  # [C, D] received from each neighbour
    heard_bytes: jax.Array
    told_messages: jax.Array  # [C, D] sent to each neighbour
    told_bytes: jax.Array
    up_messages: jax.Array  # [C]
    up_bytes: jax.Array
    down_messages: jax.Array  # [C]
    down_bytes: jax.Array
    lost: Any = ()  # [C, D] from each neighbour
    refused: Any = ()
    clipped: Any = ()
    hub_lost: Any = ()  # [K] from each client to the hub, or from the hub to it
    hub_refused: Any = ()  # [K] from each client, at the hub
    hub_clipped: Any = ()


WATCHED = ("lost", "refused", "clipped", "hub_lost", "hub_refused", "hub_clipped")


class Arrivals(NamedTuple):
    """Which messages of a round arrived, one row per exchange: a recorded loss that a simulation can repeat."""

    edges: jax.Array  # [T, C, D]
    up: jax.Array  # [T, C]
    down: jax.Array  # [T, C]
    pushed: Any = ()  # [T, C] from each client's partner
    faults: Any = ()  # what was sent in place of messages, and who did nothing: `injection.FaultTables`


class Centres(NamedTuple):
    """What `centres` returns for each client: the mean of its cluster, and of everybody if asked for."""

    near: Any  # [C, ...] the mean of the client's cluster
    near_weight: jax.Array  # [C] the weight behind it
    far: Any = None  # [C, ...] the mean of everybody
    far_weight: Any = None  # [C]


def nothing_sent(tables: Tables, watched: bool = False) -> Traffic:
    """Return the counters at the start of a round; with `watched` also those of what goes wrong."""
    edges, clients = tables.neighbours.shape, tables.ids.shape
    shapes = [shape for where in (edges, edges, clients, clients) for shape in (where, (*where, 2))]
    if watched:
        shapes += [edges] * 3 + [tables.order.shape] * 3
    return Traffic(*(jnp.zeros(shape, jnp.uint32) for shape in shapes))


def on_host(traffic: Traffic) -> Traffic:
    """Copy what was sent to the host, as 64-bit numbers."""
    counts: dict[str, Any] = {}
    for name, value in traffic._asdict().items():
        if name in WATCHED and isinstance(value, tuple):
            continue
        words = one_for_all(np.asarray(value), keep=int(name.endswith("bytes")))
        once, shape = _once(words), words.shape[: words.ndim - int(name.endswith("bytes"))]
        once = once.astype(np.int64)
        counts[name] = one_for_all(
            np.broadcast_to(once[..., 0] + (once[..., 1] << 32) if name.endswith("bytes") else once, shape)
        )
    return Traffic(**counts)


def one_for_all(values: np.ndarray, keep: int = 0) -> np.ndarray:
    """Return the same values, and take less memory (read-only) where they repeat: equal ones, as most clients send,
    that of a single one; equal rows of the first axis, as most rounds are, that of one row. The last `keep` axes stay.
    """
    if not values.size:
        return values
    for axes in (values.ndim - keep, 1):
        first = values[(slice(1),) * axes]
        if axes and values.shape != first.shape and np.array_equal(values, np.broadcast_to(first, values.shape)):
            return np.broadcast_to(first.copy(), values.shape)
    return values


def over_rounds(values: np.ndarray) -> np.ndarray:
    """Return the sum over the first axis, as 64-bit numbers; quick where all its rows are one."""
    if len(values) and values.strides[0] == 0:
        return values[0].astype(np.int64) * len(values)
    return values.astype(np.int64).sum(0)


def _once(values: np.ndarray) -> np.ndarray:
    """Return the memory behind repeated values: axes along which they repeat have the length one."""
    return values[tuple(slice(1) if step == 0 else slice(None) for step in values.strides)]
