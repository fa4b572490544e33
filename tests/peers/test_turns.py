"""One client after another: a single one has a loop as several have, so that its program is rounded as theirs."""

import jax
import jax.numpy as jnp
import numpy as np

from coterie.data.clients import Split
from coterie.peers.turns import one_by_one

ROWS = 3


def work(model, flag, key, data):
    """Use something of every kind: a product and a sum, a truth value, a random number, samples and their number."""
    noise = jax.random.normal(key, model.shape)
    mean = (data.x * data.y[:, None]).sum(0) / data.count
    return jnp.where(flag, model * mean + noise, noise), data.count + 1, ~flag, jax.random.fold_in(key, 1)


def stacked(rows):
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(ROWS, 5, 4)).astype(np.float32), draw.normal(size=(ROWS, 5)).astype(np.float32)
    whole = (
        jnp.asarray(draw.normal(size=(ROWS, 4)), jnp.float32),
        jnp.array([True, False, True]),
        jax.random.split(jax.random.key(0), ROWS),
        Split(jnp.asarray(x), jnp.asarray(y), jnp.array([5, 4, 3])),
    )
    return jax.tree.map(lambda a: a[rows], whole)


def program(rows):
    """Compile; the zero is an argument, so that the compiler cannot know it."""
    compiled = jax.jit(lambda zero, *part: one_by_one(work, part, zero)).lower(jnp.int32(0), *stacked(rows)).compile()
    return compiled, compiled(jnp.int32(0), *stacked(rows))


def test_one_client_gets_what_it_gets_among_others():
    together, several = program(slice(None))
    assert " while(" in together.as_text()
    for row in range(ROWS):
        alone, one = program(slice(row, row + 1))
        assert " while(" in alone.as_text()
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(several), strict=True):
            if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
                a, b = jax.random.key_data(a), jax.random.key_data(b)
            np.testing.assert_array_equal(a[0], b[row])


def adam(model, mean, first, second):
    """Return values that are used again for another one."""
    slope = mean - model
    first, second = 0.9 * first + 0.1 * slope, 0.99 * second + 0.01 * slope**2
    return model + 0.03 * first / (jnp.sqrt(second) + 1e-3), first, second


def test_what_is_used_again_is_rounded_as_among_others():
    draw = np.random.default_rng(0)
    rows = [jnp.asarray(np.abs(draw.normal(size=(7, 300))), jnp.float32) for _ in range(4)]

    def run(rows):
        # Optimised as for users: the flags of the tests are for quick compilation, and fuse less.
        options = {"xla_backend_optimization_level": "3", "xla_llvm_disable_expensive_passes": "False"}
        lowered = jax.jit(lambda zero, *part: one_by_one(adam, part, zero)).lower(jnp.int32(0), *rows)
        if jax.__version_info__ < (0, 11):  # later there is no other way
            options["xla_cpu_use_fusion_emitters"] = "True"
        return lowered.compile(options)(jnp.int32(0), *rows)

    several, one = run(rows), run([a[:1] for a in rows])
    for a, b in zip(one, several, strict=True):
        np.testing.assert_array_equal(a[0], b[0])
