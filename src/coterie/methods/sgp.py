"""Stochastic gradient push: one model for all, over directed networks whose links come and go, without a hub.

Assran, Loizou, Ballas, Rabbat 2019, Algorithm 1; Nedic and Olshevsky 2016; the baseline and the inner solver of
Terashita and Hara 2023 (P1). A client holds z_i and a weight w_i that starts at one; its model is x_i = z_i / w_i. In
each step it splits both over itself and those it reaches (P: columns that sum to one), see `pushsum.py`. Orders:
- "before":  z <- P (z - eta g(z / w)), w <- P w;
- "after":   z <- P z, w <- P w, z <- z - eta g(z / w), with z / w *between* the two as model. That is the sequence of
  "before" after one push ahead, and it is run as such: the push ahead is made before the first round;
- "authors": z <- P z - eta g(z / w), w <- P w, what P1's program runs and calls Nedic's; stable for smaller eta only.

With several local steps the gradient step becomes the displacement of the local training. All are biased by O(eta) when
clients differ. P1 lowers lr tenfold 100 and 50 steps before the end: `decay = 0.1`, `decay_after = T - 100`,
`decay_every = 50`.
"""

from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp

from coterie.consensus.pushsum import Mass, Order, push_step, ratio, start
from coterie.data.clients import Clients, Split
from coterie.learning.local_sgd import LocalSGD, Trained
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Method, Topology, method
from coterie.numerics import tree
from coterie.peers.base import Peers
from coterie.spec import param
from coterie.traced import changed

__all__ = ["SGP"]


class State(NamedTuple):
    """What each client holds of the total, its model, its optimiser, and how often it has pushed."""

    mass: Mass  # z and w, of the layers that travel
    variables: Variables  # x = z / w, and the layers of one's own
    optimiser: Any
    pushed: jax.Array  # [C]: a network that changes counts its steps


@method
class SGP(LocalSGD, Method):
    """Step and push parts of the model to whom one reaches, over directed and random networks."""

    topology: ClassVar[Topology] = "graph"
    default_graph: ClassVar[str] = "random-directed"
    random_links: ClassVar[bool] = True
    order: Order = param("before", "what comes before what: gradient step and push (see the docs)")
    pushes: int = param(1, "how often in a round one trains and pushes", at_least=1)

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
            state, seen = carry
            keys = peers.keys(jax.random.fold_in(train_key, t))
            to = peers.links(jax.random.fold_in(link_key, t), state.pushed[0])
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
            seen = Info(seen.loss + trained.loss, seen.weights + _shares(arrived).astype(seen.weights.dtype))
            return State(mass, variables, trained.optimiser, state.pushed + 1), seen

        dtype = state.mass.weight.dtype
        nothing = Info(jnp.zeros(peers.ids.shape[0], task.dtype), jnp.zeros(peers.present.shape, dtype))
        state, seen = peers.loop(self.pushes, once, (state, nothing))
        return state, Info(seen.loss / self.pushes, seen.weights / self.pushes)

    def models(self, state: State) -> Variables:
        """Return each client's own model."""
        return state.variables


def _shares(arrived: jax.Array) -> jax.Array:
    """Say how much of its new model a client has from each slot `[C, D]`, as if all that it got weighed the same."""
    return arrived / (1 + arrived.sum(1, keepdims=True))
