"""The written-out hash: published values, and JAX's own bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core.primitives import threefry2x32_p
from jax.extend.random import threefry_2x32

from coterie.experiment.compiler import options_for
from coterie.numerics.threefry import hash_pairs, write_out_on_cpu

# Known answers of Random123's Threefry-2x32 with 20 rounds (Salmon et al. 2011): counter, key, result.
KNOWN = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_known_answers(counter, key, result):
    assert tuple(map(int, hash_pairs(*map(jnp.uint32, (*key, *counter))))) == result


def test_the_bits_are_jaxs():
    key, counts = np.array([7, 2**31], np.uint32), np.arange(10, dtype=np.uint32)
    ours = jax.jit(hash_pairs)(key[0], key[1], counts[:5], counts[5:])
    np.testing.assert_array_equal(np.concatenate(ours), threefry_2x32(key, counts))


@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 1), (4, 2), (600,), (20, 65)])
@pytest.mark.parametrize("options", [{}, options_for("cpu", False), options_for("cpu", True)])
def test_compiled_for_a_cpu_the_bits_are_the_same(shape, options):
    """With keys of their own, and with one key for all; few pairs are one array, and many are two."""
    write_out_on_cpu()
    bits = np.random.default_rng(0).integers(0, 2**32, (4, *shape), dtype=np.uint32)
    one_key = (*(np.broadcast_to(key.ravel()[0], (1,) * len(shape)) for key in bits[:2]), *bits[2:])
    for inputs in (tuple(bits), one_key):
        program = jax.jit(lambda *a: threefry2x32_p.bind(*a)).lower(*map(jnp.asarray, inputs)).compile(options)
        found, expected = program(*map(jnp.asarray, inputs)), hash_pairs(*np.broadcast_arrays(*inputs))
        np.testing.assert_array_equal(found, np.stack(expected))
