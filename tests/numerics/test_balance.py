"""Log-likelihoods of pairs: against least squares by NumPy, and what is done with much, little and no evidence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coterie.numerics.balance import LEVEL, MOST, balanced

OFF = ~np.eye(9, dtype=bool)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def parts(seed=0, clients=9):
    """Rows, columns, and what pairs have for themselves: the same from either side."""
    random = np.random.default_rng(seed)
    pair = random.normal(size=(clients, clients))
    return random.normal(size=(clients, 1)), random.normal(size=clients), (pair + pair.T) / 2, random


def without_rows_and_columns(ell, known):
    """The residuals of `mean + row + column` on the known entries, by least squares."""
    i, j = np.nonzero(known)
    design = np.zeros((len(i), 2 * len(ell)))
    design[np.arange(len(i)), i] = design[np.arange(len(i)), len(ell) + j] = 1
    solution = np.linalg.lstsq(design, ell[known], rcond=None)[0]
    left = np.zeros_like(ell)
    left[known] = ell[known] - design @ solution
    return left


@pytest.mark.parametrize("lost", [0, 12])
def test_what_models_and_data_have_in_common_with_all_is_taken_away(lost):
    """A level so high that all of it is: then what is left is the least-squares residual from both sides."""
    rows, columns, pair, random = parts()
    ell, known = -3 + 2 * rows + columns + pair, OFF.copy()
    known[tuple(random.integers(0, 9, (2, lost)))] = False
    level = 0.3 + np.std(without_rows_and_columns(ell, known)[known])
    found, stretch = balanced(jnp.asarray(ell), jnp.asarray(known), level)
    x = without_rows_and_columns(ell, known)
    both = known & known.T
    s, luck = np.where(both, (x + x.T) / 2, x), np.where(both, (x - x.T) / 2, 0)
    variance, noise = (s[known] ** 2).mean(), (luck[known] ** 2).mean()
    assert stretch == pytest.approx(1 + (1 - noise / variance) * (level / np.sqrt(variance) - 1), rel=1e-6)
    np.testing.assert_allclose(found[known], stretch * (ell[known].mean() + s)[known], atol=1e-5)
    assert not np.asarray(found)[~known].any()


def test_parts_of_rows_and_columns_do_not_matter():
    rows, columns, pair, _ = parts()
    pair *= 0.1
    plain, stretch = balanced(jnp.asarray(pair), jnp.asarray(OFF))
    shifted, same = balanced(jnp.asarray(pair + rows - rows.mean() + columns - columns.mean()), jnp.asarray(OFF))
    assert stretch == pytest.approx(same)
    difference = np.asarray(shifted - plain)[OFF]
    np.testing.assert_allclose(difference, difference.mean(), atol=1e-5)  # a constant changes no weight


def test_strong_evidence_stays_nearly_as_it_is():
    """Two groups of models that are sure: what is changed is the fraction level^2 / variance of the way."""
    group = np.arange(9) % 2
    ell = np.where(group[:, None] == group, 0.5, -40.0) + 3 * parts()[0]
    found, stretch = balanced(jnp.asarray(ell), jnp.asarray(OFF))
    s = without_rows_and_columns(ell, OFF)
    s = (s + s.T) / 2
    fraction = LEVEL**2 / s[OFF].var()
    assert fraction < 0.001
    assert stretch == 1
    np.testing.assert_allclose(found[OFF], (ell + fraction * (ell[OFF].mean() + s - ell))[OFF], atol=1e-5)


def test_weak_evidence_is_stretched_and_tells_groups_apart():
    """Groups differ by 0.1 nats, under models and data that differ by more: of all pairs, members' are the best."""
    rows, columns, _, random = parts(3, 12)
    group, off = np.arange(12) % 3, ~np.eye(12, dtype=bool)
    same = (group[:, None] == group) & off
    ell = 0.1 * same + 0.2 * rows + 0.2 * columns + 0.01 * random.normal(size=(12, 12))
    assert ell[same].min() < ell[off & ~same].max()
    found, stretch = balanced(jnp.asarray(ell), jnp.ones((12, 12), bool))
    assert np.asarray(found)[same].min() > np.asarray(found)[off & ~same].max() + 0.5
    assert 5 < stretch < MOST


def test_luck_alone_is_not_stretched():
    """Half of what one side says is the other's, too: the deviation of luck equals that of pairs."""
    random = np.random.default_rng(1)
    stretches = [
        balanced(jnp.asarray(0.1 * random.normal(size=(30, 30))), jnp.ones((30, 30), bool))[1] for _ in range(20)
    ]
    assert np.mean(stretches) < 1.2
    assert max(stretches) < 1.5


def test_there_is_a_most():
    _, _, pair, _ = parts()
    assert balanced(jnp.asarray(1e-5 * pair), jnp.asarray(OFF))[1] == pytest.approx(MOST)


@pytest.mark.parametrize("clients", [1, 2, 3])
@pytest.mark.parametrize("answered", [True, False])
def test_few_clients_or_no_answers_are_no_evidence(clients, answered):
    """With two clients nothing is left of a pair, with three only luck; losses that never came are no numbers."""
    random = np.random.default_rng(0)
    ell = random.normal(size=(clients, clients)) if answered else np.full((clients, clients), np.nan)
    found, stretch = balanced(jnp.asarray(ell), jnp.full((clients, clients), answered))
    assert np.isfinite(found).all()
    assert stretch == pytest.approx(1, abs=1e-6)
