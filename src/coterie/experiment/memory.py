"""Whether the models of a run fit into memory, asked before they are allocated."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np

from coterie.errors import CoterieError
from coterie.storage.memory import available, in_words

__all__ = ["check_fit", "parameters_of"]


def parameters_of(build: Callable[[jax.Array], Any]) -> int:
    """Count the parameters of a model that is made from a key, without making it."""
    shapes = eqx.filter_eval_shape(build, jax.random.key(0))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes) if hasattr(leaf, "shape"))


def check_fit(parameters: int, clients: int, dtype: Any) -> None:
    """Refuse models that cannot fit, with their size and what to lower.

    Args:
        parameters: of one client's model, all its members together.
        clients: how many there are.
        dtype: floating type of the parameters.
    """
    memory = available()
    # A round has the state before it and the one after it; what a GPU holds comes to the host once, at the end.
    copies = 2 if jax.default_backend() == "cpu" else 1
    size = copies * parameters * clients * np.dtype(dtype).itemsize
    if size > memory:
        raise CoterieError(
            f"{clients:,} model{'s' * (clients > 1)} of {parameters:,} parameters need at least {in_words(size)}, "
            f"and {in_words(memory)} are free: lower the sizes in [model], model.members or partition.clients"
        )
