"""What a verdict says, in words: one sentence for the person who decides, and notes for the careful reader."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from coterie.comparison.verdict import ClientGain, Interval, Outcome, Setting
    from coterie.learning.score import Score

__all__ = ["Said", "left_out", "limits", "no_difference", "nobody", "one_client", "rounded_up", "sentence"]

MANY = 0.25  # share of losing clients from which the sentence names them
NOBODY_COOPERATES = (
    "No method of this comparison lets the clients cooperate, so it does not say whether that would help them."
)


class Said(NamedTuple):
    """What the sentence is made of."""

    setting: "Setting"
    method: str
    interval: "Interval"
    clients: "Sequence[ClientGain]"
    choices: int
    rows_needed: int | None
    units: int  # clients, or known groups of clients
    few: int  # fewer of them are too few


def sentence(outcome: "Outcome", said: Said) -> str:
    """Return the answer in one sentence."""
    score, names = said.setting.score, said.setting.names
    if said.units < said.few:
        return _too_few(said)
    opening = {
        "helps": f"Cooperation helps these clients: with {said.method}",
        "hurts": f"Cooperation hurts these clients: even with the best method, {said.method},",
    }.get(outcome, f"Whether cooperation helps these clients cannot be told from noise: with {said.method}, the best,")
    better = sum(client.gain > 0 for client in said.clients)
    return (
        f"{opening} the mean gain over training alone is {score.gain(said.interval.mean)} {score.unit} "
        f"({_range(said.interval, score)}{_covers(said)}), and {better} of {len(names)} clients do better than alone"
        f"{_losers(said.clients, score)}{_more(outcome, said)}."
    )


def nobody(setting: "Setting", method: str, interval: "Interval", choices: int) -> str:
    """Return the sentence that no method was shown to be better than guessing."""
    score = setting.score
    chosen = f", corrected for choosing among {choices} methods" if choices > 1 else ""
    return (
        f"Nobody here beats guessing: {method}, the best, is {score.gain(interval.mean)} {score.unit} better than "
        f"guessing from each client's own training targets ({_range(interval, score)} on these test rows{chosen}), so "
        f"this comparison cannot say whether cooperation helps."
    )


def no_difference(score: "Score") -> str:
    """Return the sentence for gains that are all exactly 0."""
    return f"Cooperation makes no difference to these clients: each has the same {score.label} as alone."


def one_client(missing: Sequence[str]) -> str:
    """Return the sentence for a comparison with one client that can be judged, or none."""
    if missing:
        return "There are too few clients with a score to tell whether cooperation helps."
    return "There is only one client, so there is nobody to cooperate with."


def left_out(names: Sequence[str], score: "Score") -> tuple[str, ...]:
    """Return the note on clients whose score is not a number."""
    if not names:
        return ()
    listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return (f"Left out, because their {score.label} is not defined on their test rows: {listed}.",)


def limits(setting: "Setting", gains: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the interval covers and what it assumes."""
    paired = next(iter(gains.values()))
    runs, splits = len(paired.gains), 1 if setting.splits is None else len(set(setting.splits))
    notes = ["Clients weigh by what their test rows can tell: one with 3 rows weighs less than one with 1,500."]
    if runs == 1:
        notes.append(
            "There is one run of each method, so the effect of the seed is not measured; it is assumed to be 0.3 of "
            "the spread of the clients' gains. Several runs (--seeds, --splits) measure it."
        )
    elif splits == 1:
        notes.append("All runs have the same split; what another split would change is not in the interval.")
    if setting.groups is not None:
        count = len(set(np.asarray(setting.groups).tolist()))
        notes.append(f"Clients of a known group are taken to gain or lose together: {count} groups count, not clients.")
    if paired.spread is None:
        notes.append(f"The error of the test sets is not known for {setting.score.label} of these runs.")
    return tuple(notes)


def rounded_up(number: float) -> int:
    """Round up to two digits: nobody needs 1,237 rows exactly."""
    step = 10 ** max(0, math.floor(math.log10(max(number, 1))) - 1)
    return int(math.ceil(number / step) * step)


def _too_few(said: Said) -> str:
    score, setting = said.setting.score, said.setting
    gains = " and ".join(_own(client, score) for client in said.clients[:2])
    if setting.groups is not None:
        return (
            f"There are too few known groups of clients ({said.units}) to tell whether cooperation helps: with "
            f"{said.method}, the best, the mean gain over training alone is {score.gain(said.interval.mean)} "
            f"{score.unit}, but clients of a group gain or lose together."
        )
    return (
        f"There are too few clients ({said.units}) to tell whether cooperation helps: with {said.method}, the best, "
        f"they gain {gains} {score.unit} over training alone (95 % interval of each client's own test rows)."
    )


def _own(client: "ClientGain", score: "Score") -> str:
    """Return a client's gain with its own interval."""
    words = f"{client.client} {score.gain(client.gain)}"
    if client.low is None or client.high is None:
        return words
    return f"{words} ({score.gain(client.low)} to {score.gain(client.high)})"


def _range(interval: "Interval", score: "Score") -> str:
    return f"95 % interval {score.gain(interval.low)} to {score.gain(interval.high)}"


def _covers(said: Said) -> str:
    """Say what the interval covers."""
    runs, splits = len(said.setting.rows), said.setting.splits
    over = "groups of clients" if said.setting.groups is not None else "clients"
    if runs == 1:
        covered = f" over {over}, the effect of the seed assumed"
    elif splits is None or len(set(splits)) == 1:
        covered = f" over {over} and seeds"
    else:
        covered = f" over {over}, seeds and splits"
    return covered + (f", corrected for choosing among {said.choices} methods" if said.choices > 1 else "")


def _losers(clients: "Sequence[ClientGain]", score: "Score") -> str:
    """Name the clients that lose most, if many lose."""
    worst_first = sorted((client for client in clients if client.gain < 0), key=lambda client: client.gain)
    if len(worst_first) < MANY * len(clients):
        return ""
    named = [f"{client.client} ({score.gain(client.gain)})" for client in worst_first[:3]]
    return f"; {len(worst_first)} lose, most of all {', '.join(named)}"


def _more(outcome: "Outcome", said: Said) -> str:
    """Say what would bring an answer, where there is none yet."""
    if outcome != "cannot-tell":
        return ""
    if said.rows_needed is not None:
        return f"; about {said.rows_needed:,} more test rows would tell, if the gain stays what it is"
    return "; more test rows alone would not tell, more clients or runs might"
