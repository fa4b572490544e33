"""Base of methods with a hub: some clients train from the hub's model, and the hub averages the results."""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from coterie.data.clients import Clients, Split
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.task import Task, Variables
from coterie.methods.base import Method, Newcomer
from coterie.methods.sends import MODEL_AND_COUNT, Sends
from coterie.numerics import tree
from coterie.numerics.tree import Same, is_same
from coterie.peers.base import Peers
from coterie.spec import param, spec

__all__ = ["HubSGD"]


@spec
class HubSGD(LocalSGD, Method):
    """Local training at a random part of the clients, then federated averaging."""

    newcomer: ClassVar[Newcomer] = "shared"
    sends: ClassVar[Sends] = {"mean": MODEL_AND_COUNT}
    # Of the run since it has a world (`peers/world.py`), which every method lives in; kept for files that have it.
    participation: float = param(
        1.0,
        "fraction of the clients that take part in a round (at least one client); better: participation in [world]",
        above=0,
        at_most=1,
        static=True,
    )

    def participants(self, peers: Peers) -> int:
        """Return how many clients take part in a round at most."""
        if peers.taking_part is not None:
            return peers.most_present
        return max(1, round(self.participation * peers.clients))

    def choose(self, peers: Peers, key: jax.Array) -> jax.Array:
        """Return who takes part in a round, `[C]`: as the run says, or drawn."""
        if peers.taking_part is not None:
            return peers.taking_part[peers.ids]
        return peers.sample(key, self.participants(peers))

    def share_taking_part(self, peers: Peers) -> Any:
        """Return |S| / N, the share of the clients that take part in this round."""
        if peers.taking_part is not None:
            return peers.taking_part.mean(dtype=peers.weights.dtype)
        return self.participants(peers) / peers.clients

    def absent(self, task: Task, before: Any, after: Any) -> Any:
        """See `Method.absent`: a round leaves clients out by itself, except for what the hub has for them."""
        return after

    def start(self, task: Task, peers: Peers, key: jax.Array) -> Any:
        """Return a fresh model for every client; the same one, kept once, where clients have nothing of their own."""
        model = task.init(key)
        own = task.personal_names or jax.tree.leaves(model.statistics)
        return Same(model) if peers.same and not own else tree.broadcast(model, peers.ids.shape[0])

    def models(self, state: Any) -> Variables:
        """See `Method.models`; where the state holds one model for all, a copy for each client."""
        kept = super().models(state)
        return tree.broadcast(kept.value, state.loss.shape[0]) if isinstance(kept, Same) else kept

    def model_of_all(self, state: Any) -> Same | None:
        """See `Method.model_of_all`."""
        kept = getattr(state, "variables", None)
        return kept if isinstance(kept, Same) and type(self).models is HubSGD.models else None

    def average(
        self,
        task: Task,
        variables: Any,
        loss: jax.Array,
        peers: Peers,
        clients: Clients,
        key: jax.Array,
        work: Callable[[Variables, Split, jax.Array], Any] | None = None,
    ) -> tuple[Any, jax.Array, jax.Array]:
        """Run one round of federated averaging (McMahan et al. 2017, Algorithm 1).

        Args:
            task: model and loss.
            variables: every client's copy of the hub's model, with its own personal layers; or the one of all.
            loss: `[C]` the last training loss of each client.
            peers: the verbs.
            clients: the data.
            key: the key of this round.
            work: one client's local training; default `self.train`.

        Returns:
            The new copies, the new losses, and who took part `[C]`.
        """
        work = work or (lambda start, data, key: self.train(task, start, data, key))

        def train(start: Variables, data: Split, key: jax.Array) -> tuple[Variables, jax.Array]:
            trained = work(start, data, key)
            return trained.variables, trained.loss

        if is_same(variables):
            choice_key, work_key = jax.random.split(key)
            chosen = self.choose(peers, choice_key)
            weight, most = self.weight(task, clients, chosen), self.participants(peers)
            stacked = (variables, clients.train, peers.keys(work_key))
            variables, loss = peers.mean_of(train, weight, most, variables, loss, *stacked)
            return variables, loss, chosen
        chosen, (trained, loss) = self.take_part(peers, key, train, (variables, loss), variables, clients.train)
        shared = self.mean_of_models(task, peers, clients, chosen, task.shared(variables.params), trained)
        return Variables(task.join(shared, trained.params), trained.statistics), loss, chosen

    def take_part(
        self, peers: Peers, key: jax.Array, work: Callable[..., Any], otherwise: Any, *stacked: Any
    ) -> tuple[jax.Array, Any]:
        """Draw who takes part in a round and run `work(*stacked, key)` there; the others get `otherwise`.

        Returns who takes part `[C]`, and the results.
        """
        choice_key, work_key = jax.random.split(key)
        count = self.participants(peers)
        chosen = self.choose(peers, choice_key)
        return chosen, peers.each_of(chosen, count, work, otherwise, *stacked, peers.keys(work_key))

    def weight(self, task: Task, clients: Clients, chosen: jax.Array) -> jax.Array:
        """Return the weight of each client in the hub's mean `[C]`: its number of samples if it takes part."""
        return jnp.where(chosen, clients.train.count, 0).astype(task.dtype)

    def mean_of_models(
        self, task: Task, peers: Peers, clients: Clients, chosen: jax.Array, before: Any, trained: Variables
    ) -> Any:
        """Return the mean of the trained models' shared layers, w <- sum_k (n_k / n) w_k.

        A client that did not receive the mean keeps its old copy, `before`.
        """
        shared, arrived = peers.mean(task.shared(trained.params), self.weight(task, clients, chosen), since=before)
        return tree.where(arrived, shared, before)
