"""Common base predictors, personal weights: multi-task learning as bilevel optimisation over a directed network.

Terashita and Hara 2023, section 5 and A.2: all clients agree on K base predictors, x = argmin sum_k f_k(x, lambda_k),
and each client weights them by softmax(lambda_i), to lower the sum of all outer costs F_s(x, lambda_s). A round is one
outer step: `pushes` steps of stochastic gradient push solve for x under the current weights, then every client
estimates how the sum depends on its lambda_i through x (`bilevel/hypergradients.py`) and steps. Estimators:
- "local", the default: as if x did not depend on the weights (the paper's PDBO-MTL (local)); no message;
- "neumann": the follow-up's push-sum Neumann series (arXiv 2210.02129), with averages of `gossip` pushes;
- "hgp": the paper's hyper-gradient push, from the link frequencies that each client has observed; noisy;
- "tracking": exact in the limit, on any network; for inner losses that are convex enough.

With the training losses as outer costs the series extrapolates: to first order it is the local estimate after `depth`
more gradient steps of size `damping` on the sum of all losses. So choose damping by learning rate and curvature: a
thousandth of the learning rate changes next to nothing, and above 2 / (the largest curvature), which may be less than
the learning rate, the series grows (measured in docs/methods/bilevel.md).

The part through x matters where the outer cost is *not* the training loss: at the inner optimum the sum of all training
losses does not depend on x, so that the local estimate is already the whole gradient. `upper = "held-out"` keeps a
share of every client's training samples out of the inner problem and judges the weights on them. What acts through x
alone cannot be learned without that part: `importance`, how much a client's samples count for the predictors, which
`upper = "validation"` learns where some clients' training samples are bad and everyone has a few good ones to judge by.
When each pays is in docs/methods/bilevel.md.

What we changed: the part through x is left out unless asked for, because for the weights of the predictors it never
paid in what we measured; importance is ours; the authors' program restarts the inner problem for every outer step (the
paper does not say), "warm" continues it; the inner Jacobian's step `damping` is a setting of its own (the authors' code
takes the learning rate after its last decay, which cuts the series short); the outer cost may be that of held-out or of
validation samples (the paper: training samples). The model of a round is the pair (x, lambda) with x solved under
lambda; the step on lambda that follows takes effect in the next round.
"""

import math
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax

from coterie.bilevel.hypergradients import Settings, Statistics, estimate
from coterie.consensus.pushsum import (
    LEAST_WEIGHT,
    Mass,
    Seen,
    enough,
    frequencies,
    nothing_seen,
    observe_push,
    ratio,
    start,
)
from coterie.data.clients import Clients, Split
from coterie.errors import CoterieError
from coterie.learning.local_sgd import LocalSGD, Trained
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Method, Newcomer, Topology, method
from coterie.methods.sends import CHANGE, Sending, Sends
from coterie.methods.shared.neighbours import mean_loss
from coterie.numerics import tree
from coterie.peers.base import Peers
from coterie.spec import param
from coterie.traced import changed, is_off

__all__ = ["PDBOMTL"]


class State(NamedTuple):
    """The state of the inner problem, the weights of the next round, and what a restart needs."""

    mass: Mass  # z, the base predictors as one vector `[C, d]`, and w: leaf by leaf there would be far more to compile
    variables: Variables  # x = z / w, and the weights lambda under which it was solved
    weights: Any  # lambda of the next round, as the personal part of the parameters
    outer: optax.OptState
    start: Any  # z at the start of every round; empty for inner = "warm"
    pushed: jax.Array  # [C]: steps so far, which select the links of a network that changes
    seen: Seen  # each client's counts of its links, over all rounds
    importance: Any = ()  # [C]: mu_i of the next round; empty unless it is learned


@method
class PDBOMTL(LocalSGD, Method):
    """Agree on base predictors over a directed network; learn personal weights by hyper-gradients."""

    topology: ClassVar[Topology] = "graph"
    sends: ClassVar[Sends] = {
        "push": Sending(
            "its share of the base predictors; then its part of a gradient with respect to them", CHANGE.leaks
        )
    }
    newcomer: ClassVar[Newcomer] = "shared"
    default_graph: ClassVar[str] = "random-directed"
    random_links: ClassVar[bool] = True
    steps: int = param(1, "local steps before each push; 0: use epochs", at_least=0)
    predictors: int = param(3, "base predictors (K), unless model.members is set", at_least=1)
    pushes: int = param(100, "steps of gradient push per round (the inner problem)", at_least=1)
    least_weight: float = param(
        LEAST_WEIGHT, "push-sum weight below which a client waits before it sends; 0: never", at_least=0, at_most=1
    )
    settle: int = param(
        0, "last pushes of a round, with lr / 10 in their first half and lr / 100 in their second", at_least=0
    )
    inner: Literal["restart", "warm"] = param("restart", "restart the inner problem in every round, or continue it")
    estimator: Literal["neumann", "hgp", "tracking", "local"] = param(
        "local", "estimator of the hyper-gradient; when the others pay is in docs/methods/bilevel.md"
    )
    depth: int = param(5, "iterations of the estimator (M), each with one Hessian-vector product", at_least=0)
    damping: float = param(0.03, "step size of the estimator's iteration; for hgp the learning rate", above=0)
    gossip: int = param(5, "pushes per average of the neumann estimator (S); 1 is too inaccurate", at_least=1)
    upper: Literal["train", "held-out", "validation"] = param(
        "train",
        "samples of the outer cost (the paper: train); held-out: training samples that no predictor learns from",
    )
    held_out: float = param(
        0.2, "for upper = held-out: share of a client's training samples", above=0, below=1, static=True
    )
    importance: bool = param(
        False,
        "learn, too, how much each client's samples count for the predictors (0 to 2 times); needs upper = 'held-out' "
        "or 'validation' and an estimator other than local",
    )
    outer_lr: float = param(0.1, "step size of Adam on the weights (the paper: 1)", above=0)
    outer_decay: float = param(0.01, "L2 penalty on the weights in the outer cost", at_least=0)

    def __post_init__(self) -> None:
        if self.settle > self.pushes:
            raise CoterieError(f"settle must be at most pushes = {self.pushes}, not {self.settle}")
        if self.importance and (self.estimator == "local" or self.upper == "train"):
            raise CoterieError(
                "importance is learned through the predictors, by samples that these did not train on: set estimator = "
                "'neumann' and upper = 'validation' (or 'held-out') with it"
            )

    @property
    def mutual(self) -> bool:
        """Whether all edges must go both ways: hyper-gradient push also sends against the links."""
        return self.estimator == "hgp"

    def plain(self) -> Self:
        """See `Method.plain`."""
        return changed(super().plain(), predictors=1, pushes=1, settle=0, inner="warm", upper="train")

    def adapt(self, task: Task) -> Task:
        """Return the task of K such models with personal weights."""
        return task.mixed(self.predictors)

    def check(self, task: Task, federation: Any) -> None:
        """Refuse clients that have no samples for the outer cost."""
        if self.upper == "validation" and not federation.validation.count.all():
            name = federation.names[int((federation.validation.count == 0).argmax())]
            raise CoterieError(f"upper = 'validation', but client {name!r} has no validation sample; use 'train'")
        if self.upper == "held-out" and (federation.train.count < 2).any():
            name = federation.names[int((federation.train.count < 2).argmax())]
            raise CoterieError(f"upper = 'held-out', but client {name!r} has one training sample; use 'train'")

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Give every client the same base predictors and equal weights."""
        variables = tree.broadcast(task.init(key), peers.ids.shape[0])
        (shared, _), weights = tree.flat(task.shared(variables.params)), task.own(variables.params)
        importance = jnp.zeros(peers.ids.shape[0], task.dtype) if self.importance else ()
        outer = jax.vmap(self._adam().init)((weights, importance))
        first = shared if self.inner == "restart" else ()
        pushed, seen = jnp.zeros_like(peers.ids), nothing_seen(peers)
        return State(start(peers, shared), variables, weights, outer, first, pushed, seen, importance)

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Solve the inner problem under the current weights, then step on the weights."""
        inner_key, outer_key = jax.random.split(key)
        if self.inner == "restart":
            state = state._replace(mass=start(peers, state.start))
        data = self._data(task, peers, clients)
        state, statistics, info = self._solve(task, state, peers, data, inner_key)
        shared = task.shared(state.variables.params)
        settings = Settings(self.estimator, self.depth, self.damping, self.gossip)
        hypergradient = estimate(
            peers,
            lambda x, lam, data, key: self._inner_loss(task, x, lam, data[0], key),
            lambda x, lam, data: self._outer_cost(task, x, lam, data[1]),
            shared,
            (state.weights, state.importance),
            data,
            outer_key,
            settings,
            statistics,
            state.pushed[0],
        )
        updates, outer = peers.each(self._adam().update, hypergradient.value, state.outer)
        pushed = state.pushed + self.depth * {"local": 0, "hgp": 1}.get(self.estimator, self.gossip)
        weights, importance = tree.plus((state.weights, state.importance), peers.seal(updates))
        return state._replace(weights=weights, importance=importance, outer=outer, pushed=pushed), info

    def _data(self, task: Task, peers: Peers, clients: Clients) -> Any:
        """Return each client's samples of the inner problem and of the outer cost."""
        if self.upper == "train":
            return clients.train, clients.train
        if self.upper == "validation":
            return clients.train, clients.validation
        # The same key in every round and run: held-out samples must never have been trained on.
        keys = peers.keys(jax.random.key(0))
        return peers.each(partial(self._divide, task.kind == "next-character"), clients.train, keys)

    def _divide(self, in_order: bool, data: Split, key: jax.Array) -> tuple[Split, Split]:
        """Keep a share of one client's samples out: drawn at random; of a text the end, as for validation."""
        n = data.x.shape[0]
        rank = jnp.arange(n, dtype=float) if in_order else jax.random.uniform(key, (n,))
        order = jnp.argsort(jnp.where(jnp.arange(n) < data.count, rank, jnp.inf))
        out = jnp.clip(
            jnp.round(self.held_out * data.count).astype(data.count.dtype), 1, jnp.maximum(1, data.count - 1)
        )
        kept = data.count - out
        most = min(n, max(1, math.ceil(self.held_out * n)))
        outer = order[(kept + jnp.arange(most)) % n]
        return Split(data.x[order], data.y[order], kept), Split(data.x[outer], data.y[outer], out)

    def _solve(
        self, task: Task, state: State, peers: Peers, data: Any, key: jax.Array
    ) -> tuple[State, Statistics, Info]:
        """Run Algorithm 1, z <- P (z - lr g(z / w)), w <- P w, and count how often each client's links work."""
        link_key, train_key = jax.random.split(key)
        optimiser = jax.vmap(self.optimiser().init)(state.mass.value)
        _, predictors = tree.flat(task.shared(state.variables.params))

        def once(t: Any, carry: tuple) -> tuple:
            mass, shared, optimiser, seen, loss = carry
            rate = jnp.where(t >= self.pushes - self.settle, 0.1, 1.0) if self.settle else 1.0
            rate = jnp.where(t >= self.pushes - self.settle // 2, 0.01, rate) if self.settle else 1.0

            def train(x: Any, lam: Any, mu: Any, optimiser: Any, data: tuple[Split, Split], key: jax.Array) -> Trained:
                def slope(x: Any, *rest: Any) -> Any:
                    inner = lambda x: task.loss(task.join(predictors(x), lam), *rest)  # noqa: E731
                    loss, gradient = jax.value_and_grad(inner, has_aux=True)(x)
                    return loss, tree.scale(_count(mu), gradient) if self.importance else gradient

                step = self.scaled(rate)
                return step.train(task, Variables(x), data[0], key, optimiser_state=optimiser, slope=slope)

            keys = peers.keys(jax.random.fold_in(train_key, t))
            trained = peers.each(train, shared, state.weights, state.importance, optimiser, data, keys)
            moved = Mass(tree.plus(mass.value, tree.minus(trained.variables.params, shared)), mass.weight)
            to = enough(mass, peers.links(jax.random.fold_in(link_key, t), state.pushed[0] + t), self.least_weight)
            mass, seen = observe_push(peers, seen, moved, to)
            return mass, ratio(mass), trained.optimiser, seen, loss + trained.loss

        zero = jnp.zeros(peers.ids.shape[0], task.dtype)
        first = (state.mass, ratio(state.mass), optimiser, state.seen, zero)
        mass, shared, _, seen, loss = peers.loop(self.pushes, once, first)
        variables = Variables(task.join(predictors(shared), state.weights))
        links = frequencies(seen)
        state = state._replace(mass=mass, variables=variables, pushed=state.pushed + self.pushes, seen=seen)
        counts = {"importance": _count(state.importance)} if self.importance else None
        info = Info(loss / self.pushes, links.heard / (1 + links.heard.sum(1, keepdims=True)), counts)
        return state, Statistics(*links), info

    def _inner_loss(self, task: Task, x: Any, lam: Any, data: Split, key: jax.Array) -> jax.Array:
        """Return f_i on a minibatch, with its penalty."""
        indices, mask, _ = self._draw(data.x.shape[0], data.count, key, jnp.int32(0))
        weights, importance = lam
        loss, _ = task.loss(task.join(x, weights), (), data.x[indices], data.y[indices], mask, train=False)
        loss = _count(importance) * loss if self.importance else loss
        return loss if is_off(self.weight_decay) else loss + 0.5 * self.weight_decay * optax.tree.norm(x, squared=True)

    def _outer_cost(self, task: Task, x: Any, lam: Any, data: Split) -> jax.Array:
        """Return F_i: the mean loss over all samples, computed in batches, and its penalty."""
        cost = mean_loss(task, Variables(task.join(x, lam[0])), data)
        return cost if is_off(self.outer_decay) else cost + 0.5 * self.outer_decay * optax.tree.norm(lam, squared=True)

    def _adam(self) -> optax.GradientTransformation:
        return optax.adam(self.outer_lr, b1=0.9, b2=0.99)  # the paper's


def _count(importance: jax.Array) -> jax.Array:
    """Return how many times the samples of a client count: once at the start, never twice."""
    return 2 * jax.nn.sigmoid(importance)
