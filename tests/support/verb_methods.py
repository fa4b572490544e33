"""A method that exists only to exercise the verbs; in a module of its own, so that a second process can import it."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from coterie.learning.task import Variables
from coterie.methods.base import Info, Method, Topology, method
from coterie.models.linear import LinearNetwork
from coterie.numerics import tree
from coterie.peers.base import blend
from coterie.spec import param


class State(NamedTuple):
    variables: Variables
    value: jax.Array  # [C, 2] and
    mass: jax.Array  # [C]: push-sum's numerator and denominator


@method
class EveryVerb(Method):
    """Every verb moves the model a little, and each result enters the next verb; most also run in a loop."""

    topology: ClassVar[Topology] = "graph"
    lr: float = param(0.1, "how much a gradient of a neighbour counts")

    def init(self, task, peers, clients, key):
        here = peers.ids.shape[0]
        counts, _ = peers.share(clients.train.count)
        largest = peers.most(clients.train.count)
        value = jnp.stack(
            [clients.train.count / jnp.maximum(counts.sum(), 1), (peers.ids / largest).astype(task.dtype)], 1
        )
        return State(tree.broadcast(task.init(key), here), value.astype(task.dtype), jnp.ones(here, task.dtype))

    def round(self, task, state, peers, clients, key):
        def loss_at(params, data):
            mask = jnp.arange(data.x.shape[0]) < data.count
            return task.loss(params, (), data.x, data.y, mask)[0]

        # Three clients add something random to their bias, and everyone mixes with its neighbours.
        params = state.variables.params
        chosen = peers.sample(key, 3)
        shaken = peers.each_of(
            chosen, 3, lambda b, key: b + jax.random.uniform(key, b.shape), params.bias, params.bias, peers.keys(key)
        )
        params = blend(peers, LinearNetwork(params.weight, shaken), peers.weights)

        # Every neighbour answers with my model's loss on its data; the lower it is, the more its gradient counts.
        losses, arrived = peers.ask(loss_at, params, clients.train)
        slope, _ = peers.ask(jax.grad(loss_at), params, clients.train, jnp.where(arrived, self.lr / (1 + losses), 0))
        params = tree.minus(params, slope)

        def exchange(step, carry):
            bias, value, mass = carry
            listening = peers.tables.listening
            to = listening & ((jnp.arange(listening.shape[1]) + step) % 2 == 0)  # listeners take turns
            portion = 1.0 / (1 + to.sum(1))
            sent = portion[:, None] * value, portion * mass
            got, _, acked = peers.push(sent, to)
            stays = (1 + (to & ~acked).sum(1)).astype(portion.dtype)
            value, mass = tree.plus(peers.seal((stays[:, None] * sent[0], stays * sent[1])), got)

            mine = peers.ids[:, None].astype(bias.dtype) - peers.neighbours  # one value per neighbour
            theirs, arrived = peers.swap(jnp.stack([mine, 0 * mine + value[:, :1]], 2))
            total = peers.sum_slots(theirs[:, :, 0]) + peers.sum_slots(theirs[:, :, 1])
            bias = bias + peers.seal(0.01 * total[:, None]) + peers.seal(0.02 * arrived.sum(1)[:, None])

            answers, _ = peers.ask(lambda x, own: x * own, value[:, 0], mass)
            bias = bias + peers.seal(0.01 * peers.sum_slots(answers)[:, None])
            bias, _ = peers.mix(bias, peers.weights)
            # A third of the clients takes no part in the mean; groups are odd and even ids.
            taking_part = jnp.where(peers.ids % 3 == 0, 0, clients.train.count).astype(bias.dtype)
            bias, _ = peers.mean(bias, taking_part, (peers.ids % 2, 2))

            def towards_centres(bias):
                means, _ = peers.centres(bias, taking_part, (peers.ids % 2, 2), across=peers.ids.astype(bias.dtype))
                return bias + peers.seal(0.1 * (means.near - means.far)) + peers.seal(0.01 * means.far_weight[:, None])

            bias = peers.choose(step == 1, towards_centres, lambda bias: bias, bias)
            return bias, value, mass

        bias, value, mass = peers.loop(2, exchange, (params.bias, state.value, state.mass))
        everyone, arrived = peers.share(value[:, 0])
        average, _ = peers.mean(mass, jnp.where(peers.ids == 1, 0.0, 1.0))
        estimate = peers.seal(0.01 * value.sum(1) / mass) + peers.seal(0.01 * jnp.where(arrived, everyone, 0).sum())
        params = LinearNetwork(params.weight, bias + (estimate + average)[:, None])
        return State(Variables(params), value, mass), Info(peers.sum_slots(losses))
