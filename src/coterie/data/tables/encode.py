"""scikit-learn's transformers on a table: the levels of words from all rows, the statistics from training rows only.

Federated statistics are what sites would send: of every number column the count, the sum and the sum of squares (mean
and deviation of all training rows follow exactly) and its median (the hub takes the weighted median of the sites'
medians). With "local" every site uses its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.data.tables.columns import Column
from coterie.data.tables.preparation import ALL, Statistics
from coterie.storage.memory import refuse_beyond

__all__ = ["Encoder", "fit_levels", "weighted_medians"]

MOST_LEVELS = 31  # inputs of one column of words, the one for rare levels included
CHUNK = 1 << 22  # numbers encoded at a time: scikit-learn makes several copies of them in float64
COPIES = 3  # of the inputs in memory, until they are divided among clients


def fit_levels(words: np.ndarray, name: str) -> Any:
    """Fit scikit-learn's OneHotEncoder on one column; levels in fewer than 1 % of the rows, or 10, are rare.

    Two or more rare levels share one input; so do those beyond the 30 commonest.
    """
    import pandas as pd
    from sklearn.preprocessing import OneHotEncoder

    least = int(np.clip(-(-len(words) // 100), 1, 10))
    rare = int((np.bincount(pd.factorize(words)[0]) < least).sum())
    encoder = OneHotEncoder(
        min_frequency=least if rare > 1 else None,
        max_categories=MOST_LEVELS,
        handle_unknown="infrequent_if_exist",
        sparse_output=False,
    )
    return encoder.fit(pd.DataFrame({name: words}))


def weighted_medians(numbers: np.ndarray, rows: Sequence[np.ndarray]) -> np.ndarray:
    """Combine the medians of the sites: the median of their medians, each counted once per value it stands for."""
    combined = np.full(numbers.shape[1], np.nan)
    for i, column in enumerate(numbers.T):
        medians, weights = [], []
        for part in rows:
            present = column[part][~np.isnan(column[part])]
            if present.size:
                medians.append(np.median(present))
                weights.append(present.size)
        if medians:
            order = np.argsort(medians, kind="stable")
            total = np.cumsum(np.asarray(weights)[order])
            combined[i] = np.asarray(medians)[order][np.searchsorted(total, total[-1] / 2)]
    return combined


class Encoder:
    """A table's columns as scikit-learn sees them.

    Args:
        columns: the columns that become inputs.
        numbers: `[N, P]`, NaN where missing.
        words: one `[N]` array of text per column of words.
        levels: the OneHotEncoders fitted on them.
        standardise: "federated", "local" or "none".
    """

    def __init__(
        self,
        columns: Sequence[Column],
        numbers: np.ndarray,
        words: Sequence[np.ndarray],
        levels: Sequence[Any],
        standardise: str,
    ):
        import pandas as pd

        self.columns, self.numbers, self.levels, self.standardise = columns, numbers, levels, standardise
        self.inputs = [f"n{i}" for i in range(numbers.shape[1])]
        self.words = [f"w{i}" for i in range(len(words))]
        place = np.cumsum([0, *(len(column.numbers) for column in columns)])
        self.flagged = [f"n{p}" for p, column in zip(place, columns, strict=False) if column.indicator]
        self.frame = pd.DataFrame(numbers, columns=self.inputs)
        for name, values in zip(self.words, words, strict=True):
            self.frame[name] = values

    def encode(self, rows: Mapping[str, np.ndarray], everything: Mapping[str, np.ndarray]) -> tuple[np.ndarray, dict]:
        """Return the inputs of all rows `[N, features]` and the statistics by client.

        Args:
            rows: the training rows of every client.
            everything: all rows of every client.
        """
        dtype = np.dtype(np.float64 if self.standardise == "none" else np.float32)
        rows_in_all, width = len(self.frame), sum(len(column.features) for column in self.columns)
        largest = max(self.columns, key=lambda column: len(column.features))
        what = f"the table as {rows_in_all:,} rows of {width:,} inputs"
        fix = f"drop columns ({largest.name!r} alone is {len(largest.features)} inputs) or use fewer rows"
        refuse_beyond(COPIES * rows_in_all * width * dtype.itemsize, what, fix)
        x, step = np.zeros((rows_in_all, width), dtype), max(1, CHUNK // width)
        statistics: dict[str, Statistics] = {}
        parts = {ALL: np.concatenate(list(everything.values()))} if self.standardise != "local" else everything
        for name, part in parts.items():
            transformer, statistics[name] = self._fitted(list(rows.values()) if name == ALL else [rows[name]])
            for start in range(0, len(part), step):
                chunk = part[start : start + step]
                x[chunk] = transformer.transform(self.frame.iloc[chunk])
        return x, statistics

    def _fitted(self, rows: Sequence[np.ndarray]) -> tuple[Any, Statistics]:
        """Return a ColumnTransformer whose statistics are those of some rows, and the statistics."""
        import pandas as pd
        from sklearn.compose import ColumnTransformer
        from sklearn.frozen import FrozenEstimator
        from sklearn.impute import MissingIndicator, SimpleImputer
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        steps: list[tuple[str, Any, list[str]]] = []
        statistics = Statistics((), (), ())
        if self.inputs:
            medians = weighted_medians(self.numbers, rows)
            imputer = SimpleImputer(strategy="median", keep_empty_features=True)
            imputer.fit(pd.DataFrame(medians[None], columns=self.inputs))
            parts: list[Any] = [FrozenEstimator(imputer)]
            zero, one = np.zeros(len(medians)), np.ones(len(medians))
            if self.standardise != "none":
                scaler = StandardScaler().fit(imputer.transform(self.frame[self.inputs].iloc[np.concatenate(rows)]))
                parts.append(FrozenEstimator(scaler))
                zero, one = scaler.mean_, scaler.scale_
            fill = np.nan_to_num(imputer.statistics_)
            statistics = Statistics(*(tuple(values.tolist()) for values in (fill, zero, one)))
            steps.append(("numbers", make_pipeline(*parts), self.inputs))
        if self.flagged:
            steps.append(("missing", MissingIndicator(features="all"), self.flagged))
        steps += [(name, FrozenEstimator(own), [name]) for name, own in zip(self.words, self.levels, strict=True)]
        transformer = ColumnTransformer(steps, sparse_threshold=0)
        transformer.fit(self.frame.iloc[:1])  # every part is fitted already, or has nothing to fit
        return transformer, statistics
