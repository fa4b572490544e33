"""Estimators for rows that belong to known groups, in scikit-learn's way; NumPy, SciPy and scikit-learn are enough.

    from coterie.estimators import HierarchicalLinearRegression

    model = HierarchicalLinearRegression(groups="school", within="district", random="intercept").fit(frame, y)
    print(model.summary())
    model.predict(frame)      # every school's own model; a new school gets its district's

Each is imported when it is asked for, which keeps a fresh process quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.estimators.baselines import LocalRegression, PooledRegression, SingleClusterRegression, james_stein
    from coterie.estimators.classifier import SeparationWarning
    from coterie.estimators.grouping import InvalidData
    from coterie.estimators.linear import HierarchicalLinearRegression
    from coterie.estimators.linear_cv import HierarchicalLinearRegressionCV
    from coterie.estimators.logistic import HierarchicalLogisticRegression
    from coterie.estimators.logistic_baselines import LocalLogisticRegression, PooledLogisticRegression
    from coterie.estimators.logistic_cv import HierarchicalLogisticRegressionCV

__all__ = [
    "HierarchicalLinearRegression",
    "HierarchicalLinearRegressionCV",
    "HierarchicalLogisticRegression",
    "HierarchicalLogisticRegressionCV",
    "InvalidData",
    "LocalLogisticRegression",
    "LocalRegression",
    "PooledLogisticRegression",
    "PooledRegression",
    "SeparationWarning",
    "SingleClusterRegression",
    "james_stein",
]

# Where each public name lives.
_PUBLIC = {
    "HierarchicalLinearRegression": "linear",
    "HierarchicalLinearRegressionCV": "linear_cv",
    "HierarchicalLogisticRegression": "logistic",
    "HierarchicalLogisticRegressionCV": "logistic_cv",
    "InvalidData": "grouping",
    "LocalLogisticRegression": "logistic_baselines",
    "LocalRegression": "baselines",
    "PooledLogisticRegression": "logistic_baselines",
    "PooledRegression": "baselines",
    "SeparationWarning": "classifier",
    "SingleClusterRegression": "baselines",
    "james_stein": "baselines",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'coterie.estimators' has no attribute {name!r}")
    return getattr(importlib.import_module(f"coterie.estimators.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return __all__
