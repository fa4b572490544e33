"""FedAvg whose local steps are corrected for the drift of clients that differ.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh 2020, *SCAFFOLD: Stochastic Controlled Averaging for Federated Learning*,
Algorithm 1. The hub and every client keep a control variate, an estimate of their gradient, c and c_i. From the hub's
model x a client makes K steps (a), renews c_i by option I or II (b), and the hub moves x (c) and its own c (d):

    y_i <- y_i - eta (g_i(y_i) - c_i + c)                                                            (a)
    c_i+ = g_i(x)                                  (option I, `renew = "gradient"`)                  (b)
    c_i+ = c_i - c + (x - y_i) / (K eta)           (option II, `renew = "path"`)                     (b)
    x <- x + eta_g / |S| sum_S (y_i - x)                                                             (c)
    c <- c + 1 / N sum_S (c_i+ - c_i) = c + |S| / N times their mean                                 (d)

The letters are ours. Nothing had to be inferred.

Changed: clients count by their number of samples, as in `fedavg`, so that the fixed point is the minimiser of the loss
over all samples; the paper's means are plain (`counts = "clients"`). Option II needs plain steps, so momentum and
other local optimisers are refused. A client whose answer from the hub was lost keeps its old copies of x and c.
"""

from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from coterie.data.clients import Clients, Federation, Split
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Topology, method
from coterie.methods.sends import CHANGE, MODEL_AND_COUNT, Sending, Sends
from coterie.methods.shared.hub import HubSGD
from coterie.methods.shared.neighbours import mean_loss
from coterie.methods.shared.tied import combine, pad_personal
from coterie.numerics import tree
from coterie.peers.base import Peers
from coterie.spec import param

__all__ = ["Scaffold"]


class State(NamedTuple):
    """Each client's copies of the hub's model and control variate, its own control variate, and its loss."""

    variables: Variables
    control: Any
    own_control: Any
    loss: jax.Array


@method
class Scaffold(HubSGD):
    """FedAvg with control variates against client drift."""

    topology: ClassVar[Topology] = "hub"
    sends: ClassVar[Sends] = {
        "mean": Sending(f"{MODEL_AND_COUNT.what}, and the change of its mean gradient", CHANGE.leaks)
    }
    hub_lr: float = param(1.0, "step of the hub towards the mean of the clients' models (eta_g)", above=0)
    renew: Literal["path", "gradient"] = param(
        "path", "a client's control variate: the mean gradient along its path (option II), or at the hub's model (I)"
    )

    counts: Literal["samples", "clients"] = param(
        "samples", "what a client counts for at the hub: its number of samples, or 1 as in the paper", left_out=True
    )

    def weight(self, task: Task, clients: Clients, chosen: jax.Array) -> jax.Array:
        """See `HubSGD.weight`."""
        if self.counts == "clients":
            return chosen.astype(task.dtype)
        return super().weight(task, clients, chosen)

    def check(self, task: Task, federation: Federation) -> None:
        """Refuse optimisers whose steps are not multiples of gradients."""
        self.refuse_other_steps("scaffold")

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Give every client the same fresh model; all control variates start at zero."""
        here = peers.ids.shape[0]
        variables = tree.broadcast(task.init(key), here)
        zero = jax.tree.map(jnp.zeros_like, task.shared(variables.params))
        return State(variables, zero, zero, jnp.zeros(here, task.dtype))

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Train with corrected steps at the selected clients; average models and changes of the control variates."""

        def work(start: Variables, control: Any, own: Any, data: Split, key: jax.Array) -> tuple:
            correction = pad_personal(task, tree.minus(control, own), start.params)  # c - c_i
            trained = self.train(task, start, data, key, pull=lambda params: correction)  # (a)
            if self.renew == "gradient":  # (b), option I

                def loss(shared: Any) -> jax.Array:
                    return mean_loss(task, Variables(task.join(shared, start.params), start.statistics), data)

                renewed = jax.grad(loss)(task.shared(start.params))
            else:  # (b), option II
                moved = tree.minus(task.shared(start.params), task.shared(trained.variables.params))  # x - y_i
                rate = 1 / (self.local_steps(task, data) * self.lr)
                renewed = tree.plus(tree.minus(own, control), tree.scale(rate, moved))
            return trained.variables, renewed, trained.loss

        otherwise = (state.variables, state.own_control, state.loss)
        stacked = (state.variables, state.control, state.own_control, clients.train)
        chosen, (trained, own_control, loss) = self.take_part(peers, key, work, otherwise, *stacked)

        before, change = task.shared(state.variables.params), tree.minus(own_control, state.own_control)
        sent = (task.shared(trained.params), change)
        (mean, mean_change), arrived = peers.mean(sent, self.weight(task, clients, chosen))
        one = jnp.ones_like(loss)
        shared = combine(peers, before, (self.hub_lr * one, tree.minus(mean, before)))  # (c)
        taking_part = self.share_taking_part(peers)  # |S| / N
        control = combine(peers, state.control, (taking_part * one, mean_change))  # (d)
        shared, control = tree.where(arrived, (shared, control), (before, state.control))
        variables = Variables(task.join(shared, trained.params), trained.statistics)
        return State(variables, control, own_control, loss), Info(loss)
