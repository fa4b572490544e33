"""The plot of shrinkage: each group's estimate from its own rows, and its estimate in the hierarchy."""

from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.estimators.grouping import InvalidData
from coterie.estimators.moments import unpack

if TYPE_CHECKING:
    from coterie.estimators.linear import HierarchicalLinearRegression

__all__ = ["local_estimates", "plot_shrinkage"]


def local_estimates(model: "HierarchicalLinearRegression") -> np.ndarray:
    """Return each group's random coefficients [groups, random] from its rows alone, with the other ones fixed.

    A group whose rows do not determine them has NaN.
    """
    random = model._random_columns()
    size = len(model._table[-1])
    moments, _ = unpack(model.statistics_, size, model._estimated(), model.fit_intercept)
    fixed = np.setdiff1d(np.arange(size), random)
    response = moments[random, size] - np.einsum("kfi,f->ki", moments[np.ix_(random, fixed)], model._table[-1][fixed])
    block = np.moveaxis(moments[np.ix_(random, random)], 2, 0)
    full = np.linalg.matrix_rank(block, hermitian=True) == len(random)
    estimates = np.full((len(block), len(random)), np.nan)
    estimates[full] = np.linalg.solve(block[full], response.T[full][:, :, None])[:, :, 0]
    return estimates


def plot_shrinkage(model: "HierarchicalLinearRegression", coefficient: str | None = None) -> Any:
    """Return a Plotly figure of one random coefficient: a line from each group's own estimate to the shrunk one."""
    try:
        import plotly.graph_objects as go
    except ImportError as error:
        raise InvalidData("plot_shrinkage: needs Plotly; install coterie[report]") from error

    names = [model._coefficient_names()[k] for k in model._random_columns()]
    if coefficient is None and names:
        coefficient = names[0]
    if coefficient is None or coefficient not in names:
        raise InvalidData(
            f"coefficient: {coefficient!r} does not vary between groups; choose one of {', '.join(names)}"
        )
    alone = (model._alone() if hasattr(model, "_alone") else local_estimates(model))[:, names.index(coefficient)]
    column = model._coefficient_names().index(coefficient)
    together, overall = model._table[: len(alone), column], model._table[-1, column]
    shown = np.flatnonzero(np.isfinite(alone))
    x = np.column_stack([alone[shown], together[shown], np.full(len(shown), np.nan)]).ravel()
    y = np.column_stack([np.ones(len(shown)), np.zeros(len(shown)), np.full(len(shown), np.nan)]).ravel()
    labels = np.repeat([str(label) for label in model.groups_[shown]], 3)
    lines = go.Scatter(
        x=x, y=y, text=labels, mode="lines+markers", line={"width": 0.7}, marker={"size": 5}, opacity=0.5,
        hovertemplate="%{text}: %{x:.4g}<extra></extra>", showlegend=False,
    )  # fmt: skip
    figure = go.Figure(lines)
    figure.add_vline(x=float(overall), line={"dash": "dash"}, annotation_text="all groups")
    figure.update_layout(
        title=f"{coefficient}: {len(shown):,} groups, alone and together" + _left_out(len(alone) - len(shown)),
        xaxis_title=f"coefficient of {coefficient}" if coefficient != "intercept" else "intercept",
        yaxis={"tickvals": [0, 1], "ticktext": ["together", "alone"], "range": [-0.15, 1.15]},
        template="plotly_white",
    )
    return figure


def _left_out(groups: int) -> str:
    return f" ({groups:,} with too few rows to estimate it alone are not shown)" if groups else ""
