"""A shared model from which one gradient step on a client's own data leads to a good model for that client.

Fallah, Mokhtari, Ozdaglar 2020, *Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach* (Per-FedAvg), Algorithm 1. The hub averages models as in `fedavg`, but a client minimises
F_i(w) = f_i(w - alpha grad f_i(w)) (a) with steps

    w <- w - beta (I - alpha Hess f_i(w; D'')) grad f_i(w - alpha grad f_i(w; D); D')            (b),

with `lr` as beta. `order = "exact"` has the product with the Hessian, which the authors approximate by a difference of
gradients (their HF variant); "first" drops the Hessian (their FO variant). Before it is used, the shared model makes
`inner_steps` steps of size alpha on all of the client's training samples. The letters are ours.

Inferred: the paper draws D, D' and D'' independently. Here the first half of a minibatch is D and D'', so that (b) is
the gradient of (a) on samples, and the other half is D'. With full batches (batch_size = 0) all three are all of the
client's samples. (PFLlib's program has the FO variant, with two minibatches.)
"""

from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
from jax import lax

from coterie.data.clients import Clients, Split
from coterie.learning.local_sgd import Trained
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Tunes, method
from coterie.methods.fedavg import FedAvg, State
from coterie.methods.shared.neighbours import mean_loss
from coterie.numerics import tree
from coterie.peers.base import Peers
from coterie.spec import param
from coterie.traced import changed

__all__ = ["PerFedAvg"]


@method
class PerFedAvg(FedAvg):
    """FedAvg for the model that is best after one step of each client's own (MAML)."""

    tunes: ClassVar[Tunes] = {"inner_lr": (0.01, 0.05, 0.2)}
    inner_lr: float = param(0.05, "step size of the client's own step (alpha); 0: plain FedAvg", at_least=0)
    inner_steps: int = param(1, "own steps before the model is used", at_least=1)
    order: Literal["first", "exact"] = param("first", "first drops the Hessian (FO); exact has it")

    def plain(self) -> Self:
        """See `Method.plain`."""
        return changed(super().plain(), inner_lr=0.0)

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Take meta steps at the selected clients, average at the hub."""

        def slope(params: Any, statistics: Any, x: Any, y: Any, mask: jax.Array, key: jax.Array) -> Any:
            first, second = halves(mask) if self.batch_size else (mask, mask)

            def meta(params: Any) -> tuple[jax.Array, Any]:
                gradient = jax.grad(task.loss, has_aux=True)(params, statistics, x, y, first, key)[0]
                step = tree.scale(self.inner_lr, gradient)
                step = lax.stop_gradient(step) if self.order == "first" else step
                return task.loss(tree.minus(params, step), statistics, x, y, second, key)  # (a)

            return jax.value_and_grad(meta, has_aux=True)(params)  # (b)

        def work(start: Variables, data: Split, key: jax.Array) -> Trained:
            return self.train(task, start, data, key, slope=slope)

        variables, loss, _ = self.average(task, *state, peers, clients, key, work)
        return State(variables, loss), Info(loss)

    def common(self, task: Task, state: State) -> Variables:
        """Return the copies of the shared model, before the client's own step."""
        return state.variables

    def finetune(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> Variables:
        """Return each client's model: the shared one after its own steps."""

        def adapt(variables: Variables, data: Split) -> Variables:
            def step(_: Any, params: Any) -> Any:
                gradient = jax.grad(lambda p: mean_loss(task, Variables(p, variables.statistics), data))(params)
                return tree.minus(params, tree.scale(self.inner_lr, gradient))

            return variables._replace(params=lax.fori_loop(0, self.inner_steps, step, variables.params))

        return peers.each(adapt, state.variables, clients.train)


def halves(mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Divide the samples of a minibatch where `mask [B]` is true into two halves; a single one is in both."""
    rank, count = jnp.cumsum(mask) - 1, mask.sum()
    first = mask & (rank < (count + 1) // 2)
    return first, jnp.where(count > 1, mask & ~first, mask)
