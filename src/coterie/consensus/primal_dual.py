"""Exchanges with which gossip converges to the minimiser of the sum, although clients' losses differ.

Gossip with a constant step converges to W x - eta g(x) = x, which is off the minimiser of the sum by O(eta) when
clients differ. Three corrections, each with one exchange per round, for symmetric weights W whose rows sum to one
(x^r [C, ...] the clients' parameters, s^r = eta_r g^r their steps):

- `spd` (Lu et al. 2022, eq. 5): x^{r+1} = W (2 x^r - x^{r-1}) - (s^r - s^{r-1}), the primal-dual method with the
  multipliers of "all x_i are equal" eliminated, so that only the model is sent.
- `d2` (Tang et al. 2018): x^{r+1} = W (2 x^r - x^{r-1} - (s^r - s^{r-1})).
- `gnsd` (Lu et al. 2019), gradient tracking: x^{r+1} = W x^r - t^r with t^r = W t^{r-1} + s^r - s^{r-1}; twice the
  floats.

Two things are easy to get wrong; `Memory` takes care of them. The start: x^{-1} = x^0 and s^{-1} = 0, which gives
x^1 = W x^0 - s^0; with s^{-1} = s^0 the first gradient is lost for ever. And the term that is subtracted: exactly the
previous step, eta_{r-1} g^{r-1} with its own learning rate and its own minibatch. eta_r (g^r - g^{r-1}) leaves a drift
when the learning rate is annealed, and with a newly drawn gradient the sum of the differences is a random walk.

`spd` and `d2` are stable only if the smallest eigenvalue of W is above -1/3 (see `mixing.check_stable`), `gnsd` if it
is above -1. All three need every message: when one is lost its weight goes to the receiver, which makes W asymmetric
for that round, and the error in the correction stays.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from coterie.numerics import tree
from coterie.peers.base import Peers, blend

__all__ = ["Memory", "d2", "gnsd", "spd", "start", "start_tracking"]

Tree = Any


class Memory(NamedTuple):
    """Values of the previous round: x^{r-1} (`spd`, `d2`) or t^{r-1} (`gnsd`), and the step s^{r-1}."""

    before: Tree
    step: Tree


def start(x: Tree) -> Memory:
    """Return the memory of `spd` and `d2` before the first round: x^{-1} = x^0 and s^{-1} = 0."""
    return Memory(x, jax.tree.map(jnp.zeros_like, x))


def start_tracking(x: Tree) -> Memory:
    """Return the memory of `gnsd` before the first round: zeros, so that t^0 = s^0."""
    nothing = jax.tree.map(jnp.zeros_like, x)
    return Memory(nothing, nothing)


def spd(peers: Peers, x: Tree, memory: Memory, step: Tree) -> tuple[Tree, Memory]:
    """Exchange once: W (2 x^r - x^{r-1}) - (s^r - s^{r-1}).

    Args:
        peers: the verbs; `peers.weights` is W.
        x: `[C, ...]` the parameters x^r.
        memory: of the previous round.
        step: `[C, ...]` the local step to subtract, s^r = eta_r g^r(x^r).

    Returns:
        x^{r+1}, and the memory for the next round.
    """
    mixed = blend(peers, _extrapolated(x, memory.before), peers.weights)
    return tree.minus(mixed, tree.minus(step, memory.step)), Memory(x, step)


def d2(peers: Peers, x: Tree, memory: Memory, step: Tree) -> tuple[Tree, Memory]:
    """Exchange once: W (2 x^r - x^{r-1} - (s^r - s^{r-1})); arguments as in `spd`."""
    moved = tree.minus(_extrapolated(x, memory.before), tree.minus(step, memory.step))
    return blend(peers, moved, peers.weights), Memory(x, step)


def gnsd(peers: Peers, x: Tree, memory: Memory, step: Tree) -> tuple[Tree, Memory]:
    """Exchange once: t^r = W t^{r-1} + s^r - s^{r-1}, x^{r+1} = W x^r - t^r; arguments as in `spd`.

    Steps are tracked, not gradients, so that the mean of t^r is the mean of the steps for every learning rate. Model
    and tracker are both known when the round begins and share one message.
    """
    mixed, tracked = blend(peers, (x, memory.before), peers.weights)
    tracked = tree.plus(tracked, tree.minus(step, memory.step))
    return tree.minus(mixed, tracked), Memory(tracked, step)


def _extrapolated(x: Tree, before: Tree) -> Tree:
    return jax.tree.map(lambda now, old: (now + now) - old, x, before)  # a sum, since a product could be fused
