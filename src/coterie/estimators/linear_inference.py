"""Inference for the linear model: errors of variances, degrees of freedom, tests between fits, and profiles.

Everything is computed from the groups' messages that the fit kept; no row is needed again.
"""

from dataclasses import replace
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
from coterie.estimators.profile import crossing
from coterie.estimators.reml import Problem, estimate
from coterie.estimators.units import Units

__all__ = ["LinearInference"]


class LinearInference:
    """The linear model's answers to the questions of `model.py`."""

    def _inference(self) -> Inference:
        """Return standard errors, and degrees of freedom after Satterthwaite, at the estimates."""
        cached = self.__dict__.get("_inference_")
        if cached is None:
            problem, units = self._problem()  # type: ignore[attr-defined]
            cached = self._inference_ = self._curvature(problem, units)
        return cached

    def _curvature(self, problem: Problem, units: Units) -> Inference:
        matrices, residual = self._matrices_, self._residual_  # type: ignore[attr-defined]
        free = directions(problem.shapes, problem.given, matrices)
        with_residual = self.residual_variance is None  # type: ignore[attr-defined]
        sizes = [direction.size for direction in free] + [residual] * with_residual
        estimated = self.log_likelihood_ is not None  # type: ignore[attr-defined]

        def evaluate(step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            noise = residual + (step[-1] if with_residual else 0.0)
            moved = [matrix.copy() for matrix in matrices]
            for direction, length in zip(free, step, strict=False):
                moved[direction.level] += length * direction.matrix
            solution = problem.solve([matrix / noise for matrix in moved])
            slopes, _ = solution.slopes(noise)
            gradient = [float(np.sum(slopes[one.level] * one.matrix)) / noise for one in free]
            if with_residual:
                ratios = sum(float(np.sum(a * b.ratio)) for a, b in zip(slopes, solution.levels, strict=True))
                gradient.append((problem.freedom - solution.squares / noise - ratios) / noise)
            return np.array(gradient), noise * np.diag(units.back @ solution.covariance @ units.back.T)

        spread: np.ndarray = np.zeros((0, 0))
        changes: list[np.ndarray] = []
        if estimated:
            hessian, changes = differences(evaluate, sizes)
            spread = inverse(hessian, sizes)
        ways = [units.way(effect) for effect in problem.structure.effects]
        variance = np.diag(self.global_covariance_)  # type: ignore[attr-defined]
        freedom = np.full(len(variance), np.inf)
        if changes:
            freedom = satterthwaite(variance, np.stack(changes), spread)
        noise_error = float(np.sqrt(spread[-1, -1])) if with_residual and len(spread) else np.nan
        return Inference(
            self.global_covariance_,  # type: ignore[attr-defined]
            freedom,
            level_errors(ways, free, spread),
            noise_error,
        )

    def _refit_marginal(self) -> tuple[float, Any, Problem, Units]:
        """Return the maximum of the marginal log-likelihood, the fit there, its problem and its units."""
        problem, units = self._problem(marginal=True)  # type: ignore[attr-defined]
        found = estimate(problem)
        if found.log_likelihood is None:
            raise InvalidData("the variances were given, so there is no likelihood; let one be estimated")
        shift = self._scaling_ + (  # type: ignore[attr-defined]
            0.0 if self.likelihood == "marginal" else float(np.log(units.scale).sum())  # type: ignore[attr-defined]
        )
        return found.log_likelihood + shift, found, problem, units

    def _profile(self, level: float) -> np.ndarray:
        """Return profile-likelihood intervals [p, 2] of the global coefficients, from the marginal likelihood."""
        _, best, problem, units = self._refit_marginal()
        spread = best.residual * best.solution.covariance
        answer = []
        for contrast in units.back:
            at = float(contrast @ best.solution.beta)
            error = float(np.sqrt(contrast @ spread @ contrast))

            def fall(value: float, contrast: np.ndarray = contrast) -> float:
                fixed = estimate(replace(problem, fixed=(contrast, value)), best.parameters)
                assert fixed.log_likelihood is not None
                return 2.0 * (best.log_likelihood - fixed.log_likelihood)

            answer.append([crossing(fall, at, -error, level), crossing(fall, at, error, level)])
        intervals = np.array(answer)
        if units.intercept:
            intervals[0] += units.response
        return intervals
