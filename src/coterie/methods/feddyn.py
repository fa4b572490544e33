"""FedAvg whose clients' losses are changed so that the best model of each is the best model of all.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama 2021, *Federated Learning Based on Dynamic Regularization*
(FedDyn), Algorithm 1. A client minimises its changed loss (a) and renews g_k, which is then the gradient of L_k at
theta_k (b); of m clients, those in P take part, and the hub keeps h (c) and sends theta^t (d):

    theta_k = argmin L_k(theta) - <g_k, theta> + alpha / 2 |theta - theta^{t-1}|^2         (a)
    g_k <- g_k - alpha (theta_k - theta^{t-1})                                             (b)
    h <- h - alpha / m sum_P (theta_k - theta^{t-1})                                       (c)
    theta^t = mean over P of theta_k - h / alpha                                           (d)

The letters are ours. Nothing had to be inferred. (PFLlib's program has the norm in (a) without the square.)

Changed: a client makes the local steps of the settings where the paper solves its problem exactly; clients count by
their number of samples, as in `fedavg`, so that the fixed point is the minimiser of the loss over all samples. Every
client keeps a copy of h: it follows from the means that the hub sends. A client whose answer from the hub was lost
keeps its old copies.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from coterie.data.clients import Clients, Split
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Topology, Tunes, method
from coterie.methods.shared.hub import HubSGD
from coterie.methods.shared.tied import combine, pad_personal
from coterie.numerics import tree
from coterie.peers.base import Peers
from coterie.spec import param

__all__ = ["FedDyn"]


class State(NamedTuple):
    """Each client's copies of the hub's model and of h, its own gradient g_k, and its loss."""

    variables: Variables
    correction: Any
    gradient: Any
    loss: jax.Array


@method
class FedDyn(HubSGD):
    """FedAvg with dynamic regularisation."""

    topology: ClassVar[Topology] = "hub"
    alone_is_sgd: ClassVar[bool] = False  # a hub with one client steps twice as far: theta_1 - h / alpha
    tunes: ClassVar[Tunes] = {"alpha": (0.01, 0.1, 1.0)}
    alpha: float = param(0.1, "strength of the dynamic regularisation", above=0)

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Give every client the same fresh model; g_k and h start at zero."""
        here = peers.ids.shape[0]
        variables = tree.broadcast(task.init(key), here)
        zero = jax.tree.map(jnp.zeros_like, task.shared(variables.params))
        return State(variables, zero, zero, jnp.zeros(here, task.dtype))

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Train on the changed losses at the selected clients, average, correct the mean by h."""

        def work(start: Variables, gradient: Any, data: Split, key: jax.Array) -> tuple:
            anchor = task.shared(start.params)  # theta^{t-1}

            def pull(params: Any) -> Any:  # (a): alpha (theta - theta^{t-1}) - g_k
                tied = tree.scale(self.alpha, tree.minus(task.shared(params), anchor))
                return pad_personal(task, tree.minus(tied, gradient), params)

            trained = self.train(task, start, data, key, pull=pull)
            moved = tree.minus(task.shared(trained.variables.params), anchor)
            return trained.variables, tree.minus(gradient, tree.scale(self.alpha, moved)), trained.loss  # (b)

        otherwise, stacked = (state.variables, state.gradient, state.loss), (state.variables, state.gradient)
        chosen, (trained, gradient, loss) = self.take_part(peers, key, work, otherwise, *stacked, clients.train)

        before, one = task.shared(state.variables.params), jnp.ones_like(loss)
        mean, arrived = peers.mean(task.shared(trained.params), self.weight(task, clients, chosen))
        step = -self.alpha * self.share_taking_part(peers) * one
        correction = combine(peers, state.correction, (step, tree.minus(mean, before)))  # (c)
        shared = combine(peers, mean, (-one / self.alpha, correction))  # (d)
        shared, correction = tree.where(arrived, (shared, correction), (before, state.correction))
        variables = Variables(task.join(shared, trained.params), trained.statistics)
        return State(variables, correction, gradient, loss), Info(loss)
