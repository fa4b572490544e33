"""K-means inside a compiled program: the first guess of a block model.

scikit-learn's k-means runs on the host and so cannot be part of a jitted round; this one has fixed sizes and a fixed
number of iterations. Seeds are drawn as in k-means++ (Arthur and Vassilvitskii 2007).
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from coterie.numerics.tree import product

__all__ = ["kmeans", "principal"]


def kmeans(
    points: jax.Array, counts: Sequence[int], key: jax.Array, iterations: int = 10, restarts: int = 8
) -> tuple[jax.Array, jax.Array]:
    """Cluster the rows of `points` for each of several numbers of clusters, with the best of some restarts.

    A cluster that lost all its points moves to the point that is farthest from its centre.

    Args:
        points: `[K, D]`, finite.
        counts: numbers of clusters to try, `[N]`, each at most K.
        key: for the seeds; the same key gives the same clusters.
        iterations: each assigns all points and moves all centres.
        restarts: computed in parallel.

    Returns:
        The cluster of each point `[N, K]`, and the sum of squared distances to the clusters' means `[N]`.
    """
    centred = points - points.mean(0)  # so that squared distances, which are differences below, stay small
    most = max(counts)
    seeds = jax.vmap(lambda key: _seeds(centred, most, key))(jax.random.split(key, restarts))

    def attempt(centres: jax.Array, used: jax.Array) -> tuple[jax.Array, jax.Array]:
        def once(_: jax.Array, carry: tuple) -> tuple:
            squares = _squared_distances(centred, carry[0], used)
            labels, nearest = squares.argmin(1), squares.min(1)
            return _moved(centred, centres, labels, nearest), labels, nearest.sum()

        # Labels are of the centres before they move, so that the last of the iterations only assigns.
        start = (centres, jnp.zeros(len(centred), int), jnp.zeros((), centred.dtype))
        return jax.lax.fori_loop(0, iterations + 1, once, start)[1:]

    def best(used: jax.Array) -> tuple[jax.Array, jax.Array]:
        labels, spread = jax.vmap(attempt, (0, None))(seeds, used)
        return labels[spread.argmin()], spread.min()

    return jax.vmap(best)(jnp.array(counts))


def principal(points: jax.Array, rank: int, key: jax.Array, iterations: int = 8) -> jax.Array:
    """Project the rows of `points [K, D]` on their `rank` leading principal directions `[K, rank]`.

    Groups of rows differ in few directions, noise in all of them: clustering is more reliable after the projection.
    By subspace iteration, which costs a few products; an eigendecomposition of 1,000 columns would take longer than
    the rest of an E-step.
    """
    if rank >= min(points.shape):
        return points
    centred = points - points.mean(0)

    def turn(_: jax.Array, directions: jax.Array) -> jax.Array:
        return jnp.linalg.qr(product(centred.T, product(centred, directions)))[0]

    directions = jax.random.normal(key, (points.shape[1], rank), points.dtype)
    return product(centred, jax.lax.fori_loop(0, iterations, turn, directions))


def _seeds(points: jax.Array, clusters: int, key: jax.Array) -> jax.Array:
    """Draw one centre after the other, with probability proportional to the squared distance to the nearest centre.

    Once every point coincides with a centre all probabilities are zero, and the first point is drawn again.
    """
    noise = jax.random.gumbel(key, (clusters, points.shape[0]), points.dtype)
    first = points[noise[0].argmax()]

    def draw(cluster: jax.Array, drawn: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        centres, squares = drawn
        chosen = points[(jnp.log(squares) + noise[cluster]).argmax()]
        return centres.at[cluster].set(chosen), jnp.minimum(squares, jnp.square(points - chosen).sum(1))

    centres = jnp.zeros((clusters, points.shape[1]), points.dtype).at[0].set(first)
    return jax.lax.fori_loop(1, clusters, draw, (centres, jnp.square(points - first).sum(1)))[0]


def _moved(points: jax.Array, centres: jax.Array, labels: jax.Array, nearest: jax.Array) -> jax.Array:
    """Move each centre to the mean of its points; one without any to the point that is farthest from its centre."""
    member = jax.nn.one_hot(labels, centres.shape[0], dtype=points.dtype)
    count = member.sum(0)[:, None]
    means = product(member.T, points) / jnp.maximum(count, 1)
    return jnp.where(count > 0, means, points[nearest.argmax()])


def _squared_distances(points: jax.Array, centres: jax.Array, used: jax.Array) -> jax.Array:
    """Return the squared distances `[K, clusters]`; an unused cluster is infinitely far."""
    squares = jnp.square(points).sum(1)[:, None] - 2 * product(points, centres.T) + jnp.square(centres).sum(1)
    squares = jnp.maximum(squares, 0)
    return jnp.where(jnp.arange(centres.shape[0]) < used, squares, jnp.inf)
