"""Cross-validated penalties of the hierarchical logistic model, as Lyu, Hanzely and Kolar 2022 choose them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.estimators.base import Rows
from coterie.estimators.bernoulli import Bernoulli
from coterie.estimators.grouped_rows import Answer
from coterie.estimators.grouping import InvalidData
from coterie.estimators.hierarchy import Layout
from coterie.estimators.laplace import Fit, Problem
from coterie.estimators.linear_cv import GRID, candidates, held_out, keep_best
from coterie.estimators.logistic import HierarchicalLogisticRegression
from coterie.estimators.newton import WEAK, Penalty, find_bounded_mode

__all__ = ["HierarchicalLogisticRegressionCV"]


class HierarchicalLogisticRegressionCV(HierarchicalLogisticRegression):
    """`HierarchicalLogisticRegression` with penalties from cross-validation instead of variances.

    Minimises sum of losses + gamma / 2 |theta_i - w_j|^2 + lambda / 2 |w_j - wbar|^2 for the pair of penalties with the
    smallest log-loss on held-out rows. In each fold a path runs from strong penalties to weak ones, and every pair
    starts from the solution of the one before it.

    Args:
        gammas: penalties between a group and its district to try.
        lambdas: penalties between a district and all to try (not used without districts).
        cv: number of folds, stratified by class, or a scikit-learn splitter (which gets the groups).
        groups, within, random, fit_intercept, offset: as in `HierarchicalLogisticRegression`.
        covariance: "diagonal": penalties act on features divided by their root mean square, so that units do not
            matter; "isotropic": on the features as they are, which is the model of the paper.
        random_state: seed of the folds, where `cv` is a number.
        missing: as in `HierarchicalLogisticRegression`.

    Attributes:
        gamma_, lambda_: the penalties chosen (lambda_ is None without districts).
        cv_results_: "gamma", "lambda" and "log_loss", one number per pair.

    Otherwise as `HierarchicalLogisticRegression`; `variance_components_` are 1 / gamma and 1 / lambda.
    """

    _covariances = ("diagonal", "isotropic")
    _multiclass = False

    def __init__(
        self,
        groups: Any = None,
        within: Any = None,
        gammas: Sequence[float] = GRID,
        lambdas: Sequence[float] = GRID,
        cv: Any = 5,
        random: str | Sequence[str] = "all",
        covariance: str = "diagonal",
        fit_intercept: bool = True,
        offset: Any = None,
        random_state: int | None = 0,
        missing: str = "raise",
    ) -> None:
        super().__init__(groups, within, random, covariance, fit_intercept, offset=offset, missing=missing)
        self.gammas = gammas
        self.lambdas = lambdas
        self.cv = cv
        self.random_state = random_state

    def _estimate(self, problem: Problem, units: Any, rows: Rows, layout: Layout) -> Fit:
        """Try all pairs of penalties on held-out rows, and find the mode with the best pair."""
        gammas, lambdas, unit = candidates(self, units)
        losses = np.zeros((len(gammas), len(lambdas)))
        for fold in self._folds(rows):
            others = np.setdiff1d(np.arange(len(rows.features)), fold)
            parts = ((rows.part(some), replace(layout, unit=layout.unit[some])) for some in (others, fold))
            train, test = (self._data(part, place, units) for part, place in parts)
            losses += self._path(train, test, problem, unit, gammas, lambdas)
        losses /= len(rows.features)
        gamma, penalty = keep_best(self, gammas, lambdas, losses, "log_loss")
        chosen = _penalty(problem, unit, gamma, penalty)
        mode, weak = find_bounded_mode(problem.data, chosen)
        return Fit(mode, replace(chosen, ridge=WEAK) if weak else chosen, None, weak)

    def _path(
        self,
        train: Bernoulli,
        test: Bernoulli,
        problem: Problem,
        unit: np.ndarray,
        gammas: np.ndarray,
        lambdas: np.ndarray,
    ) -> np.ndarray:
        """Return the loss of the held-out rows at every pair of penalties."""
        losses = np.zeros((len(gammas), len(lambdas)))
        nearby: Answer | None = None
        ridge = 0.0
        for a in reversed(range(len(gammas))):
            # Alternate the direction, so that neighbours on the path differ in one penalty by one step.
            order = range(len(lambdas)) if (len(gammas) - a) % 2 == 0 else reversed(range(len(lambdas)))
            for b in order:
                penalty = replace(_penalty(problem, unit, gammas[a], lambdas[b]), ridge=ridge)
                mode, weak = find_bounded_mode(train, penalty, nearby)
                ridge, nearby = WEAK if weak else ridge, mode.answer
                losses[a, b] = test.loss(mode.solution.theta)
        return losses

    def _folds(self, rows: Rows) -> list[np.ndarray]:
        """Return the held-out rows of each fold."""
        from sklearn.model_selection import StratifiedKFold, check_cv

        assert rows.target is not None
        rarer = int(min(rows.target.sum(), (1.0 - rows.target).sum()))
        if isinstance(self.cv, int):
            if not 2 <= self.cv <= rarer:
                raise InvalidData(f"cv: must lie between 2 and the rows of the rarer class, {rarer}; not {self.cv}")
            splitter = StratifiedKFold(self.cv, shuffle=True, random_state=self.random_state)
        else:
            splitter = check_cv(self.cv, rows.target, classifier=True)
        return held_out(splitter, rows)


def _penalty(problem: Problem, unit: np.ndarray, gamma: float, penalty: float) -> Penalty:
    matrices = [np.diag(unit / value) for value in (gamma, penalty)][: len(problem.structure.effects)]
    return Penalty(problem.structure, tuple(matrices))
