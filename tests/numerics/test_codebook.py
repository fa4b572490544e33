"""Exact k-means in one dimension against all assignments, a plain dynamic program, and cases by hand."""

import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from coterie.errors import CoterieError
from coterie.numerics import codebook as module
from coterie.numerics.codebook import codebook, codebook_in_program
from coterie.numerics.prox import fused


def cost(values, centres, labels, weights=1.0):
    return np.sum(weights * (np.asarray(values) - centres[labels]) ** 2)


def least(values, k, weights=None):
    """Return the least cost of all k^d assignments of d values to k clusters, each with its mean as the centre."""
    values = np.asarray(values, float)
    weights = np.ones(len(values)) if weights is None else np.asarray(weights, float)
    result = np.inf
    for labels in itertools.product(range(k), repeat=len(values)):
        member = np.array(labels)[:, None] == np.arange(k)
        mass = weights @ member
        centres = (weights * values) @ member / np.where(mass > 0, mass, 1)
        result = min(result, cost(values, centres, np.array(labels), weights))
    return result


def test_codebook_by_hand():
    centres, labels = codebook([1.0, 50, 2, 10, 12, 11], 3)
    np.testing.assert_array_equal(centres, [1.5, 11, 50])
    np.testing.assert_array_equal(labels, [0, 2, 0, 1, 1, 1])
    # One centre is the mean; a weight of 3 is worth three values.
    np.testing.assert_array_equal(codebook([0.0, 4], 1)[0], [2])
    np.testing.assert_array_equal(codebook([0.0, 4], 1, weights=[3, 1])[0], [1])
    # {0, 1} and {9, 10} cost 1/2 each; all other pairs of intervals cost more than 40.
    np.testing.assert_array_equal(codebook([0.0, 1, 9, 10], 2)[0], [0.5, 9.5])


def test_ties_duplicates_and_too_many_centres():
    centres, labels = codebook([0.0, 1, 2], 2)  # {0}, {1, 2} and {0, 1}, {2} are equally good
    assert cost([0.0, 1, 2], centres, labels) == 0.5
    np.testing.assert_array_equal(codebook([0.0, 1, 2], 2)[1], labels)
    values = np.array([0.1, 0.3, 0.1, -0.0, 0.0, 0.3])
    for k in (3, 4, 100):
        centres, labels = codebook(values, k)
        np.testing.assert_array_equal(centres, [0, 0.1, 0.3])  # the values themselves, not rounded
        np.testing.assert_array_equal(labels, [1, 2, 1, 0, 0, 2])
    centres, labels = codebook(np.full(7, 0.1), 2)
    assert centres.tolist() == [0.1]
    assert labels.tolist() == [0] * 7
    assert [a.size for a in codebook([], 3)] == [0, 0]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-8, 8), min_size=1, max_size=6), st.integers(1, 3))
def test_no_assignment_is_better(values, k):
    values = np.array(values) / 4
    centres, labels = codebook(values, k)
    assert len(centres) == min(k, len(set(values)))
    np.testing.assert_allclose(cost(values, centres, labels), least(values, k), atol=1e-13)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0.1, 9)), min_size=1, max_size=6), st.integers(1, 3))
def test_no_assignment_is_better_with_weights(pairs, k):
    values, weights = np.array(pairs).T
    centres, labels = codebook(values, k, weights)
    np.testing.assert_allclose(cost(values, centres, labels, weights), least(values, k, weights), atol=1e-11)


def plain(values, k):
    """Return the cost by the textbook dynamic program in k m^2 steps, with costs computed from the values."""
    points, counts = np.unique(values, return_counts=True)
    m = len(points)
    single = np.full((m, m), np.inf)
    for i in range(m):
        for j in range(i, m):
            x, w = points[i : j + 1], counts[i : j + 1]
            single[i, j] = np.sum(w * (x - np.average(x, weights=w)) ** 2)
    costs = single[0]
    for _ in range(1, min(k, m)):
        costs = np.array([min([single[0, j], *(costs[:j] + single[1 : j + 1, j])]) for j in range(m)])
    return costs[-1]


@pytest.mark.parametrize("k", [2, 3, 7, 16])
def test_many_values_agree_with_the_plain_program(k):
    random = np.random.default_rng(k)
    heavy = random.standard_t(1.5, size=150)  # a few lie far out
    far = np.concatenate([[-1e6, 1e6], 1e-3 * random.normal(size=100)])  # here the others are tiny in comparison
    for values in (random.normal(size=150), heavy, far, np.round(random.normal(size=300), 1)):
        centres, labels = codebook(values, k)
        np.testing.assert_allclose(cost(values, centres, labels), plain(values, k), rtol=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-100, 100), min_size=1, max_size=60).map(np.array), st.integers(1, 9), st.randoms())
def test_clusters_are_nearest_and_do_not_depend_on_the_order(values, k, random):
    centres, labels = codebook(values, k)
    assert (np.diff(centres) > 0).all()
    distance = np.abs(values[:, None] - centres)
    assert (distance[np.arange(len(values)), labels] <= distance.min(1) + 1e-9).all()
    order = np.array(random.sample(range(len(values)), len(values)))
    again, moved = codebook(values[order], k)
    assert again.tobytes() == centres.tobytes()
    np.testing.assert_array_equal(moved, labels[order])


def test_weights_are_repetitions():
    random = np.random.default_rng(0)
    values, counts = random.normal(size=40), random.integers(1, 6, 40)
    centres, labels = codebook(values, 5, counts)
    repeated, spread = codebook(np.repeat(values, counts), 5)
    np.testing.assert_allclose(centres, repeated, rtol=1e-14)
    np.testing.assert_array_equal(np.repeat(labels, counts), spread)


def test_types():
    values = np.random.default_rng(1).normal(size=100)
    assert codebook(values.astype(np.float32), 4)[0].dtype == np.float32
    assert codebook(values, 4)[0].dtype == np.float64
    centres, labels = codebook(np.arange(10), np.int64(2))
    np.testing.assert_array_equal(centres, [2, 7])
    assert labels.dtype == np.int64


@pytest.mark.parametrize(
    ("values", "k", "weights", "message"),
    [
        ([1.0], 0, None, "k must be a whole number of at least 1, not 0"),
        ([1.0], 2.0, None, "k must be a whole number of at least 1, not 2.0"),
        ([1.0], True, None, "k must be a whole number"),
        ([[1.0]], 1, None, r"values has shape \(1, 1\), but must be \[d\]"),
        ([1.0, np.nan], 1, None, "values must be finite"),
        ([1.0, 2.0], 1, [1.0], r"weights has shape \(1,\), but must have the shape of values"),
        ([1.0, 2.0], 1, [1.0, 0.0], "weights must be greater than 0"),
        ([1.0, 2.0], 1, [1.0, np.inf], "weights must be greater than 0, and finite"),
    ],
)
def test_codebook_refuses_invalid_arguments(values, k, weights, message):
    with pytest.raises(CoterieError, match=message):
        codebook(values, k, weights)


def test_without_numba_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    for call in (lambda: codebook([1.0], 1), lambda: jax.jit(lambda q: codebook_in_program(q, 1))(jnp.ones((1, 2)))):
        with pytest.raises(CoterieError, match=r"the codebook needs Numba: pip install 'coterie\[numba\]'"):
            call()


# -- inside a program --------------------------------------------------------------------------------------------------


def expected(q, k):
    return np.stack([centres[labels] for centres, labels in (codebook(row, k) for row in q)])


def test_in_a_program_every_value_becomes_its_centre(monkeypatch):
    calls = []
    work = module._replace
    monkeypatch.setattr(module, "_replace", lambda q, *rest: (calls.append(q.shape), work(q, *rest))[1])
    g = np.random.default_rng(2).normal(size=(5, 400)).astype(np.float32)
    q = fused(g, 0.5)
    for k in (1, 6, 1000):
        calls.clear()
        result = np.asarray(jax.jit(lambda q, k=k: codebook_in_program(q, k))(q))
        assert calls == [(5, 400)]
        assert result.dtype == np.float32
        np.testing.assert_array_equal(result, expected(q, k))
    np.testing.assert_array_equal(jax.jit(jax.vmap(lambda row: codebook_in_program(row, 6)))(q), expected(q, 6))
    assert calls[-1] == (5, 400)
    assert codebook_in_program(jnp.zeros((2, 0)), 3).shape == (2, 0)


def test_in_double_precision(x64):
    q = np.random.default_rng(3).normal(size=(2, 50))
    result = jax.jit(lambda q: codebook_in_program(q, 4))(q)
    assert result.dtype == np.float64
    np.testing.assert_array_equal(result, expected(q, 4))


def test_a_row_that_is_not_finite_is_nan():
    q = np.random.default_rng(4).normal(size=(3, 20)).astype(np.float32)
    q[1, 3] = np.inf
    result = np.asarray(jax.jit(lambda q: codebook_in_program(q, 4))(q))
    assert np.isnan(result[1]).all()
    np.testing.assert_array_equal(result[[0, 2]], expected(q[[0, 2]], 4))


def test_a_program_that_two_devices_share(device):
    mesh = Mesh(np.array(device.devices), ("clients",))
    q = np.random.default_rng(5).normal(size=(4, 3000)).astype(np.float32)
    placed = jax.device_put(q, NamedSharding(mesh, PartitionSpec("clients")))
    result = jax.jit(lambda q: codebook_in_program(q, 3))(placed)
    np.testing.assert_array_equal(result, expected(q, 3))
