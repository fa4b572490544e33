"""Our estimators beside lme4 on data sets of R's packages: estimates, errors, likelihoods and times.

    apt-get install r-cran-lme4 r-cran-nlme r-cran-mlmrev r-cran-mass r-cran-jsonlite
    OPENBLAS_NUM_THREADS=1 python benchmarks/lme4.py [--only NAME]

R writes the rows that both programs read (benchmarks/lme4.R; gapminder comes with Plotly), fits, and returns numbers.
The result in benchmarks/results is what docs/_build/estimators.py makes docs/results/estimators.md from. Both programs'
times are those of one processor, the best of three fits in a running process; ours include the standard errors, as
lme4's do.
--only NAME fits one model again and puts it in its place in the newest record.
"""

import argparse
import datetime
import gzip
import json
import os
import platform
import subprocess
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coterie.estimators import HierarchicalLinearRegression, HierarchicalLogisticRegression

HERE = Path(__file__).parent
CLASSES = {"linear": HierarchicalLinearRegression, "logistic": HierarchicalLogisticRegression}
# Each has a name, a kind, R's rows, R's formula, and ours where it is written differently; weights are a column.
MODELS: list[dict[str, Any]] = json.loads((HERE / "lme4_models.json").read_text())


def ours(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Fit one model and return its numbers in R's order of coefficients."""
    frame = pd.read_csv(folder / f"{spec['name']}.csv", keep_default_na=False)  # a class may be called None
    formula = spec.get("ours", spec["r"])
    if spec["kind"] == "logistic" and not pd.api.types.is_numeric_dtype(
        frame[formula.split()[0]]
    ):  # R's order of the classes
        first = spec.get("first", sorted(frame[formula.split()[0]].unique())[0])
        frame[formula.split()[0]] = (frame[formula.split()[0]] != first).astype(int)
    seconds = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(spec.get("repeats", 3)):
            start = time.process_time()
            model = CLASSES[spec["kind"]].from_formula(formula, weights=spec.get("weights")).fit(frame)
            errors = model.bse_
            seconds.append(time.process_time() - start)
    return {
        "formula": formula,
        "rows": model._n_rows,
        "seconds": min(seconds),
        "log_likelihood": model.log_likelihood_,
        "fixed": model._coefficients().tolist(),
        "standard_error": errors.tolist(),
        "levels": {name: matrix.tolist() for name, matrix in model.covariances_.items()},
        "residual": model.variance_components_.get("residual"),
        "converged": bool(model.converged_),
    }


def differences(theirs: dict[str, Any], mine: dict[str, Any]) -> dict[str, float]:
    """Return the largest differences: relative, but of correlations and the log-likelihood absolute."""
    errors = np.array(list(theirs["standard_error"].values()))
    fixed = np.array(list(theirs["fixed"].values()))
    answer = {
        # A coefficient that is nearly zero is judged by its standard error.
        "coefficients": float(np.max(np.abs(np.array(mine["fixed"]) - fixed) / np.maximum(np.abs(fixed), errors))),
        "standard errors": float(np.max(np.abs(np.array(mine["standard_error"]) / errors - 1.0))),
        "log-likelihood": abs(mine["log_likelihood"] - theirs["log_likelihood"]),
    }
    variances, correlations = [], [0.0]
    for level in theirs["levels"].values():
        matrix = np.array(level["covariance"])
        found = min((np.array(m) for m in mine["levels"].values() if np.shape(m) == matrix.shape),
                    key=lambda m: float(np.abs(np.diag(m) - np.diag(matrix)).sum()))  # fmt: skip
        diagonal = np.diag(matrix)
        variances += (np.abs(np.diag(found) - diagonal) / np.maximum(diagonal, 1e-6)).tolist()
        if len(matrix) > 1 and (diagonal > 0).all():
            correlation = [m / np.sqrt(np.outer(np.diag(m), np.diag(m))) for m in (found, matrix)]
            correlations.append(float(np.max(np.abs(correlation[0] - correlation[1]))))
    if theirs.get("residual"):
        variances.append(abs(mine["residual"] / theirs["residual"] - 1.0))
    return answer | {"variances": max(variances), "correlations": max(correlations)}


def _gapminder(folder: Path) -> Path:
    """Write the rows that come with Plotly where R can read them."""
    import plotly

    packed = Path(plotly.__file__).parent / "package_data" / "datasets" / "gapminder.csv.gz"
    file = folder / "gapminder-all.csv"
    file.write_bytes(gzip.decompress(packed.read_bytes()))
    return file


def main() -> None:
    """Run both programs and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", help="one model")
    parser.add_argument("--out", default=str(HERE / "results" / f"{datetime.date.today()}-lme4.json"))
    arguments = parser.parse_args()
    models = [model for model in MODELS if arguments.only in (None, model["name"])]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "models.json").write_text(json.dumps(models))
        command = ["Rscript", str(HERE / "lme4.R"), str(folder / "models.json"), name]
        single = os.environ | {
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "GAPMINDER": str(_gapminder(folder)),
        }
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=single)
        reference = json.loads(done.stdout)
        rows = []
        for model in models:
            theirs, mine = reference["fits"][model["name"]], ours(model, folder)
            gap = differences(theirs, mine)
            rows.append(model | {"lme4": theirs, "coterie": mine, "differences": gap})
            shown = ", ".join(f"{key} {value:.1e}" for key, value in gap.items())
            print(f"{model['name']}: {shown}; {mine['seconds']:.2f} s, lme4 {theirs['seconds']:.2f} s", flush=True)
    record = {
        "command": "OPENBLAS_NUM_THREADS=1 python benchmarks/lme4.py",
        "date": str(datetime.date.today()),
        "hardware": f"{platform.processor() or platform.machine()}, {platform.system()}",
        "python": platform.python_version(),
        "R": reference["R"],
        "lme4": reference["lme4"],
        "models": rows,
    }
    if arguments.only is not None:
        newest = sorted((HERE / "results").glob("*-lme4.json"))[-1]
        earlier = json.loads(newest.read_text())
        known = {model["name"]: model for model in earlier["models"]} | {model["name"]: model for model in rows}
        record = earlier | {"models": [known[model["name"]] for model in MODELS if model["name"] in known]}
    Path(arguments.out).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
