"""The mixed-membership block model: a client has one role per pair, so that it may belong to several groups.

Li et al. 2024 (SCooL), appendix F. In the pair (i, j) the sender's role is drawn from pi_i and the receiver's from
pi_j; q(role of i) is called F_ij and q(role of j) R_ij. Self pairs and pairs that were not observed are left out, as in
`sbm.py`; their F, R and w are 0. Unlike there alpha is identifiable, and it is learned: (48) and (77) as printed are
not its gradient, `alpha_gradient` is. All pairs are updated in parallel, and no update decreases the ELBO. Memory is
2 K^2 M numbers.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import entr, gammaln, polygamma

from coterie.numerics.blocks.sbm import PSEUDO_COUNTS, SBM, Begin
from coterie.numerics.blocks.sbm import start as start_sbm
from coterie.numerics.blocks.terms import (
    CLIP,
    PRIOR,
    affinity_prior,
    evidence,
    expected_log,
    link_entropy,
    log_odds,
    mixture_terms,
    pooled_affinity,
    positive,
)
from coterie.numerics.tree import product

__all__ = [
    "MMSBM",
    "alpha_gradient",
    "elbo_mm",
    "infer_mm",
    "start_mm",
    "sweep_mm",
    "update_affinity_mm",
    "update_alpha",
    "update_gamma_mm",
    "update_receiver",
    "update_sender",
    "update_weights_mm",
]

SMALLEST_ALPHA, LARGEST_ALPHA = 1e-2, 1e2
LONGEST_STEP = 2.0  # of log alpha
STEPS = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0)  # of the line search


class MMSBM(NamedTuple):
    """A mixed-membership block model: as `SBM`, with the roles of every pair in place of memberships."""

    weights: jax.Array  # [K, K] w
    sender: jax.Array  # [K, K, M] F: role of i in the pair (i, j)
    receiver: jax.Array  # [K, K, M] R: role of j in the pair (i, j)
    gamma: jax.Array  # [K, M]
    affinity: jax.Array  # [M, M] B
    alpha: jax.Array  # [M]


def start_mm(
    ell: jax.Array,
    known: jax.Array,
    blocks: int,
    key: jax.Array,
    how: Begin = "kmeans",
    alpha: float | jax.Array = 1.0,
    affinity: Any = PRIOR,
    temperature: float | jax.Array = 1.0,
) -> MMSBM:
    """Start with the same role in all pairs of a client: the block that `sbm.start` finds for it."""
    observed = evidence(ell, known)[1][..., None]
    guess: SBM = start_sbm(ell, known, blocks, key, how, alpha, affinity, temperature)
    sender, receiver = observed * guess.memberships[:, None], observed * guess.memberships[None, :]
    model = update_gamma_mm(MMSBM(guess.weights, sender, receiver, guess.gamma, guess.affinity, guess.alpha))
    return update_weights_mm(model, ell, known, temperature)


def update_weights_mm(model: MMSBM, ell: jax.Array, known: jax.Array, temperature: float | jax.Array = 1.0) -> MMSBM:
    """Set w_ij = sigmoid((ELL_ij + F_ij^T logit(B) R_ij) / T)."""
    ell, pairs = evidence(ell, known)
    prior = (product(model.sender, log_odds(model.affinity)) * model.receiver).sum(-1)
    return model._replace(weights=pairs * jax.nn.sigmoid((ell + prior) / positive(temperature, "temperature")))


def update_sender(model: MMSBM, ell: jax.Array, known: jax.Array) -> MMSBM:
    """Set F_ij proportional to exp(w_ij log B R_ij + (1 - w_ij) log(1 - B) R_ij + E[log pi_i])."""
    mixture = expected_log(model.gamma)[:, None]
    return model._replace(sender=_roles(model, ell, known, model.receiver, model.affinity.T, mixture))


def update_receiver(model: MMSBM, ell: jax.Array, known: jax.Array) -> MMSBM:
    """Set R_ij proportional to exp(w_ij log B^T F_ij + (1 - w_ij) log(1 - B^T) F_ij + E[log pi_j])."""
    mixture = expected_log(model.gamma)[None, :]
    return model._replace(receiver=_roles(model, ell, known, model.sender, model.affinity, mixture))


def _roles(
    model: MMSBM, ell: jax.Array, known: jax.Array, other: jax.Array, affinity: jax.Array, mixture: jax.Array
) -> jax.Array:
    w = model.weights[..., None]
    pull = w * product(other, jnp.log(affinity)) + (1 - w) * product(other, jnp.log1p(-affinity))
    return evidence(ell, known)[1][..., None] * jax.nn.softmax(pull + mixture)


def update_gamma_mm(model: MMSBM) -> MMSBM:
    """Set gamma_i = alpha + sum_j F_ij + sum_j R_ji."""
    return model._replace(gamma=model.alpha + model.sender.sum(1) + model.receiver.sum(0))


def update_affinity_mm(
    model: MMSBM, pseudo_counts: float | jax.Array = PSEUDO_COUNTS, prior: Any = PRIOR, clip: float = CLIP
) -> MMSBM:
    """Set B_gh to the share of linked pairs among those with roles g, h, with `pseudo_counts` pairs of the `prior`."""
    linked, possible = _counts(model)
    return model._replace(affinity=pooled_affinity(model.affinity, linked, possible, pseudo_counts, prior, clip))


def _counts(model: MMSBM) -> tuple[jax.Array, jax.Array]:
    """Return the expected number of linked and of all pairs by roles `[M, M]`."""
    blocks = model.alpha.shape[0]
    sender, receiver = model.sender.reshape(-1, blocks), model.receiver.reshape(-1, blocks)
    return product((model.weights.reshape(-1, 1) * sender).T, receiver), product(sender.T, receiver)


def alpha_gradient(gamma: jax.Array, alpha: jax.Array) -> jax.Array:
    """Return the ELBO's gradient in alpha `[M]`: sum_i E[log pi_ig] - K psi(alpha_g) + K psi(sum_h alpha_h)."""
    return expected_log(gamma).sum(0) - gamma.shape[0] * expected_log(alpha)


def update_alpha(model: MMSBM, newton_steps: int = 5) -> MMSBM:
    """Increase the ELBO, which is concave in alpha, by Newton steps in log alpha with a line search.

    The Hessian is K (psi'(sum alpha) - diag psi'(alpha)), so a step costs O(M). Alpha stays between 0.01 and 100.
    """
    steps = jnp.array(STEPS, model.alpha.dtype)
    target = expected_log(model.gamma).mean(0)

    def bound(alpha: jax.Array) -> jax.Array:  # the terms of alpha in the ELBO, per client
        return gammaln(alpha.sum()) - gammaln(alpha).sum() + (alpha * target).sum()

    def step(_: jax.Array, alpha: jax.Array) -> jax.Array:
        gradient = alpha_gradient(model.gamma, alpha) / model.gamma.shape[0]
        curvature, common = polygamma(1, alpha), polygamma(1, alpha.sum())
        rest = jnp.maximum(1 - common * (1 / curvature).sum(), 1e-6)  # 0 for a single block
        shift = common * (gradient / curvature).sum() / rest
        direction = (gradient + shift) / curvature / alpha  # of log alpha; ascent, as the Hessian is negative
        direction = direction / jnp.maximum(1, jnp.abs(direction).max() / LONGEST_STEP)
        tried = jnp.clip(alpha * jnp.exp(steps[:, None] * direction), SMALLEST_ALPHA, LARGEST_ALPHA).at[-1].set(alpha)
        return tried[jax.vmap(bound)(tried).argmax()]

    return model._replace(alpha=jax.lax.fori_loop(0, newton_steps, step, model.alpha))


def sweep_mm(
    model: MMSBM,
    ell: jax.Array,
    known: jax.Array,
    temperature: float | jax.Array = 1.0,
    learn_affinity: bool = True,
    learn_alpha: bool = True,
    pseudo_counts: float | jax.Array = PSEUDO_COUNTS,
    prior: Any = PRIOR,
) -> MMSBM:
    """Update w, F, R, gamma and, unless they are fixed, B and alpha once each."""
    model = update_weights_mm(model, ell, known, temperature)
    model = update_receiver(update_sender(model, ell, known), ell, known)
    model = update_gamma_mm(model)
    model = update_affinity_mm(model, pseudo_counts, prior) if learn_affinity else model
    return update_alpha(model) if learn_alpha else model


def infer_mm(
    ell: jax.Array,
    known: jax.Array,
    blocks: int,
    key: jax.Array,
    sweeps: int = 10,
    temperature: float | jax.Array = 1.0,
    learn_affinity: bool = True,
    learn_alpha: bool = True,
    pseudo_counts: float | jax.Array = PSEUDO_COUNTS,
    prior: Any = PRIOR,
    alpha: float | jax.Array = 1.0,
    begin: Begin = "kmeans",
) -> MMSBM:
    """Run the whole E-step: `start_mm`, then `sweeps` sweeps, then the weights of the last sweep."""
    first = start_mm(ell, known, blocks, key, begin, alpha, prior, temperature)

    def once(_: jax.Array, model: MMSBM) -> MMSBM:
        return sweep_mm(model, ell, known, temperature, learn_affinity, learn_alpha, pseudo_counts, prior)

    return update_weights_mm(jax.lax.fori_loop(0, sweeps, once, first), ell, known, temperature)


def elbo_mm(
    model: MMSBM,
    ell: jax.Array,
    known: jax.Array,
    temperature: float | jax.Array = 1.0,
    pseudo_counts: float | jax.Array = 0.0,
    prior: Any = PRIOR,
) -> jax.Array:
    """Return the tempered evidence lower bound, as `sbm.elbo`."""
    ell, pairs = evidence(ell, known)
    w, F, R = model.weights, model.sender, model.receiver
    linked, possible = _counts(model)
    on, off, mixture = jnp.log(model.affinity), jnp.log1p(-model.affinity), expected_log(model.gamma)
    total = (w * ell).sum() + (linked * on + (possible - linked) * off).sum() + link_entropy(w, pairs, temperature)
    total += (F * mixture[:, None]).sum() + (R * mixture[None, :]).sum() + entr(F).sum() + entr(R).sum()
    return total + mixture_terms(model.gamma, model.alpha) + affinity_prior(model.affinity, pseudo_counts, prior)
