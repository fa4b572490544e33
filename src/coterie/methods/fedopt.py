"""FedAvg whose hub takes the mean change of the clients' models for a gradient and steps with an optimiser of its own.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan 2021, Algorithm 2: with the mean change Delta of a round,

    m <- beta_1 m + (1 - beta_1) Delta,    x <- x + hub_lr m / (sqrt(v) + tau),

where FedAdam has v <- beta_2 v + (1 - beta_2) Delta^2 and FedYogi v <- v - (1 - beta_2) Delta^2 sign(v - Delta^2); at
the start m = 0 and v = tau^2. FedAvgM (Hsu, Qi, Brown 2019) has m <- beta m + Delta and x <- x + hub_lr m.

Changed: clients count by their number of samples, as in `fedavg`. Every client keeps a copy of m and v, which follow
from the means that the hub sends; one whose answer from the hub was lost keeps its old copies.
"""

import abc
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp

from coterie.data.clients import Clients, Split
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Topology, Tunes, method
from coterie.methods.shared.hub import HubSGD
from coterie.numerics import tree
from coterie.numerics.tree import Same, is_same
from coterie.peers.base import Peers
from coterie.spec import param, spec
from coterie.traced import changed

__all__ = ["FedAdam", "FedAvgM", "FedYogi", "HubOptimiser"]


class Moments(NamedTuple):
    """The hub's optimiser: the mean of the changes (m), and of their squares (v) where it has them."""

    first: Any
    second: Any


class State(NamedTuple):
    """Each client's copies of the hub's model and optimiser, or those of all (`Same`), and each client's loss."""

    variables: Any
    moments: Any
    loss: jax.Array


@spec
class HubOptimiser(HubSGD):
    """A round of federated averaging whose mean change is a gradient for the hub's optimiser."""

    topology: ClassVar[Topology] = "hub"

    def start_second(self, shared: Any) -> Any:
        """Return v before the first round."""
        return jax.tree.map(lambda a: jnp.full_like(a, self.tau**2), shared)  # type: ignore[attr-defined]

    @abc.abstractmethod
    def moved(self, moments: Moments, change: Any) -> tuple[Moments, Any]:
        """Return the hub's optimiser after a round, and its step (Algorithm 2)."""

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Give every client the same fresh model."""
        variables, loss = self.start(task, peers, key), jnp.zeros(peers.ids.shape[0], task.dtype)
        model = variables.value if is_same(variables) else variables
        shared = task.shared(model.params)
        moments = Moments(jax.tree.map(jnp.zeros_like, shared), self.start_second(shared))
        return State(variables, Same(moments) if is_same(variables) else moments, loss)

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Train at the selected clients, average at the hub, step there."""

        def step(before: Any, mean: Any, moments: Moments) -> tuple[Any, Moments]:
            moments, move = self.moved(moments, tree.minus(mean, before))
            return tree.plus(before, move), moments

        if is_same(state.variables):
            mean, loss, _ = self.average(task, state.variables, state.loss, peers, clients, key)
            before, moments = state.variables.value, state.moments.value
            # As a loop over two clients, so that it is compiled as where each client has a copy: to the same bits.
            twice = tree.broadcast((before.params, mean.value.params, moments), 2)
            params, moments = jax.tree.map(lambda a: a[0], peers.each(step, *twice))
            return State(Same(before._replace(params=params)), Same(moments), loss), Info(loss)

        def work(start: Variables, data: Split, key: jax.Array) -> tuple[Variables, jax.Array]:
            trained = self.train(task, start, data, key)
            return trained.variables, trained.loss

        otherwise, stacked = (state.variables, state.loss), (state.variables, clients.train)
        chosen, (trained, loss) = self.take_part(peers, key, work, otherwise, *stacked)
        before = task.shared(state.variables.params)
        mean, arrived = peers.mean(task.shared(trained.params), self.weight(task, clients, chosen))

        shared, moments = peers.each(step, before, mean, state.moments)
        shared, moments = tree.where(arrived, (shared, moments), (before, state.moments))
        variables = Variables(task.join(shared, trained.params), trained.statistics)
        return State(variables, moments, loss), Info(loss)


@method
class FedAvgM(HubOptimiser):
    """FedAvg with momentum at the hub."""

    tunes: ClassVar[Tunes] = {"hub_momentum": (0.5, 0.9, 0.97)}
    hub_lr: float = param(1.0, "step size of the hub", above=0)
    hub_momentum: float = param(0.9, "momentum of the hub (beta)", at_least=0, below=1)

    def plain(self) -> Self:
        """See `Method.plain`."""
        return changed(super().plain(), hub_lr=1.0, hub_momentum=0.0)

    def start_second(self, shared: Any) -> Any:
        """Return nothing: there is no v."""
        return ()

    def moved(self, moments: Moments, change: Any) -> tuple[Moments, Any]:
        """Return the momentum after a round, and the step."""
        first = tree.plus(tree.scale(self.hub_momentum, moments.first), change)
        return Moments(first, ()), tree.scale(self.hub_lr, first)


@spec
class _Adaptive(HubOptimiser):
    """The settings of FedAdam and FedYogi."""

    alone_is_sgd: ClassVar[bool] = False  # the hub's step is not the client's
    tunes: ClassVar[Tunes] = {"hub_lr": (0.01, 0.03, 0.1)}
    hub_lr: float = param(0.03, "step size of the hub (eta)", above=0)
    beta_1: float = param(0.9, "memory of the mean change", at_least=0, below=1)
    beta_2: float = param(0.99, "memory of its squares", above=0, below=1)
    tau: float = param(1e-3, "smallest scale that changes are divided by", above=0)

    @abc.abstractmethod
    def second(self, v: jax.Array, change: jax.Array) -> jax.Array:
        """Return v after a round."""

    def moved(self, moments: Moments, change: Any) -> tuple[Moments, Any]:
        """Return the moments after a round, and the step."""
        first = jax.tree.map(lambda m, d: self.beta_1 * m + (1 - self.beta_1) * d, moments.first, change)
        second = jax.tree.map(self.second, moments.second, change)
        move = jax.tree.map(lambda m, v: self.hub_lr * m / (jnp.sqrt(v) + self.tau), first, second)
        return Moments(first, second), move


@method
class FedAdam(_Adaptive):
    """FedAvg whose hub steps with Adam."""

    def second(self, v: jax.Array, change: jax.Array) -> jax.Array:
        """Return v after a round."""
        return self.beta_2 * v + (1 - self.beta_2) * change**2


@method
class FedYogi(_Adaptive):
    """FedAvg whose hub steps with Yogi."""

    def second(self, v: jax.Array, change: jax.Array) -> jax.Array:
        """Return v after a round."""
        return v - (1 - self.beta_2) * change**2 * jnp.sign(v - change**2)
