"""Ask the neighbours for their gradients at the own model, and step in a direction that opposes none of them.

Esfandiari, Tan, Jiang, Balu, Herron, Hegde, Sarkar 2021, *Cross-Gradient Aggregation for Decentralized Learning from
Non-IID Data* (CGA), Algorithm 1. Neighbour j answers with its gradient at x_i; the answers are the rows of G_i. The
direction is the one nearest to the client's own gradient g_i that has no negative product with any row,
g~ = g_i + G_i^T u with u = argmin 1/2 u^T G G^T u + g^T G^T u over u >= 0; then v_i <- beta v_i - alpha g~ and
x_i <- sum_j pi_ij x_j + v_i.

Changed: the quadratic program is solved exactly and once for the whole model. With more than one local step a gradient
becomes the displacement of the local training that starts from x_i. The client's own gradient is not a row of G: as a
projection onto a cone, g~ never has a negative product with it. The authors' code solves one problem per layer, scales
gradients by pi_ij and requires u >= 1/2, so that neighbours count even if there is no conflict; we use the paper's
u >= 0. A simulation keeps clients x neighbours gradients in memory at once, since G G^T needs all rows.
"""

import functools
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from coterie.data.clients import Clients, Split
from coterie.learning.local_sgd import LocalSGD, Trained
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Method, Newcomer, Topology, method
from coterie.methods.sends import GRADIENT, MODEL, Sends
from coterie.numerics import tree
from coterie.numerics.simplex import nonnegative_qp
from coterie.peers.base import Peers, blend
from coterie.traced import is_off

__all__ = ["CGA"]


class State(NamedTuple):
    """Each client's model, and its velocity if there is momentum."""

    variables: Variables
    velocity: Any


class Own(NamedTuple):
    """What a client needs to compute its gradient for others; never sent."""

    variables: Variables  # its personal layers and statistics
    data: Split
    key: jax.Array  # the same minibatch for all who ask


@method
class CGA(LocalSGD, Method):
    """Step in a direction that opposes no neighbour's gradient (`momentum` acts on that direction)."""

    topology: ClassVar[Topology] = "graph"
    sends: ClassVar[Sends] = {"ask": MODEL, "answer": GRADIENT, "mix": MODEL}
    newcomer: ClassVar[Newcomer] = "shared"

    def optimiser(self) -> optax.GradientTransformation:
        """Return plain SGD for the local steps: momentum belongs to the projected direction."""
        parts = [] if is_off(self.weight_decay) else [optax.add_decayed_weights(self.weight_decay)]
        return optax.chain(*parts, optax.scale_by_learning_rate(self.lr))

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Give every client the same fresh model and zero velocity."""
        variables = tree.broadcast(task.init(key), peers.ids.shape[0])
        velocity = () if is_off(self.momentum) else jax.tree.map(jnp.zeros_like, variables.params)
        return State(variables, velocity)

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Collect cross-gradients, project, mix and step."""

        def train(start: Any, own: Own) -> Trained:
            variables = Variables(task.join(start, own.variables.params), own.variables.statistics)
            return self.train(task, variables, own.data, own.key)

        def cross_gradient(start: Any, own: Own) -> Any:
            return tree.minus(start, task.shared(train(start, own).variables.params))

        shared = task.shared(state.variables.params)
        own = Own(state.variables, clients.train, peers.keys(key))
        trained: Trained = peers.each(train, shared, own)
        gradient = tree.minus(state.variables.params, trained.variables.params)  # alpha g_i, personal layers too
        rows, arrived = peers.ask(cross_gradient, shared, own)  # alpha G_i
        projected, multipliers = peers.each(self._project, task.shared(gradient), rows, arrived)

        direction = task.join(projected, gradient)
        if not is_off(self.momentum):
            direction = jax.tree.map(lambda v, g: self.momentum * v + g, state.velocity, direction)
        mixed = task.join(blend(peers, shared, peers.weights), state.variables.params)  # sum_j pi_ij x_j
        variables = Variables(tree.minus(mixed, direction), trained.variables.statistics)
        velocity = () if is_off(self.momentum) else direction
        return State(variables, velocity), Info(trained.loss, multipliers / (1 + multipliers.sum(1, keepdims=True)))

    def _project(self, gradient: Any, rows: Any, arrived: jax.Array) -> tuple[Any, jax.Array]:
        """Solve one client's quadratic program; rows that did not arrive or are not finite are left out."""
        leaves, structure = jax.tree.flatten(gradient)
        slots = arrived.shape[0]
        G = [a.reshape(slots, g.size) for a, g in zip(jax.tree.leaves(rows), leaves, strict=True)]  # one per leaf
        usable = arrived & jnp.isfinite(sum((a * a).sum(1) for a in G))
        G = [jnp.where(usable[:, None], a, 0) for a in G]
        Q = functools.reduce(jnp.add, [tree.product(a, a.T) for a in G])
        products = [tree.product(a, g.reshape(-1)) for a, g in zip(G, leaves, strict=True)]
        c = functools.reduce(jnp.add, products)
        u = nonnegative_qp(Q, c, usable)
        moved = [g + tree.product(u, a).reshape(g.shape) for a, g in zip(G, leaves, strict=True)]
        return jax.tree.unflatten(structure, moved), u  # g + G^T u
