"""Several shared models; in every round each client trains the one that fits its data best.

Ghosh, Chung, Yin, Ramchandran 2020, *An Efficient Framework for Clustered Federated Learning* (IFCA), Algorithm 1. The
hub sends its k models to everyone; a client estimates its cluster (a) and trains that model on its data, and the hub
averages the results of each cluster (b, the variant that averages models):

    j_i = argmin_j F_i(theta_j)                                                            (a)
    theta_j <- theta_j + mean over the clients with j_i = j of (trained_i - theta_j)       (b)

The letters are ours. Nothing had to be inferred.

Changed: clients count by their number of samples within a cluster, as in `fedavg`. A cluster that nobody chose keeps
its model. Clients send the change of the model that they trained. The k models start from different random draws;
several starts, which the paper recommends, are several seeds. Between rounds a client uses its cluster's model.
"""

from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import lax

from coterie.data.clients import Clients, Split
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Method, Newcomer, Topology, Tunes, method
from coterie.methods.sends import CHANGE, Sending, Sends
from coterie.methods.shared.neighbours import mean_loss
from coterie.numerics import tree
from coterie.peers.arithmetic import fold_clients
from coterie.peers.base import Peers
from coterie.spec import param
from coterie.traced import changed

__all__ = ["IFCA"]


class State(NamedTuple):
    """Each client's model, its copies of the k models `[C, k, ...]`, and the hub's own `[k, ...]`."""

    variables: Variables
    centres: Any
    hub: Any


@method
class IFCA(LocalSGD, Method):
    """One shared model per cluster; clients find their cluster by their loss."""

    topology: ClassVar[Topology] = "hub"
    sends: ClassVar[Sends] = {
        "hub": Sending(f"{CHANGE.what}, which shared model that was, and how many training rows it has", CHANGE.leaks)
    }
    newcomer: ClassVar[Newcomer] = "nearest"
    tunes: ClassVar[Tunes] = {}
    clusters: int = param(2, "number of shared models (k)", at_least=1, at_most=1000)

    def hub_state(self) -> tuple[str, ...]:
        """See `Method.hub_state`."""
        return ("hub",)

    def absent(self, task: Task, before: State, after: State) -> State:
        """See `Method.absent`: the k models are the hub's."""
        return before._replace(centres=after.centres)

    def plain(self) -> Self:
        """See `Method.plain`."""
        return changed(super().plain(), clusters=1)

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Draw k models; at first everyone has the first."""
        here = peers.ids.shape[0]
        draws = [task.init(key if j == 0 else jax.random.fold_in(key, j)) for j in range(self.clusters)]
        hub = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(task.shared(one.params) for one in draws))
        return State(tree.broadcast(draws[0], here), tree.broadcast(hub, here), hub)

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Choose the best model, train it, average within clusters at the hub."""

        def work(own: Variables, centres: Any, data: Split, key: jax.Array) -> tuple:
            def loss(centre: Any) -> jax.Array:
                return mean_loss(task, own._replace(params=task.join(centre, own.params)), data)

            cluster = jnp.argmin(lax.map(loss, centres)).astype(jnp.int32)  # (a)
            start = jax.tree.map(lambda a: a[cluster], centres)
            trained = self.train(task, own._replace(params=task.join(start, own.params)), data, key)
            return trained, tree.minus(task.shared(trained.variables.params), start), cluster

        trained, change, cluster = peers.each(work, state.variables, state.centres, clients.train, peers.keys(key))

        def average(sent: tuple, arrived: jax.Array, hub: Any) -> tuple[Any, Any]:  # (b)
            change, cluster, count = sent
            weight = jnp.where(arrived, count, 0)
            mean, _ = fold_clients(change, weight, jnp.where(arrived, cluster, 0), self.clusters, peers.seal)
            hub = tree.plus(hub, peers.seal(mean))
            return tree.broadcast(hub, weight.shape[0]), hub

        sent = (change, cluster, clients.train.count.astype(task.dtype))
        answers, arrived, hub = peers.hub(average, sent, state.hub)
        centres = tree.where(arrived, answers, state.centres)  # no answer: keep the old copies
        mine = jax.vmap(lambda centres, cluster: jax.tree.map(lambda a: a[cluster], centres))(centres, cluster)
        params = task.join(mine, trained.variables.params)
        variables = Variables(params, trained.variables.statistics)
        return State(variables, centres, hub), Info(trained.loss, counts={"cluster": cluster})
