# Reference values for tests/estimators/test_glmer.py, made once with Debian's r-cran-lme4 and r-cran-jsonlite:
#
#     apt-get install r-cran-lme4 r-cran-jsonlite
#     Rscript tests/reference/glmer.R "$COTERIE_DATA" > tests/reference/glmer.json
#
# Standard errors are those that lme4 prints, from the full Hessian. nAGQ = 1 is Laplace's approximation; `||` is lme4's diagonal covariance. The optimiser's tolerance is far below the
# test's.
suppressMessages({library(lme4); library(jsonlite)})
folder <- file.path(commandArgs(TRUE)[1], "tabular")
read <- function(name) read.csv(xzfile(file.path(folder, paste0(name, ".csv.xz"))))
control <- glmerControl(optimizer = "bobyqa", optCtrl = list(rhobeg = 0.1, rhoend = 1e-9, maxfun = 1e5), tolPwrss = 1e-12)

fit <- function(formula, data) {
  model <- glmer(formula, data, family = binomial, nAGQ = 1, control = control)
  components <- as.data.frame(VarCorr(model))
  list(
    formula = paste(deparse(formula), collapse = " "),
    rows = nrow(data),
    log_likelihood = as.numeric(logLik(model)),
    fixed = as.list(fixef(model)),
    standard_error = as.list(sqrt(diag(as.matrix(vcov(model))))),
    components = data.frame(level = components$grp, name = components$var1, variance = components$vcov),
    effects = lapply(ranef(model, condVar = FALSE), function(table) list(label = rownames(table), value = as.list(table)))
  )
}

women <- read("mlmRev_Contraception")
women$use <- as.integer(women$use == "Y")
women$urban <- as.integer(women$urban == "Y")
women$children <- as.integer(women$livch != "0")
women$square <- women$age^2 / 100
result <- list(
  lme4 = as.character(packageVersion("lme4")),
  R = R.version.string,
  fits = list(
    intercept = fit(use ~ age + square + urban + children + (1 | district), women),
    slope = fit(use ~ age + square + urban + children + (urban || district), women)
  )
)
cat(toJSON(result, auto_unbox = TRUE, digits = 12, pretty = 1), "\n")
