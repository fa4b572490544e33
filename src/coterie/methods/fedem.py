"""Each client mixes several shared models in proportions of its own, learned by expectation and maximisation.

Marfoq, Neglia, Bellet, Kameni, Vidal 2021, *Federated Multi-Task Learning under a Mixture of Distributions* (FedEM),
Algorithm 1: client i's data are a mixture of M distributions. With its proportions pi_i and the shared models theta_m,

    q(m | s) = pi_im exp(-l(theta_m; s)), scaled to one over m       E-step (a)
    pi_im    = mean of q(m | s) over the client's samples            M-step (b)
    theta_m  : descent on the mean of q(m | s) l(theta_m; s)         M-step (c), averaged at the hub

The personal model predicts with the mixture sum_m pi_im p(y | x, theta_m); of a regression, with the weighted mean of
the outputs. The hub averages all M models, so that a round costs M times as much as `fedavg`'s. The letters are ours.

Inferred: q is estimated once per round, at its start. The proportions are kept as logarithms, not below a millionth,
in the parameter `mixture` of an ensemble. An augmented sample gets the q of what it became.
"""

from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp

from coterie.data.clients import Clients, Split
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Newcomer, Topology, Tunes, method
from coterie.methods.fedavg import FedAvg, State
from coterie.methods.shared.features import sum_over
from coterie.models.ensemble import Ensemble
from coterie.peers.base import Peers
from coterie.spec import param
from coterie.traced import changed

__all__ = ["FedEM"]

LEAST = 1e-6  # proportion below which a component counts as absent


class Local(NamedTuple):
    """The result of one client's training."""

    variables: Variables
    loss: jax.Array


class Members(eqx.Module):
    """The outputs of all members of an ensemble, `[M, ...]` for one sample."""

    ensemble: Ensemble

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        return self.ensemble.outputs(x, key)


@method
class FedEM(FedAvg):
    """Personal mixtures of shared models."""

    topology: ClassVar[Topology] = "hub"
    newcomer: ClassVar[Newcomer] = "mixture"
    tunes: ClassVar[Tunes] = {}
    components: int = param(3, "number of shared models (M)", at_least=1, at_most=1000)

    def plain(self) -> Self:
        """See `Method.plain`."""
        return changed(super().plain(), components=1)

    def adapt(self, task: Task) -> Task:
        """Return the task of M such models with personal proportions."""
        return task.mixed(self.components)

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Estimate which model made which sample, fit the models to theirs, average the models at the hub."""
        all_members = task.viewed(Members)

        def losses(params: Any, x: Any, y: Any, key: Any, train: bool) -> jax.Array:  # [B, M]
            outputs = all_members.apply(Variables(params), x, key, train)[0]
            return jax.vmap(lambda output: task.losses(output, y), in_axes=1, out_axes=1)(outputs)

        def responsibility(params: Any, x: Any, y: Any) -> jax.Array:  # (a)
            logits = jax.nn.log_softmax(params.mixture) - losses(params, x, y, None, False)
            return jax.lax.stop_gradient(jax.nn.softmax(logits, axis=1))

        def work(start: Variables, data: Split, key: jax.Array) -> Local:
            def slope(params: Any, statistics: Any, x: Any, y: Any, mask: jax.Array, key: jax.Array) -> Any:
                q = responsibility(start.params, x, y)

                def weighted(shared: Any) -> tuple[jax.Array, Any]:  # (c)
                    each = (q * losses(task.join(shared, start.params), x, y, key, True)).sum(1)
                    return jnp.where(mask, each, 0).sum() / jnp.maximum(mask.sum(), 1), statistics

                return jax.value_and_grad(weighted, has_aux=True)(params)

            shared = Variables(task.shared(start.params), start.statistics)
            trained = self.train(task, shared, data, key, slope=slope)
            total = sum_over(lambda x, y: responsibility(start.params, x, y), data)
            proportions = total / jnp.maximum(data.count, 1)  # (b)
            own = eqx.tree_at(lambda p: p.mixture, start.params, jnp.log(jnp.maximum(proportions, LEAST)))
            return Local(Variables(task.join(trained.variables.params, own), start.statistics), trained.loss)

        variables, loss, _ = self.average(task, *state, peers, clients, key, work)
        return State(variables, loss), Info(loss)
