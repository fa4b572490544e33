"""Each client evaluates its neighbours' models on its own validation samples and moves towards those that help.

Zhang, Sapra, Fidler, Yeung, Alvarez 2021, *Personalized Federated Learning with First Order Model Optimization*
(FedFomo). Client i starts the round from theta_i, trains, and gets the trained models theta_n of its neighbours and of
itself: w_n = (L_i(theta_i) - L_i(theta_n)) / |theta_n - theta_i| (eq. 5), negative weights are dropped and the row is
scaled to one (eq. 6); then theta_i <- theta_i + sum_n w_n (theta_n - theta_i).

Changed: the graph says whose models a client may evaluate; the paper's server sends out M models per round by a learned
affinity, to save downloads. If no model helps (all weights zero, or no validation samples) the client keeps the model
it has just trained. A neighbour whose loss is not finite has weight 0. The receiver computes the score, so theta_j goes
to i by `ask` and the scalar comes back by `swap`; the average then fetches theta_j once more, so that the ledger shows
two models per edge where a peer that keeps what it received needs one. Only edges that go both ways can be used.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from coterie.data.clients import Clients, Split
from coterie.learning.local_sgd import LocalSGD, Trained
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Method, Topology, method
from coterie.methods.sends import FROM_NUMBERS, MODEL, Sending, Sends
from coterie.methods.shared.neighbours import distance, mean_loss
from coterie.numerics import tree
from coterie.peers.base import Peers, blend

__all__ = ["Fomo"]


class State(NamedTuple):
    """Each client's model and its optimiser."""

    variables: Variables
    optimiser: Any


class Own(NamedTuple):
    """What a client evaluates models with; never sent."""

    start: Any  # the shared layers before the round
    start_loss: jax.Array  # L_i(theta_i)
    variables: Variables  # its personal layers and statistics
    validation: Split


@method
class Fomo(LocalSGD, Method):
    """Weight the neighbours' models by how much they help on the client's own validation samples."""

    topology: ClassVar[Topology] = "graph"
    sends: ClassVar[Sends] = {
        "ask": MODEL,
        "answer": Sending("how much the model that it was asked about would help on its validation rows", FROM_NUMBERS),
        "swap": Sending("what the neighbour's model was found to be worth there", FROM_NUMBERS),
        "mix": MODEL,
    }
    default_graph: ClassVar[str] = "complete"
    learns_weights: ClassVar[bool] = True

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Give every client the same fresh model."""
        variables = tree.broadcast(task.init(key), peers.ids.shape[0])
        return State(variables, jax.vmap(self.optimiser().init)(variables.params))

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Train, evaluate the neighbours' models, move towards those that help."""

        def train(variables: Variables, optimiser: Any, data: Split, held_out: Split, key: jax.Array) -> tuple:
            trained = self.train(task, variables, data, key, optimiser_state=optimiser)
            return trained, mean_loss(task, variables, held_out)

        def score(shared: Any, own: Own) -> jax.Array:
            candidate = Variables(task.join(shared, own.variables.params), own.variables.statistics)
            gain = own.start_loss - mean_loss(task, candidate, own.validation)
            far = distance(shared, own.start)
            return jnp.where(far > 0, gain / jnp.where(far > 0, far, 1), 0)  # eq. 5

        trained: Trained
        trained, start_loss = peers.each(
            train, state.variables, state.optimiser, clients.train, clients.validation, peers.keys(key)
        )
        shared = task.shared(trained.variables.params)
        own = Own(task.shared(state.variables.params), start_loss, trained.variables, clients.validation)
        my_scores, _ = peers.ask(score, shared, own)  # of my model at the neighbours; 0 if no answer arrived
        scores, _ = peers.swap(my_scores)  # of the neighbours' models here
        weights = peers.each(normalise, scores, peers.each(score, shared, own))

        shared = blend(peers, shared, weights)  # sum_n w_n theta_n; the rest of the row is the client's own
        variables = Variables(task.join(shared, trained.variables.params), trained.variables.statistics)
        return State(variables, trained.optimiser), Info(trained.loss, weights)


def normalise(scores: jax.Array, own_score: jax.Array) -> jax.Array:
    """Drop negative scores and scale the row, including the own score, to one (eq. 6); zeros if nothing helps."""
    scores, own_score = (jnp.maximum(jnp.where(jnp.isfinite(s), s, 0), 0) for s in (scores, own_score))
    total = scores.sum() + own_score
    return jnp.where(total > 0, scores / jnp.where(total > 0, total, 1), 0)
