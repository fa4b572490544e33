"""Weights over all clients from the angles between their models' displacements and the sizes of their data.

Ye, Ni, Wu, Chen, Wang 2023, *Personalized Federated Learning with Inferred Collaboration Graphs* (pFedGraph). With
displacements delta_i = theta_i - theta_0 from the common start and data shares p_j = n_j / n, client i's weights are
argmin_x alpha |x - p|^2 - sum_j x_j cos(delta_i, delta_j) on the simplex, and its next round starts from
sum_j x_j theta_j, near which (in angle) the local training stays.

Changed: the authors call a general solver for every client; the minimiser is the projection of p + cos / (2 alpha) on
the simplex, computed exactly by sorting. There is no server, so data shares are relative to the neighbours and the
client itself: use a complete graph for the paper's method. The tie to the aggregated model has the sign of the paper,
loss - lambda cos(theta, aggregate); the authors' code adds it. As in that code, a cosine above `snap` counts as 1, so
that nearly equal clients share equally.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from coterie.data.clients import Clients, Split
from coterie.learning.local_sgd import LocalSGD, Trained
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Method, Topology, Tunes, method
from coterie.methods.sends import CHANGE, FROM_NUMBERS, MODEL, Sending, Sends
from coterie.numerics import tree
from coterie.numerics.simplex import project_simplex
from coterie.peers.base import Peers, blend
from coterie.spec import param
from coterie.traced import is_off

__all__ = ["PFedGraph"]


class State(NamedTuple):
    """Each client's model, and the shared layers all of them started from."""

    variables: Variables
    start: Any


@method
class PFedGraph(LocalSGD, Method):
    """Weight models by the angle between their displacements and by the clients' numbers of samples."""

    topology: ClassVar[Topology] = "graph"
    sends: ClassVar[Sends] = {
        "ask": CHANGE,
        "answer": Sending("the angle between the two changes, and how many training rows it has", FROM_NUMBERS),
        "mix": MODEL,
    }
    default_graph: ClassVar[str] = "complete"
    tunes: ClassVar[Tunes] = {"alpha": (0.2, 0.8, 3.2)}
    learns_weights: ClassVar[bool] = True
    alpha: float = param(0.8, "strength of the pull of the weights to the data shares", above=0)
    tie: float = param(0.01, "pull of the local training towards the aggregated model, by angle (lambda)", at_least=0)
    snap: float = param(0.9, "cosines above this count as 1; 1: none", above=0, at_most=1)

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Give every client the same fresh model."""
        variables = tree.broadcast(task.init(key), peers.ids.shape[0])
        return State(variables, task.shared(variables.params))

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Train near the aggregated model, compare displacements, aggregate again."""

        def train(variables: Variables, data: Split, key: jax.Array) -> Trained:
            aggregate = task.shared(variables.params)
            still = jax.tree.map(jnp.zeros_like, variables.params)

            def pull(params: Any) -> Any:
                return task.join(tree.scale(-self.tie, cosine_slope(task.shared(params), aggregate)), still)

            return self.train(task, variables, data, key, pull=None if is_off(self.tie) else pull)

        def compare(moved: Any, own: tuple[Any, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return cosine(moved, own[0]), own[1]

        trained: Trained = peers.each(train, state.variables, clients.train, peers.keys(key))
        shared = task.shared(trained.variables.params)
        moved = tree.minus(shared, state.start)  # delta_i
        (cosines, counts), arrived = peers.ask(compare, moved, (moved, clients.train.count))
        weights = peers.each(self._weights, cosines, counts, clients.train.count, arrived)

        variables = Variables(
            task.join(blend(peers, shared, weights), trained.variables.params), trained.variables.statistics
        )
        return State(variables, state.start), Info(trained.loss, weights)

    def _weights(self, cosines: jax.Array, counts: jax.Array, own_count: jax.Array, arrived: jax.Array) -> jax.Array:
        """Return one client's weights over its slots; the client itself, whose cosine is 1, gets the rest."""
        usable = jnp.append(arrived & jnp.isfinite(cosines), True)
        similar = jnp.append(jnp.where(cosines > self.snap, 1, cosines), jnp.ones((), cosines.dtype))
        samples = jnp.where(usable, jnp.append(counts, own_count), 0).astype(cosines.dtype)
        target = samples / jnp.maximum(samples.sum(), 1) + similar / (2 * self.alpha)  # p - d / (2 alpha)
        return project_simplex(jnp.where(usable, target, 0), usable)[:-1]


def cosine(a: Any, b: Any) -> jax.Array:
    """Return the cosine of the angle between two models of one client; 0 if one of them is zero."""
    return tree.dot(a, b) * _inverse(jnp.sqrt(tree.dot(a, a)) * jnp.sqrt(tree.dot(b, b)))


def cosine_slope(a: Any, b: Any) -> Any:
    """Return the gradient of `cosine(a, b)` in a: b / (|a| |b|) - cos a / |a|^2; 0 if one of them is zero."""
    along = _inverse(jnp.sqrt(tree.dot(a, a)) * jnp.sqrt(tree.dot(b, b)))
    against = cosine(a, b) * _inverse(tree.dot(a, a))
    return jax.tree.map(lambda u, v: along * v - against * u, a, b)


def _inverse(x: jax.Array) -> jax.Array:
    return jnp.where(x == 0, 0, 1 / jnp.where(x == 0, 1, x))
