"""Exact regressions on tables: the estimators of `coterie.estimators` as rows of a comparison.

They are linear whatever `model` the other methods train: linear regression where numbers are predicted, logistic where
one of two classes is. `local-exact` fits every client alone; `pooled-exact` one model for all, from their
sums; `hierarchical` a model for each client that borrows strength from its known group (`group` of a table,
`groups` of `coterie.federation`) and from all (Lyu, Hanzely, Kolar 2022, eq. (5.2), which is the mixed model of the
statisticians). Variances that are not given are estimated by REML, or by Laplace's approximation for two classes.

There are no rounds of training: the fit is round 1. A linear one takes a single message of d(d+1)/2 + d numbers from
each client, d its coefficients (and y'y, where a variance is estimated), and d numbers back; a logistic one takes as
many such exchanges as Newton's method and the search for the variances need, all charged to round 1. Only training
samples are used. Columns that follow from others (all words of a one-hot column, a constant) are left out and get
coefficient 0.
"""

import abc
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np

from coterie.codecs.frame import HEADER
from coterie.data.clients import Clients, Federation
from coterie.errors import CoterieError
from coterie.learning.task import Task, Variables
from coterie.methods.base import Fitted, Role, Solved, Topology, method
from coterie.models.linear import LinearNetwork
from coterie.spec import param

__all__ = ["Hierarchical", "LocalExact", "PooledExact"]

NUMBER = 8  # bytes: estimators compute, and would send, in double precision
DEPENDENT = 1e-10  # share of a column's variance that must be new for it to be kept


class _Regression(Solved):
    """What the three have in common."""

    def check(self, task: Task, federation: Federation) -> None:
        """Refuse data that are not a table, or more than two classes, before anything runs."""
        name = type(self).__name__
        if len(federation.sample_shape) != 1 or not np.issubdtype(federation.train.x.dtype, np.floating):
            raise CoterieError(f"method: {name} needs a table of numbers; leave it out for images and text")
        if federation.kind == "regression" and federation.classes != 1:
            raise CoterieError(f"method: {name} predicts one number, but these data have {federation.classes} targets")
        if federation.kind != "regression" and federation.classes != 2:
            raise CoterieError(
                f"method: {name} predicts a number or one of two classes, but these data have "
                f"{federation.classes} classes; leave it out"
            )

    def adapt(self, task: Task) -> Task:
        """Return the task with a linear model."""
        return task.linear()

    def fit(self, task: Task, clients: Clients) -> Fitted:
        """Fit to all clients' training samples."""
        count = np.asarray(clients.train.count)
        real = np.arange(clients.train.x.shape[1]) < count[:, None]
        x, y = np.asarray(clients.train.x, np.float64)[real], np.asarray(clients.train.y)[real].reshape(-1)
        kept = independent_columns(x)
        if not len(kept):
            raise CoterieError(f"method: {type(self).__name__} needs an input that is not the same in all samples")
        client = np.repeat(np.arange(len(count)), count)
        label, clusters = clients.cluster
        model = self._estimator(task.kind != "regression")
        model.fit(x[:, kept], y, groups=client, within=np.asarray(label)[client] if clusters > 1 else None)
        coefficients = np.zeros((len(count), x.shape[1]))
        coefficients[:, kept] = model.coef_
        messages, up, down = self._cost(model, 1 + len(kept))
        return Fitted(_variables(task, coefficients, model.intercept_), messages, up, down)

    @abc.abstractmethod
    def _estimator(self, two_classes: bool) -> Any:
        """Return the estimator."""

    @abc.abstractmethod
    def _cost(self, model: Any, width: int) -> tuple[int, int, int]:
        """Return how many messages a client exchanges with the hub, and their bytes up and down."""


@method
class LocalExact(_Regression):
    """Linear or logistic regression of each client alone, exactly."""

    topology: ClassVar[Topology] = "none"
    role: ClassVar[Role] = "alone"

    def _estimator(self, two_classes: bool) -> Any:
        from coterie import estimators

        return estimators.LocalLogisticRegression() if two_classes else estimators.LocalRegression()

    def _cost(self, model: Any, width: int) -> tuple[int, int, int]:
        return 0, 0, 0


@method
class PooledExact(_Regression):
    """One linear or logistic regression for all clients, exactly; their sums are enough, no sample travels."""

    topology: ClassVar[Topology] = "hub"
    role: ClassVar[Role] = "ceiling"

    def _estimator(self, two_classes: bool) -> Any:
        from coterie import estimators

        if two_classes:  # a hierarchy in which nothing varies: the same as the pooled estimator, and it keeps a ledger
            return estimators.HierarchicalLogisticRegression(random=(), federated=True)
        return estimators.PooledRegression()

    def _cost(self, model: Any, width: int) -> tuple[int, int, int]:
        if hasattr(model, "ledger_"):
            return _charged(model.ledger_)
        return 1, HEADER + NUMBER * (width * (width + 1) // 2 + width), HEADER + NUMBER * width


@method
class Hierarchical(_Regression):
    """A linear or logistic regression for each client, drawn to its known group's and to everybody's, exactly."""

    topology: ClassVar[Topology] = "hub"
    random: Literal["all", "intercept"] = param("all", "which coefficients differ between clients")
    covariance: Literal["diagonal", "isotropic"] = param(
        "diagonal", "diagonal: a variance for each coefficient; isotropic: one for all of them"
    )
    residual_variance: float | None = param(
        None, "variance of the noise, where numbers are predicted; none: estimated", above=0, static=True
    )
    client_variance: float | None = param(
        None, "variance of coefficients between the clients of a group; none: estimated", at_least=0, static=True
    )
    group_variance: float | None = param(
        None, "variance of coefficients between groups; none: estimated", at_least=0, static=True
    )

    def check(self, task: Task, federation: Federation) -> None:
        """Refuse data that are no table, more than two classes, and noise where there is none."""
        super().check(task, federation)
        if federation.kind != "regression" and self.residual_variance is not None:
            raise CoterieError("residual_variance is for numbers, and these data have two classes; leave it out")

    def _estimator(self, two_classes: bool) -> Any:
        from coterie import estimators

        settings: dict[str, Any] = {
            "random": self.random,
            "covariance": self.covariance,
            "group_variance": self.client_variance,  # an estimator's groups are our clients, in districts
            "within_variance": self.group_variance,
            "federated": True,
        }
        if two_classes:
            return estimators.HierarchicalLogisticRegression(**settings)
        return estimators.HierarchicalLinearRegression(residual_variance=self.residual_variance, **settings)

    def _cost(self, model: Any, width: int) -> tuple[int, int, int]:
        return _charged(model.ledger_)


def _charged(sent: dict[str, int]) -> tuple[int, int, int]:
    """Return messages and bytes of one client from an estimator's ledger, which has no headers."""
    headers = sent["rounds"] * HEADER
    return sent["rounds"], headers + sent["bytes_up_per_group"], headers + sent["bytes_down_per_group"]


def independent_columns(x: np.ndarray) -> np.ndarray:
    """Return the columns that do not follow from a constant and the columns before them, in order."""
    centred = x - x.mean(axis=0)
    products = centred.T @ centred
    length = np.diag(products).copy()
    floor = DEPENDENT * np.maximum(length, np.einsum("nd,nd->d", x, x) * np.finfo(float).eps)
    kept = []
    for column in range(len(length)):  # a Cholesky factorisation that passes over what is left of a dependent column
        left = products[column, column]
        if left > floor[column]:
            kept.append(column)
            products = products - np.outer(products[:, column], products[column]) / left
    return np.array(kept, dtype=np.intp)


def _variables(task: Task, coefficients: np.ndarray, intercept: np.ndarray) -> Variables:
    """Lay the coefficients out as linear models; of two classes, the first one's scores are 0."""
    weight, bias = coefficients[:, None], intercept[:, None]
    if task.kind != "regression":
        weight = np.concatenate([np.zeros_like(weight), weight], axis=1)
        bias = np.concatenate([np.zeros_like(bias), bias], axis=1)
    return Variables(LinearNetwork(jnp.asarray(weight), jnp.asarray(bias)))
