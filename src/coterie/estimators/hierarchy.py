"""What the linear and the logistic hierarchical estimators share: which coefficients vary where, and the way back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.estimators.base import INTERCEPT, GroupedEstimator
from coterie.estimators.blocks import Nested
from coterie.estimators.crossed import Crossed
from coterie.estimators.grouping import InvalidData
from coterie.estimators.levels import Shape
from coterie.estimators.rows import Rows
from coterie.estimators.tree import Effect, Tree
from coterie.estimators.units import Units
from coterie.spec import nearest

__all__ = ["Hierarchical", "Layout", "Variance"]

_DEPENDENT = 1e-10  # smallest eigenvalue, of a correlation matrix, that still determines the coefficients

Variance = float | Sequence[float] | Mapping[str, float] | None


@dataclass(frozen=True)
class Layout:
    """The units of a fit, before the columns' units are known: a tree of groups, or cells of levels that cross."""

    tree: Tree | None
    codes: tuple[np.ndarray, ...]  # of cells
    unit: np.ndarray  # [rows] each row's group or cell, in the caller's order
    units: int

    @property
    def order(self) -> np.ndarray:
        """The caller's code of each unit, in the structure's order."""
        return np.arange(self.units) if self.tree is None else self.tree.order

    def structure(self, effects: tuple[Effect, ...]) -> Any:
        """Return the structure that solves for these effects."""
        if self.tree is not None:
            return Nested(self.tree, effects)
        crossed = Crossed(self.codes, effects)
        crossed.check()
        return crossed


class Hierarchical(GroupedEstimator):
    """A model with random coefficients: `random`, `covariance`, `group_variance` and `within_variance`."""

    @property
    def _needs_groups(self) -> bool:  # type: ignore[override]
        """A fit without groups is likely a mistake, unless nothing varies between them."""
        return not (isinstance(self.random, tuple | list) and not self.random)

    _covariances: tuple[str, ...] = ("full", "diagonal", "isotropic")

    def _setting(self, name: str) -> Any:
        """Return a setting; a formula may have its own."""
        return getattr(self, "_formula_settings", {}).get(name, getattr(self, name))

    def _check_covariance(self) -> None:
        choices = self._setting("covariance")
        for choice in choices.values() if isinstance(choices, Mapping) else [choices]:
            if choice not in self._covariances:
                known = " or ".join(f'"{name}"' for name in self._covariances)
                raise InvalidData(f"covariance: must be {known}, not {choice!r}")

    def _of_level(self, name: str, level: int, default: Any) -> Any:
        """Return a setting for a level: one for all that lie in each other, or a mapping from the levels' names."""
        setting, names = self._setting(name), self._factors.names
        if isinstance(setting, Mapping):
            for key in setting:
                if key not in names:
                    raise InvalidData(
                        f"{name}: no level {key!r}{nearest(str(key), names) or '; it has ' + ', '.join(names)}"
                    )
            return setting.get(names[level], default)
        return setting if level < len(self._factors.nested) or name == "covariance" else default

    def _random_columns(self, level: int = 0) -> np.ndarray:
        """Return which coefficients vary at a level, as positions."""
        return self._positions(self._of_level("random", level, INTERCEPT))

    def _layout(self, rows: Rows) -> Layout:
        """Return the units of the rows: groups, or cells where levels cross."""
        factors = self._factors
        if not rows.crossed:
            ancestors = factors.ancestors()
            tree = Tree.of(*ancestors) if ancestors else Tree.flat(len(factors.groups))
            return Layout(tree, (), rows.group, len(factors.groups))
        keys = np.stack([rows.group, *rows.crossed])
        cells, unit = np.unique(keys, axis=1, return_inverse=True)
        codes = [cells[0], *(above[cells[0]] for above in factors.ancestors()), *cells[1:]]
        return Layout(None, tuple(codes), unit.reshape(-1), cells.shape[1])

    def _levels(
        self, units: Units, layout: Layout
    ) -> tuple[tuple[Effect, ...], tuple[Shape, ...], tuple[np.ndarray | None, ...]]:
        """Return what varies at each level, the shape of its covariance, and the covariance if it is given."""
        effects, shapes, givens = [], [], []
        sizes = [*self._factors.sizes, *(len(labels) for labels in self._factors.crossed)]
        for level, size in enumerate(sizes):
            columns = self._random_columns(level)
            kind = self._of_level("covariance", level, "full")
            parameter = (
                {0: "group_variance", 1: "within_variance"}.get(level) if level < len(self._factors.nested) else None
            )
            given = None if parameter is None else self._given(parameter, columns)
            # A full covariance of an intercept and slopes is the same model wherever zero is.
            anywhere = kind == "full" and given is None and self.fit_intercept and 0 in columns
            effects.append(units.effect(columns, given_zero=not anywhere))
            magnitude = units.magnitudes(columns)
            if given is not None:
                given = given * np.outer(magnitude, magnitude)
            elif size == 1 or not len(columns):  # a single unit has no variance to estimate
                given = np.zeros((len(columns), len(columns)))
            givens.append(given)
            if kind == "isotropic" and len(columns):
                shapes.append(Shape.isotropic(magnitude / units.magnitudes(np.arange(len(units.scale))).max()))
            else:
                shapes.append(self._shape(columns, kind))
        return tuple(effects), tuple(shapes), tuple(givens)

    def _shape(self, columns: np.ndarray, kind: str) -> Shape:
        return Shape.full(len(columns)) if kind == "full" else Shape.diagonal(len(columns))

    def _refuse_dependent(self, total: np.ndarray) -> None:
        """Raise an error that names features that depend on each other: beta is not determined then."""
        size = len(total) - 1
        length = np.sqrt(np.diag(total)[:size])
        values, vectors = np.linalg.eigh(total[:size, :size] / np.outer(length, length))
        if values[0] > _DEPENDENT * size:
            return
        names = np.array(self._coefficient_names(), dtype=object)[np.abs(vectors[:, 0]) > 0.1]
        raise InvalidData(
            f"X: {', '.join(names)} depend on each other, or there are too few rows for so many features; leave one out"
        )

    def _given(self, parameter: str, random: np.ndarray) -> np.ndarray | None:
        """Return a given covariance [random, random] in the columns' own units, or None."""
        value = getattr(self, parameter)
        if value is None:
            return None
        names = [self._coefficient_names()[k] for k in random]
        if isinstance(value, Mapping):
            if set(value) != set(names):
                raise InvalidData(f"{parameter}: give a variance for each of {', '.join(names)}, and for no other")
            value = [value[name] for name in names]
        try:
            array = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError):
            raise InvalidData(f"{parameter}: give a number, a list or a mapping, not {value!r}") from None
        if array.ndim == 2 and array.shape == (len(random), len(random)):
            if not np.allclose(array, array.T) or np.linalg.eigvalsh(array)[0] < -1e-12 * np.abs(array).max():
                raise InvalidData(f"{parameter}: a matrix must be symmetric and without negative eigenvalues")
            return array
        if array.ndim > 1 or (array.ndim == 1 and len(array) != len(random)):
            raise InvalidData(f"{parameter}: give one number, or one for each of {', '.join(names)}")
        if array.ndim == 1 and self._setting("covariance") == "isotropic" and np.ptp(array) > 0:
            raise InvalidData(f'{parameter}: covariance="isotropic" has one variance per level; give one number')
        if not (np.isfinite(array).all() and (array >= 0).all()):
            raise InvalidData(f"{parameter}: variances must be 0 or more, not {value}")
        return np.diag(np.broadcast_to(array, (len(random),)))

    def _keep_levels(self, beta: np.ndarray, solution: Any, structure: Any, units: Any) -> None:
        """Store the coefficients of all levels, in the columns' own units."""
        count = len(self._factors.nested)
        deviations = []
        for level, codes in zip(solution.levels, structure.unit_codes, strict=True):
            there = np.zeros((len(codes), len(beta)))
            there[np.ix_(codes, level.effect.own)] = (units.way(level.effect) @ level.values).T
            deviations.append(there)
        self._deviations = tuple(deviations)
        overall = units.totals(beta[:, None])[0]
        tables: list[np.ndarray] = []
        for level in reversed(range(count)):
            above = overall if not tables else tables[0][self._factors.parents[level]]
            tables.insert(0, above + deviations[level])
        district = tables[1] if count > 1 else None
        self._set_coefficients(tables[0], district, overall, tuple(tables[2:]), tuple(deviations[count:]))

    def _keep_variances(self, matrices: Sequence[np.ndarray], structure: Any, units: Any) -> None:
        """Store covariances as matrices, by the levels' names, and variances by the settings' names."""
        names = self._coefficient_labels()
        self.covariances_ = {}
        components: dict[str, Any] = {}
        for level, (matrix, effect) in enumerate(zip(matrices, structure.effects, strict=True)):
            way = units.way(effect)
            own = way @ matrix @ way.T
            self.covariances_[self._factors.names[level]] = own
            nested = level < len(self._factors.nested)
            key = (
                {0: "group", 1: "within"}.get(level, self._factors.names[level])
                if nested
                else self._factors.names[level]
            )
            labels = [names[k] for k in effect.own]
            components[key] = dict(zip(labels, np.diag(own).tolist(), strict=True))
        self.variance_components_: dict[str, Any] = components
