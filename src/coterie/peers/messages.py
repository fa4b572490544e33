"""How a value becomes a message, and the exchanges that a carrier implements.

A message is the value itself, or what a codec makes of it (`coding.py` explains the modes). The verbs in `base.py`
are written on top of what is here.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from coterie.codecs.frame import HEADER
from coterie.errors import CoterieError
from coterie.peers.arithmetic import message_bytes, usable
from coterie.peers.coding import Mode, Outgoing, unpacked
from coterie.peers.here import Here, Tree
from coterie.peers.injection import spoiled

__all__ = ["AtHub", "Messages", "Received"]


class Received(NamedTuple):
    """What came in through the slots of the clients living here."""

    slot: Callable[[Any], Tree]  # slot k -> [C, ...]
    arrived: jax.Array  # [C, S]
    sent: jax.Array  # [C, S] which messages were sent, as far as the receiver can know
    size: Any = 0  # bytes of each message: one number, or [C, S]
    rows: Tree = None  # the messages as the carrier has them: [K, ...] in a simulation, else [C, S, ...]
    coded: bool = False  # whether a codec stands between sender and receiver
    refused: Any = None  # [C, S] what came and is no message; None where the carrier does not tell


class AtHub(NamedTuple):
    """What the hub received, in id order."""

    values: Tree  # [K, ...]; of a change that a codec encoded: the pair (vector, rest)
    beside: Tree  # [K, ...] the exact values that travelled with it
    arrived: jax.Array  # [K]
    exchange: Any  # for the way back; None where nothing may get lost


class Messages(Here):
    """Encodes messages, and moves them with the exchanges of a carrier."""

    apart: ClassVar[bool]  # receivers live elsewhere, so they keep their own copy of what a sender sent them before

    # -- what a carrier implements -----------------------------------------------------------------------------------

    @abc.abstractmethod
    def _to_slots(self, message: Outgoing, to: jax.Array) -> Received:
        """Send each client's message to the listeners where `to [C, L]`; it comes in through neighbour slots."""

    @abc.abstractmethod
    def _acknowledge(self, arrived: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Tell senders what arrived, `[C, D]`; returns of what they know it, `[C, D]`, and what of one's own arrived.

        A sender that does not know keeps what it sent, so nobody else may use it. Only there an acknowledgement is
        lost: between members of whom one was away when it came.
        """

    @abc.abstractmethod
    def _swap_slots(self, x: Tree, mutual: jax.Array) -> tuple[Tree, jax.Array]:
        """Exchange `x [C, D, ...]` where `mutual [C, D]`: each neighbour gets its own value."""

    @abc.abstractmethod
    def _ask_slots(self, fn: Callable, message: Outgoing, own: Tree) -> tuple[Received, Tree]:
        """Send a question to every neighbour, which answers `fn(question, own)`; returns answers and their shapes."""

    @abc.abstractmethod
    def _to_hub(
        self,
        x: Tree,
        active: jax.Array,
        certain: bool,
        size: Any,
        whole: jax.Array | None = None,
        site: str | None = None,
        for_average: bool = False,
    ) -> tuple[Tree, jax.Array, Any, Any]:
        """Send `x [C, ...]` to the hub where `active [C]`; there everyone's `[K, ...]` are returned, elsewhere zeros.

        Without a hub everyone sends to everyone, is charged for it (a message has `size` bytes: one number, or `[C]`)
        and gets what a hub gets.

        With `whole [C]` the last array of x is encoded, except where it goes whole. What is `certain`, or mirrored at
        a `site` of the round (both ends must stay equal), is repeated until it arrives. Values are in id order; those
        `for_average` need not be where that saves a copy of all models. Returns the values, `arrived [K]`, a token for
        the way back (None if certain), and which vectors came whole.
        """

    @abc.abstractmethod
    def _from_hub(
        self,
        rows: Tree,
        which: jax.Array,
        took_part: jax.Array,
        exchange: Any,
        copies: bool = True,
        for_average: bool = False,
    ) -> tuple[Tree, jax.Array]:
        """Send client k the row `which[k]` of `rows [G, ...]`; returns the rows of the clients here, and `arrived`.

        A client that took no part gets a free copy, or without `copies` nothing at all. `for_average` as on the way
        to the hub: `which` and `took_part` are in the order that it returned.
        """

    @abc.abstractmethod
    def _from_hub_to_all(self, x: Tree) -> Tree:
        """Give the hub's `x`, which has no client axis, to every process. Never lost."""

    @abc.abstractmethod
    def _pass_on(self, x: Tree, step: Any) -> tuple[Tree, jax.Array, jax.Array]:
        """Send `x [C, ...]` to the partners of a step (`pushed.py`).

        Returns what they sent, whether something came, `[C]`, and whether it is a message, `[C]`.
        """

    def _by_id(self, values: jax.Array) -> jax.Array:
        """Put values `[K]`, in the order in which the hub has what is for an average, in the order of ids."""
        return values

    def _whole(self, x: Tree) -> Tree:
        """Bring `x` together where devices share the work, before values of different clients are combined."""
        return x

    # -- messages -----------------------------------------------------------------------------------

    def _encode(
        self,
        x: Tree,
        mode: Mode,
        active: jax.Array | None = None,
        others: tuple[int, ...] = (),
        since: Tree = None,
    ) -> Outgoing:
        """Make the messages of the clients (or of those where `active [C]`) about `x [C, ...]`.

        Args:
            x: the values.
            mode: reduce, update or mirror (see `coding.py`).
            active: who sends anything at all.
            others: for mirror: the leading axes of the copies that receivers in other processes keep.
            since: the value an update counts from; default zero.
        """
        vector, rest, join = unpacked(x)
        coder = self._coder
        if coder is None or vector is None:
            return Outgoing(x, message_bytes(x))
        # Only finite numbers are encoded: of a client that has diverged, receivers keep the last value.
        active = jnp.ones(self.ids.shape[0], bool) if active is None else active
        active = active & usable(vector, (1,))
        name = coder.site(self.ids.shape[0], vector, others if mode == "mirror" and self.apart else None)
        site, keys = coder.memory[name], coder.keys(self.ids)
        mask = active[:, None]
        whole = jnp.zeros_like(active)
        known = None if since is None else unpacked(since)[0]
        start = site.held if mode == "mirror" else jnp.zeros_like(vector) if known is None else known
        change = jnp.where(mask, vector - start, 0)
        if mode == "update":
            sent, error = self.each(coder.squeeze, change, site.error, keys)
            value = sent = self.seal(jnp.where(mask, sent, 0))
            site = site._replace(error=jnp.where(mask, error, site.error))
        elif mode == "mirror":
            whole = active & ~site.begun
            squeezed = self.seal(jnp.where(mask, self.each(coder.reduce, change, keys), 0))
            sent = jnp.where(whole[:, None], vector, squeezed)
            value = jnp.where(whole[:, None], vector, site.held + sent)
            site = site._replace(held=value, begun=site.begun | active)
        else:
            value = sent = self.seal(self.each(coder.reduce, change, keys))
        coder.memory = coder.memory | {name: site}
        size = message_bytes(rest) + self.each(coder.bytes, sent, whole)
        return Outgoing(join(value, rest), size, mode, sent, whole, rest, join, name)

    def _sent(self, x: Tree, leading: int = 1) -> Tree:
        """Return what the clients here really send in place of `x`: poison, where a fault says so."""
        return x if self._faults is None else spoiled(x, self._faults, self.ids, leading)

    def _gather(
        self, message: Outgoing, beside: Tree, active: jax.Array, certain: bool = False, for_average: bool = False
    ) -> AtHub:
        """Send a message to the hub, and exact values beside it."""
        mirrored = message.mode == "mirror" and self.apart
        size = message.size + message_bytes(beside) - HEADER
        if message.vector is None or not (mirrored or message.mode == "update"):
            sent = (message.value, beside) if certain else self._sent((message.value, beside))
            site = message.site if message.vector is not None and message.mode == "mirror" else None
            (value, beside), arrived, exchange, _ = self._to_hub(
                sent, active, certain, size, site=site, for_average=for_average
            )
            return AtHub(value, beside, arrived, exchange)
        sent = (message.rest, beside, message.vector)
        (rest, beside, vector), arrived, exchange, came_whole = self._to_hub(
            sent, active, certain, size, message.whole, message.site if mirrored else None, for_average
        )
        if not mirrored:
            return AtHub((vector, rest), beside, arrived, exchange)
        vector = self._recall(message.site, vector, came_whole, arrived)
        return AtHub(message.join(vector, rest), beside, arrived, exchange)

    def _charge_hub(self, link: str, messages: jax.Array, size: Any) -> None:
        """Add messages to the hub ("up") or from it ("down"); without one, `_charge_everyone` counts."""
        if self._has_hub:
            self._charge(link, messages, size)

    def _charge_everyone(self, active: jax.Array, size: Any, heard: jax.Array, heard_bytes: jax.Array) -> None:
        """Count what goes to every other client, and what comes from them: messages and bytes, `[C]` each."""
        if self._faults is not None:  # each process would lose other messages, and compute another mean
            raise CoterieError(
                "faults: what this method sends to a hub cannot get lost without one: name a hub, or for a method that "
                "only averages set run.all_to_all = 1"
            )
        if self._pushes:
            raise CoterieError(
                f"without a hub this method sends from every client to every other one, which is for at most "
                f"{self._all_to_all} clients (run.all_to_all), not {self.clients}: name a member as the hub, or choose "
                "a method that only averages or talks to neighbours"
            )
        self._charge("up", active.astype(jnp.uint32) * (self.clients - 1), size)
        self._charge("down", heard, 0, heard_bytes)

    def _recall(self, name: str, vector: jax.Array, whole: jax.Array, arrived: jax.Array) -> jax.Array:
        """Add the changes that arrived to the receivers' copies of their senders; returns the copies."""
        assert self._coder is not None
        site = self._coder.memory[name]
        new = jnp.where(whole[..., None], vector, site.others + vector)
        new = jnp.where(arrived[..., None], new, site.others)
        self._coder.memory = self._coder.memory | {name: site._replace(others=new)}
        return new

    def _add_to_hub(self, message: Outgoing, since: Tree, change: jax.Array, mass: jax.Array) -> jax.Array:
        """Add the mean change `[1, d]` to the vector that the hub keeps; returns the new one, `[1, d]`."""
        coder, first = self._coder, unpacked(since)[0]
        assert coder is not None
        assert first is not None
        site = coder.memory[message.site]
        kept = jnp.where(site.begun[0], site.held[0], first[0])
        kept = jnp.where(mass[0] > 0, kept + change[0], kept)
        new = site._replace(held=jnp.broadcast_to(kept, site.held.shape), begun=jnp.ones_like(site.begun))
        coder.memory = coder.memory | {message.site: new}
        return kept[None]
