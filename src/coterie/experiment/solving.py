"""Methods that are solved and not iterated: an estimator's answer takes the place of rounds of training.

A `Solved` method is fitted once, in round 1, outside the compiled program and in double precision; later rounds change
nothing and send nothing. Everything else works as for any method: the loop, evaluation on the clients' own samples,
ledger, checkpoint, files, report.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie.data.clients import Clients, Split
from coterie.errors import CoterieError
from coterie.experiment.rounds import Rounds
from coterie.experiment.training import Training
from coterie.learning.evaluate import client_metrics
from coterie.learning.streams import ALL, streamed_of
from coterie.learning.task import Variables
from coterie.methods.base import Method, Solved
from coterie.peers.base import Traffic
from coterie.peers.factory import Lost
from coterie.peers.mesh import padded_rows
from coterie.peers.records import WATCHED, nothing_sent, on_host
from coterie.peers.shards import fetched

__all__ = ["Fitting"]


class Fitting(Training):
    """A `Training` whose method is solved in its first round."""

    def init(self, arrivals: Lost = None) -> tuple[Any, Rounds]:
        """Return fresh models, which stand in until the problem is solved; they cost nothing."""
        model = self.task.init(self._init_key)
        state = jax.tree.map(lambda a: jnp.broadcast_to(a, (self.engine.rows, *a.shape)), model)
        return self.engine.place(state), Rounds(np.zeros((1, self.engine.size)), self._sent(1), None)

    def advance(self, state: Any, first: int, rounds: int, arrivals: Lost = None) -> tuple[Any, Rounds]:
        """Solve, if round 1 is among the rounds `first`, ..., `first + rounds - 1`."""
        sent = self._sent(rounds)
        if first == 1:
            assert isinstance(self.method, Solved)
            if streamed_of(self.engine.clients) is not None:
                raise CoterieError(f"{type(self.method).__name__} {ALL}")
            with self.engine.profile.part("rounds"):
                fitted = self.method.fit(self.task, self.engine.fetched(self.engine.clients))
            for link, size in (("up", fitted.bytes_up), ("down", fitted.bytes_down)):
                getattr(sent, f"{link}_messages")[0] = fitted.messages
                getattr(sent, f"{link}_bytes")[0] = size
            state = jax.tree.map(lambda a: padded_rows(a.astype(self.task.dtype), self.engine.rows), fitted.models)
        state = self.engine.place(state)
        loss = self.engine.fetched(self.call(self._losses, "losses", state))
        return state, Rounds(np.tile(loss, (rounds, 1)), sent, None)

    def _losses(self, method: Method, tables: Any, clients: Clients, state: Variables) -> jax.Array:
        """Return each client's mean loss on its training samples."""

        def one(model: Variables, data: Split, labels: jax.Array) -> jax.Array:
            return client_metrics(self.task, model, data, labels).loss

        return self.peers.make(tables).each(one, state, clients.train, clients.labels)

    def _sent(self, rounds: int) -> Traffic:
        """Return the counters, on the host, of that many rounds in which nothing was sent."""
        none = self.engine.trimmed(on_host(fetched(nothing_sent(self._tables))))._asdict()
        empty: dict[str, Any] = {
            name: np.zeros((rounds, *a.shape), np.int64) for name, a in none.items() if name not in WATCHED
        }
        return Traffic(**empty)
