"""Handwritten digits at sites whose scanners differ: real images with a hidden group behind every site."""

from collections.abc import Callable

import numpy as np

from coterie.data.embedded import Digits
from coterie.data.samples import Samples
from coterie.errors import CoterieError
from coterie.spec import LARGEST_SEED, param, spec

__all__ = ["SCANNERS", "DigitScanners"]

# What each make of scanner does to the images `[N, 1, 8, 8]` in [-1, 1].
SCANNERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "upright": lambda x: x,
    "quarter turn": lambda x: np.rot90(x, axes=(2, 3)),
    "negative": lambda x: -x,
    "upside down": lambda x: x[:, :, ::-1, ::-1],
    "mirrored": lambda x: x[:, :, :, ::-1],
}


@spec
class DigitScanners:
    """The 1,797 embedded digits, in [-1, 1], at 24 sites with four makes of scanner, which nobody wrote down.

    One make leaves the images upright; the others turn them by 90 degrees, give a negative, turn them upside down (and
    a fifth mirrors them). Every image is at one site only. Sites with the same scanner help each other, those with
    another one mislead. The makes are the groups with which the report compares what was found; no method gets them.
    """

    sites: int = param(24, "number of sites; site i has scanner i modulo their number", at_least=2, at_most=898)
    scanners: int = param(
        4, f"makes of scanners, in the order {', '.join(SCANNERS)}", at_least=1, at_most=len(SCANNERS)
    )
    unequal: float = param(
        0.3, "how much the sites' sizes differ: up to this share around the mean", at_least=0, below=1
    )
    seed: int = param(0, "seed that deals out the images", at_least=0, at_most=LARGEST_SEED)

    def __post_init__(self) -> None:
        if self.scanners > self.sites:
            raise CoterieError(f"scanners must be at most {self.sites}, the number of sites, not {self.scanners}")

    def load(self) -> Samples:
        """Deal out the images and scan them."""
        digits, rng = Digits().load(), np.random.default_rng(self.seed)
        size = 1 + self.unequal * rng.uniform(-1, 1, self.sites)
        edges = np.round(np.cumsum(size) / size.sum() * len(digits)).astype(np.int64)
        if np.diff(edges, prepend=0).min() < 2:
            raise CoterieError(f"sites must leave every site at least two of the {len(digits):,} images; use fewer")
        order = rng.permutation(len(digits))
        owner = np.repeat(np.arange(self.sites), np.diff(edges, prepend=0))
        x, makes = 2 * digits.x[order] - 1, list(SCANNERS.values())  # a negative is then as easy to learn
        for make in range(self.scanners):
            here = owner % self.scanners == make
            x[here] = makes[make](x[here])
        names = np.array([f"site-{i + 1:02d}" for i in range(self.sites)])
        return Samples(
            x=np.ascontiguousarray(x),
            y=digits.y[order],
            kind="classification",
            classes=10,
            owner=names[owner],
            group={str(name): i % self.scanners for i, name in enumerate(names)},
            planted=True,
            about=f"8x8 handwritten digits from {self.scanners} makes of scanner",
            class_names=tuple("0123456789"),
        )
