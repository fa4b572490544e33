"""Rows of a table, and their derivative."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coterie.models.layers import rows_of


@pytest.mark.parametrize("kind", [jnp.float32, jnp.bfloat16])
def test_a_row_gets_the_sum_of_what_its_places_get(kind):
    table = jnp.arange(12.0, dtype=kind).reshape(4, 3)
    numbers = jnp.array([2, 0, 2, 9])  # beyond the table: its last row
    slopes = jnp.array([[1, 2, 4], [8, 0, 1], [2, 2, 2], [1, 0, 0]], kind)
    rows, back = jax.vjp(lambda table: rows_of(table, numbers), table)
    assert np.array_equal(rows, table[jnp.array([2, 0, 2, 3])])
    assert np.array_equal(back(slopes)[0], jnp.array([[8, 0, 1], [0, 0, 0], [3, 4, 6], [1, 0, 0]], kind))


def test_tables_of_clients_and_second_derivatives():
    tables = jax.random.normal(jax.random.key(0), (3, 5, 2))
    numbers = jnp.array([[1, 1, 4], [0, 2, 2], [3, 3, 3]])

    def cost(take):
        return lambda tables: jnp.sum(jnp.sin(jax.vmap(take)(tables, numbers)) ** 2)

    ours, plain = cost(rows_of), cost(lambda table, numbers: table[numbers])
    np.testing.assert_allclose(jax.grad(ours)(tables), jax.grad(plain)(tables), rtol=1e-6, atol=1e-7)
    along = jax.random.normal(jax.random.key(1), tables.shape)
    ours, plain = (jax.jvp(jax.grad(each), (tables,), (along,))[1] for each in (ours, plain))
    np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-6)
