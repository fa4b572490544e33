"""What SCooL's clients know of each other before weights are inferred: whose model is good on whose samples.

Ten samples say little about a pair. Where clients train alone until weights are held, their models change slowly, so
the losses of earlier rounds count, too; that costs no message. There a client also judges its own model on validation
samples, which it has not seen, as it has not seen the others' samples: on its training samples every client looks
better to itself than anybody else does, and would keep to itself.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from coterie.data.clients import Clients, Split
from coterie.learning.task import Task, Variables
from coterie.methods.shared.m_steps import OwnSamples, loss_on
from coterie.methods.shared.neighbours import ENOUGH, mean_loss
from coterie.numerics import tree
from coterie.peers.base import Peers

__all__ = ["Evidence", "Heard", "averaged", "gather", "judged_fairly", "nothing_heard", "squared"]


class Evidence(NamedTuple):
    """The input of the E-step: losses of a client's model on the neighbours' data and on its own."""

    losses: jax.Array  # [C, D] mean cross-entropy of neighbour j's samples under my model
    arrived: jax.Array  # [C, D] a finite answer arrived
    own_loss: jax.Array  # [C] my model on my samples
    baseline: jax.Array  # [C] the loss of guessing uniformly among my labels


class Heard(NamedTuple):
    """Sums over rounds of losses and of how many there were; a round counts a little less than the one after it."""

    losses: jax.Array  # [C, D]
    answers: jax.Array  # [C, D]
    own_losses: jax.Array  # [C]
    own_answers: jax.Array  # [C]


def gather(task: Task, moved: Any, samples: OwnSamples, peers: Peers, clients: Clients) -> Evidence:
    """Ask the neighbours for the loss of my model on their data; they use their own personal layers."""

    def evaluate(shared: Any, samples: OwnSamples) -> jax.Array:
        return loss_on(task, shared, samples)

    losses, arrived = peers.ask(evaluate, moved, samples)  # L(D_j; theta_i)
    own_loss = peers.each(evaluate, moved, samples)
    labels = clients.labels.sum(1) if task.kind == "classification" else jnp.full(len(own_loss), task.outputs)
    arrived = arrived & jnp.isfinite(losses)  # a loss that is not finite counts as no answer
    baseline = jnp.log(jnp.maximum(labels, 2).astype(task.dtype))
    return Evidence(jnp.where(arrived, losses, 0), arrived, own_loss, baseline)


def judged_fairly(task: Task, trained: Variables, evidence: Evidence, peers: Peers, clients: Clients) -> Evidence:
    """Return the evidence with each client's own loss on its validation samples, where it has enough of them."""

    def judged(trained: Variables, validation: Split, on_training: jax.Array) -> jax.Array:
        return jnp.where(validation.count >= ENOUGH, mean_loss(task, trained, validation), on_training)

    return evidence._replace(own_loss=peers.each(judged, trained, clients.validation, evidence.own_loss))


def nothing_heard(slots: jax.Array) -> Heard:
    """Return the sums before the first round, for slots that are zero."""
    return Heard(slots, jnp.zeros_like(slots), *jnp.zeros((2, slots.shape[0]), slots.dtype))


def averaged(evidence: Evidence, heard: Heard, memory: float | jax.Array, peers: Peers) -> tuple[Evidence, Heard]:
    """Return the losses as averages over all rounds so far, and their sums; what is not finite does not count."""
    usable = jnp.isfinite(evidence.own_loss)
    new = Heard(evidence.losses, evidence.arrived, jnp.where(usable, evidence.own_loss, 0), usable)
    earlier = peers.seal(jax.tree.map(lambda total: memory * total, heard))
    heard = jax.tree.map(lambda total, now: total + now.astype(total.dtype), earlier, new)
    arrived = heard.answers > 0
    losses = jnp.where(arrived, heard.losses / tree.divisor(heard.answers), 0)
    own_loss = jnp.where(heard.own_answers > 0, heard.own_losses / tree.divisor(heard.own_answers), evidence.own_loss)
    return evidence._replace(losses=losses, arrived=arrived, own_loss=own_loss), heard


def squared(losses: jax.Array, answered: jax.Array, neighbours: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return all clients' losses at their neighbours `[K, D]` as a matrix `[K, K]`, zero where there is none, and where
    there is one."""
    place = (jnp.arange(len(losses))[:, None], neighbours)
    square = jnp.zeros((len(losses), len(losses)), losses.dtype)
    known = jnp.zeros(square.shape, bool).at[place].max(answered)
    return square.at[place].add(jnp.where(answered, losses, 0)), known
