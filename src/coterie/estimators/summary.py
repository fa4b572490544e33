"""The summary of a fit: coefficients with errors and tests, variances and correlations, and how the fit went."""

from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

__all__ = ["Summary", "summarise"]


@dataclass(frozen=True)
class Summary:
    """Tables of a fitted model; `print` it, or show it in a notebook.

    The intraclass correlation is the share of the variance of a row, where all features are zero, that the rows of a
    unit have in common.
    """

    coefficients: Any  # DataFrame: estimate, standard error, z or t (with its degrees of freedom), p, lower, upper
    variances: Any  # DataFrame: level, coefficient, variance, its error, standard deviation, correlations
    intraclass_correlation: dict[str, float]
    levels: Any  # DataFrame: units of each level, and the smallest, median and largest number of rows
    log_likelihood: float | None
    title: str
    facts: dict[str, str] = field(default_factory=dict)
    level: float = 0.95

    def __str__(self) -> str:
        number = "{:.5g}".format
        parts = [self.title, *(f"{name}: {text}" for name, text in self.facts.items())]
        parts.append("\nLevels\n" + self.levels.to_string())
        parts.append(
            f"\nCoefficients, with intervals of {self.level:.0%}\n"
            + self.coefficients.to_string(float_format=number, formatters={"p": _p_value})
        )
        parts.append("\nVariances\n" + self.variances.to_string(index=False, float_format=number, na_rep=""))
        if self.intraclass_correlation:
            shares = ", ".join(f"{value:.3f} ({name})" for name, value in self.intraclass_correlation.items())
            parts.append(f"\n{self._share_title()}: {shares}")
        return "\n".join(parts)

    def _share_title(self) -> str:
        """With slopes that vary, the share depends on where the features are."""
        slopes = self.variances["level"].value_counts().max() > 1
        return "Intraclass correlation" + (", where all features are zero" if slopes else "")

    def _repr_html_(self) -> str:
        facts = "".join(f"<li>{escape(name)}: {escape(text)}</li>" for name, text in self.facts.items())
        number = "{:.5g}".format
        tables = [
            ("Levels", self.levels.to_html(border=0)),
            (
                f"Coefficients, with intervals of {self.level:.0%}",
                self.coefficients.to_html(border=0, float_format=number, formatters={"p": _p_value}),
            ),
            ("Variances", self.variances.to_html(border=0, index=False, float_format=number, na_rep="")),
        ]
        body = "".join(f"<h4>{escape(title)}</h4>{table}" for title, table in tables)
        shares = ", ".join(f"{value:.3f} ({escape(name)})" for name, value in self.intraclass_correlation.items())
        end = f"<p>{self._share_title()}: {shares}</p>" if shares else ""
        return f"<div><h3>{escape(self.title)}</h3><ul>{facts}</ul>{body}{end}</div>"


def summarise(model: Any, level: float) -> Summary:
    """Return the summary of a fitted model with intervals of this level."""
    from coterie.estimators.columns import need_pandas

    pd = need_pandas("summary")
    intervals = model.conf_int(level)
    inference, estimate = model._inference(), model._coefficients()
    error = np.sqrt(np.diag(inference.covariance))
    student = np.isfinite(inference.freedom).any()
    columns = {"estimate": estimate, "standard error": error, "t" if student else "z": estimate / error}
    if student:
        columns["df"] = inference.freedom
    columns |= {"p": model.pvalues_.to_numpy(), "lower": intervals["lower"], "upper": intervals["upper"]}
    coefficients = pd.DataFrame(columns, index=model._coefficient_labels())
    facts = {"rows": f"{model._n_rows:,}" + (f" ({model.n_dropped_:,} left out)" if model.n_dropped_ else "")}
    if model.log_likelihood_ is not None:
        facts[f"{model.likelihood} log-likelihood{model._approximation}"] = f"{model.log_likelihood_:.2f}"
        facts["AIC"], facts["BIC"] = f"{model.aic_:.2f}", f"{model.bic_:.2f}"
        zeros = [name for name, matrix in model.covariances_.items() if _singular(matrix)]
        ended = "converged" if model.converged_ else "did NOT converge; treat the numbers with care"
        facts["search"] = ended + (f"; the covariance of {', '.join(zeros)} is on its boundary" if zeros else "")
    else:
        facts["variances"] = "given"
    return Summary(
        coefficients,
        _variances(model, inference, pd),
        _shares(model),
        _level_table(model, pd),
        model.log_likelihood_,
        model._title,
        facts,
        level,
    )


def _variances(model: Any, inference: Any, pd: Any) -> Any:
    """Return one row for each random coefficient, with its correlations to those before it, and the residual."""
    rows = []
    for level, (name, matrix) in enumerate(model.covariances_.items()):
        labels = [model._coefficient_labels()[k] for k in model._level_coefficients(level)]
        deviation = np.sqrt(np.maximum(np.diag(matrix), 0.0))
        for k, label in enumerate(labels):
            row = {
                "level": name,
                "coefficient": label,
                "variance": matrix[k, k],
                "standard error": inference.errors[level][k, k],
                "standard deviation": deviation[k],
            }
            for j in range(k):
                product = deviation[k] * deviation[j]
                if product > 0.0 and matrix[k, j] != 0.0:  # zero: not estimated
                    row[f"corr {labels[j]}"] = matrix[k, j] / product
            rows.append(row)
    residual = model.variance_components_.get("residual")
    if residual is not None:
        rows.append(
            {"level": "residual", "coefficient": "", "variance": residual, "standard error": inference.residual,
             "standard deviation": np.sqrt(residual)}
        )  # fmt: skip
    return pd.DataFrame(rows, columns=list(dict.fromkeys(key for row in rows for key in row)) or ["level"])


def _shares(model: Any) -> dict[str, float]:
    """Return the intraclass correlation of each level whose intercept varies."""
    from coterie.estimators.base import INTERCEPT

    residual = model.variance_components_.get("residual", np.pi**2 / 3.0)  # the variance of logistic noise
    found = {}
    for level, (name, matrix) in enumerate(model.covariances_.items()):
        labels = [model._coefficient_labels()[k] for k in model._level_coefficients(level)]
        if INTERCEPT in labels:
            found[level, name] = matrix[labels.index(INTERCEPT), labels.index(INTERCEPT)]
    total = residual + sum(found.values())
    nested = len(model._factors.nested)
    # Rows of a group also share its district, and so on.
    return {
        name: (sum(value for (l, _), value in found.items() if level <= l < nested) if level < nested else own) / total
        for (level, name), own in found.items()
    }


def _level_table(model: Any, pd: Any) -> Any:
    sizes = model._level_sizes
    rows = {
        name: [len(counts), int(counts.min()), float(np.median(counts)), int(counts.max())]
        for name, counts in zip(model._factors.names, sizes, strict=True)
    }
    columns = ["units", "fewest rows", "median", "most"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def _singular(matrix: np.ndarray) -> bool:
    """Whether a variance is zero, or a correlation is one."""
    diagonal = np.sqrt(np.maximum(np.diag(matrix), 0.0))
    if not len(matrix) or (diagonal == 0.0).any():
        return bool(len(matrix))
    return bool(np.linalg.eigvalsh(matrix / np.outer(diagonal, diagonal))[0] < 1e-8)


def _p_value(value: float) -> str:
    return "" if np.isnan(value) else "< 0.001" if value < 0.001 else f"{value:.3f}"
