"""Each client learns its mixing weights by gradient descent on its own validation loss.

Li, Zhou, Tian, Tao 2022, *Learning to Collaborate in Decentralized Learning of Personalized Models* (L2C and
meta-L2C). After local training every client moves with its own and its neighbours' updates,
theta_i <- theta_i + sum_j w_ij m_j with m_j = theta_j(trained) - theta_j and w_i = softmax(alpha_i), and alpha_i
follows the gradient of the validation loss through that step. With g = grad L_val(theta_i):
dL/d alpha_ij = w_ij (g . m_j - sum_k w_ik g . m_k), so that a neighbour needs g and answers with one number.

Changed: the logits alpha_i are parameters themselves (the paper's L2C). Its meta-L2C has an attention network compute
them from the models' displacements, so that a new client gets weights at once; the validation step that trains it is
the same, and `scool-attention` has such a network. New weights are used from the next round on, which saves a second
exchange of models. The paper's code was never published; Adam and its rate are those of the authors' later work. A
slot without an answer, or with one that is not finite, counts as the client itself, which also gets its weight.
"""

from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from coterie.data.clients import Clients, Split
from coterie.learning.local_sgd import LocalSGD, Trained
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Method, Topology, method
from coterie.methods.sends import CHANGE, FROM_GRADIENTS, FROM_NUMBERS, Sending, Sends
from coterie.methods.shared.neighbours import mean_loss
from coterie.numerics import tree
from coterie.peers.base import Peers, blend
from coterie.spec import param

__all__ = ["MetaL2C"]


class State(NamedTuple):
    """Each client's model, its logits over the slots and itself, and an optimiser for each."""

    variables: Variables
    optimiser: Any
    logits: jax.Array  # [C, D + 1], the client itself last
    logit_optimiser: Any


@method
class MetaL2C(LocalSGD, Method):
    """Learn the mixing weights by gradient descent on the validation loss.

    This is L2C: the logits of the weights are free parameters, not the outputs of meta-L2C's attention network.
    """

    topology: ClassVar[Topology] = "graph"
    sends: ClassVar[Sends] = {
        "mix": CHANGE,
        "ask": Sending("the gradient of its validation loss at the mixed model", FROM_GRADIENTS),
        "answer": Sending("the product of that gradient with its own message", FROM_NUMBERS),
    }
    default_graph: ClassVar[str] = "complete"
    learns_weights: ClassVar[bool] = True
    weight_lr: float = param(0.1, "step size of Adam on the logits of the mixing weights", above=0)
    mixes: Literal["updates", "models"] = param("updates", "what neighbours send: this round's update, or the model")

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Give every client the same fresh model and equal weights."""
        here, slots = peers.neighbours.shape
        variables = tree.broadcast(task.init(key), here)
        logits = jnp.zeros((here, slots + 1), task.dtype)
        optimiser = jax.vmap(self.optimiser().init)(variables.params)
        return State(variables, optimiser, logits, jax.vmap(optax.adam(self.weight_lr).init)(logits))

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Train, mix, and step on the weights along the gradient of the validation loss."""

        def train(variables: Variables, optimiser: Any, data: Split, key: jax.Array) -> Trained:
            return self.train(task, variables, data, key, optimiser_state=optimiser)

        def slope(shared: Any, variables: Variables, held_out: Split) -> Any:
            def loss(shared: Any) -> jax.Array:
                return mean_loss(task, Variables(task.join(shared, variables.params), variables.statistics), held_out)

            return jax.grad(loss)(shared)

        trained: Trained = peers.each(train, state.variables, state.optimiser, clients.train, peers.keys(key))
        before, after = task.shared(state.variables.params), task.shared(trained.variables.params)
        message = after if self.mixes == "models" else tree.minus(after, before)  # m_i
        weights = peers.each(softmax, state.logits, peers.present)
        mixed = blend(peers, message, weights[:, :-1])  # sum_j w_ij m_j
        shared = mixed if self.mixes == "models" else tree.plus(before, mixed)

        gradient = peers.each(slope, shared, trained.variables, clients.validation)
        products, arrived = peers.ask(tree.dot, gradient, message)  # g . m_j
        own = peers.each(tree.dot, gradient, message)
        usable = arrived & jnp.isfinite(products)
        products = jnp.concatenate([jnp.where(usable, products, own[:, None]), own[:, None]], 1)
        logits, logit_optimiser = peers.each(self._descend, state.logits, state.logit_optimiser, weights, products)

        variables = Variables(task.join(shared, trained.variables.params), trained.variables.statistics)
        state = State(variables, trained.optimiser, logits, logit_optimiser)
        return state, Info(trained.loss, jnp.where(usable, weights[:, :-1], 0))

    def _descend(self, logits: jax.Array, optimiser: Any, weights: jax.Array, products: jax.Array) -> tuple:
        gradient = weights * (products - (weights * products).sum())  # dL/d alpha
        updates, optimiser = optax.adam(self.weight_lr).update(gradient, optimiser)
        return optax.apply_updates(logits, updates), optimiser


def softmax(logits: jax.Array, present: jax.Array) -> jax.Array:
    """Return the weights of the used slots and of the client itself, which is last."""
    return jax.nn.softmax(jnp.where(jnp.append(present, True), logits, -jnp.inf))
