"""Estimators for rows that belong to known groups, in scikit-learn's way; NumPy, SciPy and scikit-learn are enough.

from coterie.estimators import HierarchicalLinearRegression

model = HierarchicalLinearRegression(groups="school", within="district", random="intercept").fit(frame, y)
print(model.summary())
model.predict(frame)      # every school's own model; a new school gets its district's
"""

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
