"""The plot of shrinkage: each group's estimate from its own rows, and its estimate in the hierarchy."""

from typing import Any

import numpy as np

from coterie.estimators.grouping import InvalidData

__all__ = ["chosen_coefficient", "need_plotly", "own_estimates", "plot_shrinkage"]

_REACH = 4.0  # a point farther from the middle than so many deviations of the others does not stretch the axis
_SMALLEST, _LARGEST = 5.0, 18.0  # sizes of markers


def need_plotly(what: str) -> Any:
    """Import Plotly's graph objects."""
    try:
        import plotly.graph_objects as go
    except ImportError as error:
        raise InvalidData(f"{what}: needs Plotly; install coterie[report]") from error
    return go


def chosen_coefficient(model: Any, coefficient: str | None, level: int = 0) -> tuple[str, int]:
    """Return a random coefficient of a level, by default the first, and its column in the model's table."""
    labels = model._coefficient_labels()
    names = [labels[k] for k in model._level_coefficients(level)]
    if coefficient is None and names:
        coefficient = names[0]
    if coefficient is None or coefficient not in names:
        raise InvalidData(
            f"coefficient: {coefficient!r} does not vary between groups; choose one of {', '.join(names)}"
        )
    return coefficient, labels.index(coefficient)


def own_estimates(model: Any) -> np.ndarray:
    """Return each group's coefficients [groups, p] from its rows alone, those that do not vary being the global ones.

    For classes it is one Newton step without the penalty, from the group's last message. A group whose rows do not
    determine its coefficients, or are separated by them, has NaN.
    """
    if model._factors.crossed:
        raise InvalidData("plot_shrinkage: a group has no estimate of its own where levels cross; use plot_effects")
    moments, beta, structure, units = _working(model)
    basis = structure.effects[0].basis
    size = len(beta)
    block = np.einsum("ak,abi,bj->ikj", basis, moments[:size, :size], basis, optimize=True)
    rest = moments[:size, size] - np.einsum("abi,b->ai", moments[:size, :size], beta)
    length = np.sqrt(np.maximum(np.einsum("ikk->ik", block), np.finfo(float).tiny))
    scaled = block / (length[:, :, None] * length[:, None, :])
    full = np.linalg.eigvalsh(scaled)[:, 0] > 1e-10 if basis.shape[1] else np.zeros(len(block), dtype=bool)
    deviations = np.full((size, len(block)), np.nan)
    step = np.linalg.solve(block[full], (basis.T @ rest).T[full][:, :, None])[:, :, 0]
    deviations[:, full] = units.back @ basis @ step.T
    answer = np.empty((len(block), size))
    answer[structure.unit_codes[0]] = (model._coefficients()[:, None] + deviations).T
    if hasattr(model, "_separated"):
        answer[model._separated] = np.nan
    return answer


def _working(model: Any) -> tuple[np.ndarray, np.ndarray, Any, Any]:
    """Return moments in the structure's order, beta, structure and units, all in working units."""
    solution, structure, units = model._resolve()
    if hasattr(model, "_quadratic_"):
        beta = np.linalg.solve(units.back, model._coefficients())
        return model._quadratic_, beta, structure, units
    moments, _, _ = model._moments()
    return moments[:, :, structure.unit_codes[0]], solution.beta, structure, units


def plot_shrinkage(model: Any, coefficient: str | None = None) -> Any:
    """Return a Plotly figure: a point for each group, its own estimate across and the shrunk one upwards."""
    go = need_plotly("plot_shrinkage")
    coefficient, column = chosen_coefficient(model, coefficient)
    alone = own_estimates(model)[:, column]
    together, overall = model._table[: len(alone), column], float(model._coefficients()[column])
    shown = np.flatnonzero(np.isfinite(alone))
    rows = model._level_sizes[0][shown]
    name = model._factors.names[0]
    size = _SMALLEST + (_LARGEST - _SMALLEST) * np.sqrt(rows / max(rows.max(initial=1), 1))
    points = go.Scatter(
        x=alone[shown], y=together[shown], text=[str(label) for label in model.groups_[shown]], mode="markers",
        customdata=rows, marker={"size": size, "opacity": 0.65, "line": {"width": 0.5, "color": "white"}},
        hovertemplate=name + " %{text} (%{customdata} rows)<br>alone %{x:.4g}, together %{y:.4g}<extra></extra>",
        showlegend=False,
    )  # fmt: skip
    figure = go.Figure(points)
    low, high, beyond = _range(alone[shown], together[shown])
    figure.add_shape(type="line", x0=low, y0=low, x1=high, y1=high, line={"dash": "dot", "color": "#888", "width": 1})
    figure.add_hline(y=overall, line={"dash": "dash", "color": "#888", "width": 1}, annotation_text="all")
    left_out = len(alone) - len(shown)
    notes = [f"{left_out:,} with too few rows to estimate it alone are not shown"] * bool(left_out)
    notes += [f"{beyond:,} beyond the axis"] * bool(beyond)
    figure.update_layout(
        title=f"{coefficient}: {len(shown):,} of {name}, alone and together"
        + (f" ({'; '.join(notes)})" if notes else ""),
        xaxis={"title": f"{coefficient}, from its own rows", "range": [low, high]},
        yaxis={"title": f"{coefficient}, in the hierarchy"},
        template="plotly_white",
    )
    return figure


def _range(alone: np.ndarray, together: np.ndarray) -> tuple[float, float, int]:
    """Return an axis that one tiny group does not stretch, and how many points lie beyond it."""
    if not len(alone):
        return -1.0, 1.0, 0
    middle = float(np.median(alone))
    spread = 1.4826 * float(np.median(np.abs(alone - middle))) or float(np.std(alone)) or 1.0
    near = np.abs(alone - middle) <= _REACH * spread
    low = min(float(alone[near].min()), float(together.min()))
    high = max(float(alone[near].max()), float(together.max()))
    margin = 0.05 * (high - low) or 1.0
    low, high = low - margin, high + margin
    return low, high, int(((alone < low) | (alone > high)).sum())
