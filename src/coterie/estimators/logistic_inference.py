"""Inference for the logistic model: standard errors from the full Hessian of Laplace's likelihood, and profiles.

lme4's glmer prints errors from the Hessian over variances and coefficients together; those that treat the variances as
known are too small where groups are small. The restricted likelihood has no coefficients as parameters: there the
covariance given the variances is enlarged by how the coefficients move with the variances, times these' covariance.

The tests are t-tests, as the linear model's: a variance of few groups is itself uncertain, and normal intervals cover
too seldom. The degrees of freedom are Satterthwaite's, 2 v^2 / var(v), where v is a coefficient's variance, and var(v)
follows from the covariance of the levels' variances and from v's slope along them, as if these were known.
"""

import contextlib
from copy import copy
from typing import Any

import numpy as np

from coterie.estimators.grouping import InvalidData
from coterie.estimators.inference import (
    Inference,
    differences,
    directions,
    inverse,
    level_errors,
    satterthwaite,
)
from coterie.estimators.newton import Penalty, find_mode
from coterie.estimators.profile import crossing
from coterie.estimators.search import search

__all__ = ["LogisticInference"]


class LogisticInference:
    """The logistic model's answers to the questions of `model.py`; rows are kept until the model is saved."""

    def _inference(self: Any) -> Inference:
        cached = self.__dict__.get("_inference_")
        if cached is None:
            cached = self._inference_ = self._curvature()
            if self.federated:
                self.ledger_ = self._rows_needed("summary").criterion.problem.data.traffic.ledger()
        return cached

    def __getstate__(self: Any) -> dict[str, Any]:
        """Leave the rows out of copies and pickles; the standard errors, which need them, are computed before."""
        if self.__dict__.get("_fit_") is not None:
            with contextlib.suppress(InvalidData, np.linalg.LinAlgError):  # a model is saved even where they fail
                self._inference()
        state: dict[str, Any] = dict(super().__getstate__())  # type: ignore[call-overload]
        return state | ({"_fit_": None} if "_fit_" in state else {})

    def _rows_needed(self: Any, what: str) -> Any:
        if self._fit_ is None:
            raise InvalidData(f"{what}: needs the rows of the fit, which a saved model does not keep; fit it again")
        return self._fit_

    def _curvature(self: Any) -> Inference:
        fit, units = self._rows_needed("summary"), self._units_
        back = units.back
        nothing = tuple(np.full(matrix.shape, np.nan) for matrix in fit.penalty.covariances)
        normal = np.full(len(back), np.inf)
        if fit.log_likelihood is None:
            return Inference(self.global_covariance_, normal, nothing, np.nan)
        criterion, mode, penalty = fit.criterion, fit.mode, fit.penalty
        problem = criterion.problem
        free = directions(problem.shapes, problem.given, penalty.covariances)
        joint = penalty.solve(self._quadratic_)
        errors = np.sqrt(np.diag(joint.covariance))
        sizes = [direction.size for direction in free] + (list(100.0 * errors) if problem.marginal else [])

        def evaluate(step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            moved = [matrix.copy() for matrix in penalty.covariances]
            for direction, length in zip(free, step, strict=False):
                moved[direction.level] += length * direction.matrix
            there = Penalty(penalty.structure, tuple(moved), penalty.ridge)
            beta = mode.solution.beta + step[len(free) :] if problem.marginal else None
            near = find_mode(problem.data, there, mode.answer, beta)
            slopes, _, slope = criterion.slopes(near, there)
            gradient = [float(np.sum(slopes[one.level] * one.matrix)) for one in free]
            known = there.solve(near.answer.quadratic()).covariance  # of the coefficients, given the variances
            variances = np.diag(back @ known @ back.T)
            return np.r_[gradient, slope if problem.marginal else []], np.stack([near.solution.beta, variances])

        hessian, moves = differences(evaluate, sizes)
        spread = inverse(hessian, sizes)
        count = len(free)
        covariance = spread[count:, count:] if problem.marginal else joint.covariance
        freedom, of_variances = normal, spread[:count, :count]
        if count:
            shifts, slopes = np.stack(moves[:count], axis=1)  # [directions, p] of beta, and of its variance
            if not problem.marginal:
                covariance = covariance + shifts.T @ of_variances @ shifts
            freedom = satterthwaite(np.diag(back @ covariance @ back.T), slopes, of_variances)
        ways = [units.way(effect) for effect in problem.structure.effects]
        return Inference(back @ covariance @ back.T, freedom, level_errors(ways, free, of_variances), np.nan)

    def _profile(self: Any, level: float) -> np.ndarray:
        """Return profile-likelihood intervals [p, 2] of the global coefficients."""
        fit, units = self._rows_needed("conf_int"), self._units_
        if fit.log_likelihood is None or not fit.criterion.problem.marginal:
            raise InvalidData('conf_int: a profile needs likelihood="marginal" and an estimated variance')
        best, count = fit.criterion(fit.parameters)[0], fit.criterion.covariances.size
        spread = np.linalg.solve(units.back, np.linalg.solve(units.back, self._inference().covariance).T)
        spread, beta = (spread + spread.T) / 2.0, fit.mode.solution.beta
        answer = []
        for contrast in units.back:
            error = float(np.sqrt(contrast @ spread @ contrast))

            def rise(value: float, contrast: np.ndarray = contrast) -> float:
                criterion = copy(fit.criterion)
                criterion.constrain(contrast, value, beta, spread)
                start = np.r_[fit.parameters[:count], np.zeros(criterion.size - count)]
                return float(criterion(search(criterion, start))[0]) - best

            at = float(contrast @ beta)
            answer.append([crossing(rise, at, -error, level), crossing(rise, at, error, level)])
        return np.array(answer)

    def _resolve(self: Any) -> tuple[Any, Any, Any]:
        """Return the linear model's solution at the mode, its structure and units."""
        return self._penalty_.solve(self._quadratic_), self._penalty_.structure, self._units_
