"""Data that come with an installed library, so that a first experiment needs no download."""

import importlib.util
from pathlib import Path

import numpy as np

from coterie.data.samples import Samples
from coterie.spec import spec

__all__ = ["Digits"]


@spec
class Digits:
    """Handwritten digits of 8 by 8 pixels: 1,797 images of 10 classes, as floats in [0, 1] (scikit-learn)."""

    def load(self) -> Samples:
        """Read the images."""
        # What load_digits reads; to import scikit-learn for it would take longer than all else before a first round.
        package = importlib.util.find_spec("sklearn")
        folder = Path("" if package is None else str(package.origin)).parent
        rows = np.loadtxt(folder / "datasets" / "data" / "digits.csv.gz", delimiter=",")
        return Samples(
            x=(rows[:, :-1].reshape(-1, 1, 8, 8) / 16).astype(np.float32),
            y=rows[:, -1].astype(np.int32),
            kind="classification",
            classes=10,
            about="8x8 handwritten digits",
        )
