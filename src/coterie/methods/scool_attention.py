"""SCooL with an attention prior: clients whose models move alike are likely to help each other.

Li et al. 2024, section 4.3. The prior p_ij is a softmax of inner products of learned embeddings of the models'
displacements; the encoder is trained to predict the posterior weights. Its gradient is the full one, in which a client
also appears as a key in all other rows (the paper leaves these terms out: docs/reference/papers.md). `m_step_prior`
adds the prior's pull on the models, which the authors' program leaves out.
"""

from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from coterie.data.clients import Federation
from coterie.errors import CoterieError
from coterie.learning.task import Task, Variables
from coterie.methods.base import Tunes, method
from coterie.methods.sends import FROM_NUMBERS, Sending, Sends
from coterie.methods.shared.evidence import Evidence, squared
from coterie.methods.shared.scool import Scool, State
from coterie.numerics import attention, tree
from coterie.numerics.balance import balanced
from coterie.peers import DENSE_LIMIT
from coterie.peers.base import Peers
from coterie.spec import param
from coterie.traced import is_off

__all__ = ["ScoolAttention"]


class Prior(NamedTuple):
    """The encoder (the same for all while no message is lost), its optimiser, and the initial models."""

    encoder: jax.Array  # [C, n], as `attention.pack` writes it
    optimiser: Any
    start: Any


@method
class ScoolAttention(Scool):
    """Learn with whom to cooperate, with attention between models as prior."""

    tunes: ClassVar[Tunes] = {"temperature": (0.2, 0.5, 1.0)}
    sends: ClassVar[Sends] = {
        **Scool.sends,
        "share": Sending(
            "a short code of how its model has changed, its weights over neighbours, the losses of its model at its "
            "neighbours, how many classes it has",
            FROM_NUMBERS,
        ),
        "mean": Sending("a gradient with respect to the network that makes these codes", FROM_NUMBERS),
    }
    widths: tuple[int, ...] = param((10, 5), "units in the encoder's two layers")
    encoder_lr: float = param(0.1, "step size of the encoder (Adam)", above=0)
    encoder_decay: float = param(0.01, "weight decay of the encoder", at_least=0)
    evidence: Literal["balanced", "plain"] = param(
        "balanced",
        "while clients train alone and pairs of them differ little: losses without what a model or data have in common "
        "with all, from both directions, and magnified; plain: losses as they are, as with more than 4,096 clients",
    )
    m_step_prior: float = param(
        0.0, "strength of the prior's pull on the models while weights are inferred (eq. 28); 0: none", at_least=0
    )

    def check(self, task: Task, federation: Federation) -> None:
        """Refuse personal layers where the shared ones move together from the first round: all then fit everyone."""
        super().check(task, federation)
        if task.personal_names and self.m_step != "mix" and not self.faithful:
            raise CoterieError(
                f"method.m_step = '{self.m_step}' finds no structure where layers are personal: a neighbour's own make "
                "every model fit; use m_step = 'mix', or scool-sbm"
            )

    def start_prior(self, task: Task, peers: Peers, variables: Variables, key: jax.Array) -> Prior:
        """Draw one encoder, the same for all clients."""
        start = task.shared(variables.params)
        one = jax.tree.map(lambda a: a[0], start)
        encoder = attention.pack(attention.start_encoder(one, self._widths, jax.random.fold_in(key, 1)))
        encoder, optimiser = tree.broadcast((encoder, self._adam().init(encoder)), peers.ids.shape[0])
        return Prior(encoder, optimiser, start)

    @property
    def _widths(self) -> tuple[int, int]:
        return (10, 20) if self.faithful else (self.widths[0], self.widths[-1])

    def _embed(self, encoder: jax.Array, step: Any) -> jax.Array:
        return attention.embed(attention.unpack(encoder, step, self._widths), step)

    def _adam(self) -> optax.GradientTransformation:
        rate = 0.2 if self.faithful else self.encoder_lr
        decay = 0.01 if self.faithful else self.encoder_decay
        return optax.adamw(rate, b2=0.99 if self.faithful else 0.999, weight_decay=decay)

    def e_step(
        self, task: Task, state: State, moved: Any, evidence: Evidence, peers: Peers, key: jax.Array
    ) -> tuple[jax.Array, jax.Array, Prior, Any]:
        """Compute the weights from likelihood and attention, then train the encoder on them."""
        memory: Prior = state.prior
        steps = tree.minus(moved, memory.start)
        codes = peers.each(self._embed, memory.encoder, steps)  # e_i
        dense = peers.clients <= DENSE_LIMIT
        balances = self.holds and self.evidence == "balanced" and dense
        neighbours = peers.neighbours if dense else ()
        losses = (evidence.losses, evidence.arrived) if balances else ()
        mine = (codes, evidence.baseline, neighbours, losses)
        (all_codes, all_baselines, all_neighbours, all_losses), arrived = peers.share(mine)
        scores = self._scores(peers, codes, all_codes)  # <e_i, e_j>
        own_scores = peers.each(jnp.dot, codes, codes)
        present = evidence.arrived & arrived[peers.neighbours]
        log_p, own_log_p = attention.prior(scores, own_scores, present)

        baseline = jnp.zeros_like(evidence.baseline) if self.faithful else evidence.baseline
        others = jnp.zeros_like(evidence.losses) if self.faithful else all_baselines[peers.neighbours]
        ell = others - evidence.losses  # log P(D_j | theta_i), centred
        own_ell = jnp.zeros_like(baseline) if self.own == "apart" else baseline - evidence.own_loss
        if balances:
            square, known = squared(all_losses[0], all_losses[1] & arrived[:, None], all_neighbours)
            ell, stretch = self._balanced(peers, all_baselines[None] - square, known)
            own_ell = peers.seal(stretch * own_ell)
        if self.faithful and peers.neighbours.shape[1] < peers.clients - 1:
            # The published program divides by the (negative) sum after sparsification, which reverses the order.
            ell = ell / jnp.where(present, ell, 0).sum(1, keepdims=True)
        weights, own = attention.posterior(ell, own_ell, log_p, own_log_p, self.temperature)
        target, own_target = weights, own
        if self.faithful:  # its encoder learns softmax(ell / T), without the prior
            flat = jnp.where(present, 0.0, -jnp.inf)
            target, own_target = attention.posterior(ell, own_ell, flat, jnp.zeros_like(own), self.temperature)
        difference = jnp.where(present, target - jnp.exp(log_p), 0)  # D = w - p
        differences, arrived_too = peers.share((difference, own_target - jnp.exp(own_log_p)))
        rows, owns = tree.where(arrived & arrived_too, differences, jax.tree.map(jnp.zeros_like, differences))
        slope = self._slope(peers, all_codes, rows, owns, all_neighbours)
        prior = self._learn(peers, memory, steps, slope)
        if self.own == "apart":
            own = jnp.ones_like(own)  # the client's own data count apart, with weight 1
        return weights, own, prior, self._drift(peers, memory.encoder, steps, slope)

    def _balanced(self, peers: Peers, square: jax.Array, known: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the balanced log-likelihoods of the neighbours' data, `[C, D]`, and how much they were stretched."""
        # Sealed, since what the compiler makes of it would depend on how many clients live here.
        square, stretch = peers.seal(balanced(peers.seal(square), known))
        return square[peers.ids[:, None], peers.neighbours], stretch

    def _scores(self, peers: Peers, codes: jax.Array, all_codes: jax.Array) -> jax.Array:
        """Return the inner products of each client's code with its neighbours', `[C, D]`."""
        if peers.clients <= DENSE_LIMIT:
            return peers.each(lambda mine, slots: (all_codes @ mine)[slots], codes, peers.neighbours)

        def of_slot(slot: Any) -> jax.Array:
            return peers.each(lambda mine, other: all_codes[other] @ mine, codes, peers.neighbours[:, slot])

        return lax.map(of_slot, jnp.arange(peers.neighbours.shape[1])).T

    def _slope(self, peers: Peers, codes: jax.Array, rows: jax.Array, owns: jax.Array, neighbours: Any) -> jax.Array:
        """Return dS/de_i of each client living here, S = sum_ij w_ij log p_ij, from all clients' D and neighbours."""
        if peers.clients > DENSE_LIMIT:
            return self._sparse_slope(peers, codes, rows, owns)
        square, _ = squared(rows, jnp.ones(rows.shape, bool), neighbours)
        square = square + jnp.diag(owns)
        return attention.embedding_gradient(square, jnp.zeros_like(square), codes)[peers.ids]  # (D + D^T) E

    def _sparse_slope(self, peers: Peers, codes: jax.Array, rows: jax.Array, owns: jax.Array) -> jax.Array:
        """Return (D + D^T) E for the clients here, slot after slot: D is zero between those who are no neighbours."""
        tables, ids = peers.tables, peers.ids

        def row(slot: Any, total: jax.Array) -> jax.Array:
            return total + rows[ids, slot][:, None] * codes[tables.neighbours[:, slot]]

        def column(place: Any, total: jax.Array) -> jax.Array:
            heard_by = tables.listeners[:, place]
            weight = jnp.where(tables.listening[:, place], rows[heard_by, tables.seat[:, place]], 0)
            return total + weight[:, None] * codes[heard_by]

        total = 2 * owns[ids][:, None] * codes[ids]
        total = lax.fori_loop(0, tables.neighbours.shape[1], row, total)
        return lax.fori_loop(0, tables.listeners.shape[1], column, total)

    def _learn(self, peers: Peers, memory: Prior, steps: Any, slope: jax.Array) -> Prior:
        """Take one Adam step on the mean of CE(w_i, p_i) over all clients: each adds its part of the gradient."""

        def pull_back(encoder: jax.Array, step: Any, slope: jax.Array) -> jax.Array:
            tensors = attention.unpack(encoder, step, self._widths)
            return attention.pack(jax.vjp(lambda e: attention.embed(e, step), tensors)[1](-slope)[0])

        gradient = peers.each(pull_back, memory.encoder, steps, slope)
        gradient, arrived = peers.mean(gradient, jnp.ones(slope.shape[0], slope.dtype))

        def adam(gradient: Any, optimiser: Any, encoder: Any) -> Any:
            updates, optimiser = self._adam().update(gradient, optimiser, encoder)
            return optax.apply_updates(encoder, updates), optimiser

        new = peers.each(adam, gradient, memory.optimiser, memory.encoder)
        encoder, optimiser = tree.where(arrived, new, (memory.encoder, memory.optimiser))
        return Prior(encoder, optimiser, memory.start)

    def _drift(self, peers: Peers, encoder: jax.Array, steps: Any, slope: jax.Array) -> Any:
        """Return the prior's pull on the models: strength lr grad_{theta_i} S (eq. 28), or None."""
        if is_off(self.m_step_prior):
            return None

        def pull(encoder: Any, step: Any, slope: jax.Array) -> Any:
            gradient = jax.vjp(lambda s: self._embed(encoder, s), step)[1](slope)[0]
            return tree.scale(self.m_step_prior * self.lr, gradient)

        return peers.each(pull, encoder, steps, slope)
