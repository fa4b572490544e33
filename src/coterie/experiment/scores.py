"""All scores of the models a run keeps, and their values per test sample: what `scores.npz` holds. No JAX here."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from coterie.errors import CoterieError
from coterie.spec import nearest

__all__ = ["Scores"]


@dataclasses.dataclass(frozen=True)
class Scores:
    """Every score of the task's kind, for the kept models.

    Attributes:
        test, validation: by name of the score, its value for each client `[K]`; NaN where it has no meaning.
        counts: test samples of each client `[K]`.
        values: by name of the score, for scores that are means over samples, the value of every test sample `[N]`: the
            clients' samples one after another, in their order in the federation.
    """

    test: dict[str, np.ndarray]
    validation: dict[str, np.ndarray]
    counts: np.ndarray
    values: dict[str, np.ndarray]

    def each(self, name: str) -> np.ndarray:
        """Return the values per test sample `[K, n]` of a score that is a mean over samples; NaN is padding."""
        if name not in self.values:
            known = ", ".join(self.values)
            raise CoterieError(
                f"score: {name!r} has no value per sample; those that have one: {known}{nearest(name, self.values)}"
            )
        real = np.arange(int(self.counts.max(initial=0))) < self.counts[:, None]
        padded = np.full(real.shape, np.nan, self.values[name].dtype)
        padded[real] = self.values[name]
        return padded

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the content of the file."""
        parts = {"test": self.test, "validation": self.validation, "each": self.values}
        named = {f"{part}.{name}": values for part, scores in parts.items() for name, values in scores.items()}
        return {"counts": self.counts, **named}

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> "Scores":
        """Read the content of the file."""
        parts: dict[str, dict[str, np.ndarray]] = {"test": {}, "validation": {}, "each": {}}
        for key, values in arrays.items():
            part, dot, name = key.partition(".")
            if dot:
                parts[part][name] = values
        return cls(parts["test"], parts["validation"], arrays["counts"], parts["each"])
