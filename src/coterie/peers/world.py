"""The clients of a simulated world: not all take part in every round, some fail in it, some are slow.

    [world]
    participation = 0.5    # half of the clients, drawn anew in every round, take part in it
    dropout = 0.05         # of these, each fails with this chance: nothing that it sends arrives
    slow = 0.2             # a fifth of the clients, the same ones throughout, are slow
    late = 2               # what a slow client begins in round 3 arrives in round 5

Settings of a run, and of no method: every method meets the same clients in the same rounds of a seed.

A client that takes no part neither trains nor sends nor hears; it keeps its state and is evaluated as usual. What the
hub has for everyone (a shared model) it fetches when it next takes part, as in federated averaging.

A client that drops out trains, and what it learned stays with it; its messages are sent, paid for and lost. It hears
what others send.

A slow client that is drawn in round t begins with the state that it has then, is busy until round t + late, trains and
exchanges in that round, and can be drawn again after it. So what arrives late is used, and rests on a state that is
`late` rounds old. (On a network a message of a round that is over is never used: a slow peer goes on with the round
that the others are in, from its own state. That is the same.)
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from coterie.peers.draws import draw, threshold
from coterie.spec import param, spec

__all__ = ["Presence", "Schedule", "World", "WorldTables"]

PART, FAILS, SLOW = (np.array([code], np.uint32) for code in (101, 102, 103))  # apart from the codes of faults


@spec
class World:
    """The `[world]` section."""

    participation: float = param(
        1.0, "share of the clients that are drawn to take part in a round (at least one client)", above=0, at_most=1
    )
    dropout: float = param(0.0, "chance that nothing of what a client sends in a round arrives", at_least=0, at_most=1)
    slow: float = param(0.0, "share of the clients that are slow, the same ones in all rounds", at_least=0, at_most=1)
    late: int = param(1, "rounds by which what a slow client does arrives later", at_least=1, at_most=1000)

    def __bool__(self) -> bool:
        return self.participation < 1 or self.dropout > 0 or self.slow > 0

    def drawn(self, clients: int) -> int:
        """Return how many clients are drawn in a round."""
        return max(1, round(self.participation * clients))

    def most(self, clients: int) -> int:
        """Return how many clients take part in a round at most: those drawn now, and slow ones drawn before."""
        return min(clients, self.drawn(clients) + self.slow_ones(clients))

    def slow_ones(self, clients: int) -> int:
        """Return how many clients are slow."""
        return max(1, round(self.slow * clients)) if self.slow else 0

    def words(self) -> str:
        """Say in words what these settings mean."""
        drawn = "all clients" if self.participation == 1 else f"{100 * self.participation:g} % of the clients"
        parts = [f"{drawn} are drawn to take part in each round"]
        if self.dropout:
            parts.append(f"each of them drops out of it with a chance of {100 * self.dropout:g} %")
        if self.slow:
            rounds = "1 round" if self.late == 1 else f"{self.late} rounds"
            parts.append(f"{100 * self.slow:g} % of the clients are slow: what they begin arrives {rounds} later")
        return "; ".join(parts)


class WorldTables(NamedTuple):
    """Who takes part in some rounds, R rounds first; clients by number, and the hub last: `[R, K + 1]` each."""

    out: Any  # takes no part: not drawn, or busy
    busy: Any  # works on what arrives in a later round; not even copies of the hub's models reach it
    mute: Any  # takes part, and nothing that it sends arrives


class Presence(NamedTuple):
    """What became of every client in some rounds, `[R, K]` each."""

    part: np.ndarray  # took part
    late: np.ndarray  # took part with what it had begun `late` rounds before
    mute: np.ndarray  # took part and dropped out


@dataclasses.dataclass
class Schedule:
    """Who takes part in which round, drawn from the seed, the client's number and the round, and from nothing else."""

    world: World
    seed: int
    clients: int

    def __post_init__(self) -> None:
        self._members = np.arange(self.clients, dtype=np.uint32)
        self.slow = self._rank(SLOW, np.array([0]))[0] < self.world.slow_ones(self.clients)  # [K]
        # Row t: the round in which what a client has begun arrives, after round t; 0 where it is ready. It grows, as
        # a slow client can only be drawn when it is ready.
        self._until = [np.zeros(self.clients, np.int64)]

    def presence(self, first: int, rounds: int = 1) -> Presence:
        """Return what becomes of every client in rounds `first`, ..., `first + rounds - 1`; round 0 has everybody."""
        numbers = np.arange(first, first + rounds)
        drawn = self._rank(PART, numbers) < self.world.drawn(self.clients)
        drawn[numbers == 0] = True
        late = np.zeros_like(drawn)
        if self.slow.any():
            self._extend(first + rounds - 1)
            until = np.stack([self._until[max(number - 1, 0)] for number in numbers.tolist()])
            late = (until == numbers[:, None]) & (numbers[:, None] > 0)
            drawn = np.where(self.slow & (numbers[:, None] > 0), late, drawn)
        words = np.array([self.seed], np.uint32), FAILS, self._members, numbers[:, None].astype(np.uint32)
        fails = draw(*words) < threshold(self.world.dropout)
        return Presence(drawn, late, drawn & fails & (numbers[:, None] > 0))

    def tables(self, first: int, rounds: int = 1) -> WorldTables:
        """Return the same as a program reads it."""
        presence = self.presence(first, rounds)
        busy = np.zeros_like(presence.part)
        if self.slow.any():
            # Those drawn now are busy from now on; those whose work arrives now are not.
            busy = np.stack([self._until[number] > number for number in range(first, first + rounds)])
        hub = np.zeros((rounds, 1), bool)
        return WorldTables(*(np.hstack([a, hub]) for a in (~presence.part, busy, presence.mute)))

    def _extend(self, last: int) -> None:
        """Follow the slow clients up to a round."""
        for number in range(len(self._until), last + 1):
            until = self._until[-1]
            ready = until < number  # neither busy nor arriving in this round
            drawn = self._rank(PART, np.array([number]))[0] < self.world.drawn(self.clients)
            self._until.append(np.where(self.slow & ready & drawn, number + self.world.late, until))

    def _rank(self, code: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Return the place of every client in a random order of each round, `[R, K]`."""
        drawn = draw(np.array([self.seed], np.uint32), code, self._members, numbers[:, None].astype(np.uint32))
        return np.argsort(np.argsort(drawn, axis=1, kind="stable"), axis=1, kind="stable")
