"""Push-sum: averaging and learning over directed networks with random or scheduled links.

On a directed network a receiver cannot weigh its messages so that the weights of every sender sum to one. So the sender
divides: it splits its value into equal parts, one per listener that it reaches in this step and one for itself. This is
z <- P z with columns of P that sum to one (Terashita and Hara 2023): the total is preserved, but clients end with
unequal shares of it. The weight, a number that starts at one and is pushed in the same way, measures the share, and
z / w is the average.

Parts that are not acknowledged stay with their sender, so that lost messages preserve the total, too. A client that
sends more often than it hears loses its weight by and by; in gradient push, whose step in the model is lr / w, such a
client waits before it sends again (`enough`). This gives
- `average`: the mean of all clients' values (Kempe, Dobra and Gehrke 2003);
- `gradient_push`: stochastic gradient push, with a bias of the order of the learning rate where clients differ;
- `push_diging`: gradient tracking (Nedic, Olshevsky and Shi 2017), without that bias.

Every function takes the verbs (`Peers`) and trees of arrays `[C, ...]`; `network` makes the verbs for your own arrays.
A `gradient` is a function `(models [C, ...], step) -> gradients [C, ...]`.
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
    "LEAST_WEIGHT",
    "Frequencies",
    "Mass",
    "Order",
    "Seen",
    "Tracking",
    "average",
    "enough",
    "frequencies",
    "gradient_push",
    "gradient_step",
    "network",
    "nothing_seen",
    "observe_push",
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
# Below it a client of gradient push does not send. The mean of all weights is one. At one half rounding would decide:
# after a few steps many weights are such fractions.
LEAST_WEIGHT = 0.45


class Mass(NamedTuple):
    """Each client's share of the total, and its weight."""

    value: Tree  # [C, ...]
    weight: jax.Array  # [C]


def network(graph: Graph, dtype: Any = jnp.float32) -> Unmetered:
    """Return the verbs for clients that are all simulated here, in id order: for your own arrays."""
    require_connected(graph, "push-sum")
    tables = make_tables(graph, np.zeros(graph.neighbours.shape), dtype=np.dtype(dtype).type)
    return Unmetered(jax.tree.map(jnp.asarray, tables))


def start(peers: Peers, value: Tree) -> Mass:
    """Begin with weight one for every client."""
    return Mass(value, jnp.ones(peers.ids.shape[0], peers.weights.dtype))


def push_step(peers: Peers, mass: Mass, to: jax.Array) -> tuple[Mass, jax.Array]:
    """Split each client's mass over itself and the listeners it reaches: z <- P z, w <- P w, one message per live link.

    Args:
        peers: the verbs.
        mass: of each client.
        to: `[C, L]`, the listeners that each client tries to reach in this step, as `peers.links` draws them.

    Returns:
        The new mass of each client, and `arrived [C, D]`.
    """
    mass, arrived, _ = _split(peers, mass, to)
    return mass, arrived


def _split(peers: Peers, mass: Mass, to: jax.Array) -> tuple[Mass, jax.Array, jax.Array]:
    """Do a `push_step`; also returns which messages were acknowledged, `[C, L]`."""
    to = to & peers.tables.listening
    parts = 1 + to.sum(1)
    share = tree.divide(mass, parts)
    encoded = peers.squeeze(share)
    received, arrived, acked = peers.push(encoded, to, mass=lambda message: message.weight)
    kept = 1 + (to & ~acked).sum(1)
    # Products before a sum are sealed, so that their last bit does not depend on where clients live.
    own = peers.seal(tree.times(kept, share))
    if encoded.vector is not None:  # the codec's error in the parts that arrived stays here, too
        error, reached = tree.minus(share, encoded.value), (to & acked).sum(1)
        own = tree.plus(own, peers.seal(tree.times(reached, error)))
    return tree.plus(own, received), arrived, to & acked


def ratio(mass: Mass) -> Tree:
    """Return each client's estimate of the average, value / weight."""
    return tree.divide(mass.value, mass.weight)


def average(peers: Peers, x: Tree, key: jax.Array, steps: int) -> Tree:
    """Average `x [C, ...]` over all clients by `steps` steps of push-sum; the error shrinks geometrically."""

    def step(t: Any, mass: Mass) -> Mass:
        return push_step(peers, mass, _links(peers, key, t))[0]

    return ratio(peers.loop(steps, step, start(peers, x)))


# -- what a client observes of the network --------------------------------------------------------------------------


class Frequencies(NamedTuple):
    """Means over the steps so far, which a client can observe without extra messages."""

    sent: jax.Array  # [C, L] the share of its mass that went to each listener: estimates E[p_{i->j}]
    kept: jax.Array  # [C] the share it kept: estimates E[p_{i->i}]
    heard: jax.Array  # [C, D] how often each neighbour's message arrived: estimates the probability of that link
    weight: jax.Array  # [C] its weight: estimates w*, the Perron vector of E[P]


class Seen(NamedTuple):
    """Sums over steps, of which `frequencies` returns the means."""

    total: Frequencies
    steps: jax.Array  # [C]


def nothing_seen(peers: Peers) -> Seen:
    """Return sums over no steps."""
    (here, slots), (_, places), dtype = peers.present.shape, peers.tables.listening.shape, peers.weights.dtype
    total = Frequencies(*(jnp.zeros(shape, dtype) for shape in ((here, places), here, (here, slots), here)))
    return Seen(total, jnp.zeros(here, dtype))


def observe_push(peers: Peers, seen: Seen, mass: Mass, to: jax.Array) -> tuple[Mass, Seen]:
    """Do a `push_step` and add what each client observes of it to the sums."""
    mass, arrived, acked = _split(peers, mass, to)
    parts = 1 + (to & peers.tables.listening).sum(1)
    sent = tree.divide(acked.astype(seen.total.sent.dtype), parts)
    kept = (parts - acked.sum(1)) / parts
    new = Frequencies(sent, kept, arrived, mass.weight)
    total = jax.tree.map(lambda old, one: old + one.astype(old.dtype), seen.total, new)
    return mass, Seen(total, seen.steps + 1)


def frequencies(seen: Seen) -> Frequencies:
    """Return the means over the steps so far; they tend to `directed.expected_weights` and its Perron vector."""
    return tree.divide(seen.total, jnp.maximum(seen.steps, 1))


# -- stochastic gradient push ---------------------------------------------------------------------------------------


def enough(mass: Mass, to: jax.Array, least: Any = LEAST_WEIGHT) -> jax.Array:
    """Return the listeners `to` without those of clients whose weight is below `least`: these send nothing now.

    The model of gradient push moves by lr / w times the gradient, so that a tiny weight blows it up. A client that
    reaches others in every step and is rarely reached halves its weight again and again, to 1e-6 and less on a sparse
    network that loses messages. If it waits until it has heard enough, no weight falls below
    least / (1 + its listeners), because a client that sends keeps one of at most so many parts. A client that waits
    keeps all of its mass, so that columns of P still sum to one and the total is preserved; and everyone's gradient
    still enters the total once per step and with the same factor, so that the minimum of the *sum* is approached as
    before. A step cut short at small weights would preserve neither: it would give those clients less say.

    Somebody can always send if least is at most one, the mean of all weights.
    """
    return to & (mass.weight >= least)[:, None]


def gradient_step(
    peers: Peers, mass: Mass, move: Callable[[Tree], Tree], to: jax.Array, order: Order
) -> tuple[Mass, Tree]:
    """Do one step of stochastic gradient push; `move(models)` returns -lr g(models), or the change by local training.

    Orders, with x = z / w:
        before   z <- P (z - lr g(x)), w <- P w                     (Assran et al. 2019, Algorithm 1)
        after    z <- P z, w <- P w, z <- z - lr g(z / w)           (Nedic and Olshevsky 2016)
        authors  z <- P z - lr g(x), w <- P w                       (the program of Terashita and Hara; less stable)
    "before" and "after" are the same sequence, shifted by half a step: "after" must return z / w *between* its two
    halves, since after the second one clients differ by their own gradients.

    Returns:
        The new mass of each client, and its model.
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
    least_weight: float = LEAST_WEIGHT,
) -> Tree:
    """Minimise the sum of all clients' losses by stochastic gradient push.

    Args:
        peers: the verbs.
        x: each client's start, `[C, ...]`.
        gradient: `(models, step) -> gradients`, of each client's own loss.
        lr: the learning rate, or a function of the step.
        key: of the random links.
        steps: number of steps, each with one message per live link.
        order: see `gradient_step`.
        least_weight: a client below it waits before it sends (`enough`); 0: as published.

    Returns:
        Each client's model: near the minimum of the sum, with an error of the order of lr.
    """

    def step(t: Any, carry: tuple[Mass, Tree]) -> tuple[Mass, Tree]:
        rate = lr(t) if callable(lr) else lr
        move = lambda models: peers.seal(tree.scale(-rate, gradient(models, t)))  # noqa: E731
        return gradient_step(peers, carry[0], move, enough(carry[0], _links(peers, key, t), least_weight), order)

    return peers.loop(steps, step, (start(peers, x), x))[1]


# -- push-DIGing ----------------------------------------------------------------------------------------------------


class Tracking(NamedTuple):
    """The state of push-DIGing: u and w, the model u / w, the tracked mean gradient y and the client's own gradient."""

    mass: Mass
    model: Tree
    mean_gradient: Tree
    gradient: Tree


def tracking_start(peers: Peers, x: Tree, gradient: Gradient) -> Tracking:
    """Start at `x [C, ...]`: every client's y is its own gradient."""
    own = gradient(x, 0)
    return Tracking(start(peers, x), x, own, own)


def tracking_step(peers: Peers, state: Tracking, gradient: Gradient, lr: Any, to: jax.Array, step: Any) -> Tracking:
    """Do one step: u <- P (u - lr y), w <- P w, x <- u / w, y <- P y + g(x) - g(old x); one message per live link."""
    down = tree.minus(state.mass.value, peers.seal(tree.scale(lr, state.mean_gradient)))
    ((value, mean_gradient), weight), _ = push_step(peers, Mass((down, state.mean_gradient), state.mass.weight), to)
    mass = Mass(value, weight)
    model = ratio(mass)
    own = gradient(model, step)
    tracked = tree.plus(mean_gradient, tree.minus(own, state.gradient))
    return Tracking(mass, model, tracked, own)


def push_diging(peers: Peers, x: Tree, gradient: Gradient, lr: float, key: jax.Array, steps: int) -> Tree:
    """Minimise the sum of all clients' losses exactly, also where clients differ; `gradient` must not be random.

    The arguments are those of `gradient_push`; each message contains two models and a weight.
    """

    def step(t: Any, state: Tracking) -> Tracking:
        return tracking_step(peers, state, gradient, lr, _links(peers, key, t), t + 1)

    return peers.loop(steps, step, tracking_start(peers, x, gradient)).model


def _links(peers: Peers, key: jax.Array, step: Any) -> jax.Array:
    return peers.links(jax.random.fold_in(key, step), step)
