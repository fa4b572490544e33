# Reference values for tests/estimators/test_simulated.py, made once with Debian's r-cran-lme4 and r-cran-jsonlite:
#
#     apt-get install r-cran-lme4 r-cran-jsonlite
#     Rscript tests/reference/simulated.R > tests/reference/simulated.json
#
# The rows are simulated here and kept with the fits. All fits and their standard errors are lme4's own; its tolerances are
# far below the tests'.
suppressMessages({library(lme4); library(jsonlite)})
set.seed(1)
n <- 240
rows <- data.frame(
  school = sprintf("s%02d", rep(1:24, each = 10)), district = sprintf("d%d", rep(1:8, each = 30)),
  region = sprintf("r%d", rep(c(1, 1, 2, 2, 3, 3, 4, 4), each = 30)), town = sprintf("t%02d", sample(1:12, n, TRUE)),
  age = round(rnorm(n, 10, 2), 3), sex = sample(c("f", "m"), n, TRUE), w = sample(1:4, n, TRUE)
)
code <- function(x) as.integer(factor(x))
slope <- rnorm(24, 0, 0.5)
level <- rnorm(24) + 0.8 * slope + rnorm(8)[code(rows$district)[seq(1, n, 10)]] + 1.5 * rnorm(4)[code(rows$region)[seq(1, n, 10)]]
linear <- 2 + 0.5 * (rows$age - 10) + level[code(rows$school)] + slope[code(rows$school)] * (rows$age - 10) + rnorm(12)[code(rows$town)]
rows$score <- round(linear + rnorm(n), 3)
rows$passed <- as.integer(runif(n) < plogis(linear - 2))
tight <- list(rhobeg = 0.1, rhoend = 1e-9, maxfun = 1e6)

fit <- function(formula, family = NULL, weights = rep(1, n), REML = TRUE) {
  rows$.w <- weights
  model <- if (is.null(family)) lmer(formula, rows, weights = .w, REML = REML, control = lmerControl(optimizer = "bobyqa", optCtrl = tight)) else
    glmer(formula, rows, family = binomial, weights = .w, control = glmerControl(optimizer = "bobyqa", optCtrl = tight, tolPwrss = 1e-12))
  effects <- ranef(model, condVar = FALSE)
  list(
    formula = paste(deparse(formula), collapse = " "), log_likelihood = as.numeric(logLik(model)), AIC = AIC(model), BIC = BIC(model),
    fixed = unname(fixef(model)), standard_error = unname(sqrt(diag(as.matrix(vcov(model))))),
    levels = lapply(VarCorr(model), function(x) matrix(as.numeric(x), nrow(x))),
    residual = if (is.null(family)) sigma(model)^2 else NULL,
    effects = lapply(effects, function(table) list(label = rownames(table), value = unname(as.list(table)))),
    fitted = unname(head(predict(model), 5))
  )
}
full <- lmer(score ~ age + (1 + age | school), rows, REML = FALSE, control = lmerControl(optimizer = "bobyqa", optCtrl = tight))
small <- lmer(score ~ 1 + (1 + age | school), rows, REML = FALSE, control = lmerControl(optimizer = "bobyqa", optCtrl = tight))
profile <- suppressMessages(confint(full, parm = "beta_"))
test <- anova(small, full)
result <- list(
  R = R.version.string, lme4 = as.character(packageVersion("lme4")), rows = as.list(rows),
  fits = list(
    correlated = fit(score ~ age + sex + (1 + age | school)),
    likelihood = fit(score ~ age + sex + (1 + age | school), REML = FALSE),
    crossed = fit(score ~ age + (1 + age | school) + (1 | town)),
    three = fit(score ~ age + (1 | region/district/school)),
    weights = fit(score ~ age + (1 | school), weights = rows$w),
    logistic = fit(passed ~ age + sex + (1 + age | school), family = binomial),
    logistic_crossed = fit(passed ~ age + (1 | school) + (1 | town), family = binomial),
    logistic_weights = fit(passed ~ age + (1 | school), family = binomial, weights = rows$w)
  ),
  profile = unname(profile), test = list(chisq = test$Chisq[2], p = test[["Pr(>Chisq)"]][2])
)
cat(toJSON(result, auto_unbox = TRUE, digits = I(12)), "\n")
