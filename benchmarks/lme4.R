# Fits the models of a list with lme4, for benchmarks/lme4.py, which calls it:
#
#     Rscript benchmarks/lme4.R models.json FOLDER > fits.json
#
# Each model's rows are written to FOLDER/<name>.csv first, so that both programs read the same numbers. Estimates come from
# fits with tolerances far below the comparison's; times (of the processor) from
# fits with lme4's own settings, the best of three.
suppressMessages({library(lme4); library(nlme); library(mlmRev); library(MASS); library(jsonlite)})
arguments <- commandArgs(TRUE)
models <- fromJSON(arguments[1], simplifyVector = FALSE)
tight <- list(rhobeg = 0.1, rhoend = 1e-9, maxfun = 1e6)

matrices <- function(model) lapply(VarCorr(model), function(x) {
  values <- matrix(as.numeric(x), nrow(x)); list(names = rownames(x), covariance = values)
})

fit_one <- function(spec) {
  data <- eval(parse(text = spec$data))
  data <- data[complete.cases(data), ]
  write.csv(data, file.path(arguments[2], paste0(spec$name, ".csv")), row.names = FALSE)
  for (column in names(data)) if (is.character(data[[column]])) data[[column]] <- factor(data[[column]])
  formula <- as.formula(spec$r)
  weights <- if (is.null(spec$weights)) NULL else data[[spec$weights]]
  data$.w <- if (is.null(weights)) 1 else weights
  run <- function(control) {
    if (spec$kind == "linear") lmer(formula, data, weights = .w, control = control$linear)
    else glmer(formula, data, family = binomial, weights = .w, control = control$logistic)
  }
  precise <- list(
    linear = lmerControl(optimizer = "bobyqa", optCtrl = tight, calc.derivs = FALSE),
    logistic = glmerControl(optimizer = "bobyqa", optCtrl = tight, tolPwrss = 1e-12)
  )
  plain <- list(linear = lmerControl(), logistic = glmerControl())
  repeats <- if (is.null(spec$repeats)) 3 else spec$repeats
  seconds <- min(sapply(seq_len(repeats), function(i) suppressMessages(suppressWarnings(sum(system.time(run(plain))[c("user.self", "sys.self")])))))
  model <- suppressMessages(suppressWarnings(run(precise)))
  list(
    rows = nrow(data), seconds = seconds, log_likelihood = as.numeric(logLik(model)),
    fixed = as.list(fixef(model)), standard_error = as.list(sqrt(diag(as.matrix(vcov(model))))),
    levels = matrices(model), residual = if (spec$kind == "linear") sigma(model)^2 else NULL
  )
}

fits <- list()
for (spec in models) fits[[spec$name]] <- fit_one(spec)
cat(toJSON(list(R = R.version.string, lme4 = as.character(packageVersion("lme4")), fits = fits), auto_unbox = TRUE, digits = I(12), na = "null"))
