"""Push-sum: averaging and learning over directed networks whose links come and go.

A client cannot know who hears it well enough to weigh what it receives, so the sender splits: it divides what it holds
by one more than the number of listeners it reaches in this step, sends each one part and keeps one. This is
z <- P z with columns of P that sum to one (P1): the total stays, but clients end with unequal shares of
it. A number that starts at one and travels the same way, the weight, measures the share, and z / w is the average.

What is not acknowledged stays with its sender, so that loss takes nothing from the total either. On this rest
- `average`: the mean of everyone's values (Kempe, Dobra, Gehrke 2003);
- `gradient_push`: stochastic gradient push, with a bias of the order of the learning rate where clients differ;
- `push_diging`: gradients are tracked (Nedic, Olshevsky, Shi 2017), and the bias is gone.

Every function takes the verbs (`Peers`) and trees of arrays `[C, ...]`; `network` makes the verbs for arrays of your
own. A `gradient` is a function `(models [C, ...], step) -> gradients [C, ...]`.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie.graphs.graph import Graph, require_connected
from coterie.numerics import tree
from coterie.peers.base import Peers
from coterie.peers.tables import make_tables
from coterie.peers.unmetered import Unmetered

__all__ = [
    "Frequencies",
    "Mass",
    "Order",
    "Seen",
    "Tracking",
    "average",
    "frequencies",
    "gradient_push",
    "gradient_step",
    "look",
    "network",
    "nothing_seen",
    "push_diging",
    "push_step",
    "ratio",
    "start",
    "tracking_start",
    "tracking_step",
]

Tree = Any
Order = Literal["before", "after", "authors"]
Gradient = Callable[[Tree, Any], Tree]


class Mass(NamedTuple):
    """What push-sum moves: each client's part of a total, and its weight."""

    value: Tree  # [C, ...]
    weight: jax.Array  # [C]


def network(graph: Graph, dtype: Any = jnp.float32) -> Unmetered:
    """Return the verbs for clients that all live here, in id order: what this module needs for arrays of your own."""
    require_connected(graph, "push-sum")
    tables = make_tables(graph, np.zeros(graph.neighbours.shape), dtype=np.dtype(dtype).type)
    return Unmetered(jax.tree.map(jnp.asarray, tables))


def start(peers: Peers, value: Tree) -> Mass:
    """Begin with weight one for every client."""
    return Mass(value, jnp.ones(peers.ids.shape[0], peers.weights.dtype))


def push_step(peers: Peers, mass: Mass, to: jax.Array) -> tuple[Mass, jax.Array]:
    """Split what each client holds over itself and those it reaches: z <- P z, w <- P w, one message a live link.

    Args:
        peers: the verbs.
        mass: what each client holds.
        to: `[C, L]`, whom each client tries to reach in this step, as `peers.links` draws it.

    Returns:
        What each client holds afterwards, and `arrived [C, D]`.
    """
    mass, arrived, _ = _split(peers, mass, to)
    return mass, arrived


def _split(peers: Peers, mass: Mass, to: jax.Array) -> tuple[Mass, jax.Array, jax.Array]:
    """Do a `push_step`; returns also which messages were acknowledged, `[C, L]`."""
    to = to & peers.tables.listening
    parts = 1 + to.sum(1)
    share = jax.tree.map(lambda a: a / _column(parts, a), mass)
    told = peers.squeeze(share)
    received, arrived, acked = peers.push(told, to)
    kept = 1 + (to & ~acked).sum(1)
    # A product that is added to something: sealed, so that its last bit does not depend on where clients live.
    own = peers.seal(jax.tree.map(lambda a: _column(kept, a) * a, share))
    if told.vector is not None:  # what a codec took off the parts that arrived stays here, too
        taken, reached = tree.minus(share, told.value), (to & acked).sum(1)
        own = tree.plus(own, peers.seal(jax.tree.map(lambda a: _column(reached, a) * a, taken)))
    return tree.plus(own, received), arrived, to & acked


def ratio(mass: Mass) -> Tree:
    """Return each client's estimate of the average, value / weight."""
    return jax.tree.map(lambda a: a / _column(mass.weight, a), mass.value)


def average(peers: Peers, x: Tree, key: jax.Array, steps: int) -> Tree:
    """Average everyone's `x [C, ...]` by so many steps of push-sum; the error shrinks geometrically."""

    def step(t: Any, mass: Mass) -> Mass:
        return push_step(peers, mass, _links(peers, key, t))[0]

    return ratio(peers.loop(steps, step, start(peers, x)))


# -- what a client sees of the network ------------------------------------------------------------------------------


class Frequencies(NamedTuple):
    """Means over the steps so far: what a client can know of the network without being told."""

    sent: jax.Array  # [C, L] the part of what it holds that went to each listener: an estimate of E[p_{i->j}]
    kept: jax.Array  # [C] the part it kept: of E[p_{i->i}]
    heard: jax.Array  # [C, D] how often each neighbour's message arrived: of the probability of that link
    weight: jax.Array  # [C] its weight: of w*, the Perron vector of E[P]


class Seen(NamedTuple):
    """Sums over steps, from which `frequencies` makes means."""

    total: Frequencies
    steps: jax.Array  # [C]


def nothing_seen(peers: Peers) -> Seen:
    """Begin to look."""
    (here, slots), (_, places), dtype = peers.present.shape, peers.tables.listening.shape, peers.weights.dtype
    total = Frequencies(*(jnp.zeros(shape, dtype) for shape in ((here, places), here, (here, slots), here)))
    return Seen(total, jnp.zeros(here, dtype))


def look(peers: Peers, seen: Seen, mass: Mass, to: jax.Array) -> tuple[Mass, Seen]:
    """Do a `push_step` and count what came of it."""
    mass, arrived, acked = _split(peers, mass, to)
    parts = 1 + (to & peers.tables.listening).sum(1)
    sent = acked / _column(parts, seen.total.sent)
    kept = (parts - acked.sum(1)) / parts
    new = Frequencies(sent, kept, arrived, mass.weight)
    total = jax.tree.map(lambda old, one: old + one.astype(old.dtype), seen.total, new)
    return mass, Seen(total, seen.steps + 1)


def frequencies(seen: Seen) -> Frequencies:
    """Return the means over the steps so far; they tend to `networks.expected_weights` and its Perron vector."""
    steps = jnp.maximum(seen.steps, 1)
    return jax.tree.map(lambda a: a / _column(steps, a), seen.total)


# -- stochastic gradient push ---------------------------------------------------------------------------------------


def gradient_step(
    peers: Peers, mass: Mass, move: Callable[[Tree], Tree], to: jax.Array, order: Order
) -> tuple[Mass, Tree]:
    """Do one step of stochastic gradient push; `move(models)` returns - lr g(models), or what local training did.

    Orders, with x = z / w:
        before   z <- P (z - lr g(x)), w <- P w                     (Assran et al. 2019, Algorithm 1)
        after    z <- P z, w <- P w, z <- z - lr g(z / w)           (Nedic and Olshevsky 2016)
        authors  z <- P z - lr g(x), w <- P w                       (what P1's program runs; less stable)
    "before" and "after" are one sequence, seen half a step apart: "after" must return z / w *between* its two halves,
    since after the second one clients disagree by their own gradients.

    Returns:
        What each client holds afterwards, and its model.
    """
    if order == "before":
        mass, _ = push_step(peers, Mass(tree.plus(mass.value, move(ratio(mass))), mass.weight), to)
        return mass, ratio(mass)
    if order == "after":
        mass, _ = push_step(peers, mass, to)
        model = ratio(mass)
        return Mass(tree.plus(mass.value, move(model)), mass.weight), model
    moved = move(ratio(mass))
    mass, _ = push_step(peers, mass, to)
    mass = Mass(tree.plus(mass.value, moved), mass.weight)
    return mass, ratio(mass)


def gradient_push(
    peers: Peers,
    x: Tree,
    gradient: Gradient,
    lr: float | Callable[[Any], Any],
    key: jax.Array,
    steps: int,
    order: Order = "before",
) -> Tree:
    """Minimise the sum of everyone's losses by stochastic gradient push.

    Args:
        peers: the verbs.
        x: where each client starts, `[C, ...]`.
        gradient: `(models, step) -> gradients`, each client's own.
        lr: the learning rate, or a function of the step.
        key: from which links are drawn.
        steps: how many; one message a live link each.
        order: see `gradient_step`.

    Returns:
        Each client's model: near the minimum of the sum, with an error of the order of lr.
    """

    def step(t: Any, carry: tuple[Mass, Tree]) -> tuple[Mass, Tree]:
        rate = lr(t) if callable(lr) else lr
        move = lambda models: peers.seal(tree.scale(-rate, gradient(models, t)))  # noqa: E731
        return gradient_step(peers, carry[0], move, _links(peers, key, t), order)

    return peers.loop(steps, step, (start(peers, x), x))[1]


# -- push-DIGing ----------------------------------------------------------------------------------------------------


class Tracking(NamedTuple):
    """What push-DIGing carries: u and w, the model u / w, the tracked mean gradient y and the client's own."""

    mass: Mass
    model: Tree
    mean_gradient: Tree
    gradient: Tree


def tracking_start(peers: Peers, x: Tree, gradient: Gradient) -> Tracking:
    """Begin at `x [C, ...]`: every client's y is its own gradient."""
    own = gradient(x, 0)
    return Tracking(start(peers, x), x, own, own)


def tracking_step(peers: Peers, state: Tracking, gradient: Gradient, lr: Any, to: jax.Array, step: Any) -> Tracking:
    """Do one step: u <- P (u - lr y), w <- P w, x <- u / w, y <- P y + g(x) - g(x before); one message a live link."""
    down = tree.minus(state.mass.value, peers.seal(tree.scale(lr, state.mean_gradient)))
    ((value, mean_gradient), weight), _ = push_step(peers, Mass((down, state.mean_gradient), state.mass.weight), to)
    mass = Mass(value, weight)
    model = ratio(mass)
    own = gradient(model, step)
    tracked = tree.plus(mean_gradient, tree.minus(own, state.gradient))
    return Tracking(mass, model, tracked, own)


def push_diging(peers: Peers, x: Tree, gradient: Gradient, lr: float, key: jax.Array, steps: int) -> Tree:
    """Minimise the sum of everyone's losses exactly, also where clients differ; `gradient` must not be random.

    The arguments are those of `gradient_push`; each message holds two models and a weight.
    """

    def step(t: Any, state: Tracking) -> Tracking:
        return tracking_step(peers, state, gradient, lr, _links(peers, key, t), t + 1)

    return peers.loop(steps, step, tracking_start(peers, x, gradient)).model


def _links(peers: Peers, key: jax.Array, step: Any) -> jax.Array:
    return peers.links(jax.random.fold_in(key, step), step)


def _column(values: jax.Array, like: jax.Array) -> jax.Array:
    """Reshape `[C]` so that it multiplies `like [C, ...]`, in its type."""
    return values.reshape(values.shape + (1,) * (like.ndim - values.ndim)).astype(like.dtype)
