"""Logarithms of the gamma function and their slopes, written for positive numbers, against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from coterie.numerics.blocks.terms import affinity_prior, block_matrix, digamma, log_gamma, mixture_terms

POSITIVE = np.concatenate([np.geomspace(1e-6, 1e6, 200), np.arange(1, 30) / 2])


@pytest.mark.parametrize(("ours", "theirs"), [(log_gamma, special.gammaln), (digamma, special.digamma)])
def test_the_values_are_scipys(ours, theirs):
    with jax.enable_x64(True):
        np.testing.assert_allclose(ours(jnp.asarray(POSITIVE)), theirs(POSITIVE), rtol=1e-11, atol=1e-11)
    short = POSITIVE.astype(np.float32)
    np.testing.assert_allclose(ours(jnp.asarray(short)), theirs(short), rtol=1e-5, atol=1e-5)


def test_terms_of_the_bound_by_scipy():
    random = np.random.default_rng(0)
    gamma, alpha = random.uniform(0.2, 9, (5, 3)), random.uniform(0.5, 2, 3)
    logs = special.digamma(gamma) - special.digamma(gamma.sum(1, keepdims=True))
    priors = special.gammaln(alpha.sum()) - special.gammaln(alpha).sum()
    own = special.gammaln(gamma.sum(1)) - special.gammaln(gamma).sum(1)
    expected = ((alpha - gamma) * logs).sum() + (priors - own).sum()
    B, counts = random.uniform(0.1, 0.9, (3, 3)), 4.0
    with jax.enable_x64(True):
        mean = np.asarray(block_matrix((0.8, 0.2), 3, jnp.float64))
        density = special.xlogy(counts * mean, B) + special.xlog1py(counts * (1 - mean), -B)
        density -= special.betaln(1 + counts * mean, 1 + counts * (1 - mean))
        np.testing.assert_allclose(mixture_terms(jnp.asarray(gamma), jnp.asarray(alpha)), expected, rtol=1e-10)
        np.testing.assert_allclose(affinity_prior(jnp.asarray(B), counts, (0.8, 0.2)), density.sum(), rtol=1e-10)
