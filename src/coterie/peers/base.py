"""The verbs and what each one costs, written once for every carrier.

A verb takes and returns pytrees whose arrays have the clients living here as first axis: C clients living here, K
clients in all, D slots for the neighbours a client hears, L slots for its listeners. Lost messages are visible to a
method only through `arrived` and `acked`.

The ledger is kept here while a round is traced: each verb adds what it sends to counters that leave the program beside
the state. A verb inside a loop or a branch is counted too, if that is `peers.loop` or `peers.choose`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from coterie.codecs.frame import HEADER
from coterie.data.buckets import Buckets
from coterie.errors import CoterieError
from coterie.learning.buckets import bucket, buckets_of, is_buckets, put_together
from coterie.numerics.tree import Same, column, times
from coterie.peers import EXCHANGE
from coterie.peers.arithmetic import fold_clients, fold_slots, message_bytes, share_bytes
from coterie.peers.coding import Outgoing
from coterie.peers.here import Tree
from coterie.peers.messages import AtHub, Received
from coterie.peers.pushed import Pushed
from coterie.peers.records import Arrivals, Centres, Tables, Traffic, on_host
from coterie.peers.robust import bounded_at_hub, bounded_slots

__all__ = ["Arrivals", "Centres", "Peers", "Tables", "Traffic", "Tree", "blend", "on_host"]


class Peers(Pushed):
    """The clients that live here, and the verbs that reach the others."""

    # -- between neighbours -----------------------------------------------------------------------------------

    @jax.named_scope(EXCHANGE)
    def mix(self, x: Tree, weights: jax.Array) -> tuple[Tree, jax.Array]:
        """Sum the neighbours' values, `weights [C, D]` by slot; an absent slot's weight goes to the client itself.

        Returns the sum `[C, ...]` and `arrived [C, D]`.
        """
        x = self._whole(x)
        message = self._encode(x, "mirror", others=self.present.shape)
        received = self._to_slots(self._as_sent(message), self.tables.listening)
        self._charge("heard", self.present, received.size)
        arrived = received.arrived
        self._watch_slots(self.present, received)
        received = self._bounded(received, x)
        kept, used = self.sum_slots(jnp.where(arrived, 0, weights)), jnp.where(arrived, weights, 0)
        return self._weighted(received, used, kept, x), arrived

    @jax.named_scope(EXCHANGE)
    def push(
        self,
        x: Tree | Outgoing,
        to: jax.Array | None = None,
        weights: jax.Array | None = None,
        mass: Callable[[Tree], jax.Array] | None = None,
    ) -> tuple[Tree, jax.Array, jax.Array]:
        """Send `x` (already divided by its sender) to the client's listeners, or to those where `to [C, L]` is true.

        A codec may drop a part of it. A sender that must keep that part calls `squeeze` first and pushes the result.
        `mass` says which number of a message must be positive: one where it is not does not count as arrived.

        Returns the sum of what arrived `[C, ...]`, weighted by its receiver where `weights [C, D]` are given,
        `arrived [C, D]` and `acked [C, L]`: what was not acknowledged stays with its sender, so that push-sum loses no
        mass. On a network a receiver can only count the messages that arrived; a simulation also counts lost ones.
        """
        to = self.tables.listening if to is None else to & self.tables.listening
        message = x if isinstance(x, Outgoing) else self.squeeze(self._whole(x))
        received = self._to_slots(self._as_sent(message), to)
        if mass is not None and received.arrived.shape[1]:
            good = lax.map(lambda k: mass(received.slot(k)) > 0, jnp.arange(received.arrived.shape[1])).T
            refused = received.arrived & ~good
            refused = refused if received.refused is None else refused | received.refused
            received = received._replace(arrived=received.arrived & good, refused=refused)
        self._charge("heard", received.sent, received.size)
        self._charge("told", received.arrived, message_bytes(()))  # the acknowledgement
        arrived, acked = self._acknowledge(received.arrived)
        received = received._replace(arrived=arrived)
        self._watch_slots(received.sent, received)
        received = self._bounded(received, message.value)
        used = arrived.astype(self.weights.dtype) if weights is None else jnp.where(arrived, weights, 0)
        return self._weighted(received, used, None, message.value), arrived, acked

    @jax.named_scope(EXCHANGE)
    def squeeze(self, x: Tree) -> Outgoing:
        """Return the message a codec makes of `x [C, ...]` before it is pushed: its sender keeps the difference."""
        return self._encode(x, "reduce")

    def _as_sent(self, message: Outgoing) -> Outgoing:
        """Return the message as it leaves: poison, where a fault says so. What its sender keeps is not touched."""
        return message if self._faults is None else message._replace(value=self._sent(message.value))

    def _watch_slots(self, expected: jax.Array, received: Received) -> None:
        """Count what was expected `[C, D]` and did not come, or was no message."""
        refused = jnp.zeros_like(expected) if received.refused is None else expected & received.refused
        self._watch(lost=expected & ~received.arrived & ~refused, refused=refused)

    def _bounded(self, received: Received, own: Tree) -> Received:
        """Bound what arrived by its distance from the client's own value, in a robust run."""
        if self._robust is None:
            return received
        bounded = bounded_slots(received.slot, received.arrived, own, self._robust, self._measured, self.seal)
        self._watch(clipped=bounded.clipped)
        return received._replace(slot=bounded.values, rows=None)

    def _weighted(self, received: Received, weights: jax.Array, kept: jax.Array | None, x: Tree) -> Tree:
        """Sum what arrived by weight, slot after slot, and add `kept [C]` times the client's own x."""
        start = jax.tree.map(jnp.zeros_like, x) if kept is None else self.seal(times(kept, x))
        return fold_slots(weights.shape[1], received.slot, weights, start, self.seal)

    @jax.named_scope(EXCHANGE)
    def swap(self, x: Tree) -> tuple[Tree, jax.Array]:
        """Exchange one small value per neighbour: `x [C, D, ...]` -> what each has for the client; `arrived`."""
        mutual = self.present & (self.tables.twin >= 0)
        self._charge("heard", mutual, message_bytes(x, leading=2))
        values, arrived = self._swap_slots(self._sent(x, leading=2), mutual)
        self._watch(lost=mutual & ~arrived)
        return values, arrived

    @jax.named_scope(EXCHANGE)
    def ask(self, fn: Callable, x: Tree, own: Tree, weights: jax.Array | None = None) -> tuple[Tree, jax.Array]:
        """Let each neighbour evaluate `fn(the client's x, own)`; `own` (its data, personal layers) never travels.

        Returns the answers `[C, D, ...]`, or with `weights [C, D]` their weighted sum `[C, ...]`; and `arrived`.
        """
        message = self._encode(self._whole(x), "mirror", others=self.tables.listening.shape)
        received, like = self._ask_slots(fn, self._as_sent(message), own)
        self._watch_slots(self.present, received)
        self._charge("told", self.present, message.size if isinstance(message.size, int) else message.size[:, None])
        self._charge("heard", self.present, message_bytes(like))
        slots, arrived = self.present.shape[1], received.arrived
        if weights is not None:
            start = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), like)
            return fold_slots(slots, received.slot, jnp.where(arrived, weights, 0), start, self.seal), arrived
        if slots == 0:
            return jax.tree.map(lambda a: jnp.zeros((a.shape[0], 0, *a.shape[1:]), a.dtype), like), arrived
        return jax.tree.map(lambda a: jnp.moveaxis(a, 0, 1), lax.map(received.slot, jnp.arange(slots))), arrived

    # -- through a hub -----------------------------------------------------------------------------------

    @jax.named_scope(EXCHANGE)
    def mean(
        self, x: Tree, weight: jax.Array, groups: tuple[jax.Array, int] | None = None, since: Tree = None
    ) -> tuple[Tree, jax.Array]:
        """Average over all clients with `weight [C] > 0`, or over the client's group: `groups = (label [C], count)`.

        `since` is the mean that this verb returned in the round before (at first, the value all clients start from): a
        codec then encodes the change since.

        Priced as with a hub: one message up and one down for each client that takes part (one that does not fetches
        the mean when it next does); groups cost a label up from everyone. Where there is none, all send their values to
        all, or where these are too many, sums to partners (`pushed.py`). Returns the mean `[C, ...]` and `arrived [C]`;
        where nothing arrived the client's own `x` comes back.
        """
        if self._pushes:
            return self._mean_by_pushes(x, weight, groups)
        takes_part, since = weight > 0, since if groups is None else None
        message = self._encode(
            self._whole(x), "mirror" if since is None else "update", takes_part, (self.clients,), since
        )
        self._charge_mean(takes_part, message.size, x, weight)
        labels, count = None, 1
        if groups is not None:  # the label also of those who take no part: they get their group's mean
            label, count = groups[0].astype(jnp.int32), groups[1]
            self._charge_hub("up", jnp.ones_like(takes_part), message_bytes(label))
            labels = self._to_hub(label, jnp.ones_like(takes_part), True, message_bytes(label), for_average=True)[0]
        at_hub = self._gather(message, weight, takes_part, for_average=True)
        labels = jnp.zeros(at_hub.arrived.shape, jnp.int32) if labels is None else labels
        # Whoever sends a weight that is not positive takes no part.
        at_hub = self._bounded_at_hub(at_hub, at_hub.beside > 0, labels, count)
        heard = at_hub.arrived
        totals, mass = self._averages(at_hub.values, jnp.where(heard, at_hub.beside, 0), labels, count)
        if since is not None and message.vector is not None:
            totals = message.join(self._add_to_hub(message, since, totals[0], mass), totals[1])
        (value, mass), arrived = self._from_hub((totals, mass), labels, heard, at_hub.exchange, for_average=True)
        arrived = arrived & (mass > 0)
        return jax.tree.map(lambda t, a: jnp.where(column(arrived, a), t, a), value, x), arrived

    def _charge_mean(self, takes_part: jax.Array, size: Any, x: Tree, weight: jax.Array) -> None:
        """Add what a mean costs: a message of `size` and a weight up, the mean and its weight down."""
        self._charge_hub("up", takes_part, size + message_bytes(weight) - HEADER)
        self._charge_hub("down", takes_part, message_bytes((x, weight)))

    def mean_of(
        self,
        fn: Callable[..., tuple[Tree, Tree]],
        weight: jax.Array,
        at_most: int,
        before: Tree,
        otherwise: Tree,
        *stacked: Tree,
    ) -> tuple[Tree, Tree]:
        """Run `fn(*rows) -> (value, beside)` where `weight [C] > 0` (at most `at_most` clients) and average the values.

        The same as `each_of` and `mean`, at the same price, but never with the values of all clients in memory. Only
        where `peers.same`: nothing gets lost, so that the mean is one for all. Returns it as `Same`, which is `before`
        where no value can be used, and what is beside `[C, ...]`, or `otherwise`.
        """
        value = jax.eval_shape(lambda *rows: self.each(fn, *rows)[0], *stacked)
        self._charge_mean(weight > 0, message_bytes(value), value, weight)
        mean, mass, beside = self._mean_of(fn, weight, at_most, otherwise, *stacked)
        return jax.tree.map(lambda m, a: jnp.where(mass > 0, m, a), Same(mean), before), beside

    def _mean_of(
        self, fn: Callable, weight: jax.Array, at_most: int, otherwise: Tree, *stacked: Tree
    ) -> tuple[Tree, jax.Array, Tree]:
        """Return the mean of the values, the weight behind it, and what is beside; see `mean_of`."""
        raise TypeError("mean_of is for peers that have `same`, and only those of a simulation do")

    @jax.named_scope(EXCHANGE)
    def centres(
        self,
        x: Tree,
        weight: jax.Array,
        clusters: tuple[jax.Array, int],
        across: jax.Array | None = None,
        certain: bool = False,
    ) -> tuple[Centres, jax.Array]:
        """Average within known clusters, `clusters = (label [C], count)`, and with `across [C]` over everyone too.

        A client counts with `weight [C]` in its cluster's mean and with `across` in everyone's. One with weight 0
        takes no part: it sends nothing, gets nothing and pays nothing. The others send one message up (the value, its
        weights, the label) and get one down (the means and the weights behind them). Returns them, and `arrived [C]`;
        where nothing arrived the means are the client's own `x` and the weights 0. With `certain`, messages are
        repeated until they arrive.
        """
        takes_part, label = weight > 0, clusters[0].astype(jnp.int32)
        message = self._encode(self._whole(x), "mirror", takes_part, (self.clients,))
        weights = (weight,) if across is None else (weight, across)
        self._charge_hub("up", takes_part, message.size + message_bytes((weights, label)) - HEADER)
        self._charge_hub("down", takes_part, message_bytes(((x,) * len(weights), weights)))
        at_hub = self._gather(message, (weights, label), takes_part, certain, for_average=True)
        weights, labels = at_hub.beside
        positive = (weights[0] > 0) & (weights[-1] >= 0)  # others take no part
        at_hub = self._bounded_at_hub(at_hub, positive, labels, clusters[1])
        heard = at_hub.arrived
        groups = ((labels, clusters[1]), (jnp.zeros_like(labels), 1))  # the client's cluster, everyone
        rows = []
        for each, (label, count) in zip(weights, groups, strict=False):
            averages = self._averages(at_hub.values, jnp.where(heard, each, 0), label, count)
            rows.append(jax.tree.map(lambda t, label=label: t[label], averages))
        everyone = jnp.arange(heard.shape[0])
        means, arrived = self._from_hub(rows, everyone, heard, at_hub.exchange, copies=False, for_average=True)
        own = [jax.tree.map(lambda t, a: jnp.where(column(arrived, a), t, a), mean, x) for mean, _ in means]
        pairs = zip(own, [mass for _, mass in means], strict=True)
        return Centres(*(value for pair in pairs for value in pair)), arrived

    def _bounded_at_hub(self, at_hub: AtHub, good: jax.Array, label: jax.Array, groups: int) -> AtHub:
        """Leave out messages with a weight that is not positive; in a robust run, bound the others in their groups."""
        arrived = at_hub.arrived & good
        self._watch(hub_refused=self._by_id(at_hub.arrived & ~good))
        if self._robust is None:
            return at_hub._replace(arrived=arrived)
        bounded = bounded_at_hub(at_hub.values, arrived, label, groups, self._robust, self._measured, self.seal)
        self._watch(hub_clipped=self._by_id(bounded.clipped))
        return at_hub._replace(values=bounded.values, arrived=arrived)

    @jax.named_scope(EXCHANGE)
    def _averages(self, x: Tree, weight: jax.Array, label: jax.Array, count: int) -> tuple[Tree, jax.Array]:
        """Average `x [K, ...]` within each group, in id order: `[G, ...]`, and the weight behind it `[G]`."""
        # Sealed, so that what a client does with the mean is not joined with the division that made it.
        return self.seal(fold_clients(x, weight, label, count, self.seal))

    @jax.named_scope(EXCHANGE)
    def hub(
        self, fn: Callable[[Tree, jax.Array, Tree], tuple[Tree, Tree]], x: Tree, memory: Tree, certain: bool = False
    ) -> tuple[Tree, jax.Array, Tree]:
        """Let the hub compute `fn(x [K, ...], arrived [K], memory) -> (answers [K, ...], memory)`, in id order.

        Everyone sends `x` (a gradient, a change: a codec may hold back a part of it for the next time) and gets its
        row of the answers. `memory` is the hub's own and has no client axis; other processes carry it along without
        meaning. Where nothing arrived, `x` is zero at the hub. Returns the answers `[C, ...]` (zero where they did not
        arrive), `arrived [C]` and the memory. With `certain`, messages are repeated until they arrive.
        """
        message, everyone = self._encode(self._whole(x), "update"), jnp.ones(self.ids.shape[0], bool)
        at_hub = self._gather(message, (), everyone, certain)
        values = at_hub.values if message.vector is None else message.join(*at_hub.values)
        # Every device does all of the hub's work. Shared out, its solver would wait for the other devices in every
        # step, and forever where two of them reach two sums in a different order.
        values, memory = self._whole((values, memory))
        answers, memory = self._whole(fn(values, at_hub.arrived, memory))
        self._charge_hub("up", everyone, message.size)
        self._charge_hub("down", everyone, message_bytes(answers))
        which, all_take_part = jnp.arange(self.clients), jnp.ones(self.clients, bool)
        answers, arrived = self._from_hub(answers, which, all_take_part, at_hub.exchange)
        return answers, arrived, memory

    @jax.named_scope(EXCHANGE)
    def most(self, x: Tree) -> Tree:
        """Return the largest value of every number of a small `x` over all clients, to everyone: always arrives."""
        for link in ("up", "down"):
            self._charge_hub(link, jnp.ones(self.ids.shape[0], bool), message_bytes(x))
        values = self._to_hub(x, jnp.ones(self.ids.shape[0], bool), True, message_bytes(x))[0]
        largest = self._from_hub_to_all(jax.tree.map(lambda a: a.max(0), values))
        return jax.tree.map(lambda a, like: jnp.broadcast_to(a, like.shape), largest, x)

    @jax.named_scope(EXCHANGE)
    def share(self, x: Tree, certain: bool = False) -> tuple[Tree, jax.Array]:
        """Give everyone's small `x` to everyone, in id order: `[K, ...]` and `arrived [K]`, the same everywhere.

        With `certain` (who keeps whom in a new stage) a carrier repeats messages until they arrive.
        """
        everyone = jnp.ones(self.ids.shape[0], bool)
        if (layout := buckets_of(x)) is not None:
            return self._share_buckets(x, layout, everyone), everyone
        self._charge_hub("up", everyone, message_bytes(x))
        self._charge_hub("down", everyone, share_bytes(x, self.clients))
        sent = x if certain else self._sent(x)
        values, arrived, _, _ = self._to_hub(sent, everyone, certain, message_bytes(x))
        return self._from_hub_to_all((values, arrived))

    def _share_buckets(self, x: Tree, layout: Buckets, everyone: jax.Array) -> Tree:
        """Give everyone values whose sizes differ by bucket; only where all clients live here."""
        if self.apart:
            raise CoterieError(
                "samples of clients of so different sizes cannot be sent between processes; lower partition.samples"
            )
        parts = [bucket(x, layout, number) for number in range(len(layout.parts))]
        sizes = [jnp.full(len(where), message_bytes(part)) for part, where in zip(parts, layout.places, strict=True)]
        self._charge_hub("up", everyone, put_together(layout, sizes))
        down = sum(share_bytes(part, len(where)) for part, where in zip(parts, layout.places, strict=True))
        self._charge_hub("down", everyone, down)

        def by_id(value: Any) -> Any:
            if not is_buckets(value):
                return value[self.tables.order]
            places = tuple(self.ids[where] for where in value.places)
            return Buckets(value.parts, places, value.order[self.tables.order])

        return jax.tree.map(by_id, x, is_leaf=is_buckets)


def blend(peers: Peers, x: Tree, weights: jax.Array) -> Tree:
    """Mix with the neighbours and keep the rest of the client's own: sum_j w_ij x_j + (1 - sum_j w_ij) x_i."""
    mixed, _ = peers.mix(x, weights)
    own = peers.seal(times(1 - peers.sum_slots(weights), x))
    return jax.tree.map(jnp.add, own, mixed)
