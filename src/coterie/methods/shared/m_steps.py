"""The M-steps of the SCooL methods: how the neighbours move a client's model, once their weights are known.

Equations are those of Li, Zhou, Tian, Tao 2024; which of them is used when, and why, is in `scool.py`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax

from coterie.data.clients import Clients, Split
from coterie.learning.task import Task, Variables
from coterie.numerics import tree
from coterie.peers.base import Peers, blend

__all__ = ["OwnSamples", "descend", "loss_on", "mix", "move"]


class OwnSamples(NamedTuple):
    """The samples and personal layers with which a client evaluates the models of others; never sent."""

    x: jax.Array
    y: jax.Array
    mask: jax.Array
    variables: Variables


def loss_on(task: Task, shared: Any, samples: OwnSamples, train: bool = False) -> jax.Array:
    """Return the loss of shared layers on a client's samples, with its own personal layers."""
    params = task.join(shared, samples.variables.params)
    return task.loss(params, samples.variables.statistics, samples.x, samples.y, samples.mask, None, train)[0]


def move(peers: Peers, before: Any, pseudo: Any, slots: jax.Array, own: jax.Array, coupling: Any = None) -> Any:
    """Move along the own and the neighbours' pseudo-gradients: theta_i - sum_j wt_ij g_j (eq. 20 with C.1).

    A Gaussian prior that ties neighbours (eq. 11 to 14) adds `theta_i - sum_j W_ij theta_j` with `coupling = W`
    `[C, D]`: with no weight on the neighbours' data this is D-PSGD, `gossip-sgd` in the order "mix-and-step".
    """
    mixed, _ = peers.mix(pseudo, slots)
    scaled = peers.seal(jax.tree.map(lambda g: tree.column(own, g) * g, pseudo))
    moved = tree.minus(before, tree.plus(scaled, mixed))
    if coupling is None:
        return moved
    return tree.plus(moved, tree.minus(blend(peers, before, coupling), before))


def mix(peers: Peers, after: Any, slots: jax.Array, own: jax.Array) -> Any:
    """Mix the trained models: theta_i <- wt_ii theta_i' + sum_j wt_ij theta_j'; a lost model's weight goes to mine."""
    mixed, _ = peers.mix(after, slots)
    return tree.plus(peers.seal(tree.times(own, after)), mixed)


def descend(
    task: Task,
    start: Any,
    variables: Variables,
    weights: tuple[jax.Array, jax.Array],
    draw: Callable[[Variables, Split, jax.Array], OwnSamples],
    optimiser: optax.GradientTransformation,
    steps: int,
    peers: Peers,
    clients: Clients,
    key: jax.Array,
) -> Any:
    """Follow wt_ii grad L(D_i; theta_i) + sum_j wt_ij grad L(D_j; theta_i), eq. (20), in rows that sum to one.

    Args:
        task: what is learned.
        start: the shared layers `[C, ...]` to begin with.
        variables: the clients' models, for their personal layers.
        weights: of the slots `[C, D]`, and of the client's own data `[C]`.
        draw: draws a minibatch of a client's training data, anew in every step.
        optimiser: its memory begins anew, too, with every call.
        steps: how many.
        peers: the neighbours, who are asked for gradients.
        clients: the data.
        key: of the draws.
    """
    slots, own_share = weights

    def slope(shared: Any, samples: OwnSamples) -> Any:
        return jax.grad(lambda s: loss_on(task, s, samples, train=True))(shared)

    def update(gradient: Any, memory: Any, shared: Any) -> tuple[Any, Any]:
        change, memory = optimiser.update(gradient, memory, shared)
        return optax.apply_updates(shared, change), memory

    def step(number: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        shared, memory = carry
        samples = peers.each(draw, variables, clients.train, peers.keys(jax.random.fold_in(key, number)))
        others, _ = peers.ask(slope, shared, samples, slots)
        own = peers.each(slope, shared, samples)
        gradient = jax.tree.map(lambda g, h: tree.column(own_share, g) * g + h, own, others)
        return peers.each(update, gradient, memory, shared)

    return peers.loop(steps, step, (start, jax.vmap(optimiser.init)(start)))[0]
