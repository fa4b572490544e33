"""Gossip whose graph is cut down after two rounds: the smallest method with a stage, in a file that a run can name."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from coterie.learning.task import Variables
from coterie.methods.base import Info, Method, Topology, method
from coterie.numerics import tree
from coterie.peers.base import blend
from coterie.spec import param


class State(NamedTuple):
    variables: Variables
    gaps: jax.Array  # [C, D] how far the neighbours' biases are away


@method
class Halving(Method):
    """Mix evenly with the neighbours; after `cut` rounds keep those whose bias is nearer than the average."""

    topology: ClassVar[Topology] = "graph"
    default_graph: ClassVar[str] = "complete"
    cut: int = param(2, "rounds before the graph is cut down", at_least=1)
    lr: float = param(0.1, "step size")

    def init(self, task, peers, clients, key):
        here = peers.ids.shape[0]
        return State(tree.broadcast(task.init(key), here), jnp.zeros(peers.present.shape, task.dtype))

    def round(self, task, state, peers, clients, key):
        def step(params, data):
            mask = jnp.arange(data.x.shape[0]) < data.count
            loss, slope = jax.value_and_grad(lambda p: task.loss(p, (), data.x, data.y, mask)[0])(params)
            return jax.tree.map(lambda a, g: a - self.lr * g, params, slope), loss

        stepped, loss = peers.each(step, state.variables.params, clients.train)
        gaps, arrived = peers.ask(lambda mine, theirs: jnp.abs(mine - theirs).sum(), stepped.bias, stepped.bias)
        even = jnp.where(peers.present, 1 / (1 + peers.present.sum(1, keepdims=True)), 0).astype(task.dtype)
        mixed = blend(peers, stepped, even)
        return State(Variables(mixed, ()), jnp.where(arrived, gaps, state.gaps)), Info(loss, even)

    def stages(self):
        return (self.cut,)

    def keep(self, state, present, clients):
        mean = jnp.where(present, state.gaps, 0).sum(1, keepdims=True) / jnp.maximum(present.sum(1, keepdims=True), 1)
        return present & (state.gaps <= mean)

    def narrow(self, state, take):
        return state._replace(gaps=take(state.gaps))
