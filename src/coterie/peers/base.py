"""The verbs: the only way a method reaches another client, and what each one costs.

C = clients living here, K = all clients, D = slots for the neighbours one hears, L = slots for the listeners that
hear one. A verb takes and returns pytrees whose arrays have the clients living here as first axis. What loss does is
visible only through `arrived` and `acked`.

The ledger is kept here while a round is traced: each verb adds what it sends to counters that leave the program
beside the state. A verb inside a loop is counted too, if the loop is `peers.loop`.
"""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from coterie.peers.frame import frame_bytes

__all__ = ["Arrivals", "Peers", "Tables", "Traffic", "blend"]

Tree = Any


class Tables(NamedTuple):
    """Who may talk to whom, for the clients living here; arguments of the program, never constants.

    `back[i, k]` is where i stands among the listeners of its k-th neighbour, `twin[i, k]` where it stands among that
    neighbour's own neighbours (-1: it does not hear i), `seat[i, l]` where it stands among its l-th listener's
    neighbours.
    """

    ids: jax.Array  # [C]
    neighbours: jax.Array  # [C, D] ids
    present: jax.Array  # [C, D]
    listeners: jax.Array  # [C, L] ids
    listening: jax.Array  # [C, L]
    back: jax.Array  # [C, D]
    twin: jax.Array  # [C, D]
    seat: jax.Array  # [C, L]
    weights: jax.Array  # [C, D] the mixing weights of the graph; a client keeps what its row lacks to one
    order: jax.Array  # [K] where the client with id k is stored, when all live here


class Traffic(NamedTuple):
    """Messages and bytes of one round: from each neighbour, to each neighbour, to and from the hub."""

    heard_messages: jax.Array  # [C, D]
    heard_bytes: jax.Array
    told_messages: jax.Array  # [C, D]
    told_bytes: jax.Array
    up_messages: jax.Array  # [C]
    up_bytes: jax.Array
    down_messages: jax.Array  # [C]
    down_bytes: jax.Array


class Arrivals(NamedTuple):
    """Which messages of a round arrived, one row an exchange: a recorded loss that a simulation can repeat."""

    edges: jax.Array  # [T, C, D]
    up: jax.Array  # [T, C]
    down: jax.Array  # [T, C]


class Peers(abc.ABC):
    """The clients that live here, and the verbs that reach the others."""

    def __init__(self, tables: Tables, clients: int):
        self.ids, self.neighbours, self.present = tables.ids, tables.neighbours, tables.present
        self.weights = tables.weights
        self.tables = tables
        self.clients = clients
        self._tick: Any = 0
        self._traffic = _nothing_sent(tables)

    # -- what happens here ------------------------------------------------------------------------------------

    def keys(self, key: jax.Array) -> jax.Array:
        """Return a key for each client living here: it depends on the client's id, not on where it lives."""
        return jax.vmap(lambda i: jax.random.fold_in(key, i))(self.ids)

    def sample(self, key: jax.Array, count: int) -> jax.Array:
        """Choose `count` of all clients, the same everywhere; returns `[C]`, true for the chosen that live here."""
        if count >= self.clients:
            return jnp.ones(self.ids.shape[0], bool)
        draw = jax.vmap(lambda i: jax.random.bits(jax.random.fold_in(key, i)))(jnp.arange(self.clients))
        rank = jnp.argsort(jnp.argsort(draw, stable=True), stable=True)
        return rank[self.ids] < count

    @abc.abstractmethod
    def each(self, fn: Callable, *stacked: Tree) -> Tree:
        """Run `fn` for each client living here."""

    def each_of(self, active: jax.Array, at_most: int, fn: Callable, otherwise: Tree, *stacked: Tree) -> Tree:
        """Run `fn` only where `active [C]` is true (at most `at_most` of all clients); elsewhere return `otherwise`."""
        here = self.ids.shape[0]
        if at_most >= here:
            done = self.each(fn, *stacked)
            return jax.tree.map(lambda a, b: jnp.where(_column(active, a), a, b), done, otherwise)
        chosen = jnp.nonzero(active, size=at_most, fill_value=here)[0]
        done = self.each(fn, *jax.tree.map(lambda a: a[jnp.minimum(chosen, here - 1)], stacked))
        return jax.tree.map(lambda a, b: b.at[chosen].set(a, mode="drop"), done, otherwise)

    def seal(self, x: Tree) -> Tree:
        """Fix a product before it is added to something, so that its bits do not depend on where clients live.

        XLA joins a product and a sum to one fused multiply-add, or not, as the code around it suggests; that changes
        the last bit. On a CPU an optimisation barrier does not prevent it (it is removed early), a detour of the bits
        through an integer sum with a zero that the compiler cannot know does. Batched programs do not pay for it.
        """
        return seal(x, jnp.minimum(self.ids[0], 0))

    def sum_slots(self, values: jax.Array) -> jax.Array:
        """Sum `[C, D]` over the slots, one after another: a compiler's own order may depend on where clients live."""
        start = jnp.zeros(values.shape[0], values.dtype)
        return lax.fori_loop(0, values.shape[1], lambda k, total: total + values[:, k], start) if values.size else start

    def loop(self, times: int, body: Callable[[jax.Array, Tree], Tree], start: Tree) -> Tree:
        """Run `body(step, value)` so many times; verbs inside it are counted."""

        def counted(step: jax.Array, carry: tuple) -> tuple:
            value, self._tick, self._traffic = carry
            value = body(step, value)
            return value, jnp.asarray(self._tick, jnp.int32), self._traffic

        carry = (start, jnp.asarray(self._tick, jnp.int32), self._traffic)
        value, self._tick, self._traffic = lax.fori_loop(0, times, counted, carry)
        return value

    # -- the verbs --------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def mix(self, x: Tree, weights: jax.Array) -> tuple[Tree, jax.Array]:
        """Sum what the neighbours hold, `weights [C, D]` by slot; an absent slot's weight goes to the client itself.

        Returns the sum `[C, ...]` and `arrived [C, D]`.
        """

    @abc.abstractmethod
    def push(self, x: Tree, to: jax.Array | None = None) -> tuple[Tree, jax.Array, jax.Array]:
        """Send `x` (already divided by its sender) to one's listeners, or those where `to [C, L]` is true.

        Returns the sum of what arrived `[C, ...]`, `arrived [C, D]` and `acked [C, L]`: what was not acknowledged
        stays with its sender, so that push-sum loses no mass.
        """

    @abc.abstractmethod
    def swap(self, x: Tree) -> tuple[Tree, jax.Array]:
        """Exchange one small value a neighbour: `x [C, D, ...]` -> what each neighbour holds for me, and `arrived`."""

    @abc.abstractmethod
    def ask(self, fn: Callable, x: Tree, own: Tree, weights: jax.Array | None = None) -> tuple[Tree, jax.Array]:
        """Let each neighbour evaluate `fn(my x, its own)`; `own` (its data, its personal layers) never travels.

        Returns the answers `[C, D, ...]`, or with `weights [C, D]` their weighted sum `[C, ...]`; and `arrived`.
        """

    @abc.abstractmethod
    def mean(self, x: Tree, weight: jax.Array, groups: tuple[jax.Array, int] | None = None) -> tuple[Tree, jax.Array]:
        """Average over all clients with `weight [C] > 0`, or over those of one's group: `groups = (label [C], count)`.

        Priced as with a hub: one message up and one down for each client that takes part (one that does not fetches
        the mean when it next does); groups cost a label up from everyone. Returns the mean `[C, ...]` and
        `arrived [C]`; where nothing arrived the client's own `x` comes back.
        """

    @abc.abstractmethod
    def share(self, x: Tree, certain: bool = False) -> tuple[Tree, jax.Array]:
        """Give everyone's small `x` to everyone, in id order: `[K, ...]` and `arrived [K]`, the same everywhere.

        What must arrive (who keeps whom in a new stage) is `certain`: a carrier repeats it until it has.
        """

    # -- the ledger -------------------------------------------------------------------------------------------

    def traffic(self) -> Traffic:
        """Return what was sent so far in this round."""
        return self._traffic

    def _next_exchange(self) -> Any:
        tick, self._tick = self._tick, self._tick + 1
        return tick

    def _charge(self, link: str, messages: jax.Array, size: int) -> None:
        """Add `messages` (0 or 1 each) of `size` bytes on a link: heard, told, up or down."""
        sent = messages.astype(jnp.uint32)
        counts = getattr(self._traffic, f"{link}_messages"), getattr(self._traffic, f"{link}_bytes")
        new = {f"{link}_messages": counts[0] + sent, f"{link}_bytes": counts[1] + sent * jnp.uint32(size)}
        self._traffic = self._traffic._replace(**new)

    def _charge_mean(self, x: Tree, weight: jax.Array, label: jax.Array | None) -> None:
        # Up go the value and its weight; down come the mean and the weight behind it.
        self._charge("up", weight > 0, message_bytes((x, weight)))
        self._charge("down", weight > 0, message_bytes((x, weight)))
        if label is not None:
            self._charge("up", jnp.ones_like(weight, bool), message_bytes(label))

    def _charge_share(self, x: Tree) -> None:
        everyone = jnp.ones(self.ids.shape[0], bool)
        self._charge("up", everyone, message_bytes(x))
        self._charge("down", everyone, share_bytes(x, self.clients))


def blend(peers: Peers, x: Tree, weights: jax.Array) -> Tree:
    """Mix with the neighbours and keep the rest of one's own: sum_j w_ij x_j + (1 - sum_j w_ij) x_i."""
    mixed, _ = peers.mix(x, weights)
    kept = 1 - peers.sum_slots(weights)
    own = peers.seal(jax.tree.map(lambda a: _column(kept, a) * a, x))
    return jax.tree.map(jnp.add, own, mixed)


def seal(x: Tree, zero: jax.Array) -> Tree:
    """Pass the bits of floating arrays through an integer sum with `zero`; see `Peers.seal`."""

    def detour(a: jax.Array) -> jax.Array:
        if not jnp.issubdtype(a.dtype, jnp.floating):
            return a
        bits = jnp.dtype(f"int{8 * a.dtype.itemsize}")
        return lax.bitcast_convert_type(lax.bitcast_convert_type(a, bits) + zero.astype(bits), a.dtype)

    return jax.tree.map(detour, x)


def message_bytes(x: Tree, leading: int = 1) -> int:
    """Return the size of one client's message: the arrays without their first `leading` axes."""
    return frame_bytes([jax.ShapeDtypeStruct(a.shape[leading:], a.dtype) for a in jax.tree.leaves(x)])


def share_bytes(x: Tree, clients: int) -> int:
    """Return the size of the table that `share` sends down: everyone's values and who is missing."""
    whole = [jax.ShapeDtypeStruct((clients, *a.shape[1:]), a.dtype) for a in jax.tree.leaves(x)]
    return frame_bytes([*whole, jax.ShapeDtypeStruct((clients,), jnp.bool_)])


def fold_slots(
    slots: int, hear: Callable[[Any], Tree], weights: jax.Array, start: Tree, seal: Callable[[Tree], Tree]
) -> Tree:
    """Add `weights[:, k] * hear(k)` slot after slot. In this order on every carrier: that makes results bit-equal."""

    def add(k: Any, total: Tree) -> Tree:
        return jax.tree.map(
            lambda t, other: t + seal(_column(weights[:, k], other).astype(other.dtype) * other), total, hear(k)
        )

    return lax.fori_loop(0, slots, add, start) if slots else start


def fold_clients(
    x: Tree, weight: jax.Array, label: jax.Array, groups: int, seal: Callable[[Tree], Tree]
) -> tuple[Tree, jax.Array]:
    """Average `x [K, ...]` within each group, one client after another; returns `[G, ...]` and the weight `[G]`."""
    total = jax.tree.map(lambda a: jnp.zeros((groups, *a.shape[1:]), a.dtype), x)

    def add(k: Any, carry: tuple) -> tuple:
        total, mass = carry
        total = jax.tree.map(lambda t, a: t.at[label[k]].add(seal(weight[k].astype(a.dtype) * a[k])), total, x)
        return total, mass.at[label[k]].add(weight[k])

    total, mass = lax.fori_loop(0, weight.shape[0], add, (total, jnp.zeros(groups, weight.dtype)))
    safe = jnp.where(mass > 0, mass, 1)
    return jax.tree.map(lambda t: t / _column(safe.astype(t.dtype), t), total), mass


def _column(values: jax.Array, like: jax.Array) -> jax.Array:
    """Reshape `[C]` so that it multiplies `like [C, ...]`."""
    return values.reshape(values.shape + (1,) * (like.ndim - values.ndim))


def _nothing_sent(tables: Tables) -> Traffic:
    edges = jnp.zeros(tables.neighbours.shape, jnp.uint32)
    clients = jnp.zeros(tables.ids.shape, jnp.uint32)
    return Traffic(*[edges] * 4, *[clients] * 4)
