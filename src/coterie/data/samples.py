"""A pool of samples before it is divided among clients: the result of every data set, the input of every partition."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from coterie.data.clients import Kind
from coterie.errors import CoterieError

__all__ = ["MARKS", "Samples", "encode"]

MARKS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True, eq=False)
class Samples:
    """A pool of N samples.

    Attributes:
        x: inputs `[N, ...]`. Images are bytes with the channel first, tables are floats, text is characters `[N, T]`.
        y: targets `[N, ...]`: labels (int32), numbers (float), or the next characters `[N, T]`.
        kind: what is predicted.
        classes: number of classes, or of characters; for regression the number of outputs.
        test: the official test pool `(x, y)`, if the source has one.
        owner: the client that each sample belongs to `[N]` (integers or names), if the source knows it: the default
            partition is then "natural"; `test_owner` likewise for the official test pool.
        ready: "train", "validation" or "test" for every sample `[N]`, if the source has its own splits.
        coarse: the class above the class `[N]` (CIFAR-100); `test_coarse` likewise.
        group: the known or planted group of each owner, by the owner's name.
        planted: the groups were made with the data, as a truth to check against; a user would not know them.
        mean, std: per channel, applied inside the program to images stored as bytes (after division by 255).
        about: what the data are, in a few words without a full stop.
        class_names: what the classes are called, in the order of their numbers; empty where nothing is known.
        table: the table that `x` numbers the rows of (`data.tables.table`): it is encoded once the training rows are
            known. None for arrays.
    """

    x: np.ndarray
    y: np.ndarray
    kind: Kind
    classes: int
    test: tuple[np.ndarray, np.ndarray] | None = None
    owner: np.ndarray | None = None
    test_owner: np.ndarray | None = None
    ready: np.ndarray | None = None
    coarse: np.ndarray | None = None
    test_coarse: np.ndarray | None = None
    group: Mapping[str, int] | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    about: str = ""
    class_names: tuple[str, ...] = ()
    table: Any = None
    planted: bool = False

    def __post_init__(self) -> None:
        size = len(self.x)
        if size == 0:
            raise CoterieError("the data hold no samples")
        for name in ("y", "owner", "ready", "coarse"):
            values = getattr(self, name)
            if values is not None and len(values) != size:
                raise CoterieError(f"{name} has {len(values)} entries but x has {size} samples; they must match")
        if self.test is not None:
            if self.ready is not None:
                raise CoterieError("the data bring both a test pool and marks for every sample; give one of them")
            if len(self.test[0]) != len(self.test[1]):
                raise CoterieError(f"the test pool has {len(self.test[0])} inputs but {len(self.test[1])} targets")
            if self.test[0].shape[1:] != self.x.shape[1:]:
                raise CoterieError(
                    f"test inputs have shape {self.test[0].shape[1:]}, training inputs {self.x.shape[1:]}"
                )
            for name in ("test_owner", "test_coarse"):
                values = getattr(self, name)
                if values is not None and len(values) != len(self.test[0]):
                    raise CoterieError(
                        f"{name} has {len(values)} entries but the test pool {len(self.test[0])} samples"
                    )
        if self.kind != "regression":
            for part, y in (("", self.y), ("test ", None if self.test is None else self.test[1])):
                if y is not None and np.any((y < 0) | (y >= self.classes)):
                    row = int(np.argwhere((y < 0) | (y >= self.classes))[0][0])
                    raise CoterieError(
                        f"the label of {part}sample {row} is out of range; labels must be 0..{self.classes - 1}"
                    )
        if self.ready is not None:
            unknown = np.flatnonzero(~np.isin(self.ready, MARKS))
            if unknown.size:
                row = int(unknown[0])
                raise CoterieError(f"sample {row} is marked {self.ready[row]!r}; a mark is one of {', '.join(MARKS)}")

    def __len__(self) -> int:
        return len(self.x)

    def pooled(self) -> "Samples":
        """Return the same samples with those of the official test pool after them, and no test pool."""
        if self.test is None or self.table is not None:
            raise CoterieError("test_from is pooled but these data have no test pool; use own or auto")
        joined: dict[str, Any] = {
            "x": np.concatenate([self.x, self.test[0]]),
            "y": np.concatenate([self.y, self.test[1]]),
        }
        for name in ("owner", "coarse"):
            mine, theirs = getattr(self, name), getattr(self, f"test_{name}")
            joined[name] = None if mine is None or theirs is None else np.concatenate([mine, theirs])
        return dataclasses.replace(self, **joined, test=None, test_owner=None, test_coarse=None)

    def labels(self, partition: str) -> np.ndarray:
        """Return the class of every sample, or raise an error: `partition` needs classes and these data have none."""
        if self.kind != "classification":
            raise CoterieError(
                f"partition {partition} divides by class labels, but these data are for {self.kind}; "
                "use iid, quantity or natural"
            )
        return self.y


def encode(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number the distinct values in sorted order: return int32 codes `[N]` and the values `[classes]`."""
    distinct, codes = np.unique(values, return_inverse=True)
    return codes.reshape(np.shape(values)).astype(np.int32), distinct
