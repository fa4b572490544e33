"""Exact regressions on tables: the estimators of `coterie.estimators` as rows of a comparison.

They are linear whatever `model` the other methods train: linear regression for numbers, logistic regression for two
classes. `local-exact` fits every client alone; `pooled-exact` fits one model for all, from their sums; `hierarchical`
fits one model per client that borrows strength from its known group (`group` of a table, `groups` of
`coterie.federation`) and from all (Lyu, Hanzely, Kolar 2022, eq. (5.2), in statistics the mixed model). Variances that
are not given are estimated by REML, or by Laplace's approximation for two classes.

There are no rounds of training: the fit is round 1. Linear regression needs a single message of d(d+1)/2 + d numbers
from each client with d coefficients (and y'y, if a variance is estimated), and d numbers back; logistic regression
needs as many such exchanges as Newton's method and the search for the variances take, all charged to round 1. Only
training samples are used. Columns that depend linearly on others (all words of a one-hot column, a constant) are left
out and get coefficient 0.
"""

import abc
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np

from coterie.codecs.frame import HEADER
from coterie.data.clients import Clients, Federation
from coterie.errors import CoterieError
from coterie.learning.task import Task, Variables
from coterie.methods.base import Fitted, Newcomer, Role, Solved, Topology, method
from coterie.models.linear import LinearNetwork
from coterie.spec import param

__all__ = ["Hierarchical", "LocalExact", "PooledExact"]

NUMBER = 8  # bytes: estimators compute, and would send, in double precision
DEPENDENT = 1e-10  # a column is kept if more than this fraction of its variance is not explained by those before it


class _Regression(Solved):
    """Base of the three: check the data, fit the estimator, lay out its coefficients as linear models."""

    def check(self, task: Task, federation: Federation) -> None:
        """Refuse data that are not a table, and more than two classes, before anything runs."""
        name = type(self).__name__
        if len(federation.sample_shape) != 1 or not np.issubdtype(federation.dtype, np.floating):
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
        rows = [clients.train.rows(i) for i in range(len(count))]
        x, y = (np.concatenate([pair[which] for pair in rows]) for which in (0, 1))
        x, y = x.astype(np.float64), y.reshape(-1)
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
        """Return the number of messages between a client and the hub, and their bytes up and down."""


@method
class LocalExact(_Regression):
    """Exact linear or logistic regression of each client alone."""

    topology: ClassVar[Topology] = "none"
    role: ClassVar[Role] = "alone"
    newcomer: ClassVar[Newcomer] = "none"

    def _estimator(self, two_classes: bool) -> Any:
        from coterie import estimators

        return estimators.LocalLogisticRegression() if two_classes else estimators.LocalRegression()

    def _cost(self, model: Any, width: int) -> tuple[int, int, int]:
        return 0, 0, 0


@method
class PooledExact(_Regression):
    """One exact linear or logistic regression for all clients, from their sums; no sample is sent."""

    topology: ClassVar[Topology] = "hub"
    role: ClassVar[Role] = "pooled"
    newcomer: ClassVar[Newcomer] = "shared"

    def _estimator(self, two_classes: bool) -> Any:
        from coterie import estimators

        if two_classes:  # a hierarchy without random effects equals the pooled estimator, and it keeps a ledger
            return estimators.HierarchicalLogisticRegression(random=(), likelihood="restricted", federated=True)
        return estimators.PooledRegression()

    def _cost(self, model: Any, width: int) -> tuple[int, int, int]:
        if hasattr(model, "ledger_"):
            return _charged(model.ledger_)
        return 1, HEADER + NUMBER * (width * (width + 1) // 2 + width), HEADER + NUMBER * width


@method
class Hierarchical(_Regression):
    """An exact linear or logistic regression per client, shrunk towards those of its known group and of all."""

    topology: ClassVar[Topology] = "hub"
    newcomer: ClassVar[Newcomer] = "cluster"
    random: Literal["all", "intercept"] = param("all", "which coefficients differ between clients")
    covariance: Literal["diagonal", "isotropic"] = param(
        "diagonal", "diagonal: one variance per coefficient; isotropic: one for all of them"
    )
    residual_variance: float | None = param(
        None, "variance of the noise, for numbers only; none: estimated", above=0, static=True
    )
    client_variance: float | None = param(
        None, "variance of coefficients between the clients of a group; none: estimated", at_least=0, static=True
    )
    group_variance: float | None = param(
        None, "variance of coefficients between groups; none: estimated", at_least=0, static=True
    )

    def check(self, task: Task, federation: Federation) -> None:
        """Refuse data that are not a table, more than two classes, and a noise variance for two classes."""
        super().check(task, federation)
        if federation.kind != "regression" and self.residual_variance is not None:
            raise CoterieError("residual_variance is for numbers, and these data have two classes; leave it out")

    def _estimator(self, two_classes: bool) -> Any:
        from coterie import estimators

        settings: dict[str, Any] = {
            "random": self.random,
            "covariance": self.covariance,
            "group_variance": self.client_variance,  # the estimator's groups are our clients
            "within_variance": self.group_variance,
            "federated": True,
        }
        if two_classes:
            return estimators.HierarchicalLogisticRegression(likelihood="restricted", **settings)
        return estimators.HierarchicalLinearRegression(residual_variance=self.residual_variance, **settings)

    def _cost(self, model: Any, width: int) -> tuple[int, int, int]:
        return _charged(model.ledger_)


def _charged(sent: dict[str, int]) -> tuple[int, int, int]:
    """Return messages and bytes of one client from an estimator's ledger, which does not count headers."""
    headers = sent["rounds"] * HEADER
    return sent["rounds"], headers + sent["bytes_up_per_group"], headers + sent["bytes_down_per_group"]


def independent_columns(x: np.ndarray) -> np.ndarray:
    """Return the columns that do not depend linearly on a constant and the columns before them, in order."""
    centred = x - x.mean(axis=0)
    products = centred.T @ centred
    length = np.diag(products).copy()
    floor = DEPENDENT * np.maximum(length, np.einsum("nd,nd->d", x, x) * np.finfo(float).eps)
    kept = []
    for column in range(len(length)):  # a Cholesky factorisation that skips dependent columns
        left = products[column, column]
        if left > floor[column]:
            kept.append(column)
            products = products - np.outer(products[:, column], products[column]) / left
    return np.array(kept, dtype=np.intp)


def _variables(task: Task, coefficients: np.ndarray, intercept: np.ndarray) -> Variables:
    """Lay the coefficients out as linear models; with two classes, the scores of the first are 0."""
    weight, bias = coefficients[:, None], intercept[:, None]
    if task.kind != "regression":
        weight = np.concatenate([np.zeros_like(weight), weight], axis=1)
        bias = np.concatenate([np.zeros_like(bias), bias], axis=1)
    return Variables(LinearNetwork(jnp.asarray(weight), jnp.asarray(bias)))
