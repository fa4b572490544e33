"""Shared cases of the tests of both block models: losses of planted groups, random evidence, random mixtures."""

import jax.numpy as jnp
import numpy as np

IN, OUT = 0.3, 3.0  # mean loss on data of the same group, and of another


def planted(groups=4, size=5):
    """Return losses of clients in equal groups, all known, and which pairs are in the same and in different groups."""
    group = np.repeat(np.arange(groups), size)
    same = group[:, None] == group
    losses = jnp.asarray(np.where(same, IN, OUT))
    return losses, jnp.ones(same.shape, bool), same & ~np.eye(len(group), dtype=bool), ~same


def simplex(random, *shape):
    return jnp.asarray(random.dirichlet(np.ones(shape[-1]), shape[:-1]))


def random_evidence(random, clients, share=1.0, scale=2.0):
    """Return evidence of either sign, of which a share is known. The diagonal is filled, but must not matter."""
    return jnp.asarray(random.normal(0, scale, (clients, clients))), jnp.asarray(
        random.random((clients, clients)) < share
    )


def sigmoid(x):
    return 1 / (1 + np.exp(-np.asarray(x)))


def logit(p):
    return np.log(p) - np.log1p(-p)
