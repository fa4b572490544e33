"""Plots of residuals: against fitted values, and their quantiles against normal ones.

A model keeps no rows, so both take the rows to look at. Residuals of numbers are in units of the residual deviation;
those
of two classes are the deviance residuals, which are not normal even where the model is right.
"""

from typing import Any

import numpy as np
from scipy.special import ndtri

from coterie.estimators.grouping import InvalidData
from coterie.estimators.plot import need_plotly

__all__ = ["plot_quantiles", "plot_residuals", "residuals"]

_POINTS = 20_000  # more would only make the figure slow


def residuals(model: Any, X: Any, y: Any, arrays: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return fitted values and standardised residuals of rows."""
    if y is None and getattr(model, "formula", None) is not None:
        y = X[model.formula.partition("~")[0].strip()]
    if y is None:
        raise InvalidData("y: pass the targets of the rows, too")
    if hasattr(model, "classes_"):
        if len(model.classes_) > 2:
            raise InvalidData("plot: residuals are for numbers and two classes")
        share = model.predict_proba(X, **arrays)[:, 1]
        right = np.asarray(y) == model.classes_[1]
        losses = -np.log(np.maximum(np.where(right, share, 1.0 - share), np.finfo(float).tiny))
        fitted, rest = share, np.where(right, 1.0, -1.0) * np.sqrt(2.0 * losses)
    else:
        fitted = model.predict(X, **arrays)
        rest = (np.asarray(y, dtype=np.float64) - fitted) / np.sqrt(model.variance_components_["residual"])
    kept = np.flatnonzero(np.isfinite(fitted) & np.isfinite(rest))
    if len(kept) > _POINTS:
        kept = np.random.default_rng(0).choice(kept, _POINTS, replace=False)
    return fitted[kept], rest[kept]


def plot_residuals(model: Any, X: Any, y: Any, arrays: dict[str, Any]) -> Any:
    """Return a Plotly figure of residuals against fitted values, with the mean residual of each twentieth."""
    go = need_plotly("plot_residuals")
    fitted, rest = residuals(model, X, y, arrays)
    figure = go.Figure(go.Scattergl(x=fitted, y=rest, mode="markers", marker={"size": 4, "opacity": 0.4}, name="rows"))
    parts = np.array_split(np.argsort(fitted), min(20, len(fitted)))
    means = [(fitted[part].mean(), rest[part].mean()) for part in parts if len(part)]
    figure.add_scatter(x=[a for a, _ in means], y=[b for _, b in means], mode="lines", name="mean")
    figure.add_hline(y=0.0, line={"dash": "dash", "color": "#888", "width": 1})
    figure.update_layout(
        title=f"Residuals of {len(rest):,} rows", xaxis_title="fitted", yaxis_title="residual, standardised",
        template="plotly_white",
    )  # fmt: skip
    return figure


def plot_quantiles(model: Any, X: Any, y: Any, arrays: dict[str, Any]) -> Any:
    """Return a Plotly figure of the residuals' quantiles against those of a normal distribution."""
    go = need_plotly("plot_quantiles")
    _, rest = residuals(model, X, y, arrays)
    normal = ndtri((np.arange(len(rest)) + 0.5) / len(rest))
    figure = go.Figure(
        go.Scattergl(x=normal, y=np.sort(rest), mode="markers", marker={"size": 4, "opacity": 0.6}, showlegend=False)
    )
    ends = [float(normal[0]), float(normal[-1])]
    figure.add_scatter(x=ends, y=ends, mode="lines", line={"dash": "dash", "color": "#888"}, showlegend=False)
    figure.update_layout(
        title=f"Quantiles of {len(rest):,} residuals", xaxis_title="normal quantile",
        yaxis_title="residual, standardised", template="plotly_white",
    )  # fmt: skip
    return figure
