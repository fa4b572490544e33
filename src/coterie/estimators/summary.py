"""The summary of a fit: coefficients with standard errors, variances, and intraclass correlations."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtri

if TYPE_CHECKING:
    from coterie.estimators.linear import HierarchicalLinearRegression

__all__ = ["Summary", "summarise"]


@dataclass(frozen=True)
class Summary:
    """Tables of a fitted model; `print` it.

    Intervals are normal ones, given the variances. The intraclass correlation is the share of the variance of a row,
    where all features are zero, that the rows of a group (of a district) have in common.
    """

    coefficients: Any  # DataFrame: estimate, standard error, lower, upper
    variances: Any  # DataFrame: level, coefficient, variance, standard deviation
    intraclass_correlation: dict[str, float]
    rows_per: dict[str, int]
    log_likelihood: float | None
    title: str = "Hierarchical linear regression"
    likelihood: str = "Restricted log-likelihood"

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {name}" for name, count in self.rows_per.items())
        parts = [
            f"{self.title} of {counts}",
            "\nGlobal coefficients\n" + self.coefficients.to_string(float_format="{:.5g}".format),
            "\nVariances\n" + self.variances.to_string(index=False, float_format="{:.5g}".format),
        ]
        if self.intraclass_correlation:
            shares = ", ".join(f"{value:.3f} ({name})" for name, value in self.intraclass_correlation.items())
            parts.append(f"\nIntraclass correlation: {shares}")
        if self.log_likelihood is not None:
            parts.append(f"{self.likelihood}: {self.log_likelihood:.2f}")
        return "\n".join(parts)


def summarise(model: "HierarchicalLinearRegression", level: float) -> Summary:
    """Return the summary of a fitted model with intervals of this level."""
    from coterie.estimators.base import INTERCEPT
    from coterie.estimators.columns import need_pandas
    from coterie.estimators.grouping import InvalidData

    if not 0.0 < level < 1.0:
        raise InvalidData(f"level: must lie between 0 and 1, not {level}")
    pd, estimate = need_pandas("summary"), model._table[-1]
    error = np.sqrt(np.diag(model.global_covariance_))
    reach = ndtri(0.5 + level / 2.0) * error
    columns = {"estimate": estimate, "standard error": error, "lower": estimate - reach, "upper": estimate + reach}
    coefficients = pd.DataFrame(columns, index=model._coefficient_names())
    components = model.variance_components_
    rows = [(name, key, value) for name in ("group", "within") for key, value in components.get(name, {}).items()]
    residual = components.get("residual")
    if residual is not None:
        rows.append(("residual", "", residual))
    variances = pd.DataFrame(rows, columns=["level", "coefficient", "variance"])
    variances["standard deviation"] = np.sqrt(variances["variance"])
    group, within = (components.get(name, {}).get(INTERCEPT, 0.0) for name in ("group", "within"))
    # Log-odds have no residual variance; logistic noise has the variance pi^2 / 3.
    total = group + within + (np.pi**2 / 3.0 if residual is None else residual)
    shares = {"group": (group + within) / total} if INTERCEPT in components["group"] else {}
    if shares and model.within_ is not None:
        shares["within"] = within / total
    counts = {"groups": len(model.groups_)}
    if model.within_ is not None:
        counts["districts"] = len(model.within_)
    if residual is not None:
        return Summary(coefficients, variances, shares, counts, model.log_likelihood_)
    title, likelihood = "Hierarchical logistic regression", f"{model.likelihood.capitalize()} log-likelihood (Laplace)"
    return Summary(coefficients, variances, shares, counts, model.log_likelihood_, title, likelihood)
