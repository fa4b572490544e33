"""Plots: intervals, an axis that one tiny group does not stretch, residuals and quantiles."""

import numpy as np
import pandas as pd
import pytest

from coterie.estimators import HierarchicalLinearRegression, HierarchicalLogisticRegression, InvalidData


def rows():
    random = np.random.default_rng(0)
    group = np.concatenate([np.repeat(np.arange(20), 15), [20, 20]])  # the last group has two rows
    x = random.normal(size=302)
    x[-2:] = 0.0, 0.01  # so close that its own slope is wild
    frame = pd.DataFrame({"x": x, "school": [f"s{i:02}" for i in group], "town": random.choice(list("abc"), 302)})
    y = 1 + x + random.normal(size=21)[group] + random.normal(size=302)
    y[-2:] = 0.0, 3.0
    return frame, y


def test_a_tiny_group_does_not_stretch_the_shrinkage_plot():
    frame, y = rows()
    model = HierarchicalLinearRegression("school").fit(frame[["x", "school"]], y)
    figure = model.plot_shrinkage("x")
    points, axis = figure.data[0], figure.layout.xaxis.range
    wild = points.text.index("s20")
    assert points.x[wild] == pytest.approx(300.0, rel=1e-6)
    assert axis[1] < 20
    assert "1 beyond the axis" in figure.layout.title.text
    assert points.marker.size[wild] < points.marker.size[0]  # it has fewer rows


def test_the_caterpillar_plot_has_ordered_effects_with_intervals():
    frame, y = rows()
    model = HierarchicalLinearRegression("school", crossed="town", random="intercept").fit(frame, y)
    figure = model.plot_effects(interval=0.9)
    table = model.random_effects_["school"].sort_values("intercept")
    drawn = dict(label for trace in figure.data for label in zip(trace.text, trace.x, strict=True))
    assert drawn == pytest.approx(table["intercept"].to_dict())
    reach = dict(pair for trace in figure.data for pair in zip(trace.text, trace.error_x.array, strict=True))
    assert reach["s03"] == pytest.approx(1.6448536 * table.loc["s03", "intercept error"])
    for trace in figure.data:
        apart = np.abs(np.asarray(trace.x)) > np.asarray(trace.error_x.array)
        assert (apart == (trace.name == "interval without 0")).all()
    assert len(model.plot_effects(level="town").data) == 2
    with pytest.raises(InvalidData, match="no level 'twon'; did you mean town"):
        model.plot_effects(level="twon")
    with pytest.raises(InvalidData, match="use plot_effects"):
        model.plot_shrinkage()


@pytest.mark.filterwarnings("ignore::coterie.estimators.SeparationWarning")  # two rows of one class
def test_residuals_and_their_quantiles():
    frame, y = rows()
    columns = frame[["x", "school"]]
    model = HierarchicalLinearRegression("school").fit(columns, y)
    points = model.plot_residuals(columns, y).data[0]
    expected = (y - model.predict(columns)) / np.sqrt(model.variance_components_["residual"])
    np.testing.assert_allclose(points.y, expected)
    quantiles = model.plot_quantiles(columns, y).data[0]
    np.testing.assert_allclose(quantiles.y, np.sort(expected))
    assert quantiles.x[0] == pytest.approx(-quantiles.x[-1])
    with pytest.raises(InvalidData, match="pass the targets"):
        model.plot_residuals(columns)
    with_formula = HierarchicalLinearRegression.from_formula("y ~ x + (1 | school)").fit(frame.assign(y=y))
    assert len(with_formula.plot_residuals(frame.assign(y=y)).data[0].y) == 302
    classes = HierarchicalLogisticRegression("school", random="intercept", group_variance=1.0).fit(columns, y > 1)
    drawn = np.asarray(classes.plot_residuals(columns, y > 1).data[0].y)
    assert (np.sign(drawn) == np.where(y > 1, 1, -1)).all()
    loss = -np.log(classes.predict_proba(columns)[np.arange(302), (y > 1).astype(int)])
    np.testing.assert_allclose(drawn**2 / 2, loss)
