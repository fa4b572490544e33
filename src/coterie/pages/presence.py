"""Who took part in the rounds of a simulation whose clients are away, fail or are slow; empty where all were there.

The schedule is drawn once more from the run's settings and seed, as the run itself drew it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coterie.errors import CoterieError
from coterie.experiment.result import Result
from coterie.pages.html import Cell, Html, Row, h, join, table
from coterie.pages.words import clip, count_text, listed, together
from coterie.peers.world import Presence, Schedule, World
from coterie.spec import build

if TYPE_CHECKING:
    from coterie.comparison.comparison import Comparison

__all__ = ["section"]

LISTED = 200  # clients that are listed
BARS = 200  # rounds, or groups of rounds, that are drawn
HEIGHT = 60


class Lived(NamedTuple):
    """A world that was simulated: its settings, the seed of the first run, and how many rounds that had."""

    world: World
    seed: int
    rounds: int


def section(comparison: "Comparison", data: Mapping[str, Any]) -> Html:
    """Return who took part in the first run of each method, methods with the same world together."""
    worlds: dict[Lived, list[str]] = {}
    for method, results in comparison.results.items():
        lived = _lived(results[0])
        if lived.world and comparison.role(method) not in ("guess", "pooled"):
            worlds.setdefault(lived, []).append(method)
    parts = [_written(comparison, lived, methods, len(worlds) > 1) for lived, methods in worlds.items()]
    return join(parts)


def _lived(result: Result) -> Lived:
    world, seed = build(World, result.config.get("world", {}), "world"), result.config["run"]["seed"]
    if world and not isinstance(seed, int):  # of a folder that somebody has changed
        raise CoterieError(f"run.seed must be a whole number, not {clip(str(seed))}")
    return Lived(world, seed, result.rows[-1]["round"])


def _written(comparison: "Comparison", lived: Lived, methods: list[str], several: bool) -> Html:
    names = comparison.results[methods[0]][0].names
    schedule = Schedule(lived.world, lived.seed, len(names))
    presence = schedule.presence(1, lived.rounds)
    there = presence.part.sum(1)
    words = (
        f"In this world {lived.world.words()}. In the run with seed {lived.seed}, {count_text(int(there.min()))} to "
        f"{count_text(int(there.max()))} of {count_text(len(names))} clients took part in a round, "
        f"{there.mean():.3g} on average, the same ones for every method."
    )
    heads = ["method", "messages sent", "lost"]
    rows = [Row([Cell(clip(method), kind="name"), *_messages(comparison.results[method][0])]) for method in methods]
    return join(
        h("h3", listed(methods)) if several else None,
        h("p", together(words)),
        _bars(presence),
        h("p", "What was sent in the first run; what a client sent that dropped out is paid for, and lost."),
        table(heads, rows, sortable=True),
        h("p", "The rounds of every client."),
        _clients(names, presence, lived.world),
    )


def _messages(result: Result) -> list[Cell]:
    sent, lost = int(result.ledger.totals("messages")["sent"].sum()), int(result.ledger.went_wrong("lost").sum())
    return [Cell(count_text(sent), sent), Cell(count_text(lost), lost)]


def _bars(presence: Presence) -> Html:
    """Draw how many clients took part in each round, and how many of these dropped out or came late."""
    rounds, clients = presence.part.shape
    groups = np.array_split(np.arange(rounds), min(rounds, BARS))
    wide = 1000 / len(groups)
    bars = []
    for at, group in enumerate(groups):
        low = 0.0
        part, late, mute = (a[group].sum(1).mean() / clients for a in presence)
        both = (presence.late & presence.mute)[group].sum(1).mean() / clients
        shares = {"mute": mute, "late": late - both, "there": part - mute - late + both}
        for kind, share in shares.items():
            height = HEIGHT * share
            if height > 0:
                place = {"x": f"{at * wide:.2f}", "width": f"{0.8 * wide:.2f}", "height": f"{height:.2f}"}
                bars.append(h("rect", **place, y=f"{HEIGHT - low - height:.2f}", class_=kind))
            low += height
    label = f"clients that took part in rounds 1 to {rounds}"
    drawing = h(
        "svg", bars, viewBox=f"0 0 1000 {HEIGHT}", preserveAspectRatio="none", role="img", aria_label=label,
        class_="presence",
    )  # fmt: skip
    shown = [("there", "took part"), ("late", "took part, late"), ("mute", "dropped out")]
    legend = [h("span", h("i", class_=f"presence-{kind}"), words) for kind, words in shown]
    caption = h(
        "figcaption", f"Clients in rounds 1 to {count_text(rounds)}; the full height is all {clients:,} of them"
    )
    return h("figure", caption, drawing, h("div", legend, class_="key"))


def _clients(names: tuple[str, ...], presence: Presence, world: World) -> Html:
    """List the clients with the rounds they took part in; of very many those with the fewest."""
    rounds = len(presence.part)
    took, late, mute = (a.sum(0) for a in presence)
    kept = sorted(np.argsort(took, kind="stable")[:LISTED].tolist())
    heads = ["client", f"took part, of {count_text(rounds)} rounds"]
    heads += [*(["dropped out"] if world.dropout else []), *(["late"] if world.slow else [])]
    rows = []
    for i in kept:
        counts = [took[i], *([mute[i]] if world.dropout else []), *([late[i]] if world.slow else [])]
        rows.append(Row([Cell(clip(names[i]), kind="name"), *(Cell(count_text(int(n)), int(n)) for n in counts)]))
    few = f"The {count_text(LISTED)} of {count_text(len(names))} clients with the fewest rounds are listed."
    return join(table(heads, rows, sortable=True), h("p", few, class_="note") if len(names) > LISTED else None)
