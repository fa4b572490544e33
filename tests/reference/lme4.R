# Reference values for tests/estimators/test_lme4.py, made once with Debian's r-cran-lme4 and r-cran-jsonlite:
#
#     apt-get install r-cran-lme4 r-cran-jsonlite
#     Rscript tests/reference/lme4.R "$COTERIE_DATA" > tests/reference/lme4.json
#
# `||` is lme4's diagonal covariance. The optimiser's tolerance is far below the test's, which is 1e-3.
suppressMessages({library(lme4); library(jsonlite)})
folder <- file.path(commandArgs(TRUE)[1], "tabular")
read <- function(name) read.csv(xzfile(file.path(folder, paste0(name, ".csv.xz"))))
control <- lmerControl(optimizer = "bobyqa", optCtrl = list(rhobeg = 0.1, rhoend = 1e-9, maxfun = 1e5))

fit <- function(formula, data, every = 1) {
  model <- lmer(formula, data, REML = TRUE, control = control)
  effects <- lapply(ranef(model, condVar = FALSE), function(table) {
    kept <- seq(1, nrow(table), by = every)
    list(label = rownames(table)[kept], value = as.list(table[kept, , drop = FALSE]))
  })
  components <- as.data.frame(VarCorr(model))
  list(
    formula = paste(deparse(formula), collapse = " "),
    rows = nrow(data),
    criterion = REMLcrit(model),
    fixed = as.list(fixef(model)),
    standard_error = as.list(sqrt(diag(as.matrix(vcov(model))))),
    components = data.frame(level = components$grp, name = ifelse(is.na(components$var1), "", components$var1),
                            variance = components$vcov),
    effects = effects
  )
}

sleep <- read("lme4_sleepstudy")
math <- read("nlme_MathAchieve")
chem <- read("mlmRev_Chem97")
result <- list(
  lme4 = as.character(packageVersion("lme4")),
  R = R.version.string,
  fits = list(
    sleepstudy_intercept = fit(Reaction ~ Days + (1 | Subject), sleep),
    sleepstudy_slope = fit(Reaction ~ Days + (Days || Subject), sleep),
    mathachieve_intercept = fit(MathAch ~ SES + MEANSES + (1 | School), math, 4),
    mathachieve_slope = fit(MathAch ~ SES + MEANSES + (SES || School), math, 4),
    chem97_intercept = fit(score ~ gcsecnt + (1 | lea) + (1 | school), chem, 20),
    chem97_slope = fit(score ~ gcsecnt + (gcsecnt || lea) + (gcsecnt || school), chem, 20)
  )
)
cat(toJSON(result, auto_unbox = TRUE, digits = 12, pretty = 1), "\n")
