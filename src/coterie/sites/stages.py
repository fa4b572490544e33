"""Where a stage of a method ends, everybody must use the same graph.

It is that of one member: the hub, or the first in the list that is there. All others ask it, so that they agree even if
some of them missed a message; who comes back after the end of a stage gets the graph in the same way. A member that was
away keeps all its neighbours.
"""

import threading
import time
from collections.abc import Sequence

import numpy as np

from coterie.errors import CoterieError
from coterie.graphs.graph import Graph
from coterie.sites.control import Control
from coterie.storage.arrays import Array, npz_bytes, read_npz

__all__ = ["Stages"]

PAUSE = 0.1  # seconds between two questions
ANSWER = 2.0  # seconds that a member has to answer
TABLE = {"neighbours": Array("iu", ("clients", "slots"), below="clients"), "present": Array("b", ("clients", "slots"))}


class Stages:
    """One member's part in it.

    Args:
        control: the carrier.
        me: this member's name.
        names: everybody's, in the order of their ids.
        hub: the member that is the hub, if any.
        deadline: seconds to wait for the graph.
    """

    def __init__(self, control: Control, me: str, names: Sequence[str], hub: str | None, deadline: float):
        self.deadline = deadline
        self._control, self._me, self._names, self._hub = control, me, tuple(names), hub
        self._last: tuple[int, Graph] | None = None  # the last round of the stage before, and the graph since then
        self._lock = threading.Lock()
        control.answer("graph", self._answer)

    def agree(self, number: int, graph: Graph) -> Graph:
        """Return the graph that everybody uses after round `number`, in place of the one found here."""
        alive = self._control.alive()
        there = [name for name in self._names if name == self._me or name in alive]
        lead = self._hub if self._hub in there else there[0]
        found = None if lead == self._me else self._ask([lead], number)
        return self._keep(number, graph if found is None else found)

    def graph_after(self, number: int) -> Graph | None:
        """Return the graph that the others use since round `number`; None if nobody says."""
        alive = self._control.alive()
        found = self._ask([name for name in self._names if name != self._me and name in alive], number)
        return None if found is None else self._keep(number, found)

    def _keep(self, number: int, graph: Graph) -> Graph:
        with self._lock:
            self._last = (number, graph)
        return graph

    def _answer(self, sender: str, payload: bytes) -> bytes:
        """Give the graph in use, if the stage that ends with the round in the request is over here."""
        with self._lock:
            last = self._last
        if last is None or not payload.isdigit() or last[0] < int(payload):
            return b""
        return npz_bytes({"neighbours": last[1].neighbours, "present": last[1].present})

    def _ask(self, names: Sequence[str], number: int) -> Graph | None:
        """Ask members in turn until one of them has come to the end of the stage."""
        end = time.monotonic() + self.deadline
        while time.monotonic() < end and not self._control.alive().isdisjoint(names):
            for name in names:
                answer = self._control.request(name, "graph", str(number).encode(), ANSWER)
                graph = self._table(answer) if answer else None
                if graph is not None:
                    return graph
            time.sleep(PAUSE)
        return None

    def _table(self, data: bytes) -> Graph | None:
        try:
            arrays = read_npz(data, "a graph", TABLE, TABLE, {"clients": len(self._names)})
            return Graph(np.asarray(arrays["neighbours"], np.int32), arrays["present"])
        except CoterieError:
            return None
