"""Cross-validated penalties of (5.2), as Lyu, Hanzely and Kolar 2022 choose lambda and gamma."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.estimators.base import Rows
from coterie.estimators.grouping import InvalidData
from coterie.estimators.linear import HierarchicalLinearRegression
from coterie.estimators.moments import group_moments
from coterie.estimators.reml import Estimate, Problem
from coterie.estimators.units import Units

__all__ = ["GRID", "HierarchicalLinearRegressionCV", "candidates", "held_out", "keep_best"]

GRID = tuple(10.0 ** np.arange(-2.0, 2.01, 0.5))


class HierarchicalLinearRegressionCV(HierarchicalLinearRegression):
    """`HierarchicalLinearRegression` with penalties from cross-validation instead of variances.

    Minimises sum |y - X theta_i|^2 + gamma |theta_i - w_j|^2 + lambda |w_j - wbar|^2 for the pair of penalties with the
    smallest squared error on held-out rows. The sums of products of each fold are computed once; all groups are
    absorbed once per gamma, and every lambda starts from there.

    Args:
        gammas: penalties between a group and its district to try.
        lambdas: penalties between a district and all to try (not used without districts).
        cv: number of folds, or a scikit-learn splitter (which gets the groups).
        groups, within, random, fit_intercept, offset: as in `HierarchicalLinearRegression`.
        covariance: "diagonal": penalties act on features divided by their root mean square, so that units do not
            matter; "isotropic": on the features as they are, which is the model of the paper.
        random_state: seed of the folds, where `cv` is a number.
        missing: as in `HierarchicalLinearRegression`.

    Attributes:
        gamma_, lambda_: the penalties chosen (lambda_ is None without districts).
        cv_results_: "gamma", "lambda" and "mean_squared_error", one number per pair.

    Otherwise as `HierarchicalLinearRegression`; the residual variance is estimated at the end, given the penalties.
    """

    _covariances = ("diagonal", "isotropic")

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

    def _solve(self, problem: Problem, units: Units, rows: Rows) -> Estimate:
        """Try all pairs of penalties on held-out rows, and solve with the best pair."""
        gammas, lambdas, unit = candidates(self, units)
        errors = np.zeros((len(gammas), len(lambdas)))
        structure, order = problem.structure, self._layout_.order
        features, response = units.design(rows.features), rows.response - units.response
        for fold in self._folds(rows):
            groups = len(self.groups_)
            weights = None if rows.weights is None else rows.weights[fold]
            test = group_moments(features[fold], response[fold], rows.group[fold], groups, False, weights)[:, :, order]
            train = problem.moments - test
            for a, gamma in enumerate(gammas):
                absorbed = structure.absorb(train, unit / gamma)
                for b, penalty in enumerate(lambdas):
                    above = [unit / penalty] * (len(structure.effects) - 1)
                    errors[a, b] += _squared_error(structure.finish(absorbed, above).theta, test)
        errors /= len(response)
        gamma, penalty = keep_best(self, gammas, lambdas, errors, "mean_squared_error")
        ratios = [np.diag(unit / value) for value in (gamma, penalty)][: len(structure.effects)]
        solution = problem.solve(ratios)
        variance = max(solution.squares / max(problem.freedom, 1.0), np.finfo(float).tiny)
        return Estimate(variance, tuple(variance * ratio for ratio in ratios), solution, None, np.zeros(0))

    def _folds(self, rows: Rows) -> list[np.ndarray]:
        """Return the held-out rows of each fold."""
        from sklearn.model_selection import KFold, check_cv

        count = len(rows.features)
        if isinstance(self.cv, int):
            if not 2 <= self.cv <= count:
                raise InvalidData(f"cv: must lie between 2 and the number of rows, {count}; not {self.cv}")
            splitter = KFold(self.cv, shuffle=True, random_state=self.random_state)
        else:
            splitter = check_cv(self.cv)
        return held_out(splitter, rows)


def candidates(model: Any, units: Units) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the penalties to try and, per random column, its variance times the penalty."""
    if len(model._factors.nested) > 2:
        raise InvalidData("within: cross-validation knows groups and districts; name one column")
    gammas = _penalties("gammas", model.gammas)
    lambdas = _penalties("lambdas", model.lambdas) if model.within_ is not None else np.array([np.inf])
    magnitude = units.magnitudes(model._random_columns())
    return gammas, lambdas, magnitude**2 if model.covariance == "isotropic" else np.ones(len(magnitude))


def keep_best(
    model: Any, gammas: np.ndarray, lambdas: np.ndarray, errors: np.ndarray, name: str
) -> tuple[float, float]:
    """Store the errors `[gammas, lambdas]` and the best pair of penalties, and return that pair."""
    best = np.unravel_index(int(np.argmin(errors)), errors.shape)
    gamma, penalty = float(gammas[best[0]]), float(lambdas[best[1]])
    model.gamma_, model.lambda_ = gamma, penalty if model.within_ is not None else None
    pairs = {"gamma": np.repeat(gammas, len(lambdas)), "lambda": np.tile(lambdas, len(gammas))}
    model.cv_results_ = pairs | {name: errors.ravel()}
    return gamma, penalty


def held_out(splitter: Any, rows: Rows) -> list[np.ndarray]:
    """Return the held-out rows of each fold; together they must be all rows, each once."""
    # scikit-learn warns if a splitter that ignores groups is given some.
    routing = getattr(splitter, "get_metadata_routing", None)
    groups = rows.group if routing is None or "groups" in routing().split.requests else None
    folds = [fold for _, fold in splitter.split(rows.features, rows.target, groups)]
    if not np.array_equal(np.sort(np.concatenate(folds)), np.arange(len(rows.features))):
        raise InvalidData("cv: every row must be held out once; use a splitter such as KFold or GroupKFold")
    return folds


def _penalties(name: str, values: Sequence[float]) -> np.ndarray:
    penalties = np.unique(np.asarray(values, dtype=np.float64))
    if penalties.size == 0 or not (np.isfinite(penalties).all() and (penalties > 0).all()):
        raise InvalidData(f"{name}: give positive numbers to try")
    return penalties


def _squared_error(theta: np.ndarray, moments: np.ndarray) -> float:
    """Return |y - X theta_i|^2 summed over the rows of all groups, from their moments."""
    full = np.concatenate([-theta, np.ones((1, theta.shape[1]))])
    return float(np.einsum("ai,abi,bi->", full, moments, full, optimize=True))
