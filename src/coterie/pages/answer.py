"""The answer in numbers, for the top of the report: what is gained, with whom, and at what price."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coterie.codecs.frame import HEADER
from coterie.experiment.folder import model_file
from coterie.pages.words import bytes_text, count_text, gain_text, listed, times_text
from coterie.storage.arrays import read_tensors
from coterie.storage.owned import holds

if TYPE_CHECKING:
    from coterie.comparison.comparison import Comparison
    from coterie.experiment.result import Result

__all__ = ["NOTHING", "Gain", "Tile", "gain_tile", "gains", "partner_tile", "partners", "price_tile"]

# Methods whose clients send what FedAvg's do: one model up and one down in every round.
AS_FEDAVG = ("fedavg", "fedavg-finetuned", "fedprox")
NAMED = 4  # groups, and members of a group, that a tile names
NOTHING = 0.01  # a client that gives less weight to all others together learns from nobody
LISTED = 1000  # clients up to which partners are listed
SEARCHED = 100  # clients up to which groups are searched in weights: with 200 that takes half a minute


class Gain(NamedTuple):
    """The mean gain of a method over training alone, and where the true one lies."""

    mean: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        """Whether it has an interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def tone(self) -> str:
        """Whether it is a gain, a loss, or may be chance."""
        return "gain" if self.known and self.low > 0 else "loss" if self.known and self.high < 0 else ""


class Tile(NamedTuple):
    """A question, the answer in a few words, and a line about it."""

    question: str
    answer: str
    detail: str
    tone: str = ""  # "gain" or "loss"


def gains(board: Sequence[Mapping[str, Any]]) -> dict[str, Gain]:
    """Return the gain of every method over training alone, with its interval, from the rows of the leaderboard."""

    def end(row: Mapping[str, Any], name: str) -> float:
        return math.nan if row[name] is None else row[name]

    known = [row for row in board if row["mean_gain"] is not None]
    return {row["method"]: Gain(row["mean_gain"], end(row, "low"), end(row, "high")) for row in known}


def gain_tile(comparison: "Comparison") -> Tile:
    """Return what the method that the verdict names gains."""
    judged, score = comparison.judgement(), comparison.score
    if judged.method is None or judged.interval is None:
        return Tile("Gain", "open", "there is nothing to compare with")
    gain = Gain(judged.interval.mean, judged.interval.low, judged.interval.high)
    unit = "points" if score.percent else score.label
    between = ""
    if gain.known:
        low, high = (gain_text(value, score) for value in (gain.low, gain.high))
        between = f"; 95 % interval {low} to {high}"
    answer = f"{gain_text(gain.mean, score)} {unit}"
    if judged.outcome == "nobody-beats-guessing":
        return Tile("Gain", "nothing shown", f"{judged.method}, the best, is {answer} better than guessing{between}")
    tone = {"helps": "gain", "hurts": "loss"}.get(judged.outcome, "")
    more = "" if judged.rows_needed is None else f"; about {count_text(judged.rows_needed)} more test rows would tell"
    return Tile("Gain", answer, f"with {judged.method}, against training alone{between}{more}", tone)


def partners(comparison: "Comparison") -> dict[str, Any] | None:
    """Return what the best method that learned a graph says.

    `method` is its label, `table` the rows of `who`, `taken [K]` the weight that each client gives to others in all,
    `bytes [K]` what it sends and receives, `found` the groups. All but the label and the bytes are None where there are
    too many clients to list, or to search for groups within seconds.
    """
    from coterie.comparison.who import TIED, best_learner, groups_found, learned_weights, ties

    label = best_learner(comparison)
    if label is None:
        return None
    count = len(comparison.clients["names"])
    tied = comparison.results[label][0].config["method"]["name"] in TIED  # their groups are found at once
    few = count <= LISTED
    return {
        "method": label,
        "table": ties(comparison, label) if few else None,
        "taken": 1 - np.diag(learned_weights(comparison.results[label])) if few else None,
        "bytes": np.mean([np.sum([*r.ledger.totals().values()], axis=0) for r in comparison.results[label]], axis=0),
        "found": groups_found(comparison, label) if count <= (LISTED if tied else SEARCHED) else None,
    }


def partner_tile(comparison: "Comparison", learned: Mapping[str, Any] | None) -> Tile:
    """Return with whom clients cooperate: the groups that were found, or their strongest tie, or all through a hub."""
    question = "With whom"
    if learned is None:
        best = comparison.best()
        if comparison.role(best) != "cooperates":
            return Tile(question, "nobody", "no method of this comparison lets the clients cooperate")
        if any(result.graphs for result in comparison.results[best]):
            return Tile(question, "given neighbours", f"{best} uses a network that was given, not learned")
        return Tile(
            question, "everyone", f"{best} shares with all through a hub; no method here learns with whom to cooperate"
        )
    table = learned["table"]
    groups = () if learned["found"] is None else learned["found"].groups
    if table is None:
        many = f"too many clients to list: {learned['method']} has learned it, coterie graph writes it as a file"
        return Tile(question, "their own neighbours", many)
    if len(groups) > 1:
        named = "; ".join(_members(group) for group in groups[:NAMED])
        more = f" and {len(groups) - NAMED} more" if len(groups) > NAMED else ""
        return Tile(question, f"{count_text(len(groups))} groups", f"found by {learned['method']}: {named}{more}")
    ties = [tie for tie in table if tie.weight > 0]
    if learned["taken"].max() < NOTHING:
        return Tile(question, "nobody", f"{learned['method']} gives every client a model of its own")
    if not ties:
        share = f"{100 * learned['taken'].mean():.0f} %"
        return Tile(
            question, "many, a little from each", f"a client takes {share} from others, with {learned['method']}"
        )
    most, each = max(ties, key=lambda tie: tie.weight), len(ties) / len({tie.site for tie in ties})
    words = f"a client learns from {each:.0f} others; most: {most.site} from {most.learns_from}"
    answer = "no clear groups" if learned["found"] is not None else "their own neighbours"
    return Tile(question, answer, f"{words} ({100 * most.weight:.0f} %), with {learned['method']}")


def _members(group: Any) -> str:
    names = list(group)
    return listed(names[:NAMED] + ([f"{count_text(len(names) - NAMED)} more"] if len(names) > NAMED else []))


def price_tile(comparison: "Comparison") -> Tile:
    """Return what the best method costs a client, in bytes and seconds, and against FedAvg."""
    rows = {row["method"]: row for row in comparison.leaderboard() if not row["failed"]}
    best = comparison.best()
    cost, seconds = rows[best]["bytes_per_client"], rows[best]["seconds"]
    answer = f"{bytes_text(cost)} per client"
    whole, reference = fedavg_bytes(comparison)
    words = []
    if whole and comparison.results[best][0].config["method"]["name"] != "fedavg":
        words.append("as much as FedAvg" if _same(cost, whole) else f"{times_text(cost / whole)} FedAvg")
    time, other = f"{seconds:.1f} s of training", rows.get(reference or "")
    if other is not None and best != reference and other["seconds"] > 0:
        long = other["seconds"]
        time += f", as long as {reference}" if _same(seconds, long) else f", {times_text(seconds / long)} {reference}"
    return Tile("Price", answer, "; ".join([*words, time]))


def _same(value: float, other: float) -> bool:
    return abs(value / other - 1) < 0.05


def fedavg_bytes(comparison: "Comparison") -> tuple[float | None, str | None]:
    """Return the bytes per client of FedAvg over all rounds, and the label of the method they were measured with.

    Where no method sends what FedAvg does, this is the sum of its frames: one model up and one down in every round.
    """
    for name in AS_FEDAVG:
        for label, results in comparison.results.items():
            plain = results[0].config.get("codec", {}).get("name", "none") == "none"
            if results[0].config["method"]["name"] == name and plain:
                return float(np.mean([result.ledger.bytes_per_client() for result in results])), label
    first = next(iter(comparison.results.values()))[0]
    size = _model_bytes(first)
    return (None if size is None else 2.0 * (HEADER + size) * first.config["run"]["rounds"]), None


def _model_bytes(result: "Result") -> int | None:
    """Return the size of a client's parameters, from its model file or from memory; None without models."""
    if result.variables is not None:
        import jax

        return sum(leaf.nbytes for leaf in jax.tree.leaves(result.variables.params)) // len(result.names)
    file = model_file(0, result.names[0])
    if result.folder is None or not holds(result.folder, "models", file):
        return None
    tensors = read_tensors(result.folder, "models", file)
    return sum(array.nbytes for name, array in tensors.items() if not name.startswith("statistics."))
