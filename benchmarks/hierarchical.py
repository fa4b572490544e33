"""The hierarchical linear model against lme4 and statsmodels' MixedLM on one machine, and how it grows with groups.

    apt-get install r-cran-lme4
    python -m venv rival && rival/bin/pip install statsmodels
    COTERIE_DATA=... python benchmarks/hierarchical.py --statsmodels rival/bin/python

Chem97 (31,022 pupils in 2,410 schools in 131 districts; mlmRev's data in $COTERIE_DATA/tabular), random intercepts of
school in district, by REML. Every fit has its own process: `wall` includes start, imports, reading the CSV file and the
fit; `processor` is processor time, which depends less on the load of the machine (`load`); `fit` is the call of fit
alone. Each is the shortest of several runs.
Then groups of 20 rows with 10 features, 100 groups per district: all 11 coefficients vary at both levels, with the 22
variances given, and by REML; `peak` is the peak memory of the process, including its data.
"""

import argparse
import json
import lzma
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import publish

from coterie.experiment.device import choose_device

OURS = """
import json, sys, time
import pandas as pd
from coterie.estimators import HierarchicalLinearRegression
frame = pd.read_csv(sys.argv[1])
start = time.perf_counter()
model = HierarchicalLinearRegression("school", "lea", random="intercept").fit(
    frame[["school", "lea", "gcsecnt"]], frame["score"])
fit = time.perf_counter() - start
v = model.variance_components_
print(json.dumps({"fit": fit, "variances": [v["group"]["intercept"], v["within"]["intercept"], v["residual"]]}))
"""

LME4 = """
suppressMessages(library(lme4))
frame <- read.csv(commandArgs(TRUE)[1])
start <- proc.time()[["elapsed"]]
model <- lmer(score ~ gcsecnt + (1 | lea) + (1 | school), frame, REML = TRUE)
fit <- proc.time()[["elapsed"]] - start
v <- as.data.frame(VarCorr(model))
v <- c(v$vcov[v$grp == "school"], v$vcov[v$grp == "lea"], v$vcov[v$grp == "Residual"])
cat(sprintf('{"fit": %.4f, "variances": [%.10g, %.10g, %.10g]}', fit, v[1], v[2], v[3]))
"""

STATSMODELS = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import pandas as pd
import statsmodels.formula.api as smf
frame = pd.read_csv(sys.argv[1])
start = time.perf_counter()
model = smf.mixedlm("score ~ gcsecnt", frame, groups="lea", re_formula="1", vc_formula={"school": "0 + C(school)"})
fitted = model.fit(reml=True)
fit = time.perf_counter() - start
v = [float(fitted.vcomp[0]), float(fitted.cov_re.iloc[0, 0]), float(fitted.scale)]
print(json.dumps({"fit": fit, "variances": v}))
"""

MANY = """
import json, resource, sys, time
import numpy as np
from coterie.estimators import HierarchicalLinearRegression
groups, given = int(sys.argv[1]), sys.argv[2] == "given"
random = np.random.default_rng(0)
X, group = random.normal(size=(20 * groups, 10)), np.repeat(np.arange(groups), 20)
theta = 1 + 0.5 * random.normal(size=(groups // 100, 11))[np.arange(groups) // 100] + random.normal(size=(groups, 11))
y = theta[group, 0] + np.einsum("nd,nd->n", X, theta[group, 1:]) + random.normal(size=len(group))
variances = dict(residual_variance=1.0, group_variance=1.0, within_variance=0.25) if given else {}
start = time.perf_counter(), time.process_time()
model = HierarchicalLinearRegression(**variances).fit(X, y, groups=group, within=group // 100)
wall, processor = time.perf_counter() - start[0], time.process_time() - start[1]
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
error = float(np.sqrt(np.mean((model.coef_ - theta[:, 1:]) ** 2)))
print(json.dumps({"wall": round(wall, 3), "processor": round(processor, 3), "peak_gib": round(peak, 2),
                  "coefficient_rmse": round(error, 4)}))
"""


def timed(command: list[str]) -> dict[str, Any]:
    """Run a process; return the JSON it printed, with its wall and processor time."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": round(wall, 3), "processor": round(processor, 3), **json.loads(done.stdout)}


def chem97(data: Path, rscript: str, statsmodels: str | None, repeats: int) -> dict[str, Any]:
    """Time the same fit by all programs, in turn, with the same number of runs each."""
    with tempfile.TemporaryDirectory() as folder:
        file, script = Path(folder) / "chem97.csv", Path(folder) / "fit.R"
        file.write_bytes(lzma.decompress((data / "tabular" / "mlmRev_Chem97.csv.xz").read_bytes()))
        script.write_text(LME4)
        commands = {
            "coterie": [sys.executable, "-c", OURS, str(file)],
            "lme4": [rscript, str(script), str(file)],
        }
        if statsmodels is not None:
            commands["statsmodels"] = [statsmodels, "-c", STATSMODELS, str(file)]
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
        for _ in range(repeats):
            for name, command in commands.items():
                runs[name].append(timed(command))
    # The shortest of each time, since load only ever adds to one.
    best = {
        name: {**each[0], **{key: min(run[key] for run in each) for key in ("wall", "processor", "fit")}}
        for name, each in runs.items()
    }
    ours = best["coterie"]
    rivals = [name for name in best if name != "coterie"]
    ratio = {
        name: {key: round(best[name][key] / ours[key], 1) for key in ("wall", "processor", "fit")} for name in rivals
    }
    return {"runs": repeats, "seconds": best, "times_faster_than": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("COTERIE_DATA"))
    parser.add_argument("--rscript", default="Rscript")
    parser.add_argument("--statsmodels", help="the Python of an environment that has statsmodels")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--groups", type=int, nargs="+", default=[1000, 3000, 10_000, 30_000, 100_000])
    args = parser.parse_args()
    if args.data is None:
        parser.error("--data: give the folder of the data, or set COTERIE_DATA")
    load = round(os.getloadavg()[0], 1)
    figures: dict[str, Any] = {"load": load, "chem97": chem97(args.data, args.rscript, args.statsmodels, args.repeats)}
    for kind in ("given", "reml"):
        figures[kind] = {n: timed_many(n, kind) for n in args.groups}
    publish("hierarchical", choose_device("cpu").label, figures)


def timed_many(groups: int, kind: str) -> dict[str, Any]:
    """Time one fit of many groups in its own process."""
    done = subprocess.run([sys.executable, "-c", MANY, str(groups), kind], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


if __name__ == "__main__":
    main()
