"""The result of a sweep: a table with one row per candidate and seed, and the best candidate by validation samples."""

import dataclasses
import html
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie.comparison.repeat import IN_PYTHON
from coterie.comparison.sweeps.folder import SweepFolder
from coterie.comparison.sweeps.plan import words_of
from coterie.errors import CoterieError
from coterie.experiment.result import Result
from coterie.learning.evaluate import validation_loss, validation_score
from coterie.learning.score import Score, score_named
from coterie.storage.commands import command, is_command

__all__ = ["IN_PYTHON_SWEEP", "Row", "Sweep", "row_of"]

IN_PYTHON_SWEEP = IN_PYTHON.replace("compare", "sweep")
SHOWN = 10  # candidates in the text of a sweep


class Row(NamedTuple):
    """One candidate with one seed.

    Attributes:
        candidate: its number, from 1.
        seed: of training.
        settings: what the sweep sets, by SECTION.KEY.
        validation: the clients' mean score on validation samples, weighted as when a comparison tunes; None: no result.
        validation_loss: their loss, likewise.
        test: the mean score on test samples.
        rounds: after which the kept models were evaluated.
        bytes_per_client: sent and received.
        seconds: of this run; of runs that were trained together, its share.
        diverged: whether training diverged.
        note: why there is no result.
    """

    candidate: int
    seed: int
    settings: dict[str, Any]
    validation: float | None = None
    validation_loss: float | None = None
    test: float | None = None
    rounds: int | None = None
    bytes_per_client: float | None = None
    seconds: float | None = None
    diverged: bool = False
    note: str = ""


def row_of(result: Result, counts: np.ndarray, candidate: int, settings: dict[str, Any]) -> Row:
    """Return the row of a run; `counts` are the clients' numbers of validation samples."""
    final, validated = result.final, bool(np.asarray(counts).sum())
    return Row(
        candidate,
        result.config["run"]["seed"],
        settings,
        validation=validation_score(final, counts) if validated else None,
        validation_loss=validation_loss(final, counts) if validated else None,
        test=float(final["test_score"].mean()),
        rounds=result.best_round,
        bytes_per_client=float(result.ledger.bytes_per_client()),
        seconds=result.seconds["wall"],
    )


@dataclasses.dataclass(repr=False)
class Sweep:
    """Candidates of one experiment.

    Attributes:
        rows: one per candidate and seed.
        keys: the settings that vary, by SECTION.KEY, without the seed.
        metric: the name of the score.
        command: the command that repeats the sweep.
        folder: its folder, if it has one.
        results: by candidate and seed, the runs that are in memory.
    """

    rows: list[Row]
    keys: tuple[str, ...]
    metric: str
    command: str
    folder: Path | None = None
    results: dict[tuple[int, int], Result] = dataclasses.field(default_factory=dict)
    trust_code: bool = False

    @classmethod
    def read(cls, path: str | Path, *, trust_code: bool = False) -> "Sweep":
        """Read a complete sweep from its folder; a run is read when it is asked for."""
        folder = SweepFolder(path)
        summary = folder.summary()
        rows = [Row(**row) for row in summary["rows"]]
        known = summary["command"] == IN_PYTHON_SWEEP or is_command(summary["command"])
        repeat = summary["command"] if known else command("sweep", folder.path / "sweep.toml")
        return cls(rows, tuple(summary["keys"]), summary["metric"], repeat, folder.path, trust_code=trust_code)

    @property
    def score(self) -> Score:
        """How the score is computed and written."""
        return score_named(self.metric)

    def ranked(self) -> list[int]:
        """Return the candidates that have all their runs, the best first: by validation score, then by its loss."""
        runs = self._by_candidate()
        ranks = {
            number: (-self.score.sign * _mean(rows, "validation"), _mean(rows, "validation_loss"))
            for number, rows in runs.items()
            if all(row.validation is not None for row in rows)
        }
        return sorted((n for n, rank in ranks.items() if math.isfinite(rank[0])), key=lambda number: ranks[number])

    @property
    def best_candidate(self) -> int:
        """The number of the candidate with the best mean validation score over its seeds."""
        ranked = self.ranked()
        if ranked:
            return ranked[0]
        if any(row.validation is None and row.test is not None for row in self.rows):
            raise CoterieError("no client has validation samples to choose by: raise partition.validation")
        why = next((row.note for row in self.rows if row.note), "it has no result")
        raise CoterieError(f"no candidate has a result in all its runs: {why}")

    @property
    def best_settings(self) -> dict[str, Any]:
        """What the sweep sets in the best candidate."""
        return dict(self._by_candidate()[self.best_candidate][0].settings)

    @property
    def best(self) -> Result:
        """The run of the best candidate; with several seeds, that of the first."""
        return self.result(self.best_candidate)

    def result(self, candidate: int, seed: int | None = None) -> Result:
        """Return the run of a candidate; default: with its first seed."""
        rows = self._by_candidate().get(candidate)
        row = next((row for row in rows or () if seed is None or row.seed == seed), None)
        if row is None:
            raise CoterieError(f"there is no candidate {candidate}{'' if seed is None else f' with seed {seed}'}")
        if row.note:
            raise CoterieError(f"candidate {candidate} has no result: {row.note}")
        key = candidate, row.seed
        if key not in self.results:
            assert self.folder is not None  # a sweep without a folder has all its results
            path = SweepFolder(self.folder).run(f"candidate-{candidate:03d}", row.seed)
            self.results[key] = Result.read(path, trust_code=self.trust_code)
        return self.results[key]

    def to_frame(self) -> Any:
        """Return one row per candidate and seed: settings, validation, test, rounds, bytes, seconds, diverged, best."""
        import pandas as pd

        best = next(iter(self.ranked()), None)
        figures = [name for name in Row._fields if name not in ("candidate", "seed", "settings")]
        return pd.DataFrame(
            [
                {"candidate": row.candidate, **{key: _cell(row.settings[key]) for key in self.keys}, "seed": row.seed}
                | {name: getattr(row, name) for name in figures}
                | {"best": row.candidate == best}
                for row in self.rows
            ]
        )

    def summary(self) -> dict[str, Any]:
        """Return what the folder keeps as sweep.json."""
        best = next(iter(self.ranked()), None)
        rows = [row._asdict() for row in self.rows]
        return {"metric": self.metric, "command": self.command, "keys": list(self.keys), "rows": rows, "best": best}

    def _by_candidate(self) -> dict[int, list[Row]]:
        runs: dict[int, list[Row]] = {}
        for row in self.rows:
            runs.setdefault(row.candidate, []).append(row)
        return runs

    def lines(self) -> list[dict[str, Any]]:
        """Return one entry per candidate, the best first: settings, mean scores over its runs, what failed."""
        order = {number: place for place, number in enumerate(self.ranked())}
        entries = []
        for number, rows in self._by_candidate().items():
            complete = [row for row in rows if row.test is not None]
            entries.append(
                {
                    "candidate": number,
                    "settings": rows[0].settings,
                    "words": words_of(rows[0].settings),
                    "runs": len(rows),
                    "diverged": sum(row.diverged for row in rows),
                    "note": next((row.note for row in rows if row.note), ""),
                    "rounds": max((row.rounds or 0 for row in complete), default=None),
                    "best": order.get(number) == 0,
                }
                | {name: _mean(complete, name) for name in ("validation", "test", "bytes_per_client", "seconds")}
            )
        return sorted(entries, key=lambda entry: order.get(entry["candidate"], len(order) + entry["candidate"]))

    def __repr__(self) -> str:
        lines = self.lines()
        words = [f"Sweep of {len(lines)} candidates, {len(self.rows)} runs; by validation {self.score.label}:"]
        for line in lines[:SHOWN]:
            words.append(f"  {line['words']}: {self._outcome(line)}")
        return "\n".join(words + ([f"  and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []))

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"

    def _outcome(self, line: Mapping[str, Any]) -> str:
        if line["note"]:
            return line["note"]
        validation = "–" if line["validation"] is None else self.score.text(line["validation"])
        return f"validation {validation}, test {self.score.text(line['test'])}"


def _mean(rows: list[Row], name: str) -> Any:
    values = [getattr(row, name) for row in rows]
    return float(np.mean(values)) if values and all(value is not None for value in values) else None


def _cell(value: Any) -> Any:
    """Return a setting as a cell of a table: lists as text."""
    return str(list(value)) if isinstance(value, list | tuple) else value
