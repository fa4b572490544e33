"""Forest cover types: 581,012 cells of 30 by 30 metres in four wilderness areas of northern Colorado.

The task and the table are those of Blackard and Dean, "Comparative accuracies of artificial neural networks and
discriminant analysis in predicting forest cover types from cartographic variables", Computers and Electronics in
Agriculture 24, 1999; UCI Machine Learning Repository, doi 10.24432/C50K5N, licence CC BY 4.0. The relation between
inputs and cover type differs from soil to soil, so that soils and areas are clients that really differ.
"""

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from coterie.data.download import Remote, fetch, locate, places
from coterie.data.formats import read_npz
from coterie.data.samples import Samples
from coterie.data.unpack import BROKEN
from coterie.errors import CoterieError
from coterie.spec import LARGEST_SEED, param, spec

__all__ = ["Covtype"]

REMOTE = Remote(
    "covtype",
    "covtype.data.gz",
    (
        "https://archive.ics.uci.edu/ml/machine-learning-databases/covtype/covtype.data.gz",
        "https://ndownloader.figshare.com/files/5976039",  # scikit-learn's copy of the same bytes
    ),
    "sha256:614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771",
)

# Mean and standard deviation over all rows, as the set's description (covtype.info, section 8) prints them.
NUMERIC = {
    "elevation": (2959.36, 279.98),
    "aspect": (155.65, 111.91),
    "slope": (14.10, 7.49),
    "horizontal distance to hydrology": (269.43, 212.55),
    "vertical distance to hydrology": (46.42, 58.30),
    "horizontal distance to roadways": (2350.15, 1559.25),
    "hillshade at 9": (212.15, 26.77),
    "hillshade at noon": (223.32, 19.77),
    "hillshade at 15": (142.53, 38.27),
    "horizontal distance to fire points": (1980.29, 1324.19),
}
AREAS = ("Rawah", "Neota", "Comanche Peak", "Cache la Poudre")
SOILS = 40
CLASSES = 7
LODGEPOLE_PINE = 2  # the commonest type: class 1 in two-class versions of the set

# The first digit of each soil type's code in the survey (covtype.info, section 7), its climatic zone: 2 lower montane,
# 3 montane dry, 4 montane, 5 montane dry and montane, 6 montane and subalpine, 7 subalpine, 8 alpine.
ZONES = (2,) * 6 + (3,) * 2 + (4,) * 5 + (5,) * 2 + (6,) * 3 + (7,) * 16 + (8,) * 6


class Cells(NamedTuple):
    """The table: `numeric [N, 10]`, `area [N]` (0..3), `soil [N]` (0..39), `cover [N]` (1..7)."""

    numeric: np.ndarray
    area: np.ndarray
    soil: np.ndarray
    cover: np.ndarray


@spec
class Covtype:
    """Forest cover types of 581,012 cells from 54 cartographic inputs (Blackard and Dean 1999).

    The inputs are ten measurements, standardised with the constants of the set's description, the
    wilderness area (4 columns of 0 and 1) and the soil type (40). Seven classes; with `binary`, lodgepole pine (class
    2 of the file, 49 % of the rows) against the rest. Owners are the soil types ("soil-29"), the areas ("Rawah") or
    both ("Rawah/soil-29"); the known group of a soil is its climatic zone. The owner's columns stay among the inputs.
    Soils have from 3 to 115,247 cells; `rows`, or the partition's `samples`, makes a smaller set.

    Read from `covtype.data.gz` (or `covtype.data`) as published, which is downloaded, or from `covtype.npz.xz`: arrays
    `numeric_delta [10, N]` (differences from one row to the next), `wilderness`, `soil` (both from 0) and `label`.
    """

    binary: bool = param(False, "lodgepole pine against the rest instead of seven classes")
    client: Literal["soil", "wilderness", "wilderness-soil"] = param("soil", "whose row it is: 40, 4 or 75 owners")
    rows: int | None = param(None, "draw this many rows at random, all if none", at_least=1)
    seed: int = param(0, "seed of that draw", at_least=0, at_most=LARGEST_SEED)

    def load(self) -> Samples:
        """Read the table."""
        cells = _read()
        size = len(cells.cover)
        if self.rows is not None:
            if self.rows > size:
                raise CoterieError(f"rows must be at most {size}, the number of rows, not {self.rows}")
            drawn = np.sort(np.random.default_rng(self.seed).choice(size, self.rows, replace=False))
            cells, size = Cells(*(column[drawn] for column in cells)), self.rows
        mean, deviation = np.array(list(NUMERIC.values())).T
        x = np.zeros((size, len(NUMERIC) + len(AREAS) + SOILS), np.float32)
        x[:, : len(NUMERIC)] = (cells.numeric - mean) / deviation
        x[np.arange(size), len(NUMERIC) + cells.area] = 1
        x[np.arange(size), len(NUMERIC) + len(AREAS) + cells.soil] = 1
        y = cells.cover == LODGEPOLE_PINE if self.binary else cells.cover - 1
        owner, group = self._owners(cells)
        return Samples(
            x=x,
            y=y.astype(np.int32),
            kind="classification",
            classes=2 if self.binary else CLASSES,
            owner=owner,
            group=group,
            about="forest cover types" + (", lodgepole pine or not" if self.binary else ""),
        )

    def _owners(self, cells: Cells) -> tuple[np.ndarray, dict[str, int] | None]:
        """Name the owner of every row, and the climatic zone of every owner that has one."""
        soils = [f"soil-{number + 1}" for number in range(SOILS)]
        if self.client == "wilderness":
            return np.array(AREAS)[cells.area], None
        if self.client == "soil":
            return np.array(soils)[cells.soil], dict(zip(soils, ZONES, strict=True))
        names = [f"{area}/{soil}" for area in AREAS for soil in soils]
        return np.array(names)[cells.area * SOILS + cells.soil], dict(zip(names, ZONES * len(AREAS), strict=True))


def _read() -> Cells:
    packed = locate(["covtype.npz.xz", "covtype.npz"], places("covtype"))
    if packed is not None:
        return _packed(packed)
    return _table(locate(["covtype.data.gz", "covtype.data"], places("covtype")) or fetch(REMOTE))


def _packed(path: Path) -> Cells:
    arrays = read_npz(path)
    names = ("numeric_delta", "wilderness", "soil", "label")
    missing = [name for name in names if name not in arrays]
    if missing:
        raise CoterieError(f"{path} holds no array {missing[0]}; it needs {', '.join(names)}")
    columns = [arrays[name] for name in names]
    if any(array.dtype.kind not in "iu" for array in columns):
        raise CoterieError(f"{path} must hold whole numbers; get the file again")
    size = columns[-1].size
    if columns[0].shape != (len(NUMERIC), size) or any(array.shape != (size,) for array in columns[1:]):
        raise CoterieError(f"the arrays of {path} do not fit together; get the file again")
    numeric = np.cumsum(columns[0], axis=1, dtype=np.int32).T
    return _checked(Cells(numeric, *(array.astype(np.int64) for array in columns[1:])), path)


def _table(path: Path) -> Cells:
    """Read the published table: ten measurements, 4 and 40 columns of 0 and 1, the cover type."""
    import pandas as pd

    try:
        table = pd.read_csv(path, header=None, dtype=np.int32).to_numpy()
    except (*BROKEN, ValueError, UnicodeError, OverflowError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise CoterieError(f"{path} is not the table of cover types ({reason}); get the file again") from error
    edges = np.cumsum([len(NUMERIC), len(AREAS), SOILS])
    if table.shape[1] != edges[-1] + 1:
        raise CoterieError(f"{path} has {table.shape[1]} columns, not {edges[-1] + 1}; get the file again")
    numeric, area, soil, cover = np.split(table, edges, axis=1)
    for name, block in (("wilderness area", area), ("soil type", soil)):
        wrong = np.flatnonzero((block.sum(axis=1) != 1) | (block.min(axis=1) < 0))
        if wrong.size:
            raise CoterieError(f"{path} has no single {name} in row {wrong[0] + 1}; get the file again")
    return _checked(Cells(numeric, area.argmax(axis=1), soil.argmax(axis=1), cover[:, 0].astype(np.int64)), path)


def _checked(cells: Cells, path: Path) -> Cells:
    limits = {"area": (0, len(AREAS) - 1), "soil": (0, SOILS - 1), "cover": (1, CLASSES)}
    for name, (low, high) in limits.items():
        values = getattr(cells, name)
        wrong = np.flatnonzero((values < low) | (values > high))
        if wrong.size:
            row = int(wrong[0])
            raise CoterieError(
                f"{path} has {name} {values[row]} in row {row + 1}, not {low} to {high}; get the file again"
            )
    return cells
