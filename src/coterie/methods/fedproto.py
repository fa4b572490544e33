"""Clients share the mean features of each class, not models, and draw their own features towards them.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang 2022, *FedProto: Federated Prototype Learning across Heterogeneous Clients*,
Algorithm 1. With f the features and D_ij client i's samples of class j, a client sends its prototypes (a), the hub
averages them over the clients N_j that have the class (b), the local loss gets a distance to them (c), and a sample is
classified by the nearest (d):

    C_i^j = mean of f(x) over D_ij                                        (a)
    C^j   = sum over N_j of |D_ij| / |D_j| C_i^j                          (b)
    loss  = cross-entropy + lambda sum_j d(C_i^j, C^j)                    (c), lambda = `tie`
    label = argmin_j |f(x) - C^j|                                         (d)

The letters are ours.

Inferred: the paper's (b) divides by the number of clients |N_j| as well, which we take for a slip, since the weights
sum to one without it; the authors' program takes the plain mean. From that program: the distance in (c) is the mean of
squares, sample by sample, to the prototype of the sample's class; features are what the last layer sees. Prototypes are
those of the model after its local steps. Nearest prototypes are a last layer, argmax of 2 C^j z - |C^j|^2, and
`predicts = "prototypes"` puts it in its place before the model is used; "head" uses the layer that was trained. Sums
and counts are sent instead of means, which is the same number of values but one per class.
"""

from typing import Any, ClassVar, Literal, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp

from coterie.data.clients import Clients, Federation, Split
from coterie.errors import CoterieError
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Newcomer, Topology, Tunes, method
from coterie.methods.sends import Sending, Sends
from coterie.methods.shared.features import layer_at, sum_over, tapped
from coterie.methods.shared.hub import HubSGD
from coterie.methods.shared.personal import last_layer
from coterie.numerics import tree
from coterie.peers.base import Peers
from coterie.spec import param
from coterie.traced import changed, is_off

__all__ = ["FedProto"]

NEVER = -1e9  # the output of a class that nobody has


class Prototypes(NamedTuple):
    """Sums of features `[classes, features]` and the samples behind them `[classes]`, both as means over clients."""

    total: jax.Array
    samples: jax.Array


class State(NamedTuple):
    """Each client's own model, its copy of the prototypes, and its loss."""

    variables: Variables
    prototypes: Prototypes
    loss: jax.Array


@method
class FedProto(HubSGD):
    """Own models, and shared mean features of each class."""

    topology: ClassVar[Topology] = "hub"
    sends: ClassVar[Sends] = {
        "mean": Sending(
            "for each class the sum of its rows' features, and the number of these rows; not the model",
            "How many rows of each class a site has, and what its rows of a class have in common; of a class with one "
            "row, the features of that row.",
        )
    }
    newcomer: ClassVar[Newcomer] = "mixture"
    tunes: ClassVar[Tunes] = {"tie": (0.1, 1.0, 10.0)}
    tie: float = param(1.0, "strength of the tie of features to prototypes (lambda)", at_least=0)
    predicts: Literal["prototypes", "head"] = param(
        "prototypes", "what classifies: the nearest prototype, or the layer"
    )

    def plain(self) -> Self:
        """See `Method.plain`."""
        return changed(super().plain(), tie=0.0)

    def adapt(self, task: Task) -> Task:
        """Return the task; refuse models without features."""
        if task.personal:
            raise CoterieError("fedproto keeps the whole model with its client; leave model.personal empty")
        tapped(task, "fedproto")
        return task

    def check(self, task: Task, federation: Federation) -> None:
        """Refuse models without features, before anything is compiled."""
        self.adapt(task)

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Give every client the same fresh model; there are no prototypes yet."""
        here = peers.ids.shape[0]
        fresh, zero = task.init(key), jnp.zeros(here, task.dtype)
        features = layer_at(fresh.params, last_layer(task)).weight.shape[1]
        prototypes = Prototypes(
            jnp.zeros((here, task.outputs, features), task.dtype), jnp.zeros((here, task.outputs), task.dtype)
        )
        return State(tree.broadcast(fresh, here), prototypes, zero)

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Train near the prototypes at the selected clients; average their prototypes at the hub."""
        tap = tapped(task, "fedproto")

        def work(start: Variables, prototypes: Prototypes, data: Split, key: jax.Array) -> tuple:
            known, centres = prototypes.samples > 0, centre(prototypes)

            def loss(params: Any, statistics: Any, x: Any, y: Any, mask: jax.Array, key: jax.Array) -> tuple:
                values, statistics = tap.apply(Variables(params, statistics), x, key, True)
                far = jnp.square(values[:, task.outputs :] - centres[y]).mean(1)  # (c)
                total = task.losses(values[:, : task.outputs], y) + self.tie * jnp.where(known[y], far, 0)
                return jnp.where(mask, total, 0).sum() / jnp.maximum(mask.sum(), 1), statistics

            slope = None if is_off(self.tie) else jax.value_and_grad(loss, has_aux=True)
            trained = self.train(task, start, data, key, slope=slope)

            def by_class(x: Any, y: Any) -> Prototypes:  # (a)
                is_class = jax.nn.one_hot(y, task.outputs, dtype=task.dtype)
                features = tap.apply(trained.variables, x)[0][:, task.outputs :]
                return Prototypes(is_class[:, :, None] * features[:, None], is_class)

            return trained.variables, sum_over(by_class, data), trained.loss

        otherwise = (state.variables, state.prototypes, state.loss)
        chosen, (variables, own, loss) = self.take_part(
            peers, key, work, otherwise, state.variables, state.prototypes, clients.train
        )
        prototypes, arrived = peers.mean(own, chosen.astype(task.dtype))  # (b), before the division
        prototypes = tree.where(arrived, prototypes, state.prototypes)
        return State(variables, prototypes, loss), Info(loss)

    def finetune(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> Variables | None:
        """Return the models whose last layer is the nearest prototype (d)."""
        if self.predicts == "head":
            return None
        path = last_layer(task)

        def classify(variables: Variables, prototypes: Prototypes) -> Variables:
            centres = centre(prototypes)
            bias = jnp.where(prototypes.samples > 0, -jnp.square(centres).sum(1), NEVER)
            layer = layer_at(variables.params, path)
            nearest = eqx.tree_at(lambda one: (one.weight, one.bias), layer, (2 * centres, bias))
            nearest = tree.where(prototypes.samples.sum() > 0, nearest, layer)  # before the first round
            params = eqx.tree_at(lambda p: layer_at(p, path), variables.params, nearest)
            return variables._replace(params=params)

        return peers.each(classify, state.variables, state.prototypes)


def centre(prototypes: Prototypes) -> jax.Array:
    """Return the mean features of each class `[classes, features]`; zero for a class that nobody has."""
    return prototypes.total / jnp.where(prototypes.samples > 0, prototypes.samples, 1)[:, None]
