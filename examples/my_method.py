"""A method of your own: copy this file, rename the class, change what `round` does.

    python examples/my_method.py                                             # does it keep the contract?
    coterie show examples/my_method.py:MyMethod                              # its settings
    coterie compare --methods local,fedavg,examples/my_method.py:MyMethod    # is it any good?

As it stands: every client trains on its own samples and then moves a part of the way towards its neighbours' mean.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from coterie.extend import (
    Clients,
    Info,
    LocalSGD,
    Method,
    Peers,
    Split,
    Task,
    Topology,
    Trained,
    Variables,
    blend,
    method,
    param,
    tree,
)


class State(NamedTuple):
    """What the next round needs. Every array has the clients that live here as its first axis."""

    variables: Variables
    optimiser: Any


@method
class MyMethod(LocalSGD, Method):
    """Train alone, then move towards the neighbours."""

    # Whom it talks to: "graph" (the neighbours of a graph), "hub" (everyone, through `peers.mean`) or "none".
    topology: ClassVar[Topology] = "graph"
    # LocalSGD brings lr, momentum, weight_decay, batch_size, epochs and steps; a field here is a setting of your own.
    openness: float = param(0.5, "how far to move towards the neighbours: 0 stays", at_least=0, at_most=1)

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Give every client the same fresh model."""
        variables = tree.broadcast(task.init(key), peers.ids.shape[0])
        return State(variables, jax.vmap(self.optimiser().init)(variables.params))

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Advance one round: local training, then one exchange with the neighbours."""

        def train(variables: Variables, optimiser: Any, data: Split, key: jax.Array) -> Trained:
            return self.train(task, variables, data, key, optimiser_state=optimiser)  # one client: no client axis here

        trained = peers.each(train, state.variables, state.optimiser, clients.train, peers.keys(key))
        weights = peers.seal(self.openness * jnp.where(peers.present, peers.weights, 0))  # [C, D], one per slot
        shared = blend(peers, task.shared(trained.variables.params), weights)  # personal layers never travel
        params = task.join(shared, trained.variables.params)
        variables = Variables(params, trained.variables.statistics)
        return State(variables, trained.optimiser), Info(trained.loss, weights)

    def models(self, state: State) -> Variables:
        """Return the personal model of each client."""
        return state.variables


if __name__ == "__main__":
    from coterie import check_method

    print(check_method(MyMethod))
