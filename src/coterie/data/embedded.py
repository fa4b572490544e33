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
        images, labels = _digits()
        return Samples(
            x=(images.reshape(-1, 1, 8, 8) / 16).astype(np.float32),
            y=labels.astype(np.int32),
            kind="classification",
            classes=10,
            about="8x8 handwritten digits",
        )


def _digits() -> tuple[np.ndarray, np.ndarray]:
    """Return images `[n, 64]` and labels `[n]` as `load_digits` does, where possible without it.

    To import scikit-learn for one file takes longer than all else before a first round.
    """
    package = importlib.util.find_spec("sklearn")
    file = Path("" if package is None else str(package.origin)).parent / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():
        rows = np.loadtxt(file, delimiter=",")
        return rows[:, :-1], rows[:, -1]
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.data, bunch.target
