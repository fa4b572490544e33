"""Run the experiments of `layout.py` and reduce them to figures (plain values) and rows (for pandas)."""

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie.codecs.frame import HEADER
from coterie.comparison.compare import ComparisonProgress, compare, for_one_run
from coterie.comparison.config import ComparisonConfig
from coterie.errors import CoterieError, CoterieWarning
from coterie.experiment.config import Experiment
from coterie.experiment.job import Job, load_federation, make_task
from coterie.experiment.result import Result
from coterie.experiment.run import execute
from coterie.numerics.agreement import adjusted_rand
from coterie.reproduce.component import layout
from coterie.reproduce.component.elements import elements, example, figure6, updates
from coterie.reproduce.component.frontier import (
    WITHIN,
    Curve,
    Point,
    best_within,
    cheapest,
    curves,
    equal_bytes,
    frontier,
    reaching,
    rows,
)

__all__ = ["SHARES", "Outcome", "judge_codecs", "run_codecs", "run_groups", "run_personal"]

SHARES = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1.0)  # of the total uplink of uncompressed training


class Outcome(NamedTuple):
    """The result of an experiment: figures, and tables by name."""

    figures: dict[str, Any]
    tables: dict[str, list[dict[str, Any]]]


def run_codecs(
    dataset: str = "digits",
    local: str = "gradient",
    families: tuple[str, ...] = tuple(layout.CODECS),
    seeds: int = 3,
    rounds: int | None = None,
    out: Path | None = None,
    device: Any = "auto",
    progress: ComparisonProgress | None = None,
) -> Outcome:
    """Compare codecs at equal bytes; see `layout.codecs`. Runs that are complete in `out` are not repeated."""
    lay = [layout.codecs(dataset, local, families, rounds, draw) for draw in _draws(seeds)]
    draws = _compare([tables for tables, _ in lay], out, device, progress)
    settings = curves(draws, lay[0][1])
    experiment = Experiment.from_dict({k: v for k, v in lay[0][0].items() if k not in ("compare", "methods")})
    federation = load_federation(experiment)
    task = make_task(experiment, federation)
    gradients = updates(task, federation, experiment.method.spec.lr)
    about: dict[str, Any] = {"data": dataset, "local": local, "model": experiment.model.name, "draws": seeds}
    about |= {"rounds": int(settings[0].rounds[-1]), "clients": len(federation), "about": federation.about}
    drawn: dict[str, Any] = {"elements": elements(gradients), "example": example(gradients[1])}
    drawn["figure6"] = figure6(gradients)
    figures = about | {"parameters": gradients[0].each.shape[1], "header": HEADER} | judge_codecs(settings) | drawn
    named = {"data": dataset, "local": local}
    return Outcome(figures, {"codecs": rows(settings, named), "elements": [named | row for row in drawn["elements"]]})


def judge_codecs(settings: Sequence[Curve]) -> dict[str, Any]:
    """Compare families of codecs: after all rounds, to within 0.5 points of uncompressed training, at equal bytes."""
    by_family: dict[str, list[Curve]] = {}
    for curve in settings:
        by_family.setdefault(curve.family, []).append(curve)
    whole = Point(by_family["none"][0], -1)
    target = whole.about()["validation"] - WITHIN
    first = reaching(by_family["none"], target)
    assert first is not None  # its own last round reaches it

    def compared(point: Point | None) -> dict[str, Any] | None:
        if point is None:
            return None
        about, full, same = point.about(), whole.about(), first.about()
        gaps = point.curve.test[:, point.at] - whole.curve.test[:, -1]
        about |= {"gap": float(gaps.mean()), "fewer": full["up"] / about["up"]}
        return about | {"fewer_bare": full["bare"] / about["bare"], "fewer_same": same["up"] / about["up"]}

    return {
        "within": WITHIN,
        "target": target,
        "uncompressed": whole.about(),
        "settings": [compared(Point(curve, -1)) for curve in settings],
        "end": {family: compared(cheapest(each, target)) for family, each in by_family.items()},
        "reach": {family: compared(reaching(each, target)) for family, each in by_family.items()},
        "equal": equal_bytes(by_family, SHARES),
        "frontier": {family: frontier(each) for family, each in by_family.items()},
    }


def run_personal(
    dataset: str = "digits",
    model: str = "mlp",
    methods: tuple[str, ...] = layout.METHODS,
    seeds: int = 3,
    rounds: int | None = None,
    out: Path | None = None,
    device: Any = "auto",
    progress: ComparisonProgress | None = None,
) -> Outcome:
    """Compare methods with personal models, each with the settings that validation samples choose; see `layout`."""
    lay = [layout.personal(dataset, model, methods, rounds, draw) for draw in _draws(seeds)]
    draws = _compare([tables for tables, _ in lay], out, device, progress)
    settings = curves(draws, lay[0][1])
    chosen = {method: best_within([curve for curve in settings if curve.family == method]) for method in methods}
    alone = chosen.get("local")
    table = []
    for method, point in chosen.items():
        assert point is not None  # without a budget there is always one
        row = {"method": method} | point.about() | {"gain": None, "gain_error": None}
        row["settings"] = sum(curve.family == method for curve in settings)
        if alone is not None and method != "local":
            gains = point.curve.test[:, point.at] - alone.curve.test[:, alone.at]
            row["gain"] = float(gains.mean())
            row["gain_error"] = float(gains.std(ddof=1) / np.sqrt(seeds)) if seeds > 1 else None
        table.append(row)
    result = next(iter(draws[0].values()))[0]
    figures = {"data": dataset, "model": model, "draws": seeds, "clients": len(result.names)}
    figures |= {"rounds": int(settings[0].rounds[-1]), "methods": sorted(table, key=lambda row: -row["test"])}
    return Outcome(figures, {"personal": rows(settings, {"data": dataset, "model": model})})


def run_groups(
    networks: Sequence[int] = layout.NETWORKS,
    seeds: int = 5,
    values: int | None = None,
    out: Path | None = None,
    device: Any = "auto",
    progress: ComparisonProgress | None = None,
) -> Outcome:
    """Follow the network lasso's path over planted groups, on several networks; see `layout.path`."""
    table = []
    for neighbours in networks:
        for draw in _draws(seeds):
            with _joined_networks():
                job = Job.of(Experiment.from_dict(layout.path(neighbours, values, draw)))
            path = None if out is None else out / f"k={neighbours}" / f"draw-{draw}"
            notify = for_one_run(progress, f"network-lasso-k={neighbours}", draw)
            result = execute(job, out=path, device=device, progress=notify)
            for row in result.path().to_dict("records"):
                scores = {name: row[f"{name}_score"] for name in ("validation", "test")}
                about = {"neighbours": neighbours, "draw": draw, "lam": row["lam"], "clusters": row["clusters"]}
                ari = adjusted_rand(job.federation.groups, row["labels"])
                table.append(about | {"ari": ari, **scores})
    return Outcome({"draws": seeds, "networks": [_summary(table, each) for each in networks]}, {"groups": table})


def _summary(table: Sequence[Mapping[str, Any]], neighbours: int) -> dict[str, Any]:
    """Return in how many draws the groups were found exactly, for which lam, and the scores of the chosen models."""
    by_draw: dict[int, list[Mapping[str, Any]]] = {}
    for row in table:
        if row["neighbours"] == neighbours:
            by_draw.setdefault(row["draw"], []).append(row)
    exact = [[row["lam"] for row in path if row["ari"] == 1.0] for path in by_draw.values()]
    common = set(exact[0]).intersection(*exact[1:])
    chosen = [max(path, key=lambda row: row["validation"]) for path in by_draw.values()]
    return {
        "neighbours": neighbours,
        "found": sum(bool(lams) for lams in exact),
        "best_ari": [max(row["ari"] for row in path) for path in by_draw.values()],
        "always": [min(common), max(common)] if common else None,  # the range of lam where all draws find them
        "chosen_test": float(np.mean([row["test"] for row in chosen])),
        "chosen_ari": [row["ari"] for row in chosen],
    }


def _compare(
    draws: Sequence[Mapping[str, Any]], out: Path | None, device: Any, progress: ComparisonProgress | None
) -> list[dict[str, list[Result]]]:
    """Run one comparison per draw, each in its own folder."""
    configs = [ComparisonConfig.from_dict(tables) for tables in draws]  # mistakes are found before anything runs
    compared = []
    for draw, config in enumerate(configs):
        path = None if out is None else out / f"draw-{draw}"
        with _joined_networks():
            comparison = compare(
                config.experiment, config.methods, 1, path, device, progress, splits=1, tune=False
            )  # as the paper says
        for results in comparison.results.values():
            results[0].forget_models()  # they are many, and not needed here
        compared.append(comparison.results)
    return compared


@contextlib.contextmanager
def _joined_networks() -> Iterator[None]:
    """Silence the warning that a disconnected network was joined: that is intended here, in every run."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the similarity network", CoterieWarning)
        yield


def _draws(seeds: int) -> range:
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise CoterieError(f"seeds must be an integer of at least 1, not {seeds!r}")
    return range(seeds)
