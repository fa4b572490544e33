"""Estimators for rows that belong to known groups, in scikit-learn's way; NumPy, SciPy and scikit-learn are enough."""

from coterie.estimators.grouping import InvalidData

__all__ = ["InvalidData"]
