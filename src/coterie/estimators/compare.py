"""Likelihood-ratio tests between nested fits of the same rows."""

from typing import Any

import numpy as np
from scipy.special import chdtrc

from coterie.estimators.columns import need_pandas
from coterie.estimators.grouping import InvalidData

__all__ = ["compare"]


def compare(one: Any, other: Any) -> Any:
    """Return a DataFrame with a row for each model, the smaller one first; see `HierarchicalModel.compare`."""
    from sklearn.utils.validation import check_is_fitted

    if not hasattr(other, "_count_parameters") or type(one)._profile is not type(other)._profile:
        raise InvalidData(f"other: must be a fitted model of the same kind, not {type(other).__name__}")
    check_is_fitted(one)
    check_is_fitted(other)
    small, large = sorted((one, other), key=lambda model: model.n_parameters_)
    _refuse_unequal_rows(small, large)
    names = [set(model._coefficient_labels()) for model in (small, large)]
    if not names[0] <= names[1]:
        extra = ", ".join(sorted(names[0] - names[1]))
        raise InvalidData(f"other: the models are not nested, since only the smaller one has {extra}")
    if small.n_parameters_ == large.n_parameters_:
        raise InvalidData("other: both models have the same number of parameters, so neither is nested in the other")
    kind, likelihoods = _likelihoods(small, large, names[0] == names[1])
    more = large.n_parameters_ - small.n_parameters_
    ratio = max(2.0 * (likelihoods[1] - likelihoods[0]), 0.0)
    counts = [small.n_parameters_, large.n_parameters_]
    table = {
        "parameters": counts,
        "log-likelihood": likelihoods,
        "AIC": [-2.0 * value + 2.0 * count for value, count in zip(likelihoods, counts, strict=True)],
        "BIC": [-2.0 * value + np.log(small._n_rows) * count for value, count in zip(likelihoods, counts, strict=True)],
        "chi-square": [np.nan, ratio],
        "df": [np.nan, more],
        "p": [np.nan, float(chdtrc(more, ratio))],
    }
    index = ["this" if model is one else "other" for model in (small, large)]
    frame = need_pandas("compare").DataFrame(table, index=index)
    frame.attrs["likelihood"] = kind
    return frame


def _likelihoods(small: Any, large: Any, same: bool) -> tuple[str, list[float]]:
    """Return which likelihoods are compared, and both; restricted ones only of models with the same coefficients."""
    kinds = {small.likelihood, large.likelihood}
    if len(kinds) == 1 and (same or "marginal" in kinds):
        values = [small.log_likelihood_, large.log_likelihood_]
        if None in values:
            raise InvalidData("other: a model whose variances were all given has no likelihood to compare")
        return kinds.pop(), values
    if not hasattr(small, "_refit_marginal"):
        raise InvalidData(
            'other: restricted likelihoods of different coefficients cannot be compared; use likelihood="marginal"'
        )
    return "marginal", [small._refit_marginal()[0], large._refit_marginal()[0]]


def _refuse_unequal_rows(small: Any, large: Any) -> None:
    one, other = small._target_mark, large._target_mark
    same = small._n_rows == large._n_rows and np.allclose(one[:3], other[:3], rtol=1e-9)
    if same and not np.allclose(one[3:], other[3:], rtol=1e-9):
        raise InvalidData("other: the models were fitted with different weights; use the same ones")
    if not same:
        raise InvalidData(
            f"other: the models were fitted to different rows ({small._n_rows:,} and {large._n_rows:,}); use the same "
            'ones (missing="drop" may have left out different ones)'
        )
