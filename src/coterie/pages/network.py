"""What went wrong between the clients: who was away, what was lost, refused or bounded; empty where nobody watched.

A run on a network that was gathered from its sites says what happened. A simulation with faults or robust sums says
what was made to happen.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.experiment.result import Result
from coterie.pages.html import Cell, Html, Row, h, join, table
from coterie.pages.words import bytes_text, clip, count_text
from coterie.peers.faults import Faults
from coterie.sites.network import read_network_record, rounds_text, spans

if TYPE_CHECKING:
    from coterie.comparison.comparison import Comparison

__all__ = ["section"]

LISTED = 200  # members that are listed
NAMED = 10  # members that a sentence names


def section(comparison: "Comparison", data: Mapping[str, Any]) -> Html:
    """Return what happened between the clients of each method's first run."""
    several = len(comparison.results) > 1
    parts = []
    for method, results in comparison.results.items():
        record = None if results[0].folder is None else read_network_record(results[0].folder)
        written = _injected(results[0]) if record is None else _gathered(results[0], record)
        if written:
            parts += [h("h3", method) if several else None, *written]
    return join(parts)


# -- a simulation ---------------------------------------------------------------------------------------------------


def _injected(result: Result) -> list[Html]:
    """Return what faults and robust sums did in a simulation."""
    faults, robust = Faults.from_dict(result.config.get("faults", {})), result.config["run"].get("robust")
    if not faults and robust is None:
        return []
    words = []
    if faults:
        words.append("Faults were injected: " + "; ".join(_rule(kind, rule) for kind, rule in faults.rules) + ".")
    words += _clipped(result) if robust is not None else []
    names = result.ledger.names  # in a member's own run, what it counted of everybody
    away = _away(faults, result)
    counts = {what: result.ledger.went_wrong(what) for what in ("lost", "refused", "clipped")}
    shown = {what: values for what, values in counts.items() if what != "clipped" or robust is not None}
    heads = ["text:member", *(["text:away in rounds"] if any(away) else []), *shown]
    rows = []
    for i in _listed(names, counts):
        cells: list[Any] = [Cell(clip(names[i]), kind="name")]
        cells += [rounds_text(away[i])] if any(away) else []
        cells += [Cell(count_text(int(values[i])), int(values[i])) for values in shown.values()]
        rows.append(Row(cells))
    return [h("p", " ".join(words)), table(heads, rows, "network-table", sortable=True), *_note(len(names))]


def _clipped(result: Result) -> list[str]:
    """Say what robust sums do, and name the members that mostly sent what was too far away."""
    names, clipped, sent = result.ledger.names, result.ledger.went_wrong("clipped"), result.ledger.to_others()
    # Of how many, a hub's own ledger does not say: nobody is named there, and the table has the counts.
    often = [i for i in np.argsort(-clipped, kind="stable").tolist() if 2 * clipped[i] >= sent[i] >= clipped[i] > 0]
    named = [f"{clip(names[i])} ({count_text(int(clipped[i]))} of {count_text(int(sent[i]))})" for i in often]
    rest = f" and {count_text(len(named) - NAMED)} more" if len(named) > NAMED else ""
    words = "What others sent counted only as far as it was within twice the median distance (robust = clip)."
    if not named:
        return [words, "The table says whose messages were not, and how often." if clipped.any() else "All of it was."]
    return [
        words,
        f"Clipped in half of their messages or more: {', '.join(named[:NAMED])}{rest}. They send what the others do "
        "not: scaled or false values, or honest ones of a member that is unlike the others.",
    ]


def _rule(kind: str, rule: Any) -> str:
    """Say in words what a rule does."""
    when = f" in rounds {rounds_text([rule.rounds])}" if rule.rounds else ""
    if kind == "partition":
        return "partition of " + " from ".join(", ".join(group) for group in rule.groups) + when
    who = f" of {', '.join(rule.members[:8])}" if rule.members else ""
    how = f" ({rule.kind})" if kind == "poison" else f" {rule.rate:.0%}"
    return f"{kind}{how}{who}{when}"


def _away(faults: Faults, result: Result) -> list[list[list[int]]]:
    """Return in which rounds each member was frozen."""
    from coterie.peers.injection import Injection

    names = result.ledger.names
    injection = Injection.of(faults, names)
    if injection is None or not faults.of("freeze"):
        return [[] for _ in names]
    frozen = injection.tables(1, result.rows[-1]["round"]).frozen  # [R, K + 1]
    return [spans((1 + np.flatnonzero(frozen[:, i])).tolist()) for i in range(len(names))]


# -- a run on a network ---------------------------------------------------------------------------------------------


def _gathered(result: Result, record: Mapping[str, Any]) -> list[Html]:
    """Return what the sites of a run recorded."""
    counts, sent = record["counts"], result.ledger.totals()["sent"]
    robust = result.config["run"].get("robust") is not None
    clipped = result.ledger.went_wrong("clipped")
    refused: dict[str, int] = {}
    for entry in () if counts is None else counts["refused"]:
        refused[entry["sender"]] = refused.get(entry["sender"], 0) + entry["messages"]
    heads = ["text:member", "text:there in rounds", "text:started again", "messages that did not come"]
    heads += [
        "refused",
        *(["late"] if counts else []),
        *(["clipped"] if robust else []),
        "bytes sent (ledger)",
        *(["bytes sent (engine)"] if counts else []),
    ]
    rows = []
    wrong = {"missing": np.array([record["missing"].get(name, 0) for name in result.names])}
    for i in _listed(result.names, wrong):
        name = result.names[i]
        again = "; ".join(f"before round {number}, as after {old}" for old, number in record["restarted"].get(name, []))
        cells: list[Any] = [Cell(clip(name), kind="name"), rounds_text(record["there"].get(name, [])), again or "–"]
        numbers = [record["missing"].get(name, 0), refused.get(name, 0)]
        numbers += [counts["late"].get(name, 0)] if counts else []
        numbers += [int(clipped[i])] if robust else []
        cells += [Cell(count_text(number), number) for number in numbers]
        cells.append(Cell(bytes_text(sent[i]), int(sent[i])))
        cells += [Cell(bytes_text(counts["bytes"].get(name, 0)), counts["bytes"].get(name, 0))] if counts else []
        rows.append(Row(cells))
    notes = [h("p", note, class_="note") for note in record["notes"]]
    return [
        h("p", f"A run of {count_text(record['rounds'])} rounds on a network, gathered from its sites."),
        *([h("p", " ".join(_clipped(result)))] if robust else []),
        table(heads, rows, "network-table", sortable=True),
        *notes,
        *_reasons(counts),
        *_note(len(result.names)),
    ]


def _reasons(counts: Mapping[str, Any] | None) -> list[Html]:
    """Say why messages were refused, and what the network cost besides."""
    if counts is None:
        return []
    words = (
        f"Besides the ledger's messages the network carried {bytes_text(counts['overhead'])} of notes and answers, "
        f"{bytes_text(counts['repeated'])} that were sent once more, and {bytes_text(counts['copies'])} of means for "
        "members that took no part."
    )
    refused = [f"{e['sender']}: {e['reason']} ({count_text(e['messages'])})" for e in counts["refused"][:LISTED]]
    why = [h("ul", [h("li", text) for text in refused])] if refused else []
    return [h("p", words, class_="note"), *why]


def _listed(names: Sequence[str], counts: Mapping[str, np.ndarray]) -> list[int]:
    """Return the members that are listed: all, or of very many those with the most trouble."""
    if len(names) <= LISTED:
        return list(range(len(names)))
    trouble = np.sum(list(counts.values()), axis=0)
    return sorted(np.argsort(-trouble, kind="stable")[:LISTED].tolist())


def _note(members: int) -> list[Html]:
    words = f"The {count_text(LISTED)} of {count_text(members)} members with the most trouble are listed."
    return [h("p", words, class_="note")] if members > LISTED else []
