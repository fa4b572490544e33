"""Estimators for rows that belong to known groups, with scikit-learn's interface; they do not need JAX.

    from coterie.estimators import HierarchicalLinearRegression

    model = HierarchicalLinearRegression(groups="school", within="district", random="intercept").fit(frame, y)
    print(model.summary())
    model.predict(frame)      # every school's own model; a new school gets its district's

Each is imported when it is first used.
"""

from coterie.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__)
