"""Each client's model is a mixture of a model of its own and the shared one, in a proportion that it learns.

Deng, Kamani, Mahdavi 2020, *Adaptive Personalized Federated Learning* (APFL), Algorithm 1. Client i uses vbar = alpha v
+ (1 - alpha) w, where w is its copy of the shared model, trained by federated averaging, and v its own. In every local
step, all from the values before it,

    w <- w - eta grad f(w),   v <- v - eta alpha grad f(vbar),   alpha <- alpha - eta <v - w, grad f(vbar)>   (a),

and alpha is kept in [0, 1]. Only w is sent. The letter is ours.

Inferred: alpha follows its gradient in every local step, with a step size of its own. The authors' program (FedTorch)
does so once per round, in the first local step, adds 0.02 alpha to the gradient, and mixes the outputs of both models
where the paper, and this file, mix their parameters. `adaptive = false` keeps alpha as it is.
"""

from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp

from coterie.data.clients import Clients, Split
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Topology, Tunes, method
from coterie.methods.shared.hub import HubSGD
from coterie.numerics import tree
from coterie.peers.base import Peers
from coterie.spec import param
from coterie.traced import changed

__all__ = ["APFL"]


class Pair(NamedTuple):
    """A client's copy of the shared model (w) and its own model (v), or their statistics."""

    shared: Any
    own: Any


class State(NamedTuple):
    """The parameters w and v, their statistics (of w and of the mixture), alpha, and the loss of the mixture."""

    params: Pair
    statistics: Pair
    alpha: jax.Array
    loss: jax.Array


@method
class APFL(HubSGD):
    """A learned mixture of an own model and the shared one."""

    topology: ClassVar[Topology] = "hub"
    tunes: ClassVar[Tunes] = {"alpha": (0.1, 0.5, 0.9)}
    alpha: float = param(0.5, "share of the client's own model in the mixture, at the start", at_least=0, at_most=1)
    adaptive: bool = param(True, "whether alpha follows its gradient (a)")
    alpha_lr: float = param(0.05, "step size of alpha", above=0)

    def plain(self) -> Self:
        """See `Method.plain`: with alpha = 1 a client uses its own model alone."""
        return changed(super().plain(), alpha=1.0, adaptive=False)

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Start w and v from the same fresh model."""
        here = peers.ids.shape[0]
        fresh, zero = tree.broadcast(task.init(key), here), jnp.zeros(here, task.dtype)
        return State(
            Pair(fresh.params, fresh.params), Pair(fresh.statistics, fresh.statistics), zero + self.alpha, zero
        )

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Step on w, v and alpha at the selected clients; average w at the hub."""
        follow = jax.value_and_grad(task.loss, has_aux=True)

        def slope(params: Pair, carried: tuple[Pair, jax.Array], *batch: Any) -> tuple:
            statistics, alpha = carried
            (_, shared_statistics), shared_gradient = follow(params.shared, statistics.shared, *batch)
            mixture = mix(alpha, params)
            (loss, own_statistics), gradient = follow(mixture, statistics.own, *batch)  # grad f(vbar)
            statistics = Pair(shared_statistics, own_statistics)
            if self.adaptive:
                along = tree.dot(tree.minus(params.own, params.shared), gradient)
                renewed = jnp.clip(alpha - self.alpha_lr * along, 0, 1).astype(alpha.dtype)  # (a)
            else:
                renewed = alpha
            return (loss, (statistics, renewed)), Pair(shared_gradient, tree.scale(alpha, gradient))

        def work(params: Pair, statistics: Pair, alpha: jax.Array, data: Split, key: jax.Array) -> State:
            trained = self.train(task, Variables(params, (statistics, alpha)), data, key, slope=slope)
            statistics, alpha = trained.variables.statistics
            return State(trained.variables.params, statistics, alpha, trained.loss)

        stacked = (state.params, state.statistics, state.alpha, clients.train)
        chosen, trained = self.take_part(peers, key, work, state, *stacked)
        shared = self.mean_of_models(
            task, peers, clients, chosen, task.shared(state.params.shared), Variables(trained.params.shared)
        )
        params = Pair(task.join(shared, trained.params.shared), trained.params.own)
        return trained._replace(params=params), Info(trained.loss, counts={"own_share": trained.alpha})

    def common(self, task: Task, state: State) -> Variables:
        """Return the copies of the shared model."""
        return Variables(state.params.shared, state.statistics.shared)

    def models(self, state: State) -> Variables:
        """Return the mixtures."""
        return Variables(jax.vmap(mix)(state.alpha, state.params), state.statistics.own)


def mix(alpha: jax.Array, params: Pair) -> Any:
    """Return vbar = alpha v + (1 - alpha) w of one client."""
    return jax.tree.map(lambda w, v: alpha * v + (1 - alpha) * w, *params)
