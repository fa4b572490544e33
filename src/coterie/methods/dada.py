"""Learn personal models and a sparse similarity graph, in turns.

Zantedeschi, Bellet, Tommasi 2020, *Fully Decentralized Joint Learning of Personalized Models and Collaboration Graphs*
(Dada). With symmetric weights w_kl >= 0, degrees d_k = sum_l w_kl and confidences c_k (samples, relative to the
largest among a client and its neighbours), all clients together minimise (eq. 1)
    sum_k d_k c_k L_k(theta_k) + mu_1 / 2 sum_{k<l} w_kl |theta_k - theta_l|^2 + mu_2 (lambda |w|^2 - sum_k log d_k).
Models: a client follows grad L_k + mu_1 / c_k (theta_k - sum_l w_kl theta_l / d_k), the gradient divided by d_k c_k.
Graph: with the models fixed, w is pulled down by a_kl = c_k L_k + c_l L_l + mu_1 / 2 |theta_k - theta_l|^2.

Changed: confidences and weights are relative to a client's neighbours, not to all clients, whom it may not know. The
paper boosts base classifiers by Frank-Wolfe steps; here models are any differentiable ones, trained by
SGD. Its graph step is projected coordinate descent on log(d + delta), whose safe step is of order delta^2; ours
minimises the same convex function of w with delta = 0 by bounding the logarithm (Jensen) and solving for every edge
in closed form. That needs no step size, never increases the function, and updates all edges at once; an edge that
should vanish shrinks geometrically instead of being cut. mu_1 / c_k is at most 1 / lr, since a step must not overshoot
the neighbours' mean. Both ends of an edge compute its weight; if a lost message
makes the two differ, they are averaged. It needs an undirected graph: a one-way edge keeps its initial weight. The
paper tunes mu_1, mu_2 and lambda for every data set; the default mu_1 and lambda are the best of a few pairs on the
validation samples of one small set (digits in 2 groups, one seed), mu_2 was not tuned: choose them for your data.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from coterie.data.clients import Clients, Split
from coterie.learning.local_sgd import LocalSGD, Trained
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Method, Topology, Tunes, method
from coterie.methods.sends import FROM_NUMBERS, MODEL, Sending, Sends
from coterie.methods.shared.neighbours import distance
from coterie.numerics import tree
from coterie.peers.base import Peers, blend
from coterie.spec import param

__all__ = ["Dada"]


class State(NamedTuple):
    """Each client's model and optimiser, its confidence, and the weights of its edges."""

    variables: Variables
    optimiser: Any
    confidence: jax.Array  # [C] c_k
    weights: jax.Array  # [C, D] w_kl


@method
class Dada(LocalSGD, Method):
    """Tie models to those of similar clients, and learn which clients are similar.

    Departs from the paper: SGD instead of boosting; confidences relative to the neighbours; a pull of at most 1 / lr.
    """

    topology: ClassVar[Topology] = "graph"
    sends: ClassVar[Sends] = {
        "mix": MODEL,
        "ask": MODEL,
        "answer": Sending(
            "how far its model is from the one that it was asked about, and its training loss", FROM_NUMBERS
        ),
        "swap": Sending("how many training rows it has; then its weights over its neighbours", FROM_NUMBERS),
    }
    default_graph: ClassVar[str] = "complete"
    tunes: ClassVar[Tunes] = {"tie": (0.1, 0.3, 1.0)}
    learns_weights: ClassVar[bool] = True
    tie: float = param(0.3, "strength of the tie between neighbours' models (mu_1)", above=0)
    graph_strength: float = param(1.0, "weight of the terms that shape the graph (mu_2)", above=0)
    spread: float = param(3.0, "how evenly weight is spread over the neighbours (lambda)", above=0)
    graph_steps: int = param(10, "steps of the graph update per round", at_least=1)

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Give every client the same fresh model, and every edge the same weight."""
        here = peers.ids.shape[0]
        variables = tree.broadcast(task.init(key), here)
        count = clients.train.count
        others, arrived = peers.swap(_repeat(count, peers))
        largest = jnp.maximum(count, jnp.where(arrived, others, 0).max(1, initial=0))
        confidence = (count / jnp.maximum(largest, 1)).astype(task.dtype)
        optimiser = jax.vmap(self.optimiser().init)(variables.params)
        return State(variables, optimiser, confidence, peers.present.astype(task.dtype))

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Train near the weighted mean of the neighbours' models, then update the graph."""

        def train(variables: Variables, optimiser: Any, centre: Any, rate: Any, data: Split, key: jax.Array) -> Trained:
            still = jax.tree.map(jnp.zeros_like, variables.params)

            def pull(params: Any) -> Any:  # mu_1 / c_k (theta_k - sum_l w_kl theta_l / d_k)
                return task.join(tree.scale(rate, tree.minus(task.shared(params), centre)), still)

            return self.train(task, variables, data, key, optimiser_state=optimiser, pull=pull)

        degree = peers.sum_slots(state.weights)
        linked = degree > 0
        shares = state.weights / jnp.where(linked, degree, 1)[:, None]
        centre = blend(peers, task.shared(state.variables.params), shares)
        rate = jnp.where(linked, jnp.minimum(self.tie / state.confidence, 1 / self.lr), 0)  # a step must not overshoot
        trained: Trained = peers.each(
            train, state.variables, state.optimiser, centre, rate, clients.train, peers.keys(key)
        )

        def compare(theirs: Any, own: tuple[Any, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return distance(theirs, own[0]), own[1]

        def edge_costs(risk: jax.Array, risks: jax.Array, gaps: jax.Array) -> jax.Array:
            return risk + risks + self.tie / 2 * gaps**2  # a_kl

        shared, risk = task.shared(trained.variables.params), state.confidence * trained.loss  # c_k L_k
        (gaps, risks), arrived = peers.ask(compare, shared, (shared, risk))
        costs = peers.each(edge_costs, risk, risks, gaps)
        usable = arrived & jnp.isfinite(costs)

        def move(_: Any, weights: jax.Array) -> jax.Array:
            degree = peers.sum_slots(weights)
            (their_degree, their_weights), arrived = peers.swap((_repeat(degree, peers), weights))
            fresh = usable & arrived
            theirs = (jnp.where(fresh, their_degree, 1), jnp.where(fresh, their_weights, weights))
            moved = peers.each(self._new_weights, weights, theirs[1], degree, theirs[0], jnp.where(usable, costs, 1))
            return jnp.where(fresh, moved, weights)

        weights = peers.loop(self.graph_steps, move, state.weights)
        state = State(trained.variables, trained.optimiser, state.confidence, weights)
        return state, Info(trained.loss, jnp.where(usable, shares, 0))

    def _new_weights(self, mine: Any, theirs: Any, degree: Any, their_degree: Any, cost: jax.Array) -> jax.Array:
        """Minimise the bound a w + mu_2 (lambda w^2 - s log w), s = w (1/d_k + 1/d_l), for each edge of a client."""
        s = (mine + theirs) / 2 * (_inverse(degree) + _inverse(their_degree))
        root = jnp.sqrt(cost**2 + 8 * self.graph_strength**2 * self.spread * s)
        return 2 * self.graph_strength * s * _inverse(cost + root)  # 2 mu_2 lambda w^2 + a w - mu_2 s = 0


def _repeat(value: jax.Array, peers: Peers) -> jax.Array:
    """Copy each client's number to all its slots."""
    return jnp.broadcast_to(value[:, None], peers.neighbours.shape)


def _inverse(x: jax.Array) -> jax.Array:
    return jnp.where(x > 0, 1 / tree.divisor(x), 0)
