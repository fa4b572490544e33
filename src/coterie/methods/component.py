"""A model with a shared and a personal component, the personal ones tied along a similarity network.

Zhao et al., Algorithm 6, corrected: client n has the model (x, z_n), and

    min  sum_n f_n(x, z_n)  +  lam sum_edges |z_i - z_j|_p

makes similar clients share z exactly. In a round every client steps from (x, z_n) on its own data and sends the change;
the hub averages the changes of x and moves Z by the network lasso's proximal operator (`numerics/lasso/admm.py`):

    x <- x - mean_n (lr g_n),    Z <- argmin lam sum |z_i - z_j|_p + |Z - (Z - lr G)|^2 / (2 lr)    (form = "server")

Without a hub (form = "peers") x is mixed with the neighbours, and the proximal operator is computed by steps on its
dual, each with one exchange of z with the neighbours. The duals continue from the last round, so that a few steps per
round suffice: the clients of a cluster converge to the same z, while with a hub they are equal after every round. A
codec compresses the changes: `codec = "fused"` is the paper's communication-efficient gradient, and its `settle` the
schedule gamma_t.

What we changed (docs/reference/papers.md): the paper's single step size is wrong by a factor N for Z (its block is
L/N-smooth), so lam is relative to a client's own loss, not to the mean over all; more than one local step per round is
allowed, and the proximal step then counts that many times (once per epoch, if epochs are counted); the paper's
Algorithm 6 updates with gradients that were never sent, ours with what arrived.

The personal component does leave its client (the hub needs it for the proximal step). Layers that must never leave are
named in `model.personal`.
"""

import abc
from typing import Any, ClassVar, Literal, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp

from coterie.data.clients import Clients, Federation, Split
from coterie.errors import CoterieError
from coterie.learning.local_sgd import LocalSGD, Trained
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Method, Newcomer, Topology, Tunes, method
from coterie.methods.sends import CHANGE, MODEL, Sending, Sends
from coterie.methods.shared.personal import last_layer
from coterie.numerics import tree
from coterie.numerics.lasso.admm import Warm, admm, start
from coterie.numerics.lasso.edges import edge_step, edge_value, momentum
from coterie.numerics.lasso.incidence import Incidence
from coterie.peers.base import Peers, blend
from coterie.spec import param, spec
from coterie.traced import changed, is_off

__all__ = ["Component", "TiedComponent"]

Tree = Any

AT_SERVER, BY_PEERS = 100, 5  # default solver iterations per round


class Hub(NamedTuple):
    """The hub's state: both components, the network lasso's problem and the state of its solver."""

    shared: Tree  # [1, ...]
    personal: jax.Array  # [K, d2]
    neighbours: jax.Array  # [K, D]
    problem: Incidence
    warm: Warm


class State(NamedTuple):
    """Each client's model, with whom it shares its personal component, and the state of the solver."""

    variables: Variables
    alike: jax.Array  # [C, D] whether the client and its neighbour have the same personal component
    held: Any  # "server": Hub; "peers": the duals of a client's edges, [C, D, d2], minus those at the other end


@spec
class TiedComponent(LocalSGD, Method):
    """Local steps, then the network lasso's proximal operator; subclasses choose the part that is tied."""

    topology: ClassVar[Topology] = "graph"
    sends: ClassVar[Sends] = {
        "hub": Sending(f"who its neighbours are; then, in every round, {CHANGE.what}", CHANGE.leaks),
        "swap": Sending("the part of its model that neighbours are tied by, and the tension of each tie", MODEL.leaks),
    }
    newcomer: ClassVar[Newcomer] = "nearest"
    default_graph: ClassVar[str] = "similarity"
    tunes: ClassVar[Tunes] = {"lam": (0.01, 0.1, 1.0)}
    steps: int = param(1, "local steps per round; 0: use epochs", at_least=0)
    lam: float = param(0.1, "strength of the tie along an edge, relative to a client's own mean loss", at_least=0)
    norm: Literal["1", "2", "inf"] = param(
        "2", "norm of a difference: 1 makes single numbers equal, 2 and inf whole components"
    )
    form: Literal["server", "peers"] = param(
        "server", "where the proximal step is computed: at a hub, or between neighbours"
    )
    iterations: int = param(
        0, "solver iterations per round; 0: at most 100 at a server, 5 by peers (one message per edge each)", at_least=0
    )
    tolerance: float = param(1e-4, "duality gap, as a fraction of the objective, at which the server stops", above=0)
    path_factor: float = param(0.0, "factor between consecutive lam of a path; 0: one lam", at_least=0, below=1)
    path_every: int = param(20, "rounds for each lam of a path", at_least=1)

    def hub_state(self) -> tuple[str, ...]:
        """See `Method.hub_state`."""
        return ("held",) if self.form == "server" else ()

    def absent(self, task: Task, before: State, after: State) -> State:
        """See `Method.absent`: both components are the hub's, if there is one."""
        if self.form == "peers":
            return before
        params = eqx.combine(*self._parts(task, after.variables.params), before.variables.params)
        return before._replace(variables=before.variables._replace(params=params), alike=after.alike)

    @property
    def p(self) -> Any:
        """The norm in the solvers' notation."""
        return self.norm if self.norm == "inf" else int(self.norm)

    @property
    def mutual(self) -> bool:
        """Whether all edges must go both ways: a tie has two ends."""
        return True

    @property
    def rounds_per_model(self) -> int:
        """Rounds for each lam: a path gives one model per lam, and a run keeps the best; 0: no path."""
        return 0 if is_off(self.path_factor) else self.path_every

    def at_round(self, number: jax.Array | int) -> Self:
        """Return the method with the learning rate and the lam of a round, counted from 1."""
        now = super().at_round(number)
        if is_off(self.path_factor):
            return now
        return changed(now, lam=self.lam * self.path_factor ** jnp.asarray((number - 1) // self.path_every, float))

    def plain(self) -> Self:
        """See `Method.plain`."""
        return changed(super().plain(), iterations=1)

    @abc.abstractmethod
    def tied(self, task: Task) -> Task:
        """Return the task whose personal part is the tied part of the model and what is never sent."""

    def check(self, task: Task, federation: Federation) -> None:
        """Refuse a model without a tied part, before anything is compiled."""
        if set(self.tied(task).personal_names) <= set(task.personal_names):
            raise CoterieError(
                f"model.personal {', '.join(task.personal)} never leaves a client, and nothing else is left to tie to "
                "the neighbours' models; leave a part of the model out of it, or name another one in method.personal"
            )

    # -- a model as shared part, personal part and what is never sent ------------------------------------------------

    def _parts(self, task: Task, params: Tree) -> tuple[Tree, Tree]:
        """Return the shared and the tied part of models `[C, ...]`."""
        return self.tied(task).shared(params), task.shared(self.tied(task).own(params))

    # -- the three functions ------------------------------------------------------------------------------------------

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Give every client the same fresh model, and send the hub who is tied to whom."""
        variables = tree.broadcast(task.init(key), peers.ids.shape[0])
        shared, personal = self._parts(task, variables.params)
        rows, _ = tree.flat(personal)
        if self.form == "peers":
            duals = jnp.zeros((*peers.present.shape, rows.shape[1]), rows.dtype)
            return State(variables, peers.present, duals)

        def tie(lists: tuple, arrived: jax.Array, memory: tuple) -> tuple:
            neighbours, strength = lists
            return (), (neighbours, problem_of(neighbours, strength))

        _, _, (neighbours, problem) = peers.hub(tie, (peers.neighbours, peers.tables.strength), (), certain=True)
        first = jax.tree.map(lambda a: a[:1], shared)
        everyone = jnp.broadcast_to(rows[:1], (peers.clients, rows.shape[1]))
        hub = Hub(first, everyone, neighbours, problem, start(problem, rows.shape[1], rows.dtype))
        return State(variables, peers.present, hub)

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Step on the client's own data; average the shared part, apply the proximal operator to the tied part."""

        def train(variables: Variables, data: Split, key: jax.Array) -> Trained:
            return self.train(task, variables, data, key)

        trained = peers.each(train, state.variables, clients.train, peers.keys(key))
        proximal = self._by_server if self.form == "server" else self._by_peers
        shared, personal, alike, solver_state = proximal(task, state, trained.variables.params, peers)
        params = eqx.combine(shared, personal, trained.variables.params)  # the rest is never sent
        variables = Variables(params, trained.variables.statistics)
        alike = alike & peers.present
        weights = alike / (1 + alike.sum(1, keepdims=True)).astype(task.dtype)
        counts = {"lam": jnp.broadcast_to(jnp.asarray(self.lam, task.dtype), trained.loss.shape)}
        return State(variables, alike, solver_state), Info(trained.loss, weights, counts)

    def _step(self) -> Any:
        """Return the step size of the proximal operator: the total length of a round's local steps."""
        return self.lr * (self.steps or self.epochs)

    def _by_server(self, task: Task, state: State, after: Tree, peers: Peers) -> tuple:
        """Send the change; the hub averages, solves, and answers with both components."""
        before = self._parts(task, state.variables.params)
        moved = self._parts(task, after)
        change = tree.minus(moved, before)
        _, join = tree.flat(before[1])

        def solve(change: tuple, arrived: jax.Array, hub: Hub) -> tuple:
            senders = jnp.maximum(arrived.sum(), 1)
            # Not divided by their number: see `tree.divide`.
            shared = jax.tree.map(
                lambda x, c: x + c.sum(0, keepdims=True) * (1 / senders.astype(c.dtype)), hub.shared, change[0]
            )
            goal = hub.personal + tree.flat(change[1])[0]  # U = Z - lr G
            stop = (self.iterations or AT_SERVER, self.tolerance)
            solution = admm(hub.problem, goal, self.lam, self._step(), self.p, hub.warm, *stop)
            count = hub.personal.shape[0]
            copies = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape[1:])), shared)
            alike = solution.labels[hub.neighbours] == solution.labels[:, None]
            return (copies, solution.Z, alike), hub._replace(shared=shared, personal=solution.Z, warm=solution.warm)

        (shared, rows, alike), arrived, hub = peers.hub(solve, change, state.held)
        shared, personal = tree.where(arrived, (shared, join(rows)), before)  # no answer: keep the old model
        return shared, personal, tree.where(arrived, alike, state.alike), hub

    def _by_peers(self, task: Task, state: State, after: Tree, peers: Peers) -> tuple:
        """Mix the shared part with the neighbours; compute the proximal operator by steps on its dual."""
        shared, personal = self._parts(task, after)
        shared = blend(peers, shared, peers.weights) if jax.tree.leaves(shared) else shared
        goal, join = tree.flat(personal)  # U
        eta, slots = self._step(), peers.present.shape[1]

        def copies(x: jax.Array) -> jax.Array:
            return jnp.broadcast_to(x[:, None], (x.shape[0], slots, *x.shape[1:]))

        # Both ends of an edge keep its dual, with opposite signs. After a lost message the two may differ: take their
        # mean first.
        degree = peers.present.sum(1).astype(goal.dtype)
        (theirs, other_degree), arrived = peers.swap((state.held, copies(degree)))
        duals = jnp.where(arrived[..., None], 0.5 * (state.held - theirs), state.held)
        step = 1 / (eta * (degree[:, None] + jnp.maximum(other_degree, 1)))
        radius = peers.seal(jnp.asarray(self.lam, goal.dtype) * peers.tables.strength)

        def ascend(look: jax.Array, *rows: jax.Array) -> tuple:  # one client's edges
            dual, ahead, own, theirs, step, radius = (row[None] for row in rows)
            new = edge_step(dual, ahead, own, theirs, step, radius, look, self.p, peers.seal)
            return jax.tree.map(lambda a: a[0], new)

        def iterate(t: jax.Array, carry: tuple) -> tuple:
            duals, ahead, closed = carry
            value = edge_value(goal, ahead, eta, peers.seal)
            theirs, arrived = peers.swap(copies(value))
            look = jnp.broadcast_to(momentum(t.astype(goal.dtype)), degree.shape)
            new = peers.each(ascend, look, duals, ahead, value, theirs, step, radius)
            return tree.where(arrived, new, (duals, duals, closed))  # no message: the edge does not move

        duals, _, alike = peers.loop(self.iterations or BY_PEERS, iterate, (duals, duals, state.alike))
        return shared, join(edge_value(goal, duals, eta, peers.seal)), alike, duals


@method
class Component(TiedComponent):
    """A shared component, averaged, and personal ones that similar clients share exactly."""

    uses_hub: ClassVar[bool] = True
    sends: ClassVar[Sends] = {**TiedComponent.sends, "mix": MODEL}
    personal: tuple[str, ...] = param((), "names of the personal component's layers; empty: the last layer")

    def tied(self, task: Task) -> Task:
        """Return the task split into both components; refuse a choice that leaves nothing to share."""
        chosen = self.personal or (last_layer(task),)
        split = task.keeping(tuple(chosen) + tuple(task.personal))
        if len(split.personal_names) == len(split.names):
            raise CoterieError(
                f"method.personal {', '.join(chosen)} is the whole model; name a part of it (known: "
                f"{', '.join(task.names)}), or use the method network-lasso, which has no shared component"
            )
        return split


def problem_of(neighbours: jax.Array, strength: jax.Array) -> Incidence:
    """Build the network lasso's problem from all neighbours and ties `[K, D]` (0: no neighbour), inside a program.

    An edge is listed at its lower end. There are at most K D / 2 of them; unused places connect a client to itself with
    weight 0, which changes nothing.
    """
    (clients, slots), present = neighbours.shape, strength > 0
    own = jnp.broadcast_to(jnp.arange(clients, dtype=jnp.int32)[:, None], neighbours.shape)
    listed = (present & (own < neighbours)).reshape(-1)
    chosen = jnp.argsort(~listed, stable=True)[: clients * slots // 2]
    real, lower = listed[chosen], own.reshape(-1)[chosen]
    edges = jnp.stack([lower, jnp.where(real, neighbours.reshape(-1)[chosen], lower)], axis=1)
    number = jnp.where(real, edges[:, 0] * clients + edges[:, 1], clients**2)  # sorted by lower, then by higher end
    table = jnp.searchsorted(number, jnp.minimum(own, neighbours) * clients + jnp.maximum(own, neighbours))
    sign = jnp.where(present, jnp.where(own < neighbours, 1, -1), 0).astype(strength.dtype)
    table = jnp.where(present, table, 0).astype(jnp.int32)
    weight = jnp.where(real, strength.reshape(-1)[chosen], 0)
    return Incidence(edges, weight, present.sum(1), table, sign, jnp.arange(clients, dtype=jnp.int32))
