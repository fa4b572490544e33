"""An ensemble as one model: the average of its members' predictions, with equal or learned weights.

Any model can be made an ensemble (`model.members` in a config, `members` of a `Task`). Classes and characters are
predicted by a mixture of probabilities, sum_k a_k softmax(net_k(x)); its logarithm is returned, so that the usual
cross-entropy is that of the mixture. For regression the outputs themselves are averaged.
"""

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coterie.errors import CoterieError

__all__ = ["Ensemble", "ensemble_of"]


class Ensemble(eqx.Module):
    """Parameters `members.0`, `members.1`, ..., and `mixture`, whose softmax are the learned weights.

    Attributes:
        members: networks of one architecture.
        mixture: `[K]`, or None: equal weights.
        probabilities: whether the members' outputs are logits of a distribution, over the last axis.
    """

    members: tuple[Any, ...]
    mixture: Array | None
    probabilities: bool = eqx.field(static=True)

    def __call__(self, x: Array, key: Array | None = None) -> Array:
        """Return the logarithm of the mixture of distributions, or the weighted mean of the outputs, for one input."""
        outputs = self.outputs(x, key)  # [K, ...]
        outputs = outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))  # a softmax is not for bfloat16
        count = len(self.members)
        logits = jnp.zeros(count, outputs.dtype) if self.mixture is None else self.mixture
        shape = (count,) + (1,) * (outputs.ndim - 1)
        if self.probabilities:
            log_weights = jax.nn.log_softmax(logits).reshape(shape)
            return jax.nn.logsumexp(log_weights + jax.nn.log_softmax(outputs, -1), axis=0)
        return (jax.nn.softmax(logits).reshape(shape) * outputs).sum(0)

    def outputs(self, x: Array, key: Array | None) -> Array:
        """Return the members' outputs `[K, ...]` for one input; they run as one batched network,
        since K copies in the program would take K times as long to compile.
        """
        parts = [eqx.partition(member, eqx.is_array) for member in self.members]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(arrays for arrays, _ in parts))
        keyed = key is not None and "key" in inspect.signature(type(self.members[0]).__call__).parameters
        keys = jax.random.split(key, len(parts)) if keyed and key is not None else None

        def run(arrays: Any, key: Array | None) -> Array:
            extra = {} if key is None else {"key": key}
            return eqx.combine(arrays, parts[0][1])(x, **extra)

        return jax.vmap(run, in_axes=(0, None if keys is None else 0))(stacked, keys)


def ensemble_of(
    build: Callable[[Array], Any], members: int, mixture: bool, probabilities: bool
) -> Callable[[Array], Ensemble]:
    """Return a function of a key that builds an ensemble of modules; its first member is `build(key)`."""

    def built(key: Array) -> Ensemble:
        networks = tuple(build(key if k == 0 else jax.random.fold_in(key, k)) for k in range(members))
        if isinstance(networks[0], tuple):
            raise CoterieError(
                "an ensemble cannot be made of a model with statistics (batch norm); use group norm, or members = 1"
            )
        return Ensemble(networks, jnp.zeros(members) if mixture else None, probabilities)

    return built
