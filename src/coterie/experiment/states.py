"""The state of a training as it is saved: it does not depend on the number of devices."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie.methods.base import Method
from coterie.peers.mesh import padded_rows

__all__ = ["Coded", "from_host", "is_hub", "on_host"]


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


def from_host(training: Any, state: Any) -> Any:
    """Return a saved state on the devices."""
    padded = _of_clients(training, lambda a: padded_rows(a, training.engine.rows), state)
    return training.engine.place(jax.tree.map(jnp.array, padded))  # a copy, because the state's buffers are donated


def _of_clients(training: Any, change: Callable[[Any], Any], state: Any) -> Any:
    """Change the arrays of a state that have one row for each client; the others are the hub's."""
    engine, outer = training.engine, 0 if training.codec is None else 1  # how deep the method's own part lies
    if engine.rows == engine.size:
        return state
    counts = [(count,) for count in (engine.rows, engine.size)]

    def changed(path: Any, a: Any) -> Any:
        return a if is_hub(training.method, path[outer:]) or np.shape(a)[:1] not in counts else change(a)

    return jax.tree_util.tree_map_with_path(changed, state)
