"""FedAvg whose clients stay near the hub's model while they train.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith 2020: each client minimises F_k(w) + (mu/2)|w - w^t|^2 (their eq. 2), and
stragglers may do fewer than E epochs (their section 3.2 and experiments: a random number of epochs from 1 to E).
"""

from typing import ClassVar

import jax
import jax.numpy as jnp

from coterie.data.clients import Clients, Split
from coterie.learning.local_sgd import Trained
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Tunes, method
from coterie.methods.fedavg import FedAvg, State
from coterie.numerics import tree
from coterie.peers.base import Peers
from coterie.spec import param
from coterie.traced import is_off

__all__ = ["FedProx"]


@method
class FedProx(FedAvg):
    """FedAvg with a proximal term."""

    tunes: ClassVar[Tunes] = {"mu": (0.01, 0.1, 1.0)}
    mu: float = param(0.1, "strength of the pull towards the hub's model (eq. 2)", at_least=0)
    stragglers: float = param(
        0.0, "fraction of the clients that do only a random number of their epochs", at_least=0, at_most=1
    )

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Train at the selected clients with the proximal term, average at the hub."""

        def work(start: Variables, data: Split, key: jax.Array) -> Trained:
            def pull(params: object) -> object:
                return tree.scale(self.mu, tree.minus(params, start.params))  # gradient of (mu/2)|w - w^t|^2

            if is_off(self.stragglers):
                return self.train(task, start, data, key, pull=pull)
            late_key, part_key, key = jax.random.split(key, 3)
            late = jax.random.bernoulli(late_key, self.stragglers)
            part = jax.random.randint(part_key, (), 1, self.epochs + 1)
            return self.train(task, start, data, key, pull=pull, epochs=jnp.where(late, part, self.epochs))

        variables, loss, _ = self.average(task, *state, peers, clients, key, work)
        return State(variables, loss), Info(loss)
