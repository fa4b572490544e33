"""Base class of the classifiers: two classes, probabilities from the linear predictor, a warning about separation."""

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.base import ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets, type_of_target

from coterie.errors import CoterieWarning
from coterie.estimators.base import PER_ROW, GroupedEstimator, Rows
from coterie.estimators.grouping import InvalidData

__all__ = ["GroupedClassifier", "SeparationWarning"]


class SeparationWarning(CoterieWarning, ConvergenceWarning):
    """The features separate the two classes: the coefficients are finite only because of a penalty."""


class GroupedClassifier(ClassifierMixin, GroupedEstimator):
    """A classifier of two classes whose log-odds are the linear predictor."""

    __metadata_request__predict_proba = PER_ROW
    __metadata_request__predict_log_proba = PER_ROW
    __metadata_request__decision_function = PER_ROW

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _read_fit(self, X: Any, y: Any, groups: Any, within: Any, offset: Any, labels: bool = True) -> Rows:
        """Check the rows, learn groups and classes; return the rows with 1 for the second class and 0 for the first."""
        rows = super()._read_fit(X, y, groups, within, offset, labels)
        try:
            self.classes_, code = np.unique(np.asarray(rows.target), return_inverse=True)
        except TypeError as error:
            raise InvalidData("y: labels of different types cannot be sorted; make them all strings") from error
        check_classification_targets(rows.target)
        if len(self.classes_) > 2:
            kind = type_of_target(rows.target, input_name="y")
            raise InvalidData(
                f"Only binary classification is supported. The type of the target is {kind}, with {len(self.classes_)} "
                "classes; fit one model for each class against the others"
            )
        if len(self.classes_) < 2:
            label = self.classes_.tolist()[0]
            raise InvalidData(f"y: all rows have the same class, {label!r}; two classes are needed")
        return replace(rows, target=code.reshape(-1).astype(np.float64))

    def decision_function(self, X: Any, groups: Any = None, within: Any = None, offset: Any = None) -> Any:
        """Return the log-odds of the second class; a new group gets its district's model, or the global one."""
        return self._linear(self._read_predict(X, groups, within, offset))

    def predict_proba(self, X: Any, groups: Any = None, within: Any = None, offset: Any = None) -> Any:
        """Return the probabilities [n, 2] of the two `classes_`."""
        odds = self.decision_function(X, groups, within, offset)
        return np.column_stack([expit(-odds), expit(odds)])

    def predict_log_proba(self, X: Any, groups: Any = None, within: Any = None, offset: Any = None) -> Any:
        """Return the logarithms of the probabilities, precise also where one is nearly 0."""
        odds = self.decision_function(X, groups, within, offset)
        return -np.column_stack([np.logaddexp(0.0, odds), np.logaddexp(0.0, -odds)])

    def predict(self, X: Any, groups: Any = None, within: Any = None, offset: Any = None) -> Any:
        """Return the more probable class of every row."""
        odds = self.decision_function(X, groups, within, offset)
        return self.classes_[(odds > 0.0).astype(np.intp)]

    def score(
        self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None, within: Any = None, offset: Any = None
    ) -> float:
        """Return the share of rows whose class is predicted correctly."""
        from sklearn.metrics import accuracy_score

        return float(accuracy_score(y, self.predict(X, groups, within, offset), sample_weight=sample_weight))
