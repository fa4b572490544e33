"""Fair tuning: every method of a comparison, training alone too, gets the same small budget on validation data.

Five learning rates around the method's own default; then, at the best of them, the few values of its main own setting
(`Method.tunes`). Each candidate keeps its best evaluation (early stopping), as the run that follows does. What the user
gave is not tuned. Every split is tuned on its own validation samples, so that no test sample of one split has a say in
another, and the choice is made by the mean validation loss (`learning.evaluate.validation_loss`): test samples have no
part in it. With `tune = "score"` every candidate is trained as long as the run, and the validation score decides.

    OUT/<label>/tuning-<split>.json     candidates with their validation losses, what was chosen, seconds
"""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from coterie.comparison.config import MethodChoice
from coterie.errors import CoterieError, Diverged
from coterie.experiment.folder import REMEDY
from coterie.storage.durable import durable_write, storage_errors
from coterie.storage.owned import Unreadable, holds
from coterie.storage.schema import Mismatch, each, mapping, maybe, number, plain, read_json, table, whole
from coterie.storage.toml import difference

__all__ = ["FACTORS", "choose", "read_tuning", "tuned_values", "with_settings"]

FACTORS = (0.2, 0.6, 2.0, 6.0, 20.0)  # times the method's default: 0.01, 0.03, 0.1, 0.3, 1 for plain SGD

VALUES = mapping(number())  # of settings, by name
LOSS = maybe(number(finite=False))
CANDIDATE = table(
    {"settings": VALUES, "rounds": whole(0), "validation_loss": LOSS},
    {"best_round": whole(0), "validation_score": LOSS},
)
RECORD = table(
    {
        "config": table({}, rest=plain),
        "values": mapping(each(number())),
        "candidates": each(CANDIDATE),
        "chosen": VALUES,
        "seconds": number(0),
    }
)

Tuned = dict[str, tuple[float, ...]]


def tuned_values(method: Any, choice: MethodChoice, given: frozenset[str] = frozenset()) -> Tuned:
    """Return which settings of a method are tuned, with the values to try; empty where there is nothing to tune.

    Args:
        method: the method as it would run untuned.
        choice: which of its settings were given with its name, and which as a list of values to choose from.
        given: settings that were given for all methods.
    """
    from coterie.methods.base import Solved

    if isinstance(method, Solved) or method.rounds_per_model:  # nothing is iterated; a path tries its own values
        return {}
    fixed, values = choice.given | given, {}
    fields = {field.name: field.default for field in dataclasses.fields(method)}
    rate = fields.get("lr")
    if isinstance(rate, float) and "lr" not in fixed:
        values["lr"] = tuple(float(f"{rate * factor:.6g}") for factor in FACTORS)
    for name, tried in {**method.tunes, **choice.candidates}.items():
        if name not in fixed or name in choice.candidates:
            values[name] = tuple(float(value) for value in tried)
    return dict(sorted(values.items(), key=lambda pair: pair[0] != "lr"))  # the learning rate first


def with_settings(job: Any, settings: Mapping[str, Any]) -> Any:
    """Return the job with some settings of its method changed; its graph does not depend on them."""
    part = job.experiment.method
    method = dataclasses.replace(part, spec=dataclasses.replace(part.spec, **settings))
    return dataclasses.replace(job, experiment=dataclasses.replace(job.experiment, method=method))


def choose(
    job: Any,
    values: Tuned,
    engine: Callable[[], Any],
    path: Path | None,
    notify: Callable[[int, int], None] = lambda done, count: None,
    by_score: bool = False,
) -> dict[str, Any]:
    """Tune the method of a job, or read what an earlier call has chosen.

    Args:
        job: the run to tune for.
        values: what to try.
        engine: makes the engine of the job's split, if something must be trained.
        path: where the record is kept; None keeps nothing.
        notify: called with the number of trained candidates, and of all.
        by_score: choose by the validation score after all rounds instead of the validation loss.

    Returns:
        The record: `candidates` (settings, rounds, validation_loss or None), `chosen`, `seconds`, `values`, `config`.
    """
    earlier = None if path is None else read_tuning(path)
    if earlier is not None:
        changed = difference(earlier["config"], job.config) or difference(
            {"tuning": earlier["values"]}, {"tuning": {name: list(tried) for name, tried in values.items()}}
        )
        if changed:
            raise CoterieError(f"{path} holds the tuning of another run: {changed}; {REMEDY}")
        return earlier
    started = time.perf_counter()
    candidates, chosen = _search(job, values, engine(), notify, by_score)
    record = {
        "config": job.config,
        "values": {name: list(tried) for name, tried in values.items()},
        "candidates": candidates,
        "chosen": chosen,
        "seconds": round(time.perf_counter() - started, 3),
    }
    if path is not None:
        with storage_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        durable_write(path, json.dumps(record, indent=1).encode())
    return record


def _fits(value: Any) -> Any:
    """Check a record: what was chosen is what was tuned."""
    if RECORD(value)["chosen"].keys() != value["values"].keys():
        raise Mismatch(f"must have {', '.join(value['values']) or 'no keys'}", "chosen")
    return value


def read_tuning(path: Path) -> dict[str, Any] | None:
    """Return a record that was written before, if there is one."""
    if not holds(path.parent, path.name):
        return None
    try:
        return read_json(path.parent, path.name, _fits)
    except Unreadable as error:
        raise CoterieError(f"{error}; remove it to tune again") from None


def _search(
    job: Any, values: Tuned, engine: Any, notify: Callable[[int, int], None], by_score: bool = False
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Try the values of one setting after the other, each at the best of those before; return records and choice."""
    from coterie.comparison.candidates import Trials

    total = sum(len(tried) for tried in values.values()) - max(0, len(values) - 1)
    trials = Trials(job, engine, lambda done: notify(done, total), by_score)
    chosen = {name: float(getattr(job.method, name)) for name in values}
    records: list[dict[str, Any]] = []
    best: tuple[float, ...] | None = None
    for name, tried in values.items():
        others = [v for v in tried if best is None or v != chosen[name]]
        methods = [dataclasses.replace(job.method, **{**chosen, name: value}) for value in others]
        trained = trials.halving(methods) if best is None else trials.all_of(methods)
        for value, candidate in zip(others, trained, strict=True):
            loss = None if candidate.diverged else candidate.loss
            about = {"rounds": candidate.round, "best_round": candidate.best_round, "validation_loss": loss}
            about |= {} if candidate.score is None else {"validation_score": job.task.score.sign * candidate.score}
            records.append({"settings": {**chosen, name: value}, **about})
        # Those trained longest are compared with each other; a short training says less.
        stable = [(c.round, c.rank, v) for v, c in zip(others, trained, strict=True) if not c.diverged]
        finals = [(rank, v) for number, rank, v in stable if number == trials.long] or [each[1:] for each in stable]
        if best is None and not finals:
            raise Diverged(
                f"training diverged with every {name} that was tried, {', '.join(f'{v:g}' for v in others)}; give a "
                f"smaller one: --set methods.NAME.{name}=..."
            )
        winner = min(finals, default=None)
        if winner is not None and (best is None or winner[0] < best):
            best, chosen = winner[0], {**chosen, name: winner[1]}
    return records, chosen
