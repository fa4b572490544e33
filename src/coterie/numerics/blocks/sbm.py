"""Variational inference for a stochastic block model over clients: who should cooperate with whom, and in which groups.

Li, Zhou, Tian, Tao 2024, section 4.2: client i lies in a hidden block z_i ~ Categorical(pi_i), pi_i ~ Dirichlet(alpha);
a link Y_ij ~ Bernoulli(B[z_i, z_j]) says whether j's data were drawn from i's model. Every pair (i, j) brings evidence
ELL[i, j] = log P(D_j | theta_i) minus that of a null model. With q = prod Bernoulli(w_ij) Categorical(Omega_i)
Dirichlet(gamma_i) all updates are closed; `w` is what a method mixes with.

What differs from the printed equations, and why:

- Self pairs are left out everywhere: Y_ii never meets data, and (16), (18), (22), (39) are wrong with them.
- **A pair that was not observed drops out**, for the same reason: its Y_ij has no likelihood, so it sums to one and
  leaves the ELBO. Evidence 0 would instead say "as good as the null model". Observed are the pairs of `known` (the
  graph, less lost messages) whose evidence is finite: a loss that is NaN or infinite tells nothing. Others get w = 0.
- Evidence is measured against a baseline (`centre`): raw log-likelihoods are negative for all pairs, and then (22)
  drives B, and with it every weight, to 0. For the same reason use mean losses, not sums.
- B is held by pseudo-counts, i.e. a Beta prior; alpha stays fixed, because only alpha / sum(alpha) is identifiable.
- Parallel updates of Omega (Algorithm 1) may decrease the ELBO: ours are damped, and shortened where that helps.
- Temperature T scales the entropy of the links; (16) becomes w = sigmoid(. / T), and ascends the tempered ELBO.

Shapes: K clients, M blocks; all arrays `[K, K]`, `[K, M]` or `[M, M]`. Everything may be jitted; `blocks`, `sweeps` and
the words are static. Results have the dtype of `ell`.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import entr

from coterie.errors import CoterieError
from coterie.numerics.blocks.terms import (
    CLIP,
    PRIOR,
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
    product,
    profiles,
)
from coterie.numerics.kmeans import kmeans, principal

__all__ = [
    "SBM",
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

Begin = Literal["kmeans", "dirichlet", "warm"]
Order = Literal["sequential", "parallel"]

SOFTNESS = 0.1  # of a first guess by k-means, so that a client can still change its block
PSEUDO_COUNTS = 20.0  # pairs that the prior on B is worth
MOST_COUNTS = 32
STEPS = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0)  # of the line search in a parallel update


class SBM(NamedTuple):
    """A block model's variational parameters (w, Omega, gamma) and its own (B, alpha)."""

    weights: jax.Array  # [K, K] w: chance that i should use j's data; 0 on the diagonal and where nothing was observed
    memberships: jax.Array  # [K, M] Omega: chance that the client lies in the block
    gamma: jax.Array  # [K, M] Dirichlet parameters of its mixture over blocks
    affinity: jax.Array  # [M, M] B: chance of a link from block g to block h
    alpha: jax.Array  # [M] the Dirichlet prior


def start(
    ell: jax.Array,
    known: jax.Array,
    blocks: int,
    key: jax.Array,
    how: Begin = "kmeans",
    previous: SBM | None = None,
    alpha: float | jax.Array = 1.0,
    affinity: Any = PRIOR,
    temperature: float | jax.Array = 1.0,
) -> SBM:
    """Guess the blocks: by k-means on the rows of (ELL + ELL^T) / 2, at random, or as they were (`previous`).

    K-means tries 1, 2, .. `blocks` clusters (32 numbers at most) and keeps the guess with the largest ELBO: were there
    more clusters than groups, the updates that follow could seldom join what k-means has split. So `blocks` is the most
    there may be; choose it above the number of groups you expect.
    `affinity` is B to begin with: (within, between), or a whole `[M, M]` matrix. A warm start keeps everything but w.
    """
    clients = ell.shape[0]
    if not 1 <= blocks <= clients:
        raise CoterieError(f"blocks must lie between 1 and the number of clients ({clients}), not {blocks}")
    if how == "warm":
        if previous is None or previous.memberships.shape != (clients, blocks):
            raise CoterieError(f"previous must be a model of {clients} clients and {blocks} blocks for a warm start")
        return update_weights(previous, ell, known, temperature)
    positive(temperature, "temperature")  # before the work below
    B = block_matrix(affinity, blocks, ell.dtype)
    alpha = jnp.broadcast_to(jnp.asarray(alpha, ell.dtype), (blocks,))

    def begin(memberships: jax.Array) -> SBM:
        model = SBM(jnp.zeros_like(ell), memberships, memberships + alpha, B, alpha)
        return update_weights(model, ell, known, temperature)

    if how == "dirichlet":
        return begin(jax.random.dirichlet(key, jnp.ones(blocks, ell.dtype), (clients,), ell.dtype))
    if how != "kmeans":
        raise CoterieError(f"how must be one of kmeans, dirichlet, warm, not {how!r}")

    def quality(memberships: jax.Array) -> jax.Array:
        model = update_affinity(begin(memberships), ell, known, prior=B)
        return elbo(update_weights(model, ell, known, temperature), ell, known, temperature, PSEUDO_COUNTS, B)

    project_key, cluster_key = jax.random.split(key)
    rows = principal(profiles(ell, known), blocks, project_key)
    labels = kmeans(rows, _cluster_counts(blocks), cluster_key)[0]
    guesses = (1 - SOFTNESS) * jax.nn.one_hot(labels, blocks, dtype=ell.dtype) + SOFTNESS / blocks
    return begin(guesses[jax.lax.map(quality, guesses).argmax()])


def _cluster_counts(blocks: int) -> list[int]:
    """List the numbers of clusters that k-means tries: all, or with many blocks some on a geometric scale."""
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

    In parallel, the new Omega_i is softmax(damping log Omega_i + (1 - damping) logits_i), or the best of a few points
    on the way there if one is better. The way ascends, so a short enough step does.
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

    def pull(Omega: jax.Array) -> jax.Array:
        out = product(product(links, Omega), on.T) + product(product(gaps, Omega), off.T)
        return out + product(product(links.T, Omega), on) + product(product(gaps.T, Omega), off)

    logits = pull(Omega) + log_mixture
    old = jnp.log(jnp.maximum(Omega, jnp.finfo(Omega.dtype).tiny))
    way = jax.nn.softmax(damping * old + (1 - damping) * logits) - Omega
    # Along the way the pairs' part of the ELBO is a parabola in the step, since `pull` is linear.
    slope, bend = (logits * way).sum(), 0.5 * (pull(way) * way).sum()
    steps = jnp.array(STEPS, Omega.dtype)

    def gain(step: jax.Array) -> jax.Array:
        return step * slope + step**2 * bend + (entr(Omega + step * way) - entr(Omega)).sum()

    best = steps[jax.vmap(gain)(steps).argmax()]
    return model._replace(memberships=Omega + best * way)


def update_affinity(
    model: SBM,
    ell: jax.Array,
    known: jax.Array,
    pseudo_counts: float | jax.Array = PSEUDO_COUNTS,
    prior: Any = PRIOR,
    clip: float = CLIP,
) -> SBM:
    """Set B_gh to the share of linked pairs from block g to h, eq. (22), with `pseudo_counts` pairs of the `prior`.

    A pair of blocks without clients and without pseudo-counts keeps its B.
    """
    pairs, Omega = evidence(ell, known)[1], model.memberships
    linked = product(Omega.T, product(pairs * model.weights, Omega))
    possible = product(Omega.T, product(pairs, Omega))
    return model._replace(affinity=pooled_affinity(model.affinity, linked, possible, pseudo_counts, prior, clip))


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
    previous: SBM | None = None,
) -> SBM:
    """Run the whole E-step: a start (`begin`, see `start`), `sweeps` sweeps, and weights that fit the last of them."""
    first = start(ell, known, blocks, key, begin, previous, alpha, prior, temperature)

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
    """Return the tempered evidence lower bound, less the terms of theta alone: no update decreases it.

    With T = 1 and no pseudo-counts it bounds log P(D | B, alpha) from below. With pseudo-counts the log density of
    B's Beta prior is added, whose mode the update of B then finds.
    """
    ell, pairs = evidence(ell, known)
    w, Omega = pairs * model.weights, model.memberships
    on, off = jnp.log(model.affinity), jnp.log1p(-model.affinity)
    linked, possible = product(Omega.T, product(w, Omega)), product(Omega.T, product(pairs, Omega))
    total = (w * ell).sum() + (linked * on + (possible - linked) * off).sum() + link_entropy(w, pairs, temperature)
    total += (Omega * expected_log(model.gamma)).sum() + entr(Omega).sum() + mixture_terms(model.gamma, model.alpha)
    return total + affinity_prior(model.affinity, pseudo_counts, prior)
