"""Where the clients of a run live, and what a run does between two rounds because others live elsewhere.

In a simulation all clients live here and nothing is to be done: that is `Place` itself. A site of a network
(`coterie.sites`) lives in one of several processes: it meets the others before the first round, goes on with the round
they are in, and agrees with them on the graph of a new stage.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from coterie.data.clients import Federation
from coterie.experiment.fingerprint import fingerprint
from coterie.experiment.members import Members
from coterie.graphs.graph import Graph
from coterie.peers.factory import PeersFactory

__all__ = ["Place"]


class Place:
    """All clients live here.

    Attributes:
        members: the names of all clients and who lives here; None where all do.
        peers: how clients reach each other; None is a simulation.
        writes: whether this process writes the files of the run; of several that share a mesh, only the first does.
        together: whether other processes do the same at the same time, and must never be left alone.
    """

    members: Members | None = None
    peers: PeersFactory | None = None
    writes: bool = True
    together: bool = False

    @property
    def ids(self) -> np.ndarray | None:
        """The id of the client in each row; None: 0, 1, 2, ..."""
        return None if self.members is None else np.array(self.members.here)

    def rows(self, table: np.ndarray) -> np.ndarray:
        """Return the rows of a table `[K, ...]` of the clients that live here."""
        return table if self.members is None else table[self.ids]

    def fingerprint(self, federation: Federation) -> str:
        """Return the fingerprint of all clients' data."""
        return fingerprint(federation)

    def meet(self, done: int, prepare: Callable[[], None]) -> bool:
        """Meet the others, before the first round that runs in this process; `done` rounds are behind it.

        Args:
            done: how many rounds the checkpoint covers; -1 if there is none.
            prepare: compiles what the first rounds need, before anybody waits.

        Returns:
            Whether the others begin the run now, too; otherwise they are in the middle of it.
        """
        return done < 0

    def next_round(self, number: int) -> int:
        """Return the round to go on with: `number`, or a later one where the others are ahead."""
        return number

    def graph_in_use(self, number: int) -> Graph | None:
        """Return the graph that the others use since round `number`, where a stage has ended; None: nobody says."""
        return None

    def agree(self, number: int, graph: Graph) -> Graph:
        """Return the graph that everybody uses after round `number`, where a stage ends."""
        return graph

    def round_done(self, number: int, block: Any = None, graph: Graph | None = None) -> None:
        """Take note of a round that has just ended, and of what it gave; 0 is the start, which gives nothing."""
        return

    def evaluated(self, row: Mapping[str, np.ndarray]) -> None:
        """Take note of the metrics after the round that has just ended."""
        return

    def frames(self, first: int, rounds: int) -> dict[str, np.ndarray]:
        """Return messages and bytes `[R, C]` that left and reached the clients here, where frames are really sent."""
        return {}

    def saving(self) -> None:
        """Make what this place writes itself safe, before a checkpoint."""
        return

    def any_of(self, *flags: bool) -> tuple[bool, ...]:
        """Return for each flag whether it is set in any process that shares the mesh."""
        return flags

    def agree_to_stop(self) -> None:
        """Take note that all processes that share the mesh stop here, before the end: one of them was asked to."""
        return

    def wait(self, what: str) -> None:
        """Wait until all processes that share the mesh have come to this point."""
        return
