"""The faults of a run at work: as arrays that a compiled program reads, and as questions that a carrier asks.

`Injection.tables` gives the arrays of some rounds. `unusable` and `spoiled` say what they do to messages; inside a
program the arrays are traced, so that other faults need no new compilation.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie.errors import CoterieError
from coterie.numerics.tree import column
from coterie.peers.draws import ALWAYS, draw, threshold
from coterie.peers.faults import Faults, Freeze
from coterie.peers.records import Arrivals
from coterie.peers.world import Schedule, World
from coterie.spec import nearest

__all__ = ["CODES", "NUMBERS", "FaultTables", "Injection", "injected", "one_round", "poisoned", "spoiled", "unusable"]

Tree = Any

HUB_NAME = "hub"
CHANCES = ("drop", "delay", "corrupt")  # kinds that keep a message from being used
CODES = {kind: np.array([n], np.uint32) for n, kind in enumerate((*CHANCES, "duplicate", "reorder", "freeze", "late"))}
POISONS = ("none", "nan", "infinity", "huge", "scale", "weight", "shape")
NUMBERS = {"nan": jnp.nan, "infinity": jnp.inf, "huge": 1e30}


class FaultTables(NamedTuple):
    """The faults of some rounds as arrays, R rounds first; members by number, and the hub last."""

    round: Any  # [R]
    seed: Any  # [R]
    chance: Any  # [R, 3, K + 1] by sender: a message is lost, late or damaged if its draw is below
    side: Any  # [R, P, K + 1] the group in each partition; -1: none
    frozen: Any  # [R, K + 1]
    poison: Any  # [R, K + 1] numbers of `POISONS`
    factor: Any  # [R, K + 1]
    world: Any = ()  # `WorldTables`; nothing where everybody always takes part


@dataclasses.dataclass(frozen=True)
class Injection:
    """The faults of a run whose members are known, in the order of their numbers."""

    faults: Faults
    names: tuple[str, ...]
    schedule: Schedule | None = None  # who takes part in which round; None: everybody in every one

    @classmethod
    def of(
        cls,
        faults: Faults,
        names: Sequence[str],
        codec: bool = False,
        world: World | None = None,
        seed: int = 0,
    ) -> "Injection | None":
        """Return the faults for members of these names, None if there are none.

        Args:
            faults: the settings.
            names: everybody's.
            codec: whether messages are encoded. Sender and receiver then remember what was sent, so that only faults
                which touch no such message can be injected.
            world: who takes part in a simulation; None: everybody.
            seed: of the run, from which that is drawn.
        """
        known = [*names, HUB_NAME]
        for kind, rule in faults.rules:
            for name in rule.members:
                if name not in known:
                    raise CoterieError(f"faults: {kind} names {name!r}, which is no member{nearest(name, known)}")
            if kind == "poison" and HUB_NAME in rule.members:
                raise CoterieError("faults: poison cannot name the hub: it is about what members send")
            if codec and kind in ("partition", "freeze", "poison"):
                raise CoterieError(f"faults: {kind} needs codec none, since a codec's messages must all arrive")
        schedule = Schedule(world, seed, len(names)) if world else None
        return cls(faults, tuple(names), schedule) if faults or schedule else None

    @property
    def most_present(self) -> int | None:
        """How many clients take part in a round at most; None: nobody draws them."""
        return None if self.schedule is None else self.schedule.world.most(len(self.names))

    def tables(self, first: int, rounds: int = 1) -> FaultTables:
        """Return the faults of rounds `first`, ..., `first + rounds - 1`."""
        numbers = np.arange(first, first + rounds)
        poison, factor = self._poison(numbers)
        return FaultTables(
            round=numbers.astype(np.uint32),
            seed=np.full(rounds, self.faults.seed, np.uint32),
            chance=np.stack([self._chances(kind, numbers) for kind in CHANCES], 1),
            side=self._sides(numbers),
            frozen=self._frozen(numbers),
            poison=poison,
            factor=factor,
            world=() if self.schedule is None else self.schedule.tables(first, rounds),
        )

    def befalls(self, kind: str, number: int, exchange: int, sender: int, receiver: int) -> bool:
        """Say whether a kind of fault befalls one message."""
        words = (self.faults.seed, sender, receiver, number, exchange)
        chance = self._chances(kind, np.array([number]))[0, min(sender, len(self.names))]
        seed, *rest = (np.array([word], np.uint32) for word in words)
        return bool(draw(seed, CODES[kind], *rest)[0] < chance)

    def _chances(self, kind: str, numbers: np.ndarray) -> np.ndarray:
        """Return the largest rate of the rules that apply, as a threshold `[R, K + 1]`."""
        chance = np.zeros((len(numbers), len(self.names) + 1), np.uint32)
        for rule in self.faults.of(kind):
            of_rule = np.where(self._applies(rule, numbers), np.uint32(threshold(rule.rate)), np.uint32(0))
            chance = np.maximum(chance, of_rule)
        return chance

    def _applies(self, rule: Any, numbers: np.ndarray) -> np.ndarray:
        """Say in which rounds and for whom a rule applies: `[R, K + 1]`."""
        everybody = [True] * len(self.names) + [not isinstance(rule, Freeze)]
        named = [name in rule.members for name in (*self.names, HUB_NAME)]
        return _during(rule.rounds, numbers)[:, None] & np.array(named if rule.members else everybody)

    def _frozen(self, numbers: np.ndarray) -> np.ndarray:
        members = np.arange(len(self.names) + 1, dtype=np.uint32)
        drawn = draw(np.array([self.faults.seed]), CODES["freeze"], members, numbers[:, None])
        return drawn < self._chances("freeze", numbers)

    def _sides(self, numbers: np.ndarray) -> np.ndarray:
        rules = self.faults.of("partition")
        sides = np.full((len(numbers), len(rules), len(self.names) + 1), -1, np.int32)
        for p, rule in enumerate(rules):
            for number, group in enumerate(rule.groups):
                whom = np.array([name in group for name in (*self.names, HUB_NAME)])
                sides[:, p][_during(rule.rounds, numbers)[:, None] & whom] = number
        return sides

    def _poison(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        kinds = np.zeros((len(numbers), len(self.names) + 1), np.int32)
        factors = np.ones(kinds.shape, np.float32)
        for rule in self.faults.of("poison"):
            where = self._applies(rule, numbers)
            kinds[where] = POISONS.index(rule.kind)
            factors[where] = rule.factor
        return kinds, factors


def _during(rounds: tuple[int, ...], numbers: np.ndarray) -> np.ndarray:
    first, last = rounds or (1, ALWAYS)
    return (numbers >= first) & (numbers <= last)


def one_round(tables: FaultTables) -> FaultTables:
    """Return the tables of the first of their rounds, without the axis of rounds."""
    return jax.tree.map(lambda a: a[0], tables)


def injected(arrivals: Any) -> FaultTables | None:
    """Return the faults of a round: alone, or beside a record of what arrived."""
    beside = arrivals.faults if isinstance(arrivals, Arrivals) else arrivals
    return beside if isinstance(beside, FaultTables) else None


def unusable(tables: FaultTables, exchange: Any, sender: Any, receiver: Any) -> Any:
    """Say which messages of an exchange are not used, whatever they hold; for arrays of NumPy or of JAX.

    Args:
        tables: of this round.
        exchange: the number of the exchange as a carrier counts it.
        sender, receiver: numbers of members, or `line.HUB`; they broadcast.
    """
    hub = np.uint32(tables.frozen.shape[0] - 1)
    sender, receiver = sender.astype(np.uint32), receiver.astype(np.uint32)
    least = jnp.minimum if isinstance(tables.frozen, jax.Array) else np.minimum
    i, j = least(sender, hub), least(receiver, hub)
    lost = tables.frozen[i] | tables.frozen[j] | (tables.poison[i] == POISONS.index("shape"))
    for side in tables.side:
        lost = lost | ((side[i] != side[j]) & (side[i] >= 0) & (side[j] >= 0))
    for kind, chance in zip(CHANCES, tables.chance, strict=True):
        words = (CODES[kind], sender, receiver, tables.round, exchange)
        lost = lost | (draw(tables.seed, *words) < chance[i])
    if tables.world:
        out, busy, mute = tables.world
        # The hub keeps what it has for those that take no part, until they fetch it: for the busy, that is later.
        lost = lost | out[i] | mute[i] | busy[j] | (out[j] & (i != hub))
    return lost


def poisoned(tables: FaultTables, kind: str, sender: Any) -> Any:
    """Say whether members send poison of this kind."""
    return tables.poison[sender] == POISONS.index(kind)


def spoiled(x: Tree, tables: FaultTables, sender: jax.Array, leading: int = 1) -> Tree:
    """Return what members really send in place of `x`, by the poison of each sender `[C]`.

    Args:
        x: a value for each sender; its arrays have `leading` axes before those of one message.
        tables: of this round.
        sender: the number of each row's sender.
        leading: 2 where a sender has a value for each neighbour.
    """
    kind, factor = tables.poison[sender], tables.factor[sender]

    def of_leaf(a: jax.Array) -> jax.Array:
        if not jnp.issubdtype(a.dtype, jnp.floating):
            return a
        rows = column(kind, a)
        for name, value in NUMBERS.items():
            a = jnp.where(rows == POISONS.index(name), jnp.asarray(value, a.dtype), a)
        a = jnp.where(rows == POISONS.index("scale"), column(factor, a).astype(a.dtype) * a, a)
        return a if a.ndim > leading else jnp.where(rows == POISONS.index("weight"), -jnp.abs(a), a)

    return jax.tree.map(of_leaf, x)
