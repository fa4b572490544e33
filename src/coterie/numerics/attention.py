"""The attention prior of SCooL: a distribution over neighbours by the similarity of their models' displacements.

Li et al. 2024, sections 4.3 and D, with two corrections (docs/reference/papers.md): the gradient of an embedding counts
the client as a key in every row, and a client's pair with itself has no likelihood. E = embeddings `[K, E]`, scores
f_ij = <e_i, e_j>, prior p_i. = softmax over the neighbours and i itself, weights w_i. proportional to
p_i. exp(ell_i. / T).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie.numerics.tree import divisor

__all__ = ["Encoder", "embed", "embedding_gradient", "pack", "posterior", "prior", "start_encoder", "unpack"]


class Encoder(NamedTuple):
    """Two dense layers per tensor of the model, applied to each of its rows (filters, output units)."""

    first: Any  # [inputs, hidden] per tensor
    first_bias: Any
    second: Any  # [hidden, width] per tensor
    second_bias: Any


def start_encoder(params: Any, widths: tuple[int, int], key: jax.Array) -> Encoder:
    """Draw an encoder for models shaped like `params`; widths are (10, 5) in the paper."""
    leaves, structure = jax.tree.flatten(params)
    hidden, width = widths
    keys = jax.random.split(key, 2 * max(1, len(leaves)))
    inputs = [_rows(leaf).shape[1] for leaf in leaves]
    # All of them in one draw, because each takes as long to compile: the first numbers of a key do not depend on how
    # many are drawn.
    longest = max((n * hidden for n in (*inputs, width)), default=1)
    drawn = jax.vmap(lambda key: jax.random.normal(key, (longest,), leaves[0].dtype))(keys)

    def matrix(numbers: jax.Array, inputs: int, outputs: int) -> jax.Array:
        return numbers[: inputs * outputs].reshape(inputs, outputs) / jnp.sqrt(inputs)

    first = [matrix(numbers, n, hidden) for numbers, n in zip(drawn[::2], inputs, strict=False)]
    second = [matrix(numbers, hidden, width) for numbers, _ in zip(drawn[1::2], leaves, strict=False)]
    zeros = [[jnp.zeros(n, leaf.dtype) for leaf in leaves] for n in (hidden, width)]
    return Encoder(*(jax.tree.unflatten(structure, part) for part in (first, zeros[0], second, zeros[1])))


def pack(encoder: Encoder) -> jax.Array:
    """Return an encoder as one vector, of which an optimiser makes one kernel instead of one for each tensor."""
    return jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(encoder)])


def unpack(vector: jax.Array, params: Any, widths: tuple[int, int]) -> Encoder:
    """Return the encoder, for models shaped like `params`, that `pack` made a vector of."""
    shapes = jax.eval_shape(lambda: start_encoder(params, widths, jax.random.key(0)))
    leaves, structure = jax.tree.flatten(shapes)
    parts = jnp.split(vector, np.cumsum([leaf.size for leaf in leaves])[:-1])
    return jax.tree.unflatten(structure, [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)])


def embed(encoder: Encoder, moved: Any) -> jax.Array:
    """Return e = E(theta - theta^0; phi) of one client, from its displacement scaled to length one.

    The inner product of two embeddings is the mean over tensors of the mean over rows of their codes' products.
    """
    leaves = jax.tree.leaves(moved)
    squared = sum(jnp.sum(leaf * leaf) for leaf in leaves)
    length = jnp.sqrt(divisor(squared))  # the derivative of a model that has not moved is finite, too

    def codes(leaf: jax.Array, a: jax.Array, a0: jax.Array, b: jax.Array, b0: jax.Array) -> jax.Array:
        rows = _rows(leaf) / length
        out = jnp.tanh(jnp.tanh(rows @ a + a0) @ b + b0)
        return out.reshape(-1) / jnp.sqrt(rows.shape[0] * len(leaves))

    return jnp.concatenate(jax.tree.leaves(jax.tree.map(codes, moved, *encoder)))


def prior(scores: jax.Array, own_score: jax.Array, present: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return log p over the slots `[C, D]` and for the client itself `[C]`: a softmax over those present and itself."""
    everyone = jnp.concatenate([own_score[:, None], jnp.where(present, scores, -jnp.inf)], 1)
    logs = jax.nn.log_softmax(everyone, axis=1)
    return logs[:, 1:], logs[:, 0]


def posterior(
    ell: jax.Array, own_ell: jax.Array, log_p: jax.Array, own_log_p: jax.Array, temperature: Any = 1.0
) -> tuple[jax.Array, jax.Array]:
    """Return w over the slots and for the client itself: softmax of ell / T + log p; absent slots have log p = -inf.

    `own_ell = 0` is the posterior of the paper's objective (V1: a client's own data have a term of their own); the
    authors' program uses the log-likelihood of the client's own data (V2).
    """
    everyone = jnp.concatenate([(own_ell / temperature + own_log_p)[:, None], ell / temperature + log_p], 1)
    weights = jax.nn.softmax(everyone, axis=1)
    return weights[:, 1:], weights[:, 0]


def embedding_gradient(weights: jax.Array, p: jax.Array, embeddings: jax.Array) -> jax.Array:
    """Return dS/dE of S = sum_ij w_ij log p_ij: (D + D^T) E with D = w - p, square matrices with their diagonals."""
    difference = weights - p
    return (difference + difference.T) @ embeddings


def _rows(leaf: jax.Array) -> jax.Array:
    return leaf.reshape(leaf.shape[0], -1) if leaf.ndim else leaf.reshape(1, 1)
