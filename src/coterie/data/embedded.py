"""Data that come with an installed library, so that a first experiment needs no download."""

import numpy as np

from coterie.data.samples import Samples
from coterie.spec import spec

__all__ = ["Digits"]


@spec
class Digits:
    """Handwritten digits of 8 by 8 pixels: 1,797 images of 10 classes, as floats in [0, 1] (scikit-learn)."""

    def load(self) -> Samples:
        """Read the images."""
        from sklearn.datasets import load_digits

        bunch = load_digits()
        return Samples(
            x=(bunch.images[:, None] / 16).astype(np.float32),
            y=bunch.target.astype(np.int32),
            kind="classification",
            classes=10,
            about="8x8 handwritten digits",
        )
