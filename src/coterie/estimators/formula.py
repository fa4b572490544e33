"""Formulas: the fixed part is read by formulaic, the random terms in brackets by us.

    score ~ age + C(sex) + (1 + age | district/school) + (1 | neighbourhood)

A random term is `(coefficients | levels)`. `a/b` means levels a, and b within a; `a:b` the combinations of both. Its
coefficients must be among the fixed ones, since a group deviates from what all share; `1` is the intercept, `0 +`
leaves it out, and `||` leaves out correlations. Levels that lie in each other are solved as such, all others cross.
"""

import re
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.estimators.columns import need_pandas
from coterie.estimators.grouping import InvalidData
from coterie.estimators.rows import Parts
from coterie.spec import nearest

__all__ = ["Formula", "RandomTerm", "formula_parts", "has_intercept", "parse"]

_TERM = re.compile(r"\(([^()|]*(?:\([^()]*\)[^()|]*)*)(\|\|?)([^()|]*)\)")


@dataclass(frozen=True)
class RandomTerm:
    """What varies (names as written, "1" for the intercept) between the combinations of some columns."""

    varying: tuple[str, ...]
    columns: tuple[str, ...]
    correlated: bool

    @property
    def name(self) -> str:
        """The level's name."""
        return ":".join(self.columns)


@dataclass(frozen=True)
class Formula:
    """A formula in its parts."""

    fixed: str
    terms: tuple[RandomTerm, ...]


def parse(text: str) -> Formula:
    """Split a formula into its fixed part and its random terms."""
    if not isinstance(text, str) or text.count("~") != 1:
        raise InvalidData(f'formula: must be text such as "y ~ x + (1 | group)", not {text!r}')
    if text.count("(") != text.count(")"):
        raise InvalidData(f"formula: not every bracket of {text!r} has its partner; write (1 + x | group)")
    response, right = text.split("~")
    terms: list[RandomTerm] = []
    for inside, bar, levels in _TERM.findall(right):
        varying = tuple(part.strip() for part in inside.split("+") if part.strip())
        if not varying:
            raise InvalidData(
                f"formula: nothing varies in ({inside}{bar}{levels}); write (1 | group) for the intercept"
            )
        implied = () if varying[0] in ("0", "-1", "1") else ("1",)
        chosen = (*implied, *(name for name in varying if name not in ("0", "-1")))
        for columns in _levels(levels):
            terms.append(RandomTerm(chosen, columns, bar == "|"))
    if not terms:
        raise InvalidData(f"formula: {text!r} has no random term; add one such as (1 | school)")
    fixed = re.sub(r"\s*[+]\s*(?=[+]|$)", " ", re.sub(r"~\s*[+]", "~", f"{response}~{_TERM.sub('', right)}").strip())
    fixed = re.sub(r"([+]\s*)+[+]", "+", fixed).strip().rstrip("+").strip()
    if "|" in fixed:
        raise InvalidData(f"formula: the random terms of {text!r} could not be read; write each as (1 + x | group)")
    return Formula(f"{fixed} 1" if fixed.endswith("~") else fixed, tuple(terms))


def has_intercept(text: str) -> bool:
    """Whether the fixed part has an intercept: `0 +` or `- 1` leave it out."""
    right = parse(text).fixed.partition("~")[2]
    return not re.search(r"(^|[+])\s*0\s*([+]|$)|-\s*1\b", right)


def _levels(text: str) -> list[tuple[str, ...]]:
    """Return the columns of each level that `a/b` or `a:b` means, the finest first."""
    names = [tuple(part.strip() for part in step.split(":")) for step in text.split("/")]
    if any(not name for step in names for name in step):
        raise InvalidData(f"formula: {text.strip()!r} names no group; write (1 | school) or (1 | district/school)")
    joined = [sum(names[: k + 1], ()) for k in range(len(names))]
    return joined[::-1]


def formula_parts(model: Any, frame: Any, y: Any, given: dict[str, Any], fitting: bool) -> Parts:
    """Return features, target and levels of a frame as the model's formula says; at fit the formula is learned."""
    pd = need_pandas("formula")
    if not hasattr(frame, "columns"):
        raise InvalidData("X: a formula needs a DataFrame with the columns that it names")
    if fitting and not len(frame):
        raise InvalidData("X: the frame has no rows to fit")
    if any(value is not None for name, value in given.items() if name in ("groups", "within")) or y is not None:
        raise InvalidData("formula: groups and y come from the formula's columns; do not pass them")
    for setting in ("groups", "within", "crossed"):
        if getattr(model, setting) is not None:
            raise InvalidData(f"formula: the formula names the groups, so leave out {setting}=")
    formula = parse(model.formula)
    for column in dict.fromkeys(name for term in formula.terms for name in term.columns):
        if column not in frame.columns:
            raise InvalidData(f"formula: the frame has no column {column!r}{nearest(column, map(str, frame.columns))}")
    if fitting:
        whole = _without_missing(model, frame, formula)
        features, target = _learn(model, whole, formula, pd)
    else:
        whole, target = frame, None
        features = _apply(model, frame)
    if fitting:
        model._formula_columns = {term.name: _shortest(whole, term.columns, pd) for term in formula.terms}
    short = {name: ":".join(columns) for name, columns in model._formula_columns.items()}
    columns = {short[name]: _labels(whole, used, pd) for name, used in model._formula_columns.items()}
    if fitting:
        model._formula_levels = _order(columns)
        model._formula_settings = _settings(formula, model, list(features.columns))
    nested, crossed = model._formula_levels
    extra = {}
    for setting in ("offset", "weights"):
        name = getattr(model, setting)
        extra[setting] = whole[name] if isinstance(name, str) and name in whole.columns else given.get(setting)
    return Parts(
        features if features.shape[1] else features.to_numpy(),  # an intercept alone: scikit-learn wants no empty frame
        target,
        columns[nested[0]],
        [columns[name] for name in nested[1:]],
        [columns[name] for name in crossed],
        extra["offset"],
        extra["weights"],
        (*nested, *crossed),
    )


def _formulaic() -> Any:
    try:
        import formulaic  # type: ignore[import-untyped]
    except ImportError as error:
        raise InvalidData("formula: needs formulaic; install coterie[formula]") from error
    return formulaic


def _without_missing(model: Any, frame: Any, formula: Formula) -> Any:
    """Return the frame without rows in which a column that the formula needs is empty, or refuse those."""
    try:
        needed = {str(name) for name in _formulaic().Formula(formula.fixed).required_variables}
    except InvalidData:
        raise
    except Exception as error:
        raise InvalidData(f"formula: {_reason(error, frame)}") from None
    needed |= {name for term in formula.terms for name in term.columns}
    needed |= {name for name in (model.offset, model.weights) if isinstance(name, str)}
    empty = frame[[column for column in frame.columns if column in needed]].isna()
    rows = empty.any(axis=1).to_numpy()
    model._formula_dropped = int(rows.sum())
    if not rows.any():
        return frame
    if model._missing() == "raise":
        column = empty.columns[int(np.argmax(empty.to_numpy()[np.argmax(rows)]))]
        raise InvalidData(
            f"X: column {column!r} is empty in row {int(np.argmax(rows))}, and {rows.sum():,} rows lack something; "
            'fill them, or use missing="drop"'
        )
    if rows.all():
        raise InvalidData('missing: every row has a missing value, so missing="drop" leaves none')
    return frame[~rows]


def _learn(model: Any, frame: Any, formula: Formula, pd: Any) -> tuple[Any, Any]:
    """Evaluate the fixed part, keep how, and return features and target."""
    try:
        both = _formulaic().model_matrix(formula.fixed, frame, na_action="ignore", output="pandas")
    except InvalidData:
        raise
    except Exception as error:
        raise InvalidData(f"formula: {_reason(error, frame)}") from None
    design, target = pd.DataFrame(both.rhs), pd.DataFrame(both.lhs)
    model._formula_spec = both.rhs.model_spec
    model._formula_words = {name: set(frame[name]) for name in _needed(model, frame) if not _is_number(frame[name], pd)}
    if ("Intercept" in design.columns) != model.fit_intercept:
        raise InvalidData("formula: an intercept that the formula leaves out, or has, needs the same fit_intercept=")
    left = formula.fixed.partition("~")[0].strip()
    if left in frame.columns:  # a word as target stays a word
        return _plain(design), frame[left]
    if target.shape[1] != 1:
        raise InvalidData(f"formula: its left side gives {target.shape[1]} columns; name one")
    return _plain(design), target.iloc[:, 0]


def _apply(model: Any, frame: Any) -> Any:
    """Return the features of further rows, encoded as at fit; a row with something missing is NaN."""
    pd = need_pandas("formula")
    whole = ~frame[_needed(model, frame)].isna().any(axis=1).to_numpy()
    for name, known in model.__dict__.get("_formula_words", {}).items():
        new = [] if name not in frame.columns else sorted(set(frame.loc[whole, name]) - known, key=str)
        if new:
            seen = ", ".join(map(str, sorted(known, key=str)[:8])) + (", ..." if len(known) > 8 else "")
            raise InvalidData(f"X: column {name!r} has {new[0]!r}, which no row of the fit had ({seen})")
    try:
        with warnings.catch_warnings():
            # formulaic takes a class that it has not seen (a number under C) for the first one, and warns.
            warnings.simplefilter("error", _formulaic().errors.DataMismatchWarning)
            design = model._formula_spec.get_model_matrix(frame[whole], na_action="ignore", output="pandas")
    except Exception as error:
        raise InvalidData(f"formula: {_reason(error, frame)}") from None
    known = _plain(pd.DataFrame(design))
    features = np.full((len(frame), known.shape[1]), np.nan)
    features[whole] = known.to_numpy()
    return pd.DataFrame(features, columns=known.columns, index=frame.index)


def _needed(model: Any, frame: Any) -> list[str]:
    """Return the frame's columns that the fixed part needs."""
    used = {str(name) for name in model._formula_spec.required_variables}
    return [column for column in frame.columns if column in used]


def _is_number(column: Any, pd: Any) -> bool:
    return bool(pd.api.types.is_numeric_dtype(column) or pd.api.types.is_datetime64_any_dtype(column))


def _plain(design: Any) -> Any:
    return design.drop(columns="Intercept", errors="ignore").astype(np.float64)


def _reason(error: Exception, frame: Any) -> str:
    """Say in one sentence what was wrong; a misspelt column gets a guess."""
    text = str(error)
    if unseen := re.search(r"original dataset\): \{(?:[\w.]+\()?([^,})]+)", text):
        return f"no row of the fit had {unseen[1]}, which a column under C() has here"
    missing = re.search(r"'([^']+)' is not (?:defined|present)|name '([^']+)'|`([^`]+)`", text)
    name = next((group for group in missing.groups() if group), None) if missing else None
    if name is not None and name not in frame.columns:
        known = [str(column) for column in frame.columns]
        return f"the frame has no column {name!r}{nearest(name, known) or '; it has ' + ', '.join(known)}"
    return f"it could not be evaluated ({text.splitlines()[0] if text else type(error).__name__})"


def _labels(frame: Any, columns: tuple[str, ...], pd: Any) -> Any:
    """Return the labels of a level: a column, or combinations such as "north:3"."""
    if len(columns) == 1:
        return frame[columns[0]]
    empty = frame[list(columns)].isna().any(axis=1)
    joined = frame[columns[0]].astype(str)
    for name in columns[1:]:
        joined = joined + ":" + frame[name].astype(str)
    return joined.where(~empty, None)


def _shortest(frame: Any, columns: tuple[str, ...], pd: Any) -> tuple[str, ...]:
    """Return the last column alone if its labels are never used twice: schools that have names of their own."""
    joined = _labels(frame, columns, pd).nunique()
    return columns[-1:] if joined == frame[columns[-1]].nunique() else columns


def _order(columns: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the levels that lie in each other, the finest first, and all others, which cross."""
    codes = {name: values.factorize()[0] for name, values in columns.items()}
    by_size = sorted(codes, key=lambda name: -codes[name].max())
    nested: list[str] = by_size[:1]
    crossed: list[str] = []
    for name in by_size[1:]:
        below = codes[nested[-1]]
        seen = (below >= 0) & (codes[name] >= 0)
        pairs = np.unique(np.stack([below[seen], codes[name][seen]]), axis=1)
        (nested if len(np.unique(pairs[0])) == pairs.shape[1] else crossed).append(name)
    return nested, crossed


def _settings(formula: Formula, model: Any, columns: list[str]) -> dict[str, Any]:
    """Return `random` and `covariance` of every level; several terms of one level are uncorrelated with each other."""
    random: dict[str, list[str]] = {}
    covariance: dict[str, str] = {}
    terms = {str(part.term): [str(column) for column in part.columns] for part in model._formula_spec.structure}
    for term in formula.terms:
        level, names = ":".join(model._formula_columns[term.name]), []
        if "1" in term.varying and not model.fit_intercept:
            raise InvalidData(
                f"formula: the intercept varies between {term.name}, but the fixed part leaves it out; take 0 + or - 1 "
                f"out of it, or write (0 + x | {term.name})"
            )
        for name in term.varying:
            found = ["intercept"] if name == "1" else [name] if name in columns else terms.get(name)
            if found is None:
                raise InvalidData(
                    f"formula: {name!r} varies between {term.name} but is not in the fixed part"
                    f"{nearest(name, columns) or '; add it there'}"
                )
            names += found
        several = [part for part in (random.get(level, []), names) if len(part) > 1]
        if level in random and several and (term.correlated or covariance[level] == "full"):
            raise InvalidData(f"formula: there are two terms of {level}, one with correlations; write one of them")
        covariance[level] = "full" if term.correlated and level not in random else "diagonal"
        random.setdefault(level, []).extend(names)
    return {"random": random, "covariance": covariance}
