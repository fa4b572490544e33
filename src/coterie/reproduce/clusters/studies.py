"""Real studies with known clusters, in place of the donor data of Lyu et al. (2022), which are not public.

Each compares, as the paper does, every group alone, one model for all, and ours (groups in districts); and ours without
districts, which shows what the districts add. A fifth of every group's rows is held out; groups with fewer than 5 rows
are trained on but not scored. Features are standardised, and variances estimated (REML; Laplace for yes or no), on
training rows only. The error of a group is the root mean squared error of its held-out rows, or their mean log-loss.
Where the answer is yes or no, as in the paper, there is its way to choose penalties, too: by cross-validation.
"""

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coterie.data import studies as data
from coterie.errors import CoterieError

if TYPE_CHECKING:
    from coterie.experiment.loop import Progress

__all__ = ["STUDIES", "Outcome", "run_study", "summarise_study"]

LOCAL, SINGLE, NO_DISTRICTS, OURS = "locally trained", "single model", "no districts", "ours"
CROSS_VALIDATED = "ours, cross-validated"
METHODS = (LOCAL, SINGLE, NO_DISTRICTS, OURS)
GRID = tuple(10.0 ** np.arange(-2, 2.01, 0.5))  # penalties: every fourth of the paper's
SCORED = 5  # rows a group needs to be scored
HELD_OUT = 0.2


class Study(NamedTuple):
    """A study: its data, and what its groups and districts are called."""

    source: data.Study
    title: str
    group: str
    district: str


STUDIES: dict[str, Study] = {
    "donors": Study(data.Donors(), "donor response (Karlan and List 2007)", "area", "income bracket"),
    "chem97": Study(data.Chem97(), "A-level chemistry 1997", "school", "district"),
    "mathachieve": Study(data.MathAchieve(), "mathematics achievement", "school", "sector"),
    "insteval": Study(data.InstEval(), "ratings of lectures", "lecturer", "department"),
}


class Outcome(NamedTuple):
    """The result of a study."""

    groups: list[dict[str, Any]]  # one row per seed, method and scored group
    overall: list[dict[str, Any]]  # one row per seed and method, over all held-out rows
    variances: list[dict[str, Any]]  # of ours, one row per seed


def run_study(
    name: str, seeds: int = 5, rows: data.Rows | None = None, kind: str = "", progress: "Progress | None" = None
) -> Outcome:
    """Run one of `STUDIES`, or a study with other `rows` and `kind`; every seed divides the rows differently."""
    if seeds < 1:
        raise CoterieError(f"seeds must be an integer of at least 1, not {seeds!r}")
    rows = rows or STUDIES[name].source.rows()
    kind = kind or STUDIES[name].source.kind
    outcome = Outcome([], [], [])
    for seed in range(seeds):
        test = hold_out(rows.group, np.random.default_rng(seed))
        x = (rows.features - rows.features[~test].mean()) / rows.features[~test].std(ddof=0)
        models = _models(kind)
        for number, (method, model) in enumerate(models.items(), 1):
            within = {"within": rows.district[~test]} if method in (OURS, CROSS_VALIDATED) else {}
            model.fit(x[~test], rows.target[~test], groups=rows.group[~test], **within)
            about, answer = {"seed": seed, "method": method}, rows.target[test]
            loss = _losses(model, kind, x[test], answer, rows.group[test])
            outcome.overall.append(about | _overall(loss, kind, answer))
            outcome.groups.extend(_by_group(loss, rows.group[test], kind, answer, about))
            if method == OURS:
                outcome.variances.append({"seed": seed, **_flat(model.variance_components_)})
            if progress is not None:
                progress(f"{name}, seed {seed}, {method}", seed * len(models) + number, seeds * len(models), {})
    return outcome


def hold_out(group: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Mark the test rows: a fifth (rounded down) of every group that has 5 or more."""
    order = rng.permutation(len(group))
    order = order[np.argsort(group[order], kind="stable")]  # by group, shuffled within
    _, starts, sizes = np.unique(group[order], return_index=True, return_counts=True)
    rank = np.arange(len(group)) - np.repeat(starts, sizes)
    wanted = np.where(sizes >= SCORED, np.floor(HELD_OUT * sizes + 1e-9), 0)
    test = np.empty(len(group), bool)
    test[order] = rank < np.repeat(wanted, sizes)
    return test


def _models(kind: str) -> dict[str, Any]:
    from coterie import estimators as est

    if kind != "classification":
        linear = est.HierarchicalLinearRegression
        return {
            LOCAL: est.LocalRegression(),
            SINGLE: est.PooledRegression(),
            NO_DISTRICTS: linear(),
            OURS: linear(),
        }
    # With hardly any answers for each group the marginal likelihood, the estimator's default, finds large variances,
    # and predictions at the mode are then too small: on validation rows of the donors its log-loss is 0.12 to 0.15,
    # that of the restricted one, as of a single model, 0.09.
    ours = partial(est.HierarchicalLogisticRegression, likelihood="restricted")
    return {
        LOCAL: est.LocalLogisticRegression(),
        SINGLE: est.PooledLogisticRegression(),
        CROSS_VALIDATED: est.HierarchicalLogisticRegressionCV(gammas=GRID, lambdas=GRID, covariance="isotropic"),
        NO_DISTRICTS: ours(),
        OURS: ours(),
    }


def _losses(model: Any, kind: str, x: Any, y: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return every row's loss (squared error or log-loss) and its prediction (a logit if there are two classes)."""
    if kind != "classification":
        predicted = model.predict(x, groups=group)
        return (y - predicted) ** 2, predicted
    logit = model.decision_function(x, groups=group)
    return np.logaddexp(0.0, np.where(y == 1, -logit, logit)), logit


def _overall(loss: tuple[np.ndarray, np.ndarray], kind: str, y: np.ndarray) -> dict[str, float]:
    if kind != "classification":
        return {"rmse": float(np.sqrt(loss[0].mean()))}
    from sklearn.metrics import roc_auc_score

    return {"log_loss": float(loss[0].mean()), "auc": float(roc_auc_score(y, loss[1]))}


def _by_group(
    loss: tuple[np.ndarray, np.ndarray], group: np.ndarray, kind: str, y: np.ndarray, about: dict[str, Any]
) -> list[dict[str, Any]]:
    labels, code = np.unique(group, return_inverse=True)
    count = np.bincount(code)
    error = np.bincount(code, loss[0]) / count
    columns = {"group": labels, "rows": count, "error": error if kind == "classification" else np.sqrt(error)}
    if kind == "classification":
        columns["accuracy"] = np.bincount(code, (loss[1] > 0) == (y == 1)) / count
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [about | dict(zip(columns, row, strict=True)) for row in values]


def _flat(components: dict[str, Any]) -> dict[str, float]:
    """Name every variance: "residual", "group intercept", ..."""
    flat: dict[str, float] = {}
    for level, value in components.items():
        nested = {level: value} if not isinstance(value, dict) else {f"{level} {k}": v for k, v in value.items()}
        flat |= {name: float(number) for name, number in nested.items()}
    return flat


def summarise_study(outcome: Outcome) -> list[dict[str, Any]]:
    """Average over seeds, one row per method: mean, sd, quartiles and maximum of the error over groups, and the gain.

    `gain` is this method's mean error over groups minus that of ours, with its standard error over seeds (the divisions
    overlap, so it is only a guide). For yes or no, `above_1` is the number of groups whose log-loss is above 1, and
    `accuracy` has the same figures of the accuracy and `ratio`, the share of groups where ours is at least as accurate.
    """
    errors, accuracies = _by_method(outcome, "error"), _by_method(outcome, "accuracy")
    means = {method: np.mean(values, axis=1) for method, values in errors.items()}
    summary = []
    for method, values in errors.items():
        gaps = means[method] - means[OURS]
        overall = [row for row in outcome.overall if row["method"] == method]
        names = [key for key in overall[0] if key not in ("seed", "method")]
        whole: dict[str, Any] = {f"all_rows_{key}": float(np.mean([row[key] for row in overall])) for key in names}
        spread = None if method == OURS or len(gaps) < 2 else float(gaps.std(ddof=1) / np.sqrt(len(gaps)))
        if method in accuracies:
            ratio = float(np.mean(accuracies[OURS] >= accuracies[method]))
            whole["above_1"] = float(np.mean(np.sum(values > 1, axis=1)))
            whole["accuracy"] = _distribution(accuracies[method]) | {"ratio": ratio}
        summary.append(
            {
                "method": method,
                "groups": values.shape[1],
                **_distribution(values),
                "gain": None if method == OURS else float(gaps.mean()),
                "gain_error": spread,
                **whole,
                "seeds": len(values),
            }
        )
    return summary


def _by_method(outcome: Outcome, key: str) -> dict[str, np.ndarray]:
    """Return a column of the groups' rows by method, `[seeds, groups]`; a group is in all divisions or in none."""
    by_method: dict[str, dict[int, list[float]]] = {}
    for row in outcome.groups:
        if key in row:
            by_method.setdefault(row["method"], {}).setdefault(row["seed"], []).append(row[key])
    return {method: np.array(list(by_seed.values())) for method, by_seed in by_method.items()}


def _distribution(values: np.ndarray) -> dict[str, Any]:
    """Describe `values [seeds, groups]`: each figure over groups, then its mean over seeds."""
    quartiles = np.quantile(values, (0.25, 0.5, 0.75), axis=1).mean(axis=1)
    means = values.mean(axis=1)
    return {
        "mean": float(means.mean()),
        "sd": float(values.std(axis=1).mean()),
        **dict(zip(("lower_quartile", "median", "upper_quartile"), quartiles.tolist(), strict=True)),
        "max": float(values.max(axis=1).mean()),
        "over_seeds": float(means.std(ddof=1)) if len(means) > 1 else None,
    }
