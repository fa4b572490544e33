"""Variational inference for a stochastic block model over clients: which clients should cooperate, in which groups.

Li et al. 2024 (SCooL), section 4.2: client i is in a hidden block z_i ~ Categorical(pi_i), pi_i ~ Dirichlet(alpha);
a link Y_ij ~ Bernoulli(B[z_i, z_j]) says whether j's data were drawn from i's model. Every pair (i, j) has evidence
ELL[i, j] = log P(D_j | theta_i) minus that of a null model. With q = prod Bernoulli(w_ij) Categorical(Omega_i)
Dirichlet(gamma_i) all updates have a closed form; a method mixes with the weights `w`.

Differences from the printed equations, and why:

- Self pairs are left out everywhere: Y_ii has no likelihood, and (16), (18), (22), (39) are wrong with them.
- **A pair that was not observed is left out**, for the same reason: its Y_ij has no likelihood, so it sums to one and
  leaves the ELBO. Evidence 0 would instead mean "as good as the null model". Observed are the pairs in `known` (the
  graph without lost messages) whose evidence is finite: a loss that is NaN or infinite is no evidence. Others get
  w = 0.
- Evidence is relative to a baseline (`centre`): raw log-likelihoods are negative for all pairs, and then (22) drives B,
  and with it every weight, to 0. For the same reason use mean losses, not sums.
- B has pseudo-counts, i.e. a Beta prior; alpha stays fixed, because only alpha / sum(alpha) is identifiable.
- Parallel updates of Omega (Algorithm 1) may decrease the ELBO: ours are damped, with a line search.
- Temperature T scales the entropy of the links; (16) becomes w = sigmoid(. / T), and increases the tempered ELBO.

Shapes: K clients, M blocks; all arrays `[K, K]`, `[K, M]` or `[M, M]`. Everything may be jitted; `blocks`, `sweeps` and
the strings are static. Results have the dtype of `ell`.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import entr

from coterie.errors import CoterieError
from coterie.numerics.blocks.terms import (
    CLIP,
    PRIOR,
    affinity_density,
    affinity_prior,
    block_matrix,
    centre,
    evidence,
    expected_log,
    link_entropy,
    log_odds,
    mixture_terms,
    observed,
    pooled_affinity,
    positive,
    profiles,
)
from coterie.numerics.kmeans import kmeans, principal
from coterie.numerics.tree import product

__all__ = [
    "PSEUDO_COUNTS",
    "SBM",
    "Begin",
    "centre",
    "elbo",
    "infer",
    "observed",
    "start",
    "sweep",
    "update_affinity",
    "update_gamma",
    "update_memberships",
    "update_weights",
]

Begin = Literal["kmeans", "dirichlet"]
Order = Literal["sequential", "parallel"]

SOFTNESS = 0.1  # of a first guess by k-means, so that a client can still change its block
PSEUDO_COUNTS = 20.0  # pairs that the prior of B counts as
MOST_COUNTS = 32
STEPS = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0)  # of the line search in a parallel update


class SBM(NamedTuple):
    """The variational parameters (w, Omega, gamma) and the parameters (B, alpha) of a block model."""

    weights: jax.Array  # [K, K] w: probability that i should use j's data; 0 on the diagonal and for unobserved pairs
    memberships: jax.Array  # [K, M] Omega: probability that the client is in the block
    gamma: jax.Array  # [K, M] Dirichlet parameters of its mixture over blocks
    affinity: jax.Array  # [M, M] B: probability of a link from block g to block h
    alpha: jax.Array  # [M] the Dirichlet prior


def start(
    ell: jax.Array,
    known: jax.Array,
    blocks: int,
    key: jax.Array,
    how: Begin = "kmeans",
    alpha: float | jax.Array = 1.0,
    affinity: Any = PRIOR,
    temperature: float | jax.Array = 1.0,
) -> SBM:
    """Guess the blocks: by k-means on the rows of (ELL + ELL^T) / 2, or at random.

    K-means tries 1, 2, .. `blocks` clusters (at most 32 of these numbers) and keeps the guess with the largest ELBO:
    with more clusters than groups, later updates could rarely join the parts of a group. So `blocks` is the maximum;
    choose it above the number of groups you expect. `affinity` is the initial B: (within, between), or a whole
    `[M, M]` matrix.
    """
    return update_weights(_guess(ell, known, blocks, key, how, alpha, affinity, temperature), ell, known, temperature)


def _guess(
    ell: jax.Array,
    known: jax.Array,
    blocks: int,
    key: jax.Array,
    how: Begin,
    alpha: float | jax.Array,
    affinity: Any,
    temperature: float | jax.Array,
) -> SBM:
    """Guess the blocks, and leave the weights to the first sweep."""
    clients = ell.shape[0]
    if not 1 <= blocks <= clients:
        raise CoterieError(f"blocks must be between 1 and the number of clients ({clients}), not {blocks}")
    positive(temperature, "temperature")  # before the work below
    B = block_matrix(affinity, blocks, ell.dtype)

    # Rows of all guesses have the same values in another order: so have their terms in the ELBO, unless blocks differ.
    same_for_all = jnp.ndim(alpha) == 0
    alpha = jnp.broadcast_to(jnp.asarray(alpha, ell.dtype), (blocks,))

    def begin(memberships: jax.Array) -> SBM:
        return SBM(jnp.zeros_like(ell), memberships, memberships + alpha, B, alpha)

    if how == "dirichlet":
        return begin(jax.random.dirichlet(key, jnp.ones(blocks, ell.dtype), (clients,), ell.dtype))
    if how != "kmeans":
        raise CoterieError(f"how must be one of kmeans, dirichlet, not {how!r}")

    def quality(memberships: jax.Array) -> jax.Array:
        model = update_weights(begin(memberships), ell, known, temperature)
        model = update_weights(update_affinity(model, ell, known, prior=B), ell, known, temperature)
        if same_for_all:
            return _link_terms(model, ell, known, temperature) + affinity_density(model.affinity, PSEUDO_COUNTS, B)
        return elbo(model, ell, known, temperature, PSEUDO_COUNTS, B)

    project_key, cluster_key = jax.random.split(key)
    rows = principal(profiles(ell, known), blocks, project_key)
    labels = kmeans(rows, _cluster_counts(blocks), cluster_key)[0]
    guesses = (1 - SOFTNESS) * jax.nn.one_hot(labels, blocks, dtype=ell.dtype) + SOFTNESS / blocks
    return begin(guesses[jax.lax.map(quality, guesses).argmax()])


def _cluster_counts(blocks: int) -> list[int]:
    """Return the numbers of clusters that k-means tries: all, or with many blocks a geometric sequence."""
    if blocks <= MOST_COUNTS:
        return list(range(1, blocks + 1))
    return sorted({round(blocks ** (i / (MOST_COUNTS - 1))) for i in range(MOST_COUNTS)})


def update_weights(model: SBM, ell: jax.Array, known: jax.Array, temperature: float | jax.Array = 1.0) -> SBM:
    """Set w_ij = sigmoid((ELL_ij + Omega_i^T logit(B) Omega_j) / T), eq. (16)."""
    ell, pairs = evidence(ell, known)
    Omega, logit = model.memberships, log_odds(model.affinity)
    weights = jax.nn.sigmoid((ell + product(product(Omega, logit), Omega.T)) / positive(temperature, "temperature"))
    return model._replace(weights=pairs * weights)


def update_gamma(model: SBM) -> SBM:
    """Set gamma_i = Omega_i + alpha, eq. (17)."""
    return model._replace(gamma=model.memberships + model.alpha)


def update_memberships(
    model: SBM, ell: jax.Array, known: jax.Array, how: Order = "parallel", damping: float | jax.Array = 0.5
) -> SBM:
    """Set Omega by eq. (18): one client after the other, or all at once. Neither decreases the ELBO.

    In parallel, the search direction leads to softmax(damping log Omega_i + (1 - damping) logits_i), and the step is
    the best of a few. It is an ascent direction, so a short enough step increases the ELBO.
    """
    pairs = evidence(ell, known)[1]
    links, gaps = pairs * model.weights, pairs * (1 - model.weights)
    on, off = jnp.log(model.affinity), jnp.log1p(-model.affinity)
    log_mixture = expected_log(model.gamma)
    Omega = model.memberships

    if how == "sequential":

        def visit(i: jax.Array, Omega: jax.Array) -> jax.Array:
            out = product(product(links[i], Omega), on.T) + product(product(gaps[i], Omega), off.T)
            into = product(product(links[:, i], Omega), on) + product(product(gaps[:, i], Omega), off)
            return Omega.at[i].set(jax.nn.softmax(out + into + log_mixture[i]))

        return model._replace(memberships=jax.lax.fori_loop(0, Omega.shape[0], visit, Omega))
    if how != "parallel":
        raise CoterieError(f"how must be one of sequential, parallel, not {how!r}")

    # links Omega on' + gaps Omega off' + links' Omega on + gaps' Omega off, as two products instead of eight.
    sides, odds = jnp.stack([links, gaps, links.T, gaps.T], 1), jnp.concatenate([on.T, off.T, on, off])

    def pull(Omega: jax.Array) -> jax.Array:
        return product(product(sides, Omega).reshape(Omega.shape[0], -1), odds)

    logits = pull(Omega) + log_mixture
    old = jnp.log(jnp.maximum(Omega, jnp.finfo(Omega.dtype).tiny))
    direction = jax.nn.softmax(damping * old + (1 - damping) * logits) - Omega
    # The terms of the pairs in the ELBO are quadratic in the step, since `pull` is linear.
    slope, bend = (logits * direction).sum(), 0.5 * (pull(direction) * direction).sum()
    steps = jnp.array(STEPS, Omega.dtype)

    def gain(step: jax.Array) -> jax.Array:
        return step * slope + step**2 * bend + (entr(Omega + step * direction) - entr(Omega)).sum()

    best = steps[jax.vmap(gain)(steps).argmax()]
    return model._replace(memberships=Omega + best * direction)


def update_affinity(
    model: SBM,
    ell: jax.Array,
    known: jax.Array,
    pseudo_counts: float | jax.Array = PSEUDO_COUNTS,
    prior: Any = PRIOR,
    clip: float = CLIP,
) -> SBM:
    """Set B_gh to the share of linked pairs from block g to h, eq. (22), with `pseudo_counts` pairs of the `prior`.

    Without clients and without pseudo-counts B_gh is kept.
    """
    pairs = evidence(ell, known)[1]
    linked, possible = _counts(pairs * model.weights, pairs, model.memberships)
    return model._replace(affinity=pooled_affinity(model.affinity, linked, possible, pseudo_counts, prior, clip))


def _counts(weights: jax.Array, pairs: jax.Array, Omega: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the expected number of linked and of all pairs from block to block `[M, M]`."""
    both = product(Omega.T, product(jnp.stack([weights, pairs], 1), Omega).reshape(Omega.shape[0], -1))
    return tuple(both.reshape(-1, 2, Omega.shape[1]).swapaxes(0, 1))


def sweep(
    model: SBM,
    ell: jax.Array,
    known: jax.Array,
    temperature: float | jax.Array = 1.0,
    how: Order = "parallel",
    damping: float | jax.Array = 0.5,
    learn_affinity: bool = True,
    pseudo_counts: float | jax.Array = PSEUDO_COUNTS,
    prior: Any = PRIOR,
) -> SBM:
    """Update w, Omega, gamma and, unless it is fixed, B once each."""
    model = update_weights(model, ell, known, temperature)
    model = update_gamma(update_memberships(model, ell, known, how, damping))
    return update_affinity(model, ell, known, pseudo_counts, prior) if learn_affinity else model


def infer(
    ell: jax.Array,
    known: jax.Array,
    blocks: int,
    key: jax.Array,
    sweeps: int = 10,
    temperature: float | jax.Array = 1.0,
    how: Order = "parallel",
    damping: float | jax.Array = 0.5,
    learn_affinity: bool = True,
    pseudo_counts: float | jax.Array = PSEUDO_COUNTS,
    prior: Any = PRIOR,
    alpha: float | jax.Array = 1.0,
    begin: Begin = "kmeans",
) -> SBM:
    """Run the whole E-step: `start`, then `sweeps` sweeps, then the weights of the last sweep."""
    first = _guess(ell, known, blocks, key, begin, alpha, prior, temperature)

    def once(_: jax.Array, model: SBM) -> SBM:
        return sweep(model, ell, known, temperature, how, damping, learn_affinity, pseudo_counts, prior)

    return update_weights(jax.lax.fori_loop(0, sweeps, once, first), ell, known, temperature)


def elbo(
    model: SBM,
    ell: jax.Array,
    known: jax.Array,
    temperature: float | jax.Array = 1.0,
    pseudo_counts: float | jax.Array = 0.0,
    prior: Any = PRIOR,
) -> jax.Array:
    """Return the tempered evidence lower bound, without the terms of theta alone: no update decreases it.

    With T = 1 and no pseudo-counts it is a lower bound of log P(D | B, alpha). With pseudo-counts it includes the log
    density of the Beta prior, and the update of B finds the posterior mode.
    """
    Omega, total = model.memberships, _link_terms(model, ell, known, temperature)
    total += (Omega * expected_log(model.gamma)).sum() + entr(Omega).sum() + mixture_terms(model.gamma, model.alpha)
    return total + affinity_prior(model.affinity, pseudo_counts, prior)


def _link_terms(model: SBM, ell: jax.Array, known: jax.Array, temperature: float | jax.Array) -> jax.Array:
    """Return the terms of the lower bound in which there are links."""
    ell, pairs = evidence(ell, known)
    w = pairs * model.weights
    on, off = jnp.log(model.affinity), jnp.log1p(-model.affinity)
    linked, possible = _counts(w, pairs, model.memberships)
    return (w * ell).sum() + (linked * on + (possible - linked) * off).sum() + link_entropy(w, pairs, temperature)
