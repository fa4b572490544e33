"""The state of a training as it is saved: it does not depend on the number of devices."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie.methods.base import Method
from coterie.numerics.tree import is_same
from coterie.peers.mesh import padded_rows

__all__ = ["Coded", "from_host", "have_clients", "is_hub", "on_host", "outline_on_host"]


class Coded(NamedTuple):
    """The state of a run with a codec: the method's, and what the codec remembers."""

    method: Any
    memory: Any


def is_hub(method: Method, path: Any) -> bool:
    """Whether the array at a path of a method's state is the hub's; the others have a row for each client."""
    return any(getattr(part, "name", None) in method.hub_state() for part in path[:1])


def on_host(training: Any, state: Any) -> Any:
    """Return a state of a `Training` as it is saved."""
    return _of_clients(training, training.engine.trimmed, jax.device_get(state))


def outline_on_host(training: Any) -> Any:
    """Return zeros in the shapes and types of a state as it is saved."""
    whole = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), training.outline())
    return _of_clients(training, training.engine.trimmed, whole)


def from_host(training: Any, state: Any) -> Any:
    """Return a saved state on the devices."""
    padded = _of_clients(training, lambda a: padded_rows(a, training.engine.rows), state)
    return training.engine.place(jax.tree.map(jnp.array, padded))  # a copy, because the state's buffers are donated


def have_clients(training: Any, state: Any) -> Any:
    """Say for each array of a state on the devices whether it has a row for every client; the others are the hub's."""
    rows, outer = training.engine.rows, 0 if training.codec is None else 1  # how deep the method's own part lies

    def has_clients(path: Any, a: Any) -> bool:
        return np.shape(a)[:1] == (rows,) and not is_hub(training.method, path[outer:])

    def is_there(path: Any, a: Any) -> Any:
        return jax.tree.map(lambda _: False, a) if is_same(a) else has_clients(path, a)

    return jax.tree_util.tree_map_with_path(is_there, state, is_leaf=is_same)


def _of_clients(training: Any, change: Callable[[Any], Any], state: Any) -> Any:
    """Change the arrays of a state that have one row for each client."""
    engine = training.engine
    if engine.rows == engine.size:
        return state
    counts = [(count,) for count in (engine.rows, engine.size)]
    full = jax.tree.map(lambda a: np.broadcast_to(0, (engine.rows,)) if np.shape(a)[:1] in counts else a, state)
    return jax.tree.map(lambda a, has: change(a) if has else a, state, have_clients(training, full))
