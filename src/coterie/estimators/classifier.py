"""Base class of the classifiers: probabilities from the linear predictor, a warning about separation."""

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import expit, log_softmax, softmax
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
    """A classifier whose log-odds are the linear predictor."""

    __metadata_request__predict_proba = PER_ROW
    __metadata_request__predict_log_proba = PER_ROW
    __metadata_request__decision_function = PER_ROW

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = self._multiclass
        return tags

    _multiclass = False

    def _read_fit(
        self, X: Any, y: Any, groups: Any, within: Any, offset: Any, weights: Any = None, labels: bool = True
    ) -> Rows:
        """Check the rows, learn groups and classes; return the rows with the number of each row's class."""
        rows = super()._read_fit(X, y, groups, within, offset, weights, labels)
        try:
            self.classes_, code = np.unique(np.asarray(rows.target), return_inverse=True)
        except TypeError as error:
            raise InvalidData("y: labels of different types cannot be sorted; make them all strings") from error
        check_classification_targets(rows.target)
        if len(self.classes_) > 2 and not self._multiclass:
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
        """Return the log-odds of the second class; a new group gets its district's model, or the global one.

        Of three classes or more: those of each class against the first, whose own are 0.
        """
        odds = self._linear(self._read_predict(X, groups, within, offset))
        return odds if odds.ndim == 1 else np.column_stack([np.zeros(len(odds)), odds])

    def predict_proba(self, X: Any, groups: Any = None, within: Any = None, offset: Any = None) -> Any:
        """Return the probabilities [n, classes] of the `classes_`."""
        odds = self.decision_function(X, groups, within, offset)
        return np.column_stack([expit(-odds), expit(odds)]) if odds.ndim == 1 else softmax(odds, axis=1)

    def predict_log_proba(self, X: Any, groups: Any = None, within: Any = None, offset: Any = None) -> Any:
        """Return the logarithms of the probabilities, precise also where one is nearly 0."""
        odds = self.decision_function(X, groups, within, offset)
        if odds.ndim > 1:
            return log_softmax(odds, axis=1)
        return -np.column_stack([np.logaddexp(0.0, odds), np.logaddexp(0.0, -odds)])

    def predict(self, X: Any, groups: Any = None, within: Any = None, offset: Any = None) -> Any:
        """Return the most probable class of every row."""
        odds = self.decision_function(X, groups, within, offset)
        if np.isnan(odds).any():
            row = int(np.flatnonzero(np.isnan(odds.reshape(len(odds), -1)).any(axis=1))[0])
            raise InvalidData(
                f"X: row {row} has a missing value, so it has no class; fill it (predict_proba gives NaN)"
            )
        return self.classes_[(odds > 0.0).astype(np.intp) if odds.ndim == 1 else np.argmax(odds, axis=1)]

    def score(
        self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None, within: Any = None, offset: Any = None
    ) -> float:
        """Return the share of rows whose class is predicted correctly."""
        from sklearn.metrics import accuracy_score

        return float(accuracy_score(y, self.predict(X, groups, within, offset), sample_weight=sample_weight))
