"""Studies with known clusters: rows that belong to a group (a school), which lies in a district.

The tables are files of the data folder (`download.folder()`), in its sub-folder `tabular` or in the folder itself, as
.csv, .csv.gz or .csv.xz: three come with R packages, the donors with the paper's replication files. Nothing is
downloaded. `rows()` returns the table for the estimators, `load()` makes a client of each group.
"""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from coterie.data.clients import Kind
from coterie.data.download import folder, locate
from coterie.data.samples import Samples, encode
from coterie.errors import CoterieError
from coterie.spec import param, spec

__all__ = ["Chem97", "Donors", "InstEval", "MathAchieve", "Rows", "Study"]


class Rows(NamedTuple):
    """A study's rows: `features` (a DataFrame of numbers), `target [n]`, `group [n]` and `district [n]` (labels)."""

    features: Any
    target: np.ndarray
    group: np.ndarray
    district: np.ndarray


@spec
class Study(abc.ABC):
    """Base of the studies."""

    kind: ClassVar[Kind] = "regression"
    about: ClassVar[str] = ""

    @abc.abstractmethod
    def rows(self) -> Rows:
        """Read the table."""

    def load(self) -> Samples:
        """Make a pool of samples whose owners are the groups; inputs have mean 0 and deviation 1 over all rows."""
        rows = self.rows()
        x = rows.features.to_numpy(np.float64)
        x = (x - x.mean(axis=0)) / x.std(axis=0)
        owner, district = rows.group.astype(str), encode(rows.district)[0]
        two = self.kind == "classification"
        return Samples(
            x=x.astype(np.float32),
            y=rows.target.astype(np.int32 if two else np.float32),
            kind=self.kind,
            classes=2 if two else 1,
            owner=owner,
            group=dict(zip(owner.tolist(), district.tolist(), strict=True)),
            about=self.about,
        )


@spec
class Chem97(Study):
    """Scores of 31,022 pupils in A-level chemistry 1997, in 2,410 schools of 131 districts (R's mlmRev::Chem97)."""

    about: ClassVar[str] = "A-level chemistry 1997: pupils of schools in districts"

    def rows(self) -> Rows:
        """Read the table: the score (0 to 10) from the average GCSE grade (centred), sex and age in months."""
        table = _read("mlmRev_Chem97", ("lea", "school", "score", "gender", "age", "gcsecnt"), "mlmRev::Chem97")
        features = table[["gcsecnt", "age"]].assign(female=table["gender"] == "F").astype(np.float64)
        return Rows(features, table["score"].to_numpy(float), table["school"].to_numpy(), table["lea"].to_numpy())


@spec
class MathAchieve(Study):
    """Mathematics of 7,185 pupils in 160 schools, public or Catholic (R's nlme::MathAchieve and MathAchSchool)."""

    about: ClassVar[str] = "mathematics achievement: pupils of schools in sectors"

    def rows(self) -> Rows:
        """Read the tables: the score from socio-economic status, minority and sex."""
        names = ("School", "Minority", "Sex", "SES", "MathAch")
        table = _read("nlme_MathAchieve", names, "nlme::MathAchieve")
        schools = _read("nlme_MathAchSchool", ("School", "Sector"), "nlme::MathAchSchool")
        sector = table["School"].map(dict(zip(schools["School"], schools["Sector"], strict=True)))
        if sector.isna().any():
            raise CoterieError("nlme_MathAchSchool lacks a school of nlme_MathAchieve; get both files again")
        features = table[["SES"]].assign(minority=table["Minority"] == "Yes", female=table["Sex"] == "Female")
        target, school = table["MathAch"].to_numpy(float), table["School"].to_numpy()
        return Rows(features.astype(np.float64), target, school, sector.to_numpy(dtype=str))


@spec
class InstEval(Study):
    """Students' 73,421 ratings of 1,128 lecturers in 14 departments of ETH Zurich (R's lme4::InstEval)."""

    about: ClassVar[str] = "ratings of lectures: lecturers in departments"

    def rows(self) -> Rows:
        """Read the table: the rating (1 to 5) from the semesters studied, the lecture's age and whether a service."""
        table = _read("lme4_InstEval", ("d", "studage", "lectage", "service", "dept", "y"), "lme4::InstEval")
        features = table[["studage", "lectage", "service"]].astype(np.float64)
        return Rows(features, table["y"].to_numpy(float), table["d"].to_numpy(), table["dept"].to_numpy())


CENSUS = ("pwhite", "pblack", "page18_39", "ave_hh_sz", "median_hhincome", "powner", "psch_atlstba", "pop_propurban")
# Upper limits of the income classes poor-or-near-poor, lower-middle and middle, in dollars; what is above is
# upper-middle (Snider 2019, after Rose; cited by Lyu, Hanzely, Kolar 2022).
INCOME_CLASSES = (32_048, 53_413, 106_827)
MONTH = 365.25 / 12  # days


@spec
class Donors(Study):
    """Whether 50,083 former donors gave again after a letter, by ZIP code area and its income (Karlan and List 2007).

    The file has no ZIP codes, but census values of each; rows with the same values form an area. Areas are grouped by
    median household income, as in Lyu, Hanzely and Kolar (2022, section 6.2): poor-or-near-poor, lower-middle, middle
    and upper-middle class. (Their fifth cluster, of unknown income, cannot be formed: rows without income have no other
    census values either, and are left out.) Areas with fewer than `at_least` rows are left out. The file's
    `stateresponse` columns are computed from the outcome and are not used.
    """

    kind: ClassVar[Kind] = "classification"
    about: ClassVar[str] = "response to a mailing: former donors by area and income class"

    at_least: int = param(5, "areas with fewer rows are left out", at_least=1)
    bands: int = param(0, "bands of income with equally many areas; 0: the four income classes", at_least=0)

    def rows(self) -> Rows:
        """Read the table: whether a letter was answered, from log recency (days) and log frequency (gifts)."""
        names = ("mrm2", "freq", "out_gavedum", *CENSUS)
        table = _read("karlan_list_2007", names, "the replication data of Karlan and List, AER 2007")
        table = table[table["median_hhincome"].notna() & table["mrm2"].notna()]
        area = table.groupby(list(CENSUS), dropna=False).ngroup().to_numpy()
        kept = np.bincount(area)[area] >= self.at_least
        table, area = table[kept], area[kept]
        _, first, code = np.unique(area, return_index=True, return_inverse=True)
        income = table["median_hhincome"].to_numpy(float)[first]
        limits = np.quantile(income, np.arange(1, self.bands) / self.bands) if self.bands else INCOME_CLASSES
        band = np.searchsorted(limits, income, side="left")[code]  # a limit belongs to the band below it
        days = (table["mrm2"] + 0.5) * MONTH  # whole months in the file: their middle
        logs = {"log recency": np.log(days), "log frequency": np.log(np.maximum(table["freq"], 1))}
        return Rows(table[[]].assign(**logs), table["out_gavedum"].to_numpy(int), area, band)


def _read(name: str, columns: Sequence[str], source: str) -> Any:
    """Read a table of the data folder, and only the columns that are used."""
    import pandas as pd

    places = (folder() / "tabular", folder())
    path = locate([f"{name}.csv{ending}" for ending in (".xz", ".gz", "")], places)
    if path is None:
        raise CoterieError(
            f"{name}.csv is missing: put that table ({source}, as .csv, .csv.gz or .csv.xz) into {places[0]}, or set "
            "COTERIE_DATA to the folder that holds it"
        )
    try:
        table = pd.read_csv(path)
    except (OSError, EOFError, ValueError, UnicodeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise CoterieError(f"{path} is not a readable CSV table ({reason}); get the file again") from error
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise CoterieError(f"{path} has no column {missing[0]!r}; it needs {', '.join(columns)} (from {source})")
    return table[list(columns)]
