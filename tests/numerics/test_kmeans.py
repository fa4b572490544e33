"""K-means and principal directions inside a program, against scikit-learn and NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from coterie.numerics.kmeans import kmeans, principal


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def blobs(seed, clusters=4, size=15, noise=0.3):
    random = np.random.default_rng(seed)
    group = np.repeat(np.arange(clusters), size)
    return random.normal(0, 3, (clusters, 6))[group] + random.normal(0, noise, (len(group), 6)), group


def test_finds_what_scikit_learn_finds_for_each_number_of_clusters():
    points, group = blobs(0)
    labels, spread = jax.jit(lambda x, key: kmeans(x, (1, 2, 4), key))(jnp.asarray(points), jax.random.key(0))
    expected = [KMeans(count, n_init=20, random_state=0).fit(points).inertia_ for count in (1, 2, 4)]
    np.testing.assert_allclose(spread, expected, rtol=1e-9)
    assert adjusted_rand_score(group, labels[2]) == 1
    assert [len(np.unique(row)) for row in labels] == [1, 2, 4]


def test_every_number_of_clusters_is_used_even_if_points_coincide():
    points = jnp.asarray([[0.0, 0], [0, 0], [0, 0], [5, 0]])
    labels, spread = kmeans(points, (1, 2, 4), jax.random.key(1))
    np.testing.assert_allclose(spread, [18.75, 0, 0], atol=1e-12)  # 3 x 1.25^2 + 3.75^2
    assert labels[1][0] == labels[1][1] == labels[1][2] != labels[1][3]


def test_points_that_are_all_equal_do_no_harm():
    labels, spread = kmeans(jnp.ones((5, 3)), (1, 3), jax.random.key(0))
    np.testing.assert_array_equal(spread, 0)
    assert labels.shape == (2, 5)


def test_an_empty_cluster_moves_to_the_farthest_point():
    # The spread is zero only with one cluster on each of the four points, which every start must reach.
    points = jnp.asarray(np.concatenate([np.zeros((20, 2)), [[9, 0], [0, 9], [9, 9]]]))
    for seed in range(5):
        assert kmeans(points, (4,), jax.random.key(seed), restarts=1)[1][0] < 1e-20


def test_principal_directions_span_those_of_the_singular_value_decomposition():
    points, _ = blobs(3, noise=0.05)
    scores = principal(jnp.asarray(points), 3, jax.random.key(0), iterations=60)
    centred = points - points.mean(0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    expected = (left[:, :3] * values[:3]) @ (left[:, :3] * values[:3]).T
    np.testing.assert_allclose(scores @ scores.T, expected, atol=1e-8)


def test_no_projection_without_a_reduction_in_dimension():
    points = jnp.asarray(blobs(0)[0])
    assert principal(points, 6, jax.random.key(0)) is points


def test_projection_of_points_without_spread_is_finite():
    np.testing.assert_allclose(principal(jnp.ones((8, 5)), 2, jax.random.key(0)), 0, atol=1e-12)
