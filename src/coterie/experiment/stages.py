"""Where a stage of a method ends: who stays a neighbour of whom, and the state on the graph that is left."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie.data.clients import Clients
from coterie.graphs.graph import Graph, slot_of
from coterie.peers.base import Traffic
from coterie.peers.mesh import padded_rows
from coterie.peers.shards import fetched

__all__ = ["Stages"]


class Stages:
    """What a `Training` does where a stage ends; it brings all that is used here."""

    method: Any
    former: tuple[Any, ...] = ()  # the methods of the stages that have ended
    graph: Graph
    peers: Any
    engine: Any
    call: Callable
    inner: Callable[[Any], Any]
    _ids: np.ndarray | None
    _use: Callable[[Graph, np.ndarray], None]
    _one_round: Callable[[Traffic], Traffic]
    _with_memory: Callable[[Any], Any]

    def rounds_to_stage(self, first: int, rounds: int) -> int:
        """Return how many of the rounds from `first` on fit into the present stage: a new graph is a new program."""
        ends = [end for end in self.method.stages() if first <= end < first + rounds]
        return min(ends) - first + 1 if ends else rounds

    def next_stage(
        self, state: Any, number: int, agree: Callable[[int, Graph], Graph] = lambda number, graph: graph
    ) -> tuple[Any, Traffic | None]:
        """Begin a new stage if one begins after round `number`: the method says which edges stay.

        A kept graph need not be symmetric, so `share` tells everyone who keeps whom; a client that is away keeps all
        its neighbours. On a network `agree(number, graph)` returns the graph that everybody uses. Returns the state
        for the new tables, and the traffic of that exchange (None if the stage goes on).
        """
        if number not in self.method.stages():
            return state, None
        graph, traffic = self.kept_graph(state, number)
        return self.enter_stage(state, agree(number, graph), number + 1), self._one_round(traffic)

    def kept_graph(self, state: Any, number: int) -> tuple[Graph, Traffic]:
        """Return the edges that the clients would keep after round `number`, and the traffic of telling each other."""
        (kept, arrived), traffic = self.call(self._keep, ("keep", number), self.inner(state))
        kept, arrived = fetched((kept, arrived))
        return self.graph.keep(np.where(np.asarray(arrived)[:, None], kept, self.graph.present))[0], traffic

    def _keep(self, method: Any, tables: Any, clients: Clients, state: Any) -> Any:
        peers = self.peers.make(tables)
        return peers.share(method.keep(state, tables.present, peers.clients), certain=True), peers.traffic()

    def enter_stage(self, state: Any, graph: Graph, first: int) -> Any:
        """Return the state on a graph with fewer edges, used from round `first` on."""
        narrow, take = self.method.narrow, self.use_stage(graph, first)
        return self.engine.place(self._with_memory(narrow(self.inner(state), take)))

    def use_stage(self, graph: Graph, first: int) -> Callable[[jax.Array], jax.Array]:
        """Use a graph with fewer edges from round `first` on; returns what takes `x [C, D, ...]` over to its slots."""
        everyone = np.arange(graph.clients)[:, None]
        kept = slot_of(graph.neighbours, graph.present, everyone, self.graph.neighbours) >= 0
        graph, slots = self.graph.keep(kept)
        rows = slots if self._ids is None else slots[self._ids]
        self._leave(first)
        self._use(graph, np.zeros(graph.neighbours.shape))
        return slot_taker(padded_rows(rows, self.engine.rows))

    def return_to_stage(self, first: int) -> None:
        """Be where round `first` is: the graph is that of its stage already."""
        for end in [end for end in self.method.stages() if end < first]:
            self._leave(end + 1)

    def _leave(self, first: int) -> None:
        self.former, self.method = (*self.former, self.method), self.method.at_stage(first)


def slot_taker(slots: np.ndarray) -> Callable[[jax.Array], jax.Array]:
    """Return a function that carries `x [C, D, ...]` over to the slots `[C, D']` that were kept."""
    return lambda x: jnp.take_along_axis(x, slots.reshape(slots.shape + (1,) * (x.ndim - 2)), axis=1)
