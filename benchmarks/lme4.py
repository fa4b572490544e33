"""Our estimators beside lme4 on data sets of R's packages: estimates, errors, likelihoods and times.

    apt-get install r-cran-lme4 r-cran-nlme r-cran-mlmrev r-cran-mass r-cran-jsonlite
    python benchmarks/lme4.py [--only NAME]

R writes the rows that both programs read (benchmarks/lme4.R), fits, and returns its numbers. The result in
benchmarks/results is what docs/_build/estimators.py makes docs/results/estimators.md from. Both programs' times are the
best of three fits in a running process; ours include the standard errors, as lme4's do.
"""

import argparse
import datetime
import json
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
# Name, kind, R's rows, R's formula, and ours where it is written differently; weights are a column.
MODELS: list[dict[str, Any]] = [
    {"name": "sleepstudy", "kind": "linear", "data": "sleepstudy", "r": "Reaction ~ Days + (1 + Days | Subject)"},
    {"name": "sleepstudy-weights", "kind": "linear", "data": "transform(sleepstudy, w = 1 + Days %% 3)",
     "r": "Reaction ~ Days + (1 + Days | Subject)", "weights": "w"},
    {"name": "Penicillin", "kind": "linear", "data": "Penicillin", "r": "diameter ~ 1 + (1 | plate) + (1 | sample)"},
    {"name": "Pastes", "kind": "linear", "data": "Pastes", "r": "strength ~ 1 + (1 | batch/cask)"},
    {"name": "Machines", "kind": "linear", "data": "as.data.frame(Machines)",
     "r": "score ~ Machine + (1 | Worker/Machine)", "ours": "score ~ C(Machine) + (1 | Worker/Machine)"},
    {"name": "Orthodont", "kind": "linear", "data": "as.data.frame(Orthodont)",
     "r": "distance ~ age + Sex + (1 + age | Subject)", "ours": "distance ~ age + C(Sex, contr.treatment('Male')) + (1 + age | Subject)"},
    {"name": "oats", "kind": "linear", "data": "oats", "r": "Y ~ N + V + (1 | B/V)", "ours": "Y ~ C(N) + C(V) + (1 | B/V)"},
    {"name": "Exam", "kind": "linear", "data": "Exam[c('normexam', 'standLRT', 'school')]",
     "r": "normexam ~ standLRT + (1 + standLRT | school)"},
    {"name": "nlschools", "kind": "linear", "data": "nlschools", "r": "lang ~ IQ + SES + (1 + IQ | class)"},
    {"name": "MathAchieve", "kind": "linear", "data": "as.data.frame(MathAchieve)",
     "r": "MathAch ~ SES + MEANSES + (1 + SES | School)"},
    {"name": "ScotsSec", "kind": "linear", "data": "ScotsSec", "r": "attain ~ verbal + sex + (1 | primary) + (1 | second)",
     "ours": "attain ~ verbal + C(sex) + (1 | primary) + (1 | second)"},
    {"name": "egsingle", "kind": "linear", "data": "egsingle[c('math', 'year', 'schoolid', 'childid')]",
     "r": "math ~ year + (1 + year | schoolid/childid)"},
    {"name": "Chem97", "kind": "linear", "data": "Chem97[c('score', 'gcsecnt', 'school', 'lea')]",
     "r": "score ~ gcsecnt + (1 + gcsecnt | school) + (1 | lea)"},
    {"name": "star", "kind": "linear", "data": "star[c('math', 'gr', 'sx', 'id', 'tch', 'sch')]", "repeats": 1,
     "r": "math ~ gr + sx + (1 | id) + (1 | tch) + (1 | sch)", "ours": "math ~ C(gr, levels=['K', '1', '2', '3']) + C(sx, levels=['M', 'F']) + (1 | id) + (1 | tch) + (1 | sch)"},
    {"name": "Contraception", "kind": "logistic", "data": "Contraception", "r": "use ~ age + urban + (1 + urban | district)",
     "ours": "use ~ age + C(urban) + (1 + C(urban) | district)"},
    {"name": "guPrenat", "kind": "logistic", "data": "guPrenat[c('prenat', 'cluster', 'pcInd81', 'ssDist', 'indig', 'momEd')]",
     "r": "prenat ~ pcInd81 + ssDist + indig + momEd + (1 | cluster)",
     "ours": "prenat ~ pcInd81 + ssDist + C(indig, levels=['N', 'I', 'S']) + C(momEd, levels=['N', 'P', 'S']) + (1 | cluster)"},
    {"name": "cbpp", "kind": "logistic", "weights": "w",
     "data": "with(cbpp, rbind(data.frame(herd, period, sick = 1, w = incidence), data.frame(herd, period, sick = 0, w = size - incidence)))",
     "r": "sick ~ period + (1 | herd)", "ours": "sick ~ C(period) + (1 | herd)"},
    {"name": "bacteria", "kind": "logistic", "data": "transform(bacteria, late = as.integer(week > 2))",
     "r": "y ~ trt + late + (1 | ID)", "ours": "y ~ C(trt, levels=['placebo', 'drug', 'drug+']) + late + (1 | ID)"},
    {"name": "VerbAgg", "kind": "logistic", "data": "VerbAgg[c('r2', 'Anger', 'Gender', 'btype', 'situ', 'id', 'item')]", "repeats": 1,
     "r": "r2 ~ Anger + Gender + btype + situ + (1 | id) + (1 | item)",
     "ours": "r2 ~ Anger + C(Gender) + C(btype, levels=['curse', 'scold', 'shout']) + C(situ, levels=['other', 'self']) + (1 | id) + (1 | item)"},
]  # fmt: skip


def ours(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Fit one model and return its numbers in R's order of coefficients."""
    frame = pd.read_csv(folder / f"{spec['name']}.csv")
    formula = spec.get("ours", spec["r"])
    seconds = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(spec.get("repeats", 3)):
            start = time.perf_counter()
            model = CLASSES[spec["kind"]].from_formula(formula, weights=spec.get("weights")).fit(frame)
            errors = model.bse_
            seconds.append(time.perf_counter() - start)
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
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        reference = json.loads(done.stdout)
        rows = []
        for model in models:
            theirs, mine = reference["fits"][model["name"]], ours(model, folder)
            gap = differences(theirs, mine)
            rows.append(model | {"lme4": theirs, "coterie": mine, "differences": gap})
            shown = ", ".join(f"{key} {value:.1e}" for key, value in gap.items())
            print(f"{model['name']}: {shown}; {mine['seconds']:.2f} s, lme4 {theirs['seconds']:.2f} s", flush=True)
    record = {
        "command": "python benchmarks/lme4.py",
        "date": str(datetime.date.today()),
        "hardware": f"{platform.processor() or platform.machine()}, {platform.system()}",
        "python": platform.python_version(),
        "R": reference["R"],
        "lme4": reference["lme4"],
        "models": rows,
    }
    if arguments.only is None:
        Path(arguments.out).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
