"""SPDB: personal layers are the lower level of a bilevel problem; the shared layers are agreed on without a hub.

Lu, Cui, Squillante, Kingsbury, Horesh 2022, Algorithm 1: minimise the mean of f_i(x_i, y_i*(x_i)) so that all x_i are
equal, with y_i*(x) = argmin_y g_i(x, y). One iteration of client i (a round with `steps = 1`):
1. y_i <- y_i - beta grad_y g_i(x_i, y_i);
2. h_i = `grad_x f_i - [d2_xy g_i] [d2_yy g_i]^-1 grad_y f_i` at (x_i, y_i), the gradient of f_i(x, y_i*(x));
3. the neighbours get m_i = 2 x_i^r - x_i^{r-1}, and x_i^{r+1} = sum_j W_ij m_j - (eta_r h_i^r - eta_{r-1} h_i^{r-1}).

`upper = "train"` is PCL, the paper's experiments: f = g, where grad_y f = 0 at y* and the Hessian term vanishes, so
that a step on y and then one on x is exact in the limit. `upper = "validation"` takes f from the client's validation
samples and needs the term; without it (`solver = "none"`) the method converges to another point. `lr` = eta replaces
the paper's 1 / (n alpha), without its 1 / n. `coterie.consensus.primal_dual` defines the start and the stored steps.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

import equinox as eqx
import jax
import jax.numpy as jnp

from coterie.bilevel.implicit import Solver, hypergradient
from coterie.data.clients import Clients, Federation, Split
from coterie.errors import CoterieError
from coterie.learning.task import Task, Variables
from coterie.methods.base import method
from coterie.methods.shared.personal import InTurns, Optimisers
from coterie.methods.spd import SPD
from coterie.spec import param
from coterie.traced import changed, is_off

__all__ = ["SPDB"]

MOST_TERMS = 500  # conjugate-gradient steps that test a Hessian before the first round
UNSOLVED = 0.1  # with a larger residual after these the Hessian counts as singular


@method
class SPDB(InTurns, SPD):
    """Personal layers; the others are agreed on exactly without a hub."""

    in_turns: ClassVar[bool] = True
    upper: Literal["train", "validation"] = param("train", "the samples for the loss of the shared layers")
    solver: Solver = param("cg", "for upper = validation: how the inverse Hessian of the personal layers is applied")
    terms: int = param(10, "for upper = validation: Hessian-vector products per step", at_least=1)
    damping: float = param(
        0.1, "for upper = validation: added to the Hessian of the personal layers, like weight_decay", at_least=0
    )

    def plain(self) -> Self:
        """See `Method.plain`."""
        return changed(super().plain(), upper="train")

    def check(self, task: Task, federation: Federation) -> None:
        """Refuse clients without validation samples if these are needed, and a singular Hessian."""
        super().check(task, federation)
        if self.upper == "train":
            return
        empty = [name for name, n in zip(federation.names, federation.validation.count, strict=True) if n == 0]
        if empty:
            raise CoterieError(
                f"method.upper = 'validation' needs validation samples, and client {empty[0]!r} has none; set "
                "partition.validation above 0 or method.upper = 'train'"
            )
        if self.solver == "cg" and is_off(self.damping) and is_off(self.weight_decay):
            self._refuse_flat(self.adapt(task), federation)

    def start_optimiser(self, task: Task, params: Any) -> Optimisers:
        """Return the state of one client's two optimisers."""
        return self.start_optimisers(task, params)

    def descend(
        self, task: Task, variables: Variables, optimiser: Any, clients: Clients, key: jax.Array
    ) -> tuple[Variables, Any, jax.Array]:
        """Train one client for a round: steps 1 and 2."""
        upper = None if self.upper == "train" else lambda own: self._validated(task, own, clients.validation)
        return self.train_in_turns(task, variables, clients.train, key, optimiser, upper)

    def _validated(self, task: Task, own: Any, held_out: Split) -> Callable[..., Any]:
        """Return the `slope` of the shared part, with f on validation samples and g on the training minibatch."""

        def slope(shared: Any, statistics: Any, x: Any, y: Any, mask: Any, key: jax.Array) -> Any:
            inner_key, outer_key, draw_key = jax.random.split(key, 3)
            indices, outer_mask, _ = self._draw(held_out.x.shape[0], held_out.count, draw_key, jnp.int32(0))
            outer_x, outer_y = held_out.x[indices], held_out.y[indices]

            def outer(shared: Any, own: Any) -> jax.Array:
                params = eqx.combine(shared, own)
                return task.loss(params, statistics, outer_x, outer_y, outer_mask, outer_key, train=False)[0]

            def inner(shared: Any, own: Any) -> jax.Array:
                return task.loss(eqx.combine(shared, own), statistics, x, y, mask, inner_key)[0]

            loss, statistics_after = task.loss(eqx.combine(shared, own), statistics, x, y, mask, inner_key)
            curvature = self.damping + self.weight_decay  # the penalty of weight_decay on y is part of g
            gradient, _ = hypergradient(
                outer, inner, shared, own, solver=self.solver, terms=self.terms, damping=curvature
            )
            return (loss, statistics_after), gradient

        return slope

    def _refuse_flat(self, task: Task, federation: Federation) -> None:
        """Compute one hyper-gradient per client at a fresh model, and refuse a singular Hessian."""
        variables = task.init(jax.random.key(0))
        shared, own = task.shared(variables.params), task.own(variables.params)
        size = sum(a.size for a in jax.tree.leaves(own))

        def loss(shared: Any, own: Any, data: Split) -> jax.Array:
            params, mask = eqx.combine(shared, own), jnp.arange(data.x.shape[0]) < data.count
            return task.loss(params, variables.statistics, data.x, data.y, mask, train=False)[0]

        @jax.jit
        def singular(train: Split, validation: Split) -> jax.Array:
            outer = lambda shared, own: loss(shared, own, validation)  # noqa: E731
            inner = lambda shared, own: loss(shared, own, train)  # noqa: E731
            _, solved = hypergradient(outer, inner, shared, own, terms=min(2 * size, MOST_TERMS))
            return solved.singular | (solved.residual > UNSOLVED)

        for i in federation.read_here:
            train, validation = (
                jax.tree.map(jnp.asarray, part.client(i)) for part in (federation.train, federation.validation)
            )
            if singular(train, validation):
                raise CoterieError(
                    f"the Hessian of the personal layers of client {federation.names[i]!r} is singular, so that its "
                    "solution cannot be differentiated; set method.damping or method.weight_decay above 0"
                )
