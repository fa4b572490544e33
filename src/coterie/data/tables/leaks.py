"""Columns that give the answer away: one alone predicts the target, or one of its classes, almost perfectly."""

import numpy as np

__all__ = ["CERTAIN", "gives_away"]

CERTAIN = 0.98  # F1 of a class, or share of variance, from which a column alone is suspicious
ROWS = 6000  # rows looked at
FEW = 10  # rows of a class below which nothing is said


def gives_away(values: np.ndarray, y: np.ndarray, kind: str) -> float:
    """Return how well one column predicts the target in rows that a small decision tree was not fitted on.

    Args:
        values: numbers `[N]` (NaN where missing) or words.
        y: class numbers or numbers `[N]`.
        kind: "classification" or "regression".

    Returns:
        The share of the variance, or the best F1 score of a class other than the commonest (which every guess
        predicts well); 0 where there are too few rows to say.
    """
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    chosen = np.random.default_rng(0).permutation(len(y))[:ROWS]
    column, target = np.asarray(values)[chosen], y[chosen]
    if column.dtype == object:
        column = np.unique(column, return_inverse=True)[1].astype(float)
    column = np.where(np.isnan(column), np.nanmin(column, initial=0.0) - 1.0, column)[:, None]
    seen = np.arange(len(target)) < 2 * len(target) // 3
    if kind == "regression":
        if len(target) < 3 * FEW or target[~seen].std() == 0:
            return 0.0
        tree = DecisionTreeRegressor(max_leaf_nodes=200, random_state=0).fit(column[seen], target[seen])
        return 1.0 - float(np.mean((tree.predict(column[~seen]) - target[~seen]) ** 2) / target[~seen].var())
    if 4 * len(np.unique(target)) > len(target):
        return 0.0
    leaves = max(8, 2 * len(np.unique(target)))
    tree = DecisionTreeClassifier(max_leaf_nodes=leaves, random_state=0).fit(column[seen], target[seen])
    predicted, truth = tree.predict(column[~seen]), target[~seen]
    size = np.bincount(target)
    scores = [0.0]
    for label in np.flatnonzero(size >= FEW):
        if label != np.argmax(size):
            both = np.sum((predicted == label) & (truth == label))
            scores.append(2 * both / max(1, np.sum(predicted == label) + np.sum(truth == label)))
    return float(max(scores))
