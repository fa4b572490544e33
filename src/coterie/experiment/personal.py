"""One client's model: as a function of a batch, and as the file it is kept in. No JAX until a model is used."""

from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["PersonalModel", "by_name", "read_model"]


class PersonalModel:
    """A client's model: call it on a batch of inputs."""

    def __init__(self, task: Any, variables: Any):
        self._task, self.variables = task, variables

    @property
    def module(self) -> Any:
        """The Equinox module, ready for inference on a single sample."""
        return self._task.module(self.variables)

    def __call__(self, x: Any) -> np.ndarray:
        """Return the model's outputs (logits, or predictions) for a batch `x [B, ...]`."""
        import jax.numpy as jnp

        from coterie.experiment.job import precision

        with precision(np.dtype(self._task.dtype).name):
            return np.asarray(self._task.apply(self.variables, jnp.asarray(x))[0])


def by_name(variables: Any) -> dict[str, Any]:
    """Return a model's parameters and statistics (batch norm and the like) by name."""
    from coterie.models.naming import names

    statistics = {f"statistics.{name}": leaf for name, leaf in names(variables.statistics)}
    return dict(names(variables.params)) | statistics


def read_model(task: Any, file: Path, place: int = 0, clients: int = 0) -> Any:
    """Return a client's variables from its file, or from place `place` of the file of so many clients."""
    import jax

    from coterie.experiment.job import precision
    from coterie.models.naming import load

    with precision(np.dtype(task.dtype).name):
        like = jax.eval_shape(task.init, jax.random.key(0))
        if clients:
            stacked = jax.tree.map(lambda a: jax.ShapeDtypeStruct((clients, *a.shape), a.dtype), like)
            arrays = {name: array[place] for name, array in load(file, by_name(stacked)).items()}
        else:
            arrays = load(file, by_name(like))
        return jax.tree.unflatten(jax.tree.structure(like), [np.asarray(arrays[name]) for name in by_name(like)])
