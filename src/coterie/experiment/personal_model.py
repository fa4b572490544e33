"""A client's model, ready for use; how models are read from their files and averaged. No JAX until one is used."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.experiment.prediction import Answers, run_model

__all__ = ["PersonalModel", "by_name", "mean_model", "read_model", "shared_model"]


class PersonalModel:
    """A client's model: call it on a batch of inputs, or let it predict rows as people have them."""

    def __init__(
        self, task: Any, variables: Any, answers: Callable[[], Answers] | None = None, client: str | None = None
    ):
        self._task, self.variables, self._answers, self.client = task, variables, answers, client

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

    def outputs(self, x: np.ndarray) -> np.ndarray:
        """Return the model's outputs for inputs of any number, computed in batches."""
        return run_model(self._task, self.variables, x)

    def predict(self, rows: Any, level: float = 0.9) -> Any:
        """Predict rows of a table (columns by name) or an array of inputs; see `Result.predict`."""
        if self._answers is None:
            raise CoterieError("this model does not know what its inputs mean: take it from a result or from ct.open")
        answers = self._answers()
        x, notes = answers.inputs(rows, self.client)
        table = answers.table(self.outputs(x), [self.client or ""] * len(x), notes, level)
        return table.set_axis(rows.index) if hasattr(rows, "columns") else table


def read_model(path: Path, task: Any, place: int = 0, of: int = 0) -> Any:
    """Read a model (`Variables`) from its file; of a file with `of` models, that at a place."""
    import jax

    from coterie.experiment.job import precision
    from coterie.models.naming import load

    with precision(np.dtype(task.dtype).name):
        like = jax.eval_shape(task.init, jax.random.key(0))
        expected = like if not of else jax.tree.map(lambda a: jax.ShapeDtypeStruct((of, *a.shape), a.dtype), like)
        arrays = load(path, by_name(expected))
        leaves = [np.asarray(arrays[name][place] if of else arrays[name]) for name in by_name(like)]
        return jax.tree.unflatten(jax.tree.structure(like), leaves)


def shared_model(method: Any, task: Any, state: Any, models: Any, fetched: Callable[[Any], Any] | None = None) -> Any:
    """Return the model of a client that took no part: the mean of the clients' copies of the shared model.

    Args:
        method: how the clients cooperated.
        task: what they learned.
        state: the method's state after the last round.
        models: the personal models that are kept, `[K, ...]`, or the one of all (`Same`).
        fetched: copies arrays `[K, ...]` to the host, one at a time; default: from the devices of this process.
    """
    import jax

    from coterie.numerics.tree import is_same

    common = method.common(task, state)
    copies = models if common is None else common
    if is_same(copies):
        return jax.tree.map(np.asarray, jax.device_get(copies.value))
    return mean_model(copies, fetched or jax.device_get)


def mean_model(models: Any, fetched: Callable[[Any], Any] = np.asarray) -> Any:
    """Return the mean of models `[K, ...]`; equal ones give exactly that model. Whole numbers are the first one's."""
    import jax

    def mean(a: Any) -> np.ndarray:
        a = np.asarray(fetched(a))
        return np.asarray(a.mean(0, dtype=np.float64).astype(a.dtype) if a.dtype.kind == "f" else a[0])

    return jax.tree.map(mean, models)


def by_name(variables: Any) -> dict[str, Any]:
    """Return a model's parameters and statistics (batch norm and the like) by name."""
    from coterie.models.naming import names

    statistics = {f"statistics.{name}": leaf for name, leaf in names(variables.statistics)}
    return dict(names(variables.params)) | statistics
