"""Base of the three SCooL methods: a round in which clients infer with whom to cooperate.

Li, Zhou, Tian, Tao 2024, *Structured Cooperative Learning with Graphical Model Priors*, Algorithm 1 and Appendix C.1.
One round: train alone; each neighbour computes the loss of my model on its data (cross-losses); infer the weights from
these and from a prior over graphs (the E-step, which differs between the methods); let the neighbours' models move
mine by these weights (the M-step). After some rounds all but the strongest edges are dropped for the rest of the run.

The paper's M-step, `m_step = "first-order"`, adds the neighbours' moves to a client's own point in every round. It
never brings the points together, so on a sparse directed graph the members of a group drift apart and their moves stop
helping. Mixing the models contracts, but models that are mixed fit each other's data whether they should or not, and
clients that were mixed by mistake stay mixed. So with `m_step = "mix"` everyone trains alone and weights are inferred,
from the losses of all rounds so far (`evidence.py`), until edges are dropped; from then on the weights are held and the
models mixed, with neighbours that were drawn. Losses say who is better than guessing, not whether a mixture is better
than one's own model: where clients differ a little and have enough samples it is not. So a client uses the model it had
just trained if the mixture is clearly worse on its validation samples, and keeps the one that it used before if the new
one makes clearly more mistakes on them (`serve = "validated"`); training goes on from the mixture all the same.

Changed, because the paper is wrong or silent there: log-likelihoods are centred on a baseline (otherwise "no
cooperation" always looks best), rows of weights sum to one (with `own = "apart"` the client's own data have weight 1
before the row is scaled), a client is never its own neighbour. `faithful = true` does what the authors' program does
instead. docs/reference/papers.md lists all corrections.
"""

import abc
import math
from typing import Any, ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp

from coterie.data.clients import Clients, Federation, Split
from coterie.errors import CoterieError
from coterie.learning.local_sgd import LocalSGD, Trained
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Method, Topology, Tunes
from coterie.methods.sends import CHANGE, GRADIENT, LOSS, MODEL, Sending, Sends
from coterie.methods.shared.evidence import Evidence, averaged, gather, judged_fairly, nothing_heard
from coterie.methods.shared.m_steps import OwnSamples, descend, mix, move
from coterie.methods.shared.neighbours import clearly_worse, makes_more_mistakes
from coterie.numerics import tree
from coterie.peers.base import Peers
from coterie.spec import param, spec
from coterie.traced import changed

__all__ = ["Scool", "State"]


HELD = "held"  # instead of an m_step, once the weights are no longer inferred; not for configs


class State(NamedTuple):
    """Each client's model and optimiser, its weights over the slots, and the state of the prior."""

    variables: Variables
    optimiser: Any
    weights: jax.Array  # [C, D] in [0, 1], before the row is scaled
    own_weight: jax.Array  # [C]
    prior: Any
    luck: Any = ()  # [C] the seed with which each client draws the neighbours it keeps, until it has drawn them
    served: Any = ()  # the models that clients use, where they may be others than those that training goes on from
    heard: Any = ()  # the losses of the rounds so far, while clients train alone and weights are inferred


@spec
class Scool(LocalSGD, Method):
    """Learn with whom to cooperate; subclasses define the prior over graphs."""

    topology: ClassVar[Topology] = "graph"
    sends: ClassVar[Sends] = {
        "ask": MODEL,
        "answer": Sending(f"{LOSS.what}, or {GRADIENT.what}", f"{LOSS.leaks} {GRADIENT.leaks}"),
        "mix": CHANGE,
    }
    default_graph: ClassVar[str] = "complete"
    learns_weights: ClassVar[bool] = True
    tunes: ClassVar[Tunes] = {"temperature": (0.5, 1.0, 2.0)}
    temperature: float = param(
        0.5, "divides the log-likelihoods: a higher one spreads the weight over more neighbours", above=0
    )
    fraction: float | Literal["auto"] = param(
        "auto",
        "fraction of all clients that each one keeps as neighbours; auto: a tenth, but at least five clients",
        above=0,
        at_most=1,
        static=True,
    )
    sparsify_after: int = param(
        10, "rounds before all but the strongest edges are dropped, and models mixed; 0: never dropped", at_least=0
    )
    cross_batch: int = param(
        10, "samples on which a neighbour evaluates a model; 0: all of its training data", at_least=0
    )
    memory: float = param(
        0.7,
        "while clients train alone, losses are averaged over rounds, each of which counts this much of the one after "
        "it; 0: only the last round counts. Needs m_step = mix and sparsify_after above 0",
        at_least=0,
        at_most=1,
    )
    own: Literal["competes", "apart"] = param(
        "competes",
        "weight of the client's own data: by their likelihood like the neighbours', or apart with weight 1",
    )
    m_step: Literal["mix", "first-order", "exact"] = param(
        "mix",
        "mix the trained models; or add the neighbours' moves to mine (the paper's program, and always if faithful); "
        "or ask each neighbour for its gradient at my model (eq. 20)",
    )
    serve: Literal["validated", "mixture"] = param(
        "validated",
        "which model a client uses once models are mixed: the one it had just trained where the mixture is clearly "
        "worse on its validation samples (at least five), and the one it used before where the new one makes clearly "
        "more mistakes on them; or always the mixture. Needs sparsify_after above 0",
    )
    exact_steps: int = param(5, "steps of the exact M-step per round", at_least=1)
    faithful: bool = param(
        False, "do what the authors' program does, including its known errors (docs/reference/papers.md)"
    )

    def plain(self) -> Self:
        """See `Method.plain`."""
        return changed(super().plain(), cross_batch=0, exact_steps=1)

    def check(self, task: Task, federation: Federation) -> None:
        """Refuse a regression, where the baseline is not defined."""
        if task.kind == "regression" and not self.faithful:
            raise CoterieError("method: SCooL's baseline is log(number of classes); it needs classification or text")

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Give every client the same fresh model, and no weight to the neighbours."""
        here, slots = peers.neighbours.shape
        variables = tree.broadcast(task.init(key), here)
        optimiser = jax.vmap(self.optimiser().init)(variables.params)
        weights = jnp.zeros((here, slots), task.dtype)
        prior = self.start_prior(task, peers, variables, key)
        state = State(variables, optimiser, weights, jnp.ones(here, task.dtype), prior)
        if not self.holds:
            return state
        luck = peers.each(jax.random.bits, peers.keys(jax.random.fold_in(key, 2)))
        return state._replace(luck=luck, heard=nothing_heard(weights))

    @abc.abstractmethod
    def start_prior(self, task: Task, peers: Peers, variables: Variables, key: jax.Array) -> Any:
        """Return the state of the prior before the first round."""

    @abc.abstractmethod
    def e_step(
        self, task: Task, state: State, moved: Any, evidence: Evidence, peers: Peers, key: jax.Array
    ) -> tuple[jax.Array, jax.Array, Any, Any]:
        """Return weights `[C, D]`, own weights `[C]`, the prior's state, and what it adds to the models (or None).

        `moved` is the shared part of each client's model after its local training.
        """

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Train, collect cross-losses, infer the weights, move (Algorithm 1)."""
        train_key, batch_key, infer_key = jax.random.split(key, 3)

        def train(variables: Variables, optimiser: Any, data: Split, key: jax.Array) -> Trained:
            return self.train(task, variables, data, key, optimiser_state=optimiser)

        keys = peers.keys(train_key)
        trained = peers.each(train, state.variables, state.optimiser, clients.train, keys)  # theta^{t+1/2}
        before, after = task.shared(state.variables.params), task.shared(trained.variables.params)

        weights, own_weight, prior = state.weights, state.own_weight, state.prior
        served, heard = state.served, state.heard
        if self.m_step == HELD:
            shared = mix(peers, after, *self._scaled(peers, weights, own_weight))
            if self.serve == "validated":
                served = self._chosen(task, shared, trained.variables, served, peers, clients)
        else:
            samples = peers.each(self._own_samples, trained.variables, clients.train, peers.keys(batch_key))
            evidence = gather(task, after, samples, peers, clients)
            if self.holds:
                fair = judged_fairly(task, trained.variables, evidence, peers, clients)
                evidence, heard = averaged(fair, heard, self.memory, peers)
            weights, own_weight, prior, drift = self.e_step(task, state, after, evidence, peers, infer_key)
            if self.holds:
                shared = after
            elif self.m_step == "exact" and not self.faithful:
                scaled, optimiser = self._scaled(peers, weights, own_weight), self.optimiser()
                arguments = scaled, self._minibatch, optimiser, self.exact_steps, peers, clients, batch_key
                shared = descend(task, before, trained.variables, *arguments)
            else:
                shared = self._move(before, after, weights, own_weight, peers)
            shared = shared if drift is None else tree.plus(shared, drift)
        variables = Variables(task.join(shared, trained.variables.params), trained.variables.statistics)
        state = State(variables, trained.optimiser, weights, own_weight, prior, state.luck, served, heard)
        return state, Info(trained.loss, self._scaled(peers, weights, own_weight)[0])

    def _chosen(
        self, task: Task, mixed: Any, trained: Variables, used: Variables, peers: Peers, clients: Clients
    ) -> Variables:
        """Return the model each client uses: the mixture, the model it has trained, or the one that it used before."""

        def choose(mixed: Any, trained: Variables, used: Variables, validation: Split) -> Variables:
            mixture = Variables(task.join(mixed, trained.params), trained.statistics)
            worse = clearly_worse(task, mixture, trained, validation)
            new = jax.tree.map(lambda own, other: jnp.where(worse, own, other), trained, mixture)
            refused = makes_more_mistakes(task, new, used, validation)
            return jax.tree.map(lambda old, other: jnp.where(refused, old, other), used, new)

        return peers.each(choose, mixed, trained, used, clients.validation)

    def models(self, state: State) -> Variables:
        """Return the models that the clients use."""
        return state.variables if state.served == () else state.served

    @property
    def holds(self) -> bool:
        """Whether clients train alone while the weights are inferred, and mix with the last ones afterwards."""
        return self.m_step == "mix" and not self.faithful and self.sparsify_after > 0

    def at_stage(self, first: int) -> Self:
        """Return the method of the stage that begins with round `first`: after the last one weights may be held."""
        return changed(self, m_step=HELD) if self.holds and first > self.sparsify_after else self

    def _move(self, before: Any, after: Any, weights: jax.Array, own_weight: jax.Array, peers: Peers) -> Any:
        """Mix the trained models, or add their moves, with the weights of this round."""
        slots, own = self._scaled(peers, weights, own_weight)
        if self.m_step == "mix" and not self.faithful:
            return mix(peers, after, slots, own)
        return move(peers, before, tree.minus(before, after), slots, own)

    def _scaled(self, peers: Peers, weights: jax.Array, own_weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Scale a row to sum to one: otherwise its sum would act as a step size."""
        total = own_weight + peers.sum_slots(weights)
        return weights / total[:, None], own_weight / total

    def _own_samples(self, variables: Variables, data: Split, key: jax.Array) -> OwnSamples:
        """Draw the samples on which this client will evaluate the models of others."""
        n = data.x.shape[0]
        if self.cross_batch == 0 or self.cross_batch >= n:
            return OwnSamples(data.x, data.y, jnp.arange(n) < data.count, variables)
        rank = jnp.where(jnp.arange(n) < data.count, jax.random.uniform(key, (n,)), jnp.inf)
        picked = jnp.argsort(rank)[: self.cross_batch]
        return OwnSamples(data.x[picked], data.y[picked], jnp.arange(self.cross_batch) < data.count, variables)

    def _minibatch(self, variables: Variables, data: Split, key: jax.Array) -> OwnSamples:
        """Draw a minibatch of training data for a step of the exact M-step."""
        indices, mask, _ = self._draw(data.x.shape[0], data.count, key, jnp.int32(0))
        return OwnSamples(data.x[indices], data.y[indices], mask, variables)

    # -- the stage after sparsification -----------------------------------------------------------------------

    def stages(self) -> tuple[int, ...]:
        """Return the round after which edges are dropped."""
        return (self.sparsify_after,) if self.sparsify_after else ()

    def keep(self, state: State, present: jax.Array, clients: int) -> jax.Array:
        """Keep ceil(fraction K) slots of each client, at least one; the client itself does not count.

        The heaviest, as in the paper; where models will be mixed they are drawn, with chances in proportion to w^4 (the
        largest of log w^4 + Gumbel noise): members of a group that all heard the same few would not learn from the
        rest, and w^4 leaves hardly a chance to those that do not help.
        """
        fraction, least = (0.1, 5) if self.fraction == "auto" else (self.fraction, 1)
        most = math.ceil(round(fraction * clients, 9))  # rounded: 0.07 * 100 is 7.000000000000001
        count = min(max(least, most), present.shape[1])
        score = state.weights
        if self.holds:
            noise = jax.vmap(lambda seed: jax.random.gumbel(jax.random.key(seed), score.shape[1:], score.dtype))
            score = 4 * jnp.log(jnp.maximum(score, jnp.finfo(score.dtype).tiny)) + noise(state.luck)
        score = jnp.where(present, score, -jnp.inf)
        rank = jnp.argsort(jnp.argsort(-score, axis=1, stable=True), axis=1, stable=True)
        return (rank < count) & present

    def narrow(self, state: State, take: Any) -> State:
        """Keep the weights of the remaining slots; from here on a client may use another model than it trains."""
        served = _copied(state.variables) if self.holds and self.serve == "validated" else ()
        return state._replace(weights=take(state.weights), luck=(), served=served, heard=())


@jax.jit
def _copied(x: Any) -> Any:
    """Copy arrays: two parts of a state that is handed over to a program may not be the same."""
    return jax.tree.map(jnp.copy, x)
