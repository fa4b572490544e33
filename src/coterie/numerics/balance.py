"""What clients' losses on each other's data say about pairs of clients, where they say little.

The log-likelihood ell_ij of client j's data under client i's model has four parts: how good the model is (whatever the
data), how easy the data are (whatever the model), how well the two go together, and luck, since few samples were asked.
Only the third says who should cooperate. Models that have learned little differ little: then the other parts are larger
than it, and all of it is small.
"""

import jax
import jax.numpy as jnp
from jax import lax

from coterie.numerics.tree import divisor

__all__ = ["LEVEL", "MOST", "balanced"]

LEVEL = 0.4  # standard deviation, in nats, from which on evidence is taken more and more as it is
MOST = 10.0  # times that it is stretched; models that differ less than that are still nearly the first ones
SWEEPS = 12  # each leaves at most a quarter of what rows and columns have in common with the missing diagonal


def balanced(ell: jax.Array, known: jax.Array, level: float = LEVEL) -> tuple[jax.Array, jax.Array]:
    """Return log-likelihoods `[K, K]` of pairs, corrected where they differ little, and how much they were stretched.

    x = ell - (row i's part + column j's part), fitted by least squares. Two clients go together as well from either
    side, so s = (x + x^T) / 2 is what they say of a pair, and (x - x^T) / 2 is luck. If the standard deviation of s is
    below `level`, s takes the place of ell, stretched up to `level` (at most `MOST` times) as far as s is not luck
    itself. If it is above, ell moves towards s by the fraction level^2 / variance: losses of models that have learned,
    many of them far beyond guessing, are no sums of such parts.

    Args:
        ell: row i is client i's model, column j client j's data.
        known: where there is a loss; the diagonal is not used.
        level: see above.
    """
    known = known & ~jnp.eye(len(ell), dtype=bool)
    both, ones = known & known.T, known.astype(ell.dtype)
    ell = jnp.where(known, ell, 0)
    mean = ell.sum() / divisor(ones.sum())

    def sweep(_: int, x: jax.Array) -> jax.Array:
        x = x - ones * (x.sum(1, keepdims=True) / divisor(ones.sum(1, keepdims=True)))
        return x - ones * (x.sum(0, keepdims=True) / divisor(ones.sum(0, keepdims=True)))

    x = lax.fori_loop(0, SWEEPS, sweep, ones * (ell - mean))
    pair, luck = jnp.where(both, (x + x.T) / 2, x), jnp.where(both, (x - x.T) / 2, 0)
    variance, noise = ((a * a).sum() / divisor(ones.sum()) for a in (pair, luck))
    ratio = level / jnp.sqrt(divisor(variance))
    stretch = 1 + jnp.maximum(0, 1 - noise / divisor(variance)) * (jnp.clip(ratio, 1, MOST) - 1)
    corrected = ell + jnp.minimum(1, ratio**2) * (mean + pair - ell)
    return ones * stretch * corrected, stretch
