"""How the clients of a run reach each other: one factory per carrier.

A training asks its factory for the verbs inside every program it traces. A simulation and two processes on a pipe
differ in this object only, and so would a mesh or a network.
"""

import abc
from collections.abc import Hashable
from typing import ClassVar

from coterie.peers.base import Arrivals, Peers, Tables
from coterie.peers.coding import Coder
from coterie.peers.injection import FaultTables

__all__ = ["Lost", "PeersFactory"]

Lost = Arrivals | FaultTables | None


class PeersFactory(abc.ABC):
    """Makes the verbs for the clients that live in this process."""

    # Rounds that run as one program; 0: all rounds up to the next evaluation. A network needs 1, so that checkpoints
    # and Ctrl-C have a place between two rounds.
    rounds_per_call: ClassVar[int] = 0

    robust: float | None = None  # how far received values may be away (`robust.py`); None: as far as they are
    certain = False  # whether nothing of this run gets lost or is changed on its way: no faults, codec or robust sums
    most_present: int | None = (
        None  # clients that take part in a round at most, where the run draws them; None: it does not
    )

    @property
    def programs(self) -> Hashable:
        """What a compiled program depends on besides its arguments: factories with equal values share programs."""
        return type(self), self.robust

    @abc.abstractmethod
    def make(self, tables: Tables, arrivals: Lost = None, coder: Coder | None = None) -> Peers:
        """Return the verbs of one round, while its program is traced.

        Args:
            tables: who may talk to whom, as arguments of the program.
            arrivals: the faults of this round; or a recorded loss to repeat, for carriers that simulate.
            coder: the codec of this round; None sends everything as it is.
        """

    def use_tables(self, tables: Tables) -> None:
        """Begin a stage: the programs that run from now on get these tables (here as NumPy arrays)."""
        return

    def start_round(self, number: int) -> None:
        """Prepare for round `number`, which is about to run; 0 is the start."""
        return
