"""What the models of a `Training` are worth: the clients' metrics after a round, and the models as they were judged."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from coterie.data.clients import Clients
from coterie.learning.evaluate import evaluate
from coterie.learning.task import Task, Variables
from coterie.methods.base import Method

__all__ = ["EVALUATIONS", "Judging"]

EVALUATIONS = 20  # of a run, unless its settings say otherwise


class Judging:
    """What a `Training` does where its models are evaluated or handed out; it brings all that is used here."""

    method: Any
    task: Task
    peers: Any
    engine: Any
    call: Callable
    inner: Callable[[Any], Any]
    _tune_key: jax.Array

    def evaluate(self, state: Any, number: int) -> dict[str, np.ndarray]:
        """Return every client's metrics `[K]` after round `number`, by name."""
        by_split = self.call(self._evaluate, "evaluate", *self._evaluated(state, number), light=self._light)
        return {
            f"{split}_{name}": np.asarray(values)
            for split, metrics in self.engine.fetched(by_split).items()
            for name, values in metrics._asdict().items()
        }

    def _evaluated(self, state: Any, number: int) -> tuple[Any, ...]:
        return self._tune_key, self.inner(state), np.int32(number)

    @property
    def _light(self) -> bool:
        """Whether evaluations are compiled as they are written; not where every one of them trains the models first."""
        tunes = type(self.method).finetune is not Method.finetune
        return not tunes and self.engine.evaluates_little(self.task, EVALUATIONS)

    def _evaluate(self, method: Method, tables: Any, clients: Clients, key: Any, state: Any, number: Any) -> Any:
        peers = self.peers.make(tables)
        models, before = self._models(method, peers, clients, key, state, number)
        metrics = evaluate(self.task, peers, models, clients)
        if before is not None:
            metrics["untuned"] = evaluate(self.task, peers, before, clients)["test"]
        return metrics

    def models(self, state: Any, number: int) -> Variables:
        """Return every client's model, or that of all (`Same`), after round `number`, as evaluated (`Engine.kept`)."""

        def program(method: Method, tables: Any, clients: Clients, key: Any, state: Any, number: Any) -> Any:
            return self._models(method, self.peers.make(tables), clients, key, state, number)[0]

        return self.engine.kept(self.call(program, "models", self._tune_key, self.inner(state), np.int32(number)))

    @staticmethod
    def kept_models(method: Any, state: Any) -> Any:
        """Return the personal models `[C, ...]` that a method's state holds, or the one of all clients (`Same`)."""
        one = method.model_of_all(state)
        return method.models(state) if one is None else one

    def _models(self, method: Any, peers: Any, clients: Clients, key: Any, state: Any, number: Any) -> tuple:
        """Return the personal models, and for a method that tunes them also the models before tuning."""
        models = self.kept_models(method, state)
        tuned = method.finetune(self.task, state, peers, clients, jax.random.fold_in(key, number))
        return (models, None) if tuned is None else (tuned, models)
