"""Personal models near a shared one, where the shared one is trained to have good personal models near it.

T Dinh, Tran and Nguyen 2020, Algorithm 1: the loss of the shared model w at client k is a Moreau envelope,

    F_k(w) = min_theta f_k(theta) + (lambda/2) |theta - w|^2,      grad F_k(w) = lambda (w - theta_k(w)),

so a client computes its personal model theta_k near its copy of w (local training with a pull, starting at the copy)
and moves the copy by -eta lambda (w - theta_k), `inner_rounds` times (eta lambda is one number here, `shared_step`);
the hub then averages the copies, w <- (1 - beta) w + beta mean. `lr`, `epochs`, `steps` and `batch_size` are those of
the training of theta_k, which draws a new minibatch in each step where the authors keep one. Clients not selected in a
round do nothing, where the authors let them train. The defaults were best on validation samples of two partitions of
the digits, with one epoch per round as for other methods (the authors': lambda = 15, eta lambda = 0.075, 20 inner
rounds).
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from coterie.data.clients import Clients, Split
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Topology, Tunes, method
from coterie.methods.sends import MODEL, Sends
from coterie.methods.shared.hub import HubSGD
from coterie.methods.shared.tied import combine, pad_personal
from coterie.numerics import tree
from coterie.peers.base import Peers
from coterie.spec import param

__all__ = ["PFedMe"]


class State(NamedTuple):
    """Each client's copy of the shared parameters, its personal model, and its loss."""

    shared: Any
    personal: Variables
    loss: jax.Array


@method
class PFedMe(HubSGD):
    """Personal models near a shared one, with Moreau envelopes."""

    topology: ClassVar[Topology] = "hub"
    sends: ClassVar[Sends] = {"mean": MODEL}
    tunes: ClassVar[Tunes] = {"tie": (0.1, 1.0, 10.0)}
    tie: float = param(1.0, "strength of the tie of the personal model to the shared one (lambda)", above=0)
    shared_step: float = param(
        1.0, "step of the copy of the shared model towards the personal one (eta lambda)", above=0, below=2
    )
    inner_rounds: int = param(1, "steps of the copy per round, each with a new personal model (R)", at_least=1)
    beta: float = param(1.0, "step of the hub from the old shared model to the mean of the copies", above=0)

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Start shared and personal models from the same fresh model."""
        here = peers.ids.shape[0]
        fresh = tree.broadcast(task.init(key), here)
        return State(task.shared(fresh.params), fresh, jnp.zeros(here, task.dtype))

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Move the clients' copies by the gradients of their envelopes, average them at the hub."""

        def work(copy: Any, personal: Variables, data: Split, key: jax.Array) -> tuple[Any, Variables, jax.Array]:
            def inner(r: jax.Array, carry: tuple) -> tuple:
                copy, personal, _ = carry

                def pull(params: Any) -> Any:  # lambda (theta - w), on the shared layers
                    return pad_personal(task, tree.scale(self.tie, tree.minus(task.shared(params), copy)), params)

                trained = self.train(task, personal, data, jax.random.fold_in(key, r), pull=pull)
                theta = task.shared(trained.variables.params)
                copy = tree.minus(copy, tree.scale(self.shared_step, tree.minus(copy, theta)))
                return copy, trained.variables, trained.loss

            start = personal._replace(params=task.join(copy, personal.params))
            return lax.fori_loop(0, self.inner_rounds, inner, (copy, start, jnp.zeros((), task.dtype)))

        choice_key, work_key = jax.random.split(key)
        chosen = self.choose(peers, choice_key)
        copies, personal, loss = peers.each_of(
            chosen, self.participants(peers), work, tuple(state), *state[:2], clients.train, peers.keys(work_key)
        )
        mean, arrived = peers.mean(copies, jnp.where(chosen, 1, 0).astype(task.dtype))
        beta = self.beta * jnp.ones_like(loss)
        shared = combine(peers, state.shared, (beta, tree.minus(mean, state.shared)))
        shared = tree.where(arrived, shared, state.shared)  # no answer: keep the old copy
        return State(shared, personal, loss), Info(loss)

    def common(self, task: Task, state: State) -> Variables:
        """Return the copies of the shared model, with the client's own personal layers."""
        return state.personal._replace(params=task.join(state.shared, state.personal.params))

    def models(self, state: State) -> Variables:
        """Return the personal models."""
        return state.personal
