"""The caterpillar plot: the deviations of all units of a level, in order, with intervals."""

from typing import Any

import numpy as np
from scipy.special import ndtri

from coterie.estimators.grouping import InvalidData
from coterie.estimators.plot import chosen_coefficient, need_plotly
from coterie.spec import nearest

__all__ = ["plot_effects"]

_NAMED = 60  # with more units their names would overlap


def plot_effects(model: Any, coefficient: str | None, level: str | None, interval: float) -> Any:
    """Return a Plotly figure of one random coefficient's deviations; units whose interval has no 0 stand out."""
    go = need_plotly("plot_effects")
    if not 0.0 < interval < 1.0:
        raise InvalidData(f"interval: must lie between 0 and 1, not {interval}")
    names = model._factors.names
    if level is None:
        level = names[0]
    if level not in names:
        raise InvalidData(f"level: no level {level!r}{nearest(str(level), names) or '; choose ' + ' or '.join(names)}")
    coefficient, _ = chosen_coefficient(model, coefficient, names.index(level))
    table = model.random_effects_[level].sort_values(coefficient)
    values, reach = (
        table[coefficient].to_numpy(),
        ndtri(0.5 + interval / 2.0) * table[f"{coefficient} error"].to_numpy(),
    )
    apart = np.abs(values) > reach
    labels = [str(label) for label in table.index]
    figure = go.Figure()
    for chosen, colour, title in ((~apart, "#8a8f98", "interval has 0"), (apart, "#c2410c", "interval without 0")):
        at = np.flatnonzero(chosen)
        figure.add_scatter(
            x=values[at], y=at, text=[labels[i] for i in at], mode="markers", name=title,
            error_x={"type": "data", "array": reach[at], "thickness": 1, "width": 0},
            marker={"size": 5, "color": colour},
            hovertemplate="%{text}: %{x:.4g}<extra></extra>",
        )  # fmt: skip
    figure.add_vline(x=0.0, line={"dash": "dash", "color": "#888", "width": 1})
    ticks = (
        {"tickvals": list(range(len(labels))), "ticktext": labels}
        if len(labels) <= _NAMED
        else {"showticklabels": False}
    )
    figure.update_layout(
        title=f"{coefficient}: deviations of {len(labels):,} of {level}, with intervals of {interval:.0%}",
        xaxis_title=f"deviation of {coefficient}",
        yaxis={"title": level, **ticks},
        height=max(400, min(12 * len(labels), 1200)),
        template="plotly_white",
    )
    return figure
