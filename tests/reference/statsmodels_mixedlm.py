"""Reference values for tests/estimators/test_lme4.py, made once in an environment of their own:

    python -m venv env && env/bin/pip install statsmodels
    env/bin/python tests/reference/statsmodels_mixedlm.py "$COTERIE_DATA" > tests/reference/statsmodels_mixedlm.json

MixedLM has no diagonal covariance for random slopes, so a slope is a variance component here. Fits that do not converge
are left out, with a note.
"""

import json
import sys
import warnings
from pathlib import Path

import pandas as pd
import statsmodels
import statsmodels.formula.api as smf

FITS = {
    "sleepstudy_intercept": ("lme4_sleepstudy", "Reaction ~ Days", "Subject", "1", None),
    "sleepstudy_slope": ("lme4_sleepstudy", "Reaction ~ Days", "Subject", "1", ("group", "Days", "0 + Days")),
    "mathachieve_intercept": ("nlme_MathAchieve", "MathAch ~ SES + MEANSES", "School", "1", None),
    "mathachieve_slope": (
        "nlme_MathAchieve", "MathAch ~ SES + MEANSES", "School", "1", ("group", "SES", "0 + SES"),
    ),
    "chem97_intercept": ("mlmRev_Chem97", "score ~ gcsecnt", "lea", "1", ("group", "intercept", "0 + C(school)")),
}  # fmt: skip


def main() -> None:
    found, left_out = {}, []
    for name, (file, formula, groups, re_formula, component) in FITS.items():
        frame = pd.read_csv(Path(sys.argv[1]) / "tabular" / f"{file}.csv.xz")
        vc = None if component is None else {"component": component[2]}
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            model = smf.mixedlm(formula, frame, groups=groups, re_formula=re_formula, vc_formula=vc)
            fit = model.fit(reml=True, gtol=1e-8)
        if not fit.converged:
            left_out.append(name)
            continue
        outer = "within" if name.startswith("chem97") else "group"
        variances: dict = {"residual": float(fit.scale), outer: {"intercept": float(fit.cov_re.iloc[0, 0])}}
        if component is not None:
            variances.setdefault(component[0], {})[component[1]] = float(fit.vcomp[0])
        found[name] = {"log_likelihood": float(fit.llf), "variances": variances}
    json.dump({"statsmodels": statsmodels.__version__, "fits": found, "not_converged": left_out}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
