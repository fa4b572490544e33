"""Table 1 of Lyu, Hanzely, Kolar (2022, section 6.1): clients in known clusters, each with m samples.

20 clusters of 20 clients, 20 coefficients, all variances 1: w_j ~ N(0, I), theta_i ~ N(w_j, I), X ~ N(0, 1),
y ~ N(X theta_i, 1). The error of a client is the NORM |estimate - theta_i|: the table's caption says squared, but its
figures are norms. Mean, standard deviation and maximum are over the 400 clients.

"ours" is the paper's iteration (`iteration.py`). Beside it, (5.2) is solved exactly: with the true variances as in the
paper ("ours, exact"), and with variances estimated from the training samples (REML, "ours, estimated"). The penalty of
"single cluster" is chosen among the paper's by cross-validation on training samples, as its text says; the authors'
program uses the true error.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.synthetic import HierarchicalLinear
from coterie.errors import CoterieError
from coterie.reproduce import differences_of
from coterie.reproduce.cells import cell
from coterie.reproduce.clusters.iteration import simplified_l2gd
from coterie.reproduce.clusters.paper import TABLE1, TABLE1_DIFFERENCES
from coterie.reproduce.record import Record, make_record

if TYPE_CHECKING:
    from coterie.experiment.loop import Progress

__all__ = ["SIZES", "expected_table1", "record_table1", "summarise_table1", "table1"]

SIZES = (1, 5, 10, 25, 50, 100, 200)  # samples of a client, m
PENALTIES = tuple(np.linspace(0.01, 2, 20))
FOLDS = 5

TITLE, SOURCE = "known clusters, Table 1: |estimate - truth|", "Lyu, Hanzely, Kolar 2022, Table 1"

# The rows of the table, and the estimator in each column of ours.
ROWS = {
    "locally trained": {"printed": "locally trained"},
    "single model": {"printed": "single model"},
    "single cluster": {"printed": "single cluster", "tuned": "single cluster, estimated"},
    "ours": {"printed": "ours", "tuned": "ours, estimated"},
}


def table1(
    seeds: int = 5,
    sizes: Sequence[int] = SIZES,
    clusters: int = 20,
    clients: int = 20,
    dimension: int = 20,
    progress: "Progress | None" = None,
) -> list[dict[str, Any]]:
    """Run the simulation; returns one row for each seed, m and method: mean, sd and max of the error over clients."""
    if seeds < 1:
        raise CoterieError(f"seeds must be an integer of at least 1, not {seeds!r}")
    for m in sizes:
        if m < 1:
            raise CoterieError(f"sizes must be whole numbers of at least 1, not {m!r}")
    rows: list[dict[str, Any]] = []
    for seed in range(seeds):
        source = HierarchicalLinear(clusters=clusters, clients_per_cluster=clients, dimension=dimension, seed=seed)
        truth = source.truth().clients
        for m in sizes:
            for method, estimate in _estimates(truth, clients, m, np.random.default_rng([seed, m])).items():
                error = np.linalg.norm(estimate - truth, axis=1)
                about = {"seed": seed, "m": m, "method": method}
                rows.append(about | {"mean": error.mean(), "sd": error.std(), "max": error.max()})
            if progress is not None:
                done = seed * len(sizes) + sizes.index(m) + 1
                progress(f"table 1, seed {seed}, m = {m}", done, seeds * len(sizes), {})
    return rows


def _estimates(truth: np.ndarray, clients: int, m: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw m samples of every client and estimate its coefficients with each method: `[clients, dimension]`."""
    from coterie.estimators import (
        HierarchicalLinearRegression,
        HierarchicalLinearRegressionCV,
        LocalRegression,
        PooledRegression,
    )

    x = rng.standard_normal((len(truth), m, truth.shape[1]))
    y = np.einsum("knd,kd->kn", x, truth) + rng.standard_normal((len(truth), m))
    group = np.repeat(np.arange(len(truth)), m)
    rows = x.reshape(-1, truth.shape[1]), y.ravel()
    known: dict[str, Any] = {"residual_variance": 1.0, "group_variance": 1.0, "within_variance": 1.0}
    single = HierarchicalLinearRegressionCV(
        gammas=PENALTIES, covariance="isotropic", cv=FOLDS, fit_intercept=False, random_state=0
    )
    estimated: dict[str, Any] = {"fit_intercept": False, "covariance": "isotropic"}
    models: dict[str, Any] = {
        "locally trained": LocalRegression(fit_intercept=False),
        "single model": PooledRegression(fit_intercept=False),
        "single cluster": single,  # without clusters, (5.2) shrinks every client to one centre
        "single cluster, estimated": HierarchicalLinearRegression(**estimated),
        "ours, exact": HierarchicalLinearRegression(fit_intercept=False, **known),
        "ours, estimated": HierarchicalLinearRegression(**estimated),
    }
    estimates = {"ours": simplified_l2gd(x, y, np.arange(len(truth)) // clients, rng)}
    for name, model in models.items():
        within = group // clients if name.startswith("ours") else None
        estimates[name] = model.fit(*rows, groups=group, within=within).coef_
    return estimates


def summarise_table1(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Average over seeds: mean, its standard deviation over seeds, sd and max, and the paper's figures."""
    summary = []
    for m in sorted({row["m"] for row in rows}):
        for method in dict.fromkeys(row["method"] for row in rows):
            same = [row for row in rows if row["m"] == m and row["method"] == method]
            values = {key: np.array([row[key] for row in same]) for key in ("mean", "sd", "max")}
            spread = float(values["mean"].std(ddof=1)) if len(same) > 1 else 0.0
            figures = TABLE1.get(m, {}).get(method)
            paper = dict.fromkeys(("paper_mean", "paper_sd", "paper_max"))
            paper |= {} if figures is None else dict(zip(paper, map(float, figures), strict=True))
            averages = {key: float(value.mean()) for key, value in values.items()}
            summary.append({"m": m, "method": method, **averages, "over_seeds": spread, "seeds": len(same), **paper})
    return summary


def record_table1(summary: Sequence[dict[str, Any]], command: str) -> Record:
    """Return the record of Table 1: for each m and row of the table the paper's cell and ours."""
    figures: dict[tuple[int, str], dict[str, Any]] = {}
    for row in summary:
        shown = {"mean": row["mean"], "clients": row["sd"], "max": row["max"]}
        figures[row["m"], row["method"]] = shown | {"seeds": row["over_seeds"] if row["seeds"] > 1 else None}
    rows = []
    for m in sorted({row["m"] for row in summary}):
        for name, columns in ROWS.items():
            own = {block: figures[m, method] for block, method in columns.items()}
            cells = {block: cell(each, ("mean", "clients", "max"), 3) for block, each in own.items()}
            rows.append({"row": f"m = {m}, {name}", "paper": _paper(m, name), "figures": own, **cells})
    return make_record(
        TITLE,
        SOURCE,
        rows,
        statistics="mean ± standard deviation / maximum over clients [standard deviation of the mean over simulations]",
        command=command,
        differences=differences_of(TABLE1_DIFFERENCES, ROWS, ("printed", "tuned")),
        seeds=max(row["seeds"] for row in summary),
    )


def expected_table1() -> Record:
    """Return the record of Table 1 before anything is run."""
    rows = [{"row": f"m = {m}, {name}", "paper": _paper(m, name)} for m in TABLE1 for name in ROWS]
    return make_record(TITLE, SOURCE, rows, statistics="", command="coterie reproduce clusters --study table1")


def _paper(m: int, row: str) -> str:
    """Return the paper's cell."""
    if m not in TABLE1:
        return ""
    mean, spread, largest = TABLE1[m][row]
    return f"{mean} ± {spread} / {largest}"
