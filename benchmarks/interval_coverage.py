"""How often intervals of 95 % cover the truth, with 20 small groups.

    python benchmarks/interval_coverage.py [--repeats 2000] [--glmer 300]

Groups have 5 rows; the intercept and the slope vary between them and are correlated. Counted are the intercept, the
slope of a feature that varies within groups, and the one of a feature of the group, each for numbers and for two
classes (errors from the full Hessian; only the intercept varies), with t and Satterthwaite's degrees of freedom. With
--glmer also those that R's lme4 prints for the classes, which are normal, of the first simulations (r-cran-lme4). The
result is in benchmarks/results, and docs/_build/estimators.py prints it.
"""

import argparse
import datetime
import json
import subprocess
import tempfile
import warnings
from pathlib import Path

import numpy as np

from coterie.estimators import HierarchicalLinearRegression, HierarchicalLogisticRegression

GROUPS, ROWS = 20, 5
R = """
suppressMessages(library(lme4))
folder <- commandArgs(TRUE)[1]
rows <- read.csv(file.path(folder, "rows.csv"))
found <- lapply(split(rows, rows$seed), function(part) {
  model <- suppressWarnings(suppressMessages(glmer(y ~ x0 + x1 + (1 | group), part, family = binomial)))
  c(fixef(model), sqrt(diag(as.matrix(vcov(model)))))
})
write.csv(do.call(rbind, found), file.path(folder, "found.csv"), row.names = FALSE)
"""
TRUTH = {"intercept": 0.5, "x0": 1.0, "x1": -0.5}


def simulate(seed: int, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return features, numbers, classes and groups; the classes have a varying intercept only."""
    random = np.random.default_rng(seed)
    group = np.repeat(np.arange(GROUPS), rows)
    x = np.column_stack([random.normal(size=len(group)), random.normal(size=GROUPS)[group]])
    effects = random.multivariate_normal([0, 0], [[1.0, 0.3], [0.3, 0.5]], GROUPS)
    fixed = TRUTH["intercept"] + x @ [TRUTH["x0"], TRUTH["x1"]]
    y = fixed + effects[group, 0] + x[:, 0] * effects[group, 1] + random.normal(size=len(group))
    classes = random.random(len(group)) < 1.0 / (1.0 + np.exp(-fixed - effects[group, 0]))
    return x, y, classes.astype(int), group


def covered(kind: str, seeds: range, level: float = 0.95) -> dict[str, float]:
    """Return how often each coefficient's interval covered its true value."""
    hits = []
    for seed in seeds:
        x, y, classes, group = simulate(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if kind == "linear":
                model = HierarchicalLinearRegression(random=["intercept", "x0"]).fit(x, y, groups=group)
            else:
                model = HierarchicalLogisticRegression(random="intercept").fit(x, classes, groups=group)
            table = model.conf_int(level)
        hits.append([table.loc[name, "lower"] <= value <= table.loc[name, "upper"] for name, value in TRUTH.items()])
    return dict(zip(TRUTH, np.mean(hits, axis=0).tolist(), strict=True))


def covered_by_glmer(seeds: range) -> dict[str, float]:
    """Return how often the intervals covered that glmer's estimates and standard errors make."""
    with tempfile.TemporaryDirectory() as name:
        folder, rows = Path(name), []
        for seed in seeds:
            x, _, classes, group = simulate(seed)
            rows.append(np.column_stack([np.full(len(group), seed), group, x, classes]))
        table = np.concatenate(rows)
        np.savetxt(folder / "rows.csv", table, fmt="%.17g", delimiter=",", header="seed,group,x0,x1,y", comments="")
        (folder / "fit.R").write_text(R)
        subprocess.run(["Rscript", str(folder / "fit.R"), name], check=True)
        found = np.loadtxt(folder / "found.csv", delimiter=",", skiprows=1)
    estimates, errors = found[:, : len(TRUTH)], found[:, len(TRUTH) :]
    hits = np.abs(estimates - list(TRUTH.values())) <= 1.959964 * errors
    return dict(zip(TRUTH, hits.mean(axis=0).tolist(), strict=True))


def main() -> None:
    """Count, and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--glmer", type=int, default=0, help="simulations that glmer fits, too")
    arguments = parser.parse_args()
    found = {kind: covered(kind, range(arguments.repeats)) for kind in ("linear", "logistic")}
    options = f"--repeats {arguments.repeats}" + (f" --glmer {arguments.glmer}" if arguments.glmer else "")
    repeats = dict.fromkeys(found, arguments.repeats)
    if arguments.glmer:
        # Ours of the same simulations beside them: fewer simulations are less sure.
        found |= {
            "glmer": covered_by_glmer(range(arguments.glmer)),
            "same": covered("logistic", range(arguments.glmer)),
        }
        repeats |= {"glmer": arguments.glmer, "same": arguments.glmer}
    record = {
        "command": f"python benchmarks/interval_coverage.py {options}",
        "date": str(datetime.date.today()),
        "groups": GROUPS,
        "rows": ROWS,
        "repeats": repeats,
        "covered": found,
    }
    file = Path(__file__).parent / "results" / f"{datetime.date.today()}-interval-coverage.json"
    file.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
