"""The verbs: the only way a method reaches another client, and what each one costs.

C = clients living here, K = all clients, D = slots for the neighbours one hears, L = slots for the listeners that
hear one. A verb takes and returns pytrees whose arrays have the clients living here as first axis. What loss does is
visible only through `arrived` and `acked`.

The ledger is kept here while a round is traced: each verb adds what it sends to counters that leave the program
beside the state. A verb inside a loop or a branch is counted too, if it is `peers.loop` or `peers.choose`.
"""

import abc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from coterie.codecs.frame import HEADER
from coterie.peers.arithmetic import column, message_bytes, seal, share_bytes
from coterie.peers.coding import Coder, Memory, Told, unpacked
from coterie.peers.records import Arrivals, Centres, Tables, Traffic, nothing_sent, on_host

__all__ = ["Arrivals", "Centres", "Peers", "Tables", "Traffic", "blend", "on_host"]

Tree = Any


class Peers(abc.ABC):
    """The clients that live here, and the verbs that reach the others."""

    def __init__(self, tables: Tables, clients: int, coder: Coder | None = None):
        self.ids, self.neighbours, self.present = tables.ids, tables.neighbours, tables.present
        self.weights = tables.weights
        self.tables = tables
        self.clients = clients
        self._tick: Any = 0
        self._traffic = nothing_sent(tables)
        self._coder = coder

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

    def links(self, key: jax.Array, step: Any = 0) -> jax.Array:
        """Draw whom each client reaches in a step: `[C, L]`, for `push`. Certain links are always there.

        A random link is drawn by its sender, from the key and both ids; a scheduled one is read at `step` modulo the
        length of the schedule.
        """
        if self.tables.schedule.shape[0]:
            return self.tables.schedule[step % self.tables.schedule.shape[0]] & self.tables.listening

        def draw(key: jax.Array, listener: jax.Array) -> jax.Array:
            return jax.random.uniform(jax.random.fold_in(key, listener))

        drawn = jax.vmap(lambda key, row: jax.vmap(lambda j: draw(key, j))(row))(self.keys(key), self.tables.listeners)
        return (drawn < self.tables.chance) & self.tables.listening

    @abc.abstractmethod
    def each(self, fn: Callable, *stacked: Tree) -> Tree:
        """Run `fn` for each client living here."""

    def each_of(self, active: jax.Array, at_most: int, fn: Callable, otherwise: Tree, *stacked: Tree) -> Tree:
        """Run `fn` only where `active [C]` is true (at most `at_most` of all clients); elsewhere return `otherwise`."""
        here = self.ids.shape[0]
        if at_most >= here:
            done = self.each(fn, *stacked)
            return jax.tree.map(lambda a, b: jnp.where(column(active, a), a, b), done, otherwise)
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
        part = self._part("loop", lambda step, value: body(step, value))
        if self._coder is not None and self._coder.finding_out:
            return part(jnp.int32(0), start)

        def counted(step: jax.Array, carry: tuple) -> tuple:
            value, *self._held = carry
            value = part(step, value)
            return value, *self._held

        value, *self._held = lax.fori_loop(0, times, counted, (start, *self._held))
        return value

    def choose(self, flag: jax.Array, yes: Callable[[Tree], Tree], no: Callable[[Tree], Tree], value: Tree) -> Tree:
        """Run `yes(value)` or `no(value)`; `flag []` must be the same everywhere. Only what runs is counted."""
        parts = [self._part(name, branch) for name, branch in (("yes", yes), ("no", no))]
        if self._coder is not None and self._coder.finding_out:
            found = [part(value) for part in parts]  # both, since both have places of their own
            return found[0]

        def counted(part: Callable[[Tree], Tree]) -> Callable[[tuple], tuple]:
            def run(carry: tuple) -> tuple:
                value, *self._held = carry
                value = part(value)
                return value, *self._held

            return run

        value, *self._held = lax.cond(flag, counted(parts[0]), counted(parts[1]), (value, *self._held))
        return value

    def _part(self, name: str, body: Callable[..., Tree]) -> Callable[..., Tree]:
        """Let the codec know a part of a round by name, however often it is traced."""
        if self._coder is None:
            return body
        place, coder = f"{self._coder.next_name()}{name}", self._coder
        return lambda *values: coder.within(place, lambda: body(*values))

    @property
    def _held(self) -> list:
        """What verbs leave behind and loops carry: exchanges so far, what was sent, what the codec remembers."""
        coded = () if self._coder is None else (self._coder.memory, self._coder.count)
        return [jnp.asarray(self._tick, jnp.int32), self._traffic, coded]

    @_held.setter
    def _held(self, values: list) -> None:
        self._tick, self._traffic, coded = values
        if self._coder is not None:
            self._coder.memory, self._coder.count = coded

    # -- the verbs --------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def mix(self, x: Tree, weights: jax.Array) -> tuple[Tree, jax.Array]:
        """Sum what the neighbours hold, `weights [C, D]` by slot; an absent slot's weight goes to the client itself.

        Returns the sum `[C, ...]` and `arrived [C, D]`.
        """

    @abc.abstractmethod
    def push(
        self, x: Tree | Told, to: jax.Array | None = None, weights: jax.Array | None = None
    ) -> tuple[Tree, jax.Array, jax.Array]:
        """Send `x` (already divided by its sender) to one's listeners, or those where `to [C, L]` is true.

        A codec may take something off it: who must keep what was taken squeezes first, and pushes what that gave.

        Returns the sum of what arrived `[C, ...]`, weighed by its receiver where `weights [C, D]` are given,
        `arrived [C, D]` and `acked [C, L]`: what was not acknowledged stays with its sender, so that push-sum loses no
        mass.
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
    def mean(
        self, x: Tree, weight: jax.Array, groups: tuple[jax.Array, int] | None = None, since: Tree = None
    ) -> tuple[Tree, jax.Array]:
        """Average over all clients with `weight [C] > 0`, or over those of one's group: `groups = (label [C], count)`.

        `since` is the mean that this verb gave in the round before (at first, what all clients begin with alike): a
        codec then squeezes what changed since.

        Priced as with a hub: one message up and one down for each client that takes part (one that does not fetches
        the mean when it next does); groups cost a label up from everyone. Returns the mean `[C, ...]` and
        `arrived [C]`; where nothing arrived the client's own `x` comes back.
        """

    @abc.abstractmethod
    def centres(
        self,
        x: Tree,
        weight: jax.Array,
        clusters: tuple[jax.Array, int],
        across: jax.Array | None = None,
        certain: bool = False,
    ) -> tuple[Centres, jax.Array]:
        """Average within known clusters, `clusters = (label [C], count)`, and with `across [C]` over everybody too.

        A client counts with `weight [C]` in its cluster's mean and with `across` in everybody's. One with weight 0
        takes no part: it sends nothing, gets nothing and pays nothing. The others send one message up (the value, its
        weights, the label) and get one down (the means and the weights behind them). Returns them, and `arrived [C]`;
        where nothing arrived the means are the client's own `x` and the weights 0. What must arrive is `certain`.
        """

    @abc.abstractmethod
    def most(self, x: Tree) -> Tree:
        """Return the largest value of every number of a small `x` over all clients, to everyone: always arrives."""

    @abc.abstractmethod
    def share(self, x: Tree, certain: bool = False) -> tuple[Tree, jax.Array]:
        """Give everyone's small `x` to everyone, in id order: `[K, ...]` and `arrived [K]`, the same everywhere.

        What must arrive (who keeps whom in a new stage) is `certain`: a carrier repeats it until it has.
        """

    @abc.abstractmethod
    def hub(
        self, fn: Callable[[Tree, jax.Array, Tree], tuple[Tree, Tree]], x: Tree, memory: Tree, certain: bool = False
    ) -> tuple[Tree, jax.Array, Tree]:
        """Let the hub compute `fn(x [K, ...], arrived [K], memory) -> (answers [K, ...], memory)`, in id order.

        Everyone sends `x` (a gradient, a change: a codec may hold back a part of it for the next time) and gets its
        row of the answers. `memory` is the hub's own and has no client axis; other processes carry it along without
        meaning. Where nothing arrived, `x` is zero at the hub. Returns the answers `[C, ...]` (zero where they did not
        arrive), `arrived [C]` and the memory. What must arrive is `certain`.
        """

    # -- codecs -----------------------------------------------------------------------------------------------

    @property
    def memory(self) -> Memory:
        """What the codec remembers for the next round."""
        return {} if self._coder is None else self._coder.memory

    def squeeze(self, x: Tree) -> Told:
        """Return what a codec makes of `x [C, ...]` before it is pushed: its sender keeps the difference."""
        return self._tell(x, "reduce")

    def _tell(
        self,
        x: Tree,
        way: str,
        active: jax.Array | None = None,
        others: tuple[int, ...] | None = None,
        since: Tree = None,
    ) -> Told:
        """Squeeze what the clients (or those where `active [C]`) say of `x`; see `peers/compression.py` for the ways.

        Args:
            x: `[C, ...]`.
            way: reduce, update or mirror.
            active: who says something at all.
            others: the leading axes of what this process holds of the others; None where all live here.
            since: what an update counts from; default zero.
        """
        vector, rest, join = unpacked(x)
        coder = self._coder
        if coder is None or vector is None:
            return Told(x, message_bytes(x))
        # A client that has diverged says what it said before: nothing that is not finite is coded.
        active = jnp.ones(self.ids.shape[0], bool) if active is None else active
        active = active & jnp.isfinite(vector).all(1)
        name = coder.site(self.ids.shape[0], vector, others if way == "mirror" else None)
        site, keys = coder.memory[name], coder.keys(self.ids)
        mask = active[:, None]
        whole = jnp.zeros_like(active)
        known = None if since is None else unpacked(since)[0]
        start = site.held if way == "mirror" else jnp.zeros_like(vector) if known is None else known
        change = jnp.where(mask, vector - start, 0)
        if way == "update":
            sent, error = self.each(coder.squeeze, change, site.error, keys)
            value = sent = self.seal(jnp.where(mask, sent, 0))
            site = site._replace(error=jnp.where(mask, error, site.error))
        elif way == "mirror":
            whole = active & ~site.begun
            squeezed = self.seal(jnp.where(mask, self.each(coder.reduce, change, keys), 0))
            sent = jnp.where(whole[:, None], vector, squeezed)
            value = jnp.where(whole[:, None], vector, site.held + sent)
            site = site._replace(held=value, begun=site.begun | active)
        else:
            value = sent = self.seal(self.each(coder.reduce, change, keys))
        coder.memory = coder.memory | {name: site}
        size = message_bytes(rest) + self.each(coder.bytes, sent, whole)
        return Told(join(value, rest), size, sent, whole, rest, join, name)

    def _hub_holds(self, told: Told, since: Tree, change: jax.Array, mass: jax.Array) -> jax.Array:
        """Add the mean change `[1, d]` to what the hub holds, and remember that; returns it, `[1, d]`."""
        coder, first = self._coder, unpacked(since)[0]
        assert coder is not None
        assert first is not None
        site = coder.memory[told.site]
        held = jnp.where(site.begun[0], site.held[0], first[0])
        held = jnp.where(mass[0] > 0, held + change[0], held)
        new = site._replace(held=jnp.broadcast_to(held, site.held.shape), begun=jnp.ones_like(site.begun))
        coder.memory = coder.memory | {told.site: new}
        return held[None]

    # -- the ledger -------------------------------------------------------------------------------------------

    def traffic(self) -> Traffic:
        """Return what was sent so far in this round."""
        return self._traffic

    def _next_exchange(self) -> Any:
        tick, self._tick = self._tick, self._tick + 1
        return tick

    def _charge(self, link: str, messages: jax.Array, size: Any) -> None:
        """Add `messages` (0 or 1 each) of `size` bytes (one number, or one each) on a link: heard, told, up or down."""
        sent = messages.astype(jnp.uint32)
        count, words = getattr(self._traffic, f"{link}_messages"), getattr(self._traffic, f"{link}_bytes")
        low = words[..., 0] + sent * jnp.asarray(size, jnp.uint32)
        high = words[..., 1] + (low < words[..., 0])  # a sum that is smaller than its part went past the word
        new = {f"{link}_messages": count + sent, f"{link}_bytes": jnp.stack([low, high], -1)}
        self._traffic = self._traffic._replace(**new)

    def _charge_mean(self, x: Tree, weight: jax.Array, label: jax.Array | None, told: Told) -> None:
        # Up go the value and its weight; down come the mean and the weight behind it.
        self._charge("up", weight > 0, told.size + message_bytes(weight) - HEADER)
        self._charge("down", weight > 0, message_bytes((x, weight)))
        if label is not None:
            self._charge("up", jnp.ones_like(weight, bool), message_bytes(label))

    def _charge_centres(self, x: Tree, weight: jax.Array, across: jax.Array | None, told: Told) -> None:
        beside = (weight,) if across is None else (weight, across)
        beside_bytes = message_bytes((beside, jnp.zeros(weight.shape, jnp.int32))) - HEADER
        self._charge("up", weight > 0, told.size + beside_bytes)
        self._charge("down", weight > 0, message_bytes((x, weight) if across is None else (x, x, weight, across)))

    def _charge_hub(self, told: Told, answers: Tree) -> None:
        everyone = jnp.ones(self.ids.shape[0], bool)
        self._charge("up", everyone, told.size)
        self._charge("down", everyone, message_bytes(answers))

    def _charge_most(self, x: Tree) -> None:
        for link in ("up", "down"):
            self._charge(link, jnp.ones(self.ids.shape[0], bool), message_bytes(x))

    def _charge_share(self, x: Tree) -> None:
        everyone = jnp.ones(self.ids.shape[0], bool)
        self._charge("up", everyone, message_bytes(x))
        self._charge("down", everyone, share_bytes(x, self.clients))


def blend(peers: Peers, x: Tree, weights: jax.Array) -> Tree:
    """Mix with the neighbours and keep the rest of one's own: sum_j w_ij x_j + (1 - sum_j w_ij) x_i."""
    mixed, _ = peers.mix(x, weights)
    kept = 1 - peers.sum_slots(weights)
    own = peers.seal(jax.tree.map(lambda a: column(kept, a) * a, x))
    return jax.tree.map(jnp.add, own, mixed)
