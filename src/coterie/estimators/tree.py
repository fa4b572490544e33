"""The order of nested levels, and which combinations of coefficients vary at a level."""

from dataclasses import dataclass

import numpy as np

__all__ = ["Effect", "Tree"]


@dataclass(frozen=True)
class Effect:
    """Which combinations of the design's columns vary between the units of a level: Z = X basis."""

    basis: np.ndarray  # [p, k]
    own: np.ndarray  # [k] for each column of the basis a row, another one each, in which it is not zero
    unit: np.ndarray | None = None  # [k] where the basis is of columns as they were given: their units

    @classmethod
    def of_columns(cls, size: int, columns: np.ndarray) -> "Effect":
        """Return the effect of some columns of the design as they are."""
        return cls(np.eye(size)[:, columns], np.asarray(columns))


@dataclass(frozen=True)
class Tree:
    """Groups in the order of their districts, these in the order of theirs, and so on."""

    order: np.ndarray  # [groups] position of each group in the caller's order
    parents: tuple[np.ndarray, ...]  # for every level but the last, the unit above each of its units, never decreasing
    codes: tuple[np.ndarray, ...]  # for every level, the caller's code of each unit; the groups' is `order`

    @classmethod
    def of(cls, *above: np.ndarray) -> "Tree":
        """Sort groups by the codes [groups] of the units above them, the nearest level first; each has at least one."""
        order = np.lexsort(above)
        parents, names, firsts = [], [order], np.arange(len(order))
        for codes in above:
            ordered = codes[order][firsts]
            new = np.r_[True, ordered[1:] != ordered[:-1]]
            parents.append(np.cumsum(new) - 1)
            firsts = firsts[new]
            names.append(codes[order][firsts])
        return cls(order, tuple(parents), tuple(names))

    @classmethod
    def flat(cls, groups: int) -> "Tree":
        """Return a single level."""
        return cls(np.arange(groups), (), (np.arange(groups),))

    @property
    def sizes(self) -> list[int]:
        """How many units each level has."""
        return [len(self.order), *(int(parent[-1]) + 1 for parent in self.parents)]

    def every(self, step: int) -> tuple[np.ndarray, "Tree"]:
        """Return every step-th group, as positions in this tree's order, and the tree of these, already in order."""
        kept = np.arange(0, len(self.order), step)
        above, codes = [], kept
        for parent in self.parents:
            codes = parent[codes]
            above.append(codes)
        return kept, Tree.of(*above) if above else Tree.flat(len(kept))
