"""A shared model trained as if every client had all classes equally often, and a personal head for what it has.

Chen and Chao 2022, *On Bridging Generic and Personalized Federated Learning for Image Classification* (Fed-RoD),
Algorithm 1 with linear personal heads. With z = features of x, the generic head G, the client's own head P_m and its
number n_m,c of samples of class c,

    shared model (features and G):   cross-entropy of  G z + log n_m,.          (a)   the balanced risk
    P_m, on the same features:       cross-entropy of  G z + P_m z              (b)   whose gradient reaches P_m alone

The hub averages the shared model; P_m is never sent, and the client predicts with G z + P_m z. The letters are ours.

Inferred: of the balanced losses that the paper compares, (a) is the balanced softmax (Ren et al. 2020). The personal
head starts at zero, so that at first both heads together are the generic one; PFLlib's program copies the generic one.
The variant whose personal heads come from a hyper-network is not here.
"""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax

from coterie.data.clients import Clients, Federation, Split
from coterie.errors import CoterieError
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Topology, method
from coterie.methods.fedavg import FedAvg, State
from coterie.methods.shared.features import TwoHeads, sum_over, tapped, two_heads
from coterie.peers.base import Peers

__all__ = ["FedRoD"]


class Local(NamedTuple):
    """The result of one client's training."""

    variables: Variables
    loss: jax.Array


class Apart(eqx.Module):
    """Both heads' outputs for one sample, one after the other; the personal head's do not reach the features."""

    model: TwoHeads

    def __call__(self, x: jax.Array, *rest: Any, key: jax.Array | None = None) -> Any:
        generic, features, statistics = self.model.both(x, *rest, key=key)
        outputs = jnp.concatenate([generic, self.model.head(lax.stop_gradient(features))])
        return (outputs, *statistics) if rest else outputs


@method
class FedRoD(FedAvg):
    """A generic head for balanced classes and a personal one for the client's own."""

    topology: ClassVar[Topology] = "hub"
    alone_is_sgd: ClassVar[bool] = False  # the balanced risk is not the usual one

    def adapt(self, task: Task) -> Task:
        """Return the task of the model with a personal head beside its last layer."""
        if task.personal:
            raise CoterieError("fedrod has a personal head of its own; leave model.personal empty")
        tapped(task, "fedrod")
        return task.wrapped(two_heads(task), ("head",))

    def check(self, task: Task, federation: Federation) -> None:
        """Refuse models without a last layer, before anything is compiled."""
        self.adapt(task)

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Train both heads at the selected clients, average the shared model at the hub."""
        apart, classes = task.viewed(Apart), task.outputs

        def work(start: Variables, data: Split, key: jax.Array) -> Local:
            counts = sum_over(lambda x, y: jax.nn.one_hot(y, classes, dtype=task.dtype), data)
            log_counts = jnp.log(counts)

            def loss(params: Any, statistics: Any, x: Any, y: Any, mask: jax.Array, key: jax.Array) -> tuple:
                values, statistics = apart.apply(Variables(params, statistics), x, key, True)
                generic, personal = values[:, :classes], values[:, classes:]
                cross_entropy = optax.softmax_cross_entropy_with_integer_labels
                balanced = cross_entropy(generic + log_counts, y)  # (a)
                own = cross_entropy(lax.stop_gradient(generic) + personal, y)  # (b)
                total, shown = (
                    (jnp.where(mask, each, 0).sum() / jnp.maximum(mask.sum(), 1)) for each in (balanced, own)
                )
                return total + shown, (statistics, shown)

            def slope(*batch: Any) -> Any:
                (_, (statistics, shown)), gradient = jax.value_and_grad(loss, has_aux=True)(*batch)
                return (shown, statistics), gradient  # the loss that is reported is that of the personal model

            trained = self.train(task, start, data, key, slope=slope)
            return Local(trained.variables, trained.loss)

        variables, loss, _ = self.average(task, *state, peers, clients, key, work)
        return State(variables, loss), Info(loss)

    def common(self, task: Task, state: State) -> Variables:
        """Return the copies of the shared model, whose personal heads are zero."""
        zero = jax.tree.map(jnp.zeros_like, task.own(state.variables.params))
        return state.variables._replace(params=eqx.combine(task.shared(state.variables.params), zero))
