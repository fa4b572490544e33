"""Stochastic gradient push: one model for all over directed networks with random links, without a hub.

Assran, Loizou, Ballas, Rabbat 2019, Algorithm 1; Nedic and Olshevsky 2016; the baseline and the inner solver of
Terashita and Hara 2023. A client has z_i and a weight w_i that starts at one; its model is x_i = z_i / w_i. In each
step it splits both between itself and the clients it reaches (P: columns sum to one), see `consensus/pushsum.py`.
Orders:
- "before":  z <- P (z - eta g(z / w)), w <- P w;
- "after":   z <- P z, w <- P w, z <- z - eta g(z / w), with z / w *between* the two as model. That is "before" after
  one extra push, and it is computed that way: the extra push comes before the first round;
- "authors": z <- P z - eta g(z / w), w <- P w, which Terashita and Hara's code runs and calls Nedic's; it needs a
  smaller eta.

Changed: a client whose weight is below `least_weight` sends nothing until it has heard enough, because its model moves
by eta / w (`pushsum.enough` says why this keeps the total and the minimum). On dense networks that is rare; with
`least_weight = 0` it is the published algorithm, which blows up on sparse networks that lose messages.

With several local steps the gradient step becomes the displacement of the local training. All are biased by O(eta) when
clients differ. Terashita and Hara lower lr tenfold 100 and 50 steps before the end: `decay = 0.1`,
`decay_after = T - 100`, `decay_every = 50`.
"""

from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp

from coterie.consensus.pushsum import LEAST_WEIGHT, Mass, Order, enough, push_step, ratio, start
from coterie.data.clients import Clients, Split
from coterie.learning.local_sgd import LocalSGD, Trained
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Method, Newcomer, Topology, method
from coterie.methods.sends import MODEL, Sends
from coterie.numerics import tree
from coterie.peers.base import Peers
from coterie.spec import param
from coterie.traced import changed

__all__ = ["SGP"]


class State(NamedTuple):
    """Each client's share of the total mass, its model, its optimiser, and its number of pushes."""

    mass: Mass  # z and w, of the shared layers
    variables: Variables  # x = z / w, and the personal layers
    optimiser: Any
    pushed: jax.Array  # [C]: steps so far, which select the links of a network that changes


@method
class SGP(LocalSGD, Method):
    """Step, then push parts of the model to the clients it reaches, over directed and random networks."""

    topology: ClassVar[Topology] = "graph"
    sends: ClassVar[Sends] = {"push": MODEL}
    newcomer: ClassVar[Newcomer] = "shared"
    default_graph: ClassVar[str] = "random-directed"
    random_links: ClassVar[bool] = True
    order: Order = param(
        "before", "gradient step before or after the push, or as in the authors' code (docs/methods/index.md)"
    )
    pushes: int = param(1, "training and push steps per round", at_least=1)
    least_weight: float = param(
        LEAST_WEIGHT, "push-sum weight below which a client waits before it sends; 0: never", at_least=0, at_most=1
    )

    def plain(self) -> Self:
        """See `Method.plain`."""
        return changed(super().plain(), pushes=1)

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Give every client the same fresh model and the weight one."""
        variables = tree.broadcast(task.init(key), peers.ids.shape[0])
        mass, pushed = start(peers, task.shared(variables.params)), jnp.zeros_like(peers.ids)
        if self.order == "after":
            mass, _ = push_step(peers, mass, peers.links(key, 0))
            pushed = pushed + 1
        return State(mass, variables, jax.vmap(self.optimiser().init)(variables.params), pushed)

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Train and push, `pushes` times."""
        link_key, train_key = jax.random.split(key)

        def train(variables: Variables, optimiser: Any, data: Split, key: jax.Array) -> Trained:
            return self.train(task, variables, data, key, optimiser_state=optimiser)

        def once(t: Any, carry: tuple[State, Info]) -> tuple[State, Info]:
            state, total = carry
            keys = peers.keys(jax.random.fold_in(train_key, t))
            to = enough(state.mass, peers.links(jax.random.fold_in(link_key, t), state.pushed[0]), self.least_weight)
            trained = peers.each(train, state.variables, state.optimiser, clients.train, keys)
            before, after = task.shared(state.variables.params), task.shared(trained.variables.params)
            step = tree.minus(after, before)  # - eta g(z / w)
            if self.order == "authors":
                mass, arrived = push_step(peers, state.mass, to)
                mass = Mass(tree.plus(mass.value, step), mass.weight)  # P z - eta g
            else:
                mass, arrived = push_step(peers, Mass(tree.plus(state.mass.value, step), state.mass.weight), to)
            params = task.join(ratio(mass), trained.variables.params)
            variables = Variables(params, trained.variables.statistics)
            total = Info(total.loss + trained.loss, total.weights + _shares(arrived).astype(total.weights.dtype))
            return State(mass, variables, trained.optimiser, state.pushed + 1), total

        dtype = state.mass.weight.dtype
        zero = Info(jnp.zeros(peers.ids.shape[0], task.dtype), jnp.zeros(peers.present.shape, dtype))
        state, total = peers.loop(self.pushes, once, (state, zero))
        return state, Info(total.loss / self.pushes, total.weights / self.pushes)


def _shares(arrived: jax.Array) -> jax.Array:
    """Return the part of its new model that a client has from each slot `[C, D]`, if all messages weighed the same."""
    return arrived / (1 + arrived.sum(1, keepdims=True))
