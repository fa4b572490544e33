"""What happens on this side of the network: keys, sampling, loops and branches, and the counters of what was sent.

C = clients living here, K = all clients, D = slots for the neighbours a client hears, L = slots for its listeners.
"""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from coterie.learning.buckets import bucket_by_bucket
from coterie.numerics.tree import column, of_clients, seal
from coterie.peers import ALL_TO_ALL, LOCAL
from coterie.peers.coding import Coder, Memory
from coterie.peers.injection import FaultTables
from coterie.peers.records import Tables, Traffic, nothing_sent

__all__ = ["Here", "Tree", "only_where"]

Tree = Any


class _Carried(NamedTuple):
    """What verbs change and loops must carry: exchanges so far, what was sent, the codec's memory and counter."""

    exchanges: jax.Array
    frames: Any
    traffic: Traffic
    memory: Memory
    messages: Any


class Here(abc.ABC):
    """The clients that live here, without a way to the others."""

    def __init__(
        self,
        tables: Tables,
        clients: int,
        coder: Coder | None = None,
        hub: bool = True,
        faults: FaultTables | None = None,
        robust: float | None = None,
        all_to_all: int = ALL_TO_ALL,
    ):
        self.ids, self.neighbours, self.present = tables.ids, tables.neighbours, tables.present
        self.weights = tables.weights
        self.tables = tables
        self.clients = clients
        self._exchanges: Any = 0
        self._frames: Any = () if faults is None else 0  # exchanges as a carrier counts them, which faults are drawn by
        self._watched = faults is not None or robust is not None
        self._traffic = nothing_sent(tables, self._watched)
        self.talked = False  # whether any verb was traced that sends something
        self._coder, self._faults, self._robust = coder, faults, robust
        self._has_hub, self._all_to_all = hub, all_to_all
        self._pushes = not hub and clients > all_to_all  # whether a mean goes from partner to partner
        self.same = False  # whether copies of what a hub sends can never differ, so that one is enough
        self.most_present = clients  # clients that take part in a round at most

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

    @property
    def taking_part(self) -> jax.Array | None:
        """Who takes part in this round by the settings of the run, `[K]` by id; None: the run does not say."""
        world = () if self._faults is None else self._faults.world
        return ~world.out[: self.clients] if world else None

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

    @jax.named_scope(LOCAL)
    def each(self, fn: Callable, *stacked: Tree) -> Tree:
        """Run `fn` for each client living here; where their samples lie in buckets, one bucket after another.

        What is `Same` for all clients is handed to each of them, and never copied for all at once.
        """
        return bucket_by_bucket(lambda *part: self._each(fn, *part), *stacked)

    def _measured(self, fn: Callable, *stacked: Tree) -> Tree:
        """Return a number for each client living here: `each`, for a sum over large arrays."""
        return self.each(fn, *stacked)

    @abc.abstractmethod
    def _each(self, fn: Callable, *stacked: Tree) -> Tree:
        """Run `fn` for each row of some stacked arrays."""

    @jax.named_scope(LOCAL)
    def each_of(self, active: jax.Array, at_most: int, fn: Callable, otherwise: Tree, *stacked: Tree) -> Tree:
        """Run `fn` only where `active [C]` is true (at most `at_most` of all clients); elsewhere return `otherwise`."""

        def some(active: jax.Array, otherwise: Tree, *stacked: Tree) -> Tree:
            return only_where(active, at_most, lambda *rows: self._each(fn, *rows), otherwise, *stacked)

        return bucket_by_bucket(some, active, otherwise, *stacked)

    def seal(self, x: Tree) -> Tree:
        """Fix a product before it is added to something, so that its bits do not depend on where clients live.

        XLA may join a product and a sum into one fused multiply-add, depending on the code around it, which changes
        the last bit. On a CPU an optimisation barrier does not prevent it (it is removed early); passing the bits
        through an integer sum with a zero that the compiler cannot know does. Batched programs do not pay for it.
        """
        return seal(x, self._zero)

    @property
    def _zero(self) -> jax.Array:
        """0, as no id is negative; the compiler does not know it."""
        return jnp.minimum(self.ids[0], 0)

    def sum_slots(self, values: jax.Array) -> jax.Array:
        """Sum `[C, D]` over the slots, one after another: a compiler's own order may depend on where clients live."""
        start = jnp.zeros(values.shape[0], values.dtype)
        return lax.fori_loop(0, values.shape[1], lambda k, total: total + values[:, k], start) if values.size else start

    # -- loops and branches that may contain verbs ------------------------------------------------------

    def loop(self, times: int, body: Callable[[jax.Array, Tree], Tree], start: Tree) -> Tree:
        """Run `body(step, value)` that many times; verbs inside it are counted."""
        part = self._part("loop", body)
        if self._coder is not None and self._coder.discovering:
            return part(jnp.int32(0), start)

        def counted(step: jax.Array, carry: tuple[Tree, _Carried]) -> tuple[Tree, _Carried]:
            self._load(carry[1])
            value = part(step, carry[0])
            return value, self._save()

        value, carried = lax.fori_loop(0, times, counted, (start, self._save()))
        self._load(carried)
        return value

    def choose(self, flag: jax.Array, yes: Callable[[Tree], Tree], no: Callable[[Tree], Tree], value: Tree) -> Tree:
        """Run `yes(value)` or `no(value)`; `flag []` must be the same everywhere. Only what runs is counted."""
        parts = [self._part(name, branch) for name, branch in (("yes", yes), ("no", no))]
        if self._coder is not None and self._coder.discovering:
            return [part(value) for part in parts][0]  # both, since each has call sites of its own  # noqa: RUF015

        def counted(part: Callable[[Tree], Tree]) -> Callable[[tuple[Tree, _Carried]], tuple[Tree, _Carried]]:
            def run(carry: tuple[Tree, _Carried]) -> tuple[Tree, _Carried]:
                self._load(carry[1])
                value = part(carry[0])
                return value, self._save()

            return run

        value, carried = lax.cond(flag, counted(parts[0]), counted(parts[1]), (value, self._save()))
        self._load(carried)
        return value

    def _part(self, name: str, body: Callable[..., Tree]) -> Callable[..., Tree]:
        """Name a part of a round for the codec, so that its call sites are the same however often it is traced."""
        if self._coder is None:
            return body
        place, coder = f"{self._coder.next_name()}{name}", self._coder
        return lambda *values: coder.within(place, lambda: body(*values))

    def _save(self) -> _Carried:
        """Return what verbs change, to carry it through a traced loop or branch."""
        memory, messages = ({}, ()) if self._coder is None else (self._coder.memory, self._coder.count)
        frames = () if self._faults is None else jnp.asarray(self._frames, jnp.uint32)
        return _Carried(jnp.asarray(self._exchanges, jnp.int32), frames, self._traffic, memory, messages)

    def _load(self, carried: _Carried) -> None:
        """Take over what `_save` returned, inside or after the loop."""
        self._exchanges, self._frames, self._traffic = carried.exchanges, carried.frames, carried.traffic
        if self._coder is not None:
            self._coder.memory, self._coder.count = carried.memory, carried.messages

    # -- the counters -----------------------------------------------------------------------------------

    @property
    def memory(self) -> Memory:
        """What the codec remembers for the next round."""
        return {} if self._coder is None else self._coder.memory

    def traffic(self) -> Traffic:
        """Return what was sent so far in this round."""
        return self._traffic

    def _next_exchange(self) -> Any:
        number, self._exchanges = self._exchanges, self._exchanges + 1
        return number

    def _watch(self, **counts: jax.Array) -> None:
        """Add to the counters of what goes wrong, by name: see `Traffic`."""
        if self._watched:
            sent = {name: self._between_those_present(count, name.startswith("hub")) for name, count in counts.items()}
            now = {name: getattr(self._traffic, name) + count for name, count in sent.items()}
            self._traffic = self._traffic._replace(**now)

    def _between_those_present(self, messages: jax.Array, by_id: bool = False) -> jax.Array:
        """Return messages per slot `[C, D]`, per client here `[C]` or `by_id [K]` without those that nobody sends:
        of a client that takes no part, and to it."""
        sent, present = messages.astype(jnp.uint32), self.taking_part
        if present is None:
            return sent
        here = present if by_id else present[self.ids]
        return sent * (here if sent.ndim == 1 else here[:, None] & present[self.neighbours])

    def _charge(self, link: str, messages: jax.Array, size: Any, together: Any = None) -> None:
        """Add `messages` of `size` bytes (one number, or one each) on a link: heard, told, up or down.

        Of messages of different sizes, `together` says how many bytes all of them have.
        """
        self.talked = True
        sent = self._between_those_present(messages)
        count, words = getattr(self._traffic, f"{link}_messages"), getattr(self._traffic, f"{link}_bytes")
        low = words[..., 0] + (sent * jnp.asarray(size, jnp.uint32) if together is None else together)
        high = words[..., 1] + (low < words[..., 0])  # a sum that is smaller than one of its terms has overflowed
        new = {f"{link}_messages": count + sent, f"{link}_bytes": jnp.stack([low, high], -1)}
        self._traffic = self._traffic._replace(**new)


def only_where(active: jax.Array, at_most: int, run: Callable[..., Tree], otherwise: Tree, *stacked: Tree) -> Tree:
    """Return `run(*stacked)` where `active [C]`, of which there are at most `at_most`, and `otherwise` elsewhere."""
    here = active.shape[0]
    if at_most >= here:
        return jax.tree.map(lambda a, b: jnp.where(column(active, a), a, b), run(*stacked), otherwise)
    chosen = jnp.nonzero(active, size=at_most, fill_value=here)[0]
    done = run(*of_clients(lambda a: a[jnp.minimum(chosen, here - 1)], stacked))
    return jax.tree.map(lambda a, b: b.at[chosen].set(a, mode="drop"), done, otherwise)
