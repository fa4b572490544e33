"""Bases of methods that split a model into personal layers, which stay with the client, and shared ones."""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax

from coterie.data.clients import Federation, Split
from coterie.errors import CoterieError
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.task import Task, Variables
from coterie.methods.base import Method
from coterie.spec import param, spec
from coterie.traced import changed, is_off

__all__ = ["InTurns", "KeepsLayers", "Optimisers", "last_layer", "slope_of_part"]


@spec
class KeepsLayers(LocalSGD, Method):
    """Local training with the choice of the personal layers."""

    personal: tuple[str, ...] = param(
        (), "names of the layers that stay with the client; empty: those of model.personal, or else the last layer"
    )

    def adapt(self, task: Task) -> Task:
        """Return the task with the personal layers of this method; refuse a choice that leaves nothing to share."""
        chosen = self.personal or task.personal or (last_layer(task),)
        split = task.keeping(chosen)
        if len(split.personal_names) == len(split.names):
            raise CoterieError(
                f"personal {', '.join(chosen)} is the whole model, and nothing is left to learn together; name a part "
                f"of it in method.personal (known: {', '.join(task.names)})"
            )
        return split

    def check(self, task: Task, federation: Federation) -> None:
        """Refuse models that cannot be split this way, before anything is compiled."""
        self.adapt(task)


def last_layer(task: Task) -> str:
    """Return the name of the model's last layer: the last parameter's name up to its last dot."""
    layer, dot, _ = task.names[-1].rpartition(".")
    if not dot or all(name.startswith(f"{layer}.") for name in task.names):
        raise CoterieError(
            "the model has one layer only, which cannot be personal and shared; name a part of it in method.personal "
            f"(known: {', '.join(task.names)}) or choose a model with more layers"
        )
    return layer


class Optimisers(NamedTuple):
    """The optimisers of the personal and of the shared part."""

    personal: Any
    shared: Any


@spec
class InTurns(KeepsLayers):
    """Local training in turns: first the personal layers, then the shared ones."""

    personal_lr: float = param(0.0, "step size of the personal layers; 0: lr", at_least=0)
    personal_epochs: int = param(
        0,
        "passes per round over the data for the personal layers; 0: as many local steps as for the others",
        at_least=0,
    )

    def scaled(self, factor: Any) -> Any:
        """Return the method with both learning rates times a factor."""
        other = super().scaled(factor)
        return other if is_off(self.personal_lr) else changed(other, personal_lr=self.personal_lr * factor)

    def plain(self) -> Self:
        """See `Method.plain`."""
        return changed(super().plain(), personal_lr=0.0, personal_epochs=0)

    def start_optimisers(self, task: Task, params: Any) -> Optimisers:
        """Return the optimisers of one client before its first step."""
        optimiser = self.optimiser()
        return Optimisers(optimiser.init(task.own(params)), optimiser.init(task.shared(params)))

    def train_in_turns(
        self,
        task: Task,
        variables: Variables,
        data: Split,
        key: jax.Array,
        optimisers: Optimisers | None = None,
        upper: Callable[[Any], Callable[..., Any]] | None = None,
    ) -> tuple[Variables, Optimisers, jax.Array]:
        """Train one client for a round.

        Args:
            task: model and loss, with its personal layers.
            variables: where to start.
            data: the client's own samples.
            key: the client's key for this round.
            optimisers: momentum from the previous round; None starts without.
            upper: given the personal part, returns the `slope` (see `LocalSGD.train`) of the shared part; default: the
                gradient of the same training loss.

        Returns:
            The model, the optimisers, and the mean loss of the steps of the shared part.
        """
        personal_key, shared_key = jax.random.split(key)
        own, shared = task.own(variables.params), task.shared(variables.params)
        optimisers = optimisers or Optimisers(None, None)
        personal_sgd = self if is_off(self.personal_lr) else changed(self, lr=self.personal_lr)
        trained_own = personal_sgd.train(  # y <- y - beta grad_y g(x, y)
            task,
            Variables(own, variables.statistics),
            data,
            personal_key,
            optimiser_state=optimisers.personal,
            epochs=self.personal_epochs or None,
            slope=slope_of_part(task, shared),
        )
        own = trained_own.variables.params
        trained_shared = self.train(  # x <- x - eta grad f(x, y), with the new y
            task,
            Variables(shared, trained_own.variables.statistics),
            data,
            shared_key,
            optimiser_state=optimisers.shared,
            slope=slope_of_part(task, own) if upper is None else upper(own),
        )
        params = eqx.combine(trained_shared.variables.params, own)
        trained = Variables(params, trained_shared.variables.statistics)
        return trained, Optimisers(trained_own.optimiser, trained_shared.optimiser), trained_shared.loss


def slope_of_part(task: Task, rest: Any) -> Callable[..., Any]:
    """Return the gradient of the training loss in one part of the model; the rest stays as it is."""

    def loss(part: Any, *batch: Any) -> tuple[jax.Array, Any]:
        return task.loss(eqx.combine(part, rest), *batch)

    return jax.value_and_grad(loss, has_aux=True)
