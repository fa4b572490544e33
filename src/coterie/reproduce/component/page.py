"""The page of `coterie reproduce component`: its sections and tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.pages.html import Html, Row, h, join, table
from coterie.pages.words import bytes_text
from coterie.reproduce.component import drawings
from coterie.reproduce.plots import place, plot_page

__all__ = ["page"]

Section = tuple[str, str, Html]


def page(codecs: Sequence[Mapping[str, Any]], groups: Any, personal: Sequence[Mapping[str, Any]], plotly: str) -> str:
    """Return the page.

    Args:
        codecs: figures of `run_codecs`, one for each data set.
        groups: figures of `run_groups` and its rows, or None.
        personal: figures of `run_personal`, one for each data set.
        plotly: the text of plotly.js.
    """
    plots: list[dict[str, Any]] = []
    sections = [_codec_section(figures, plots) for figures in codecs]
    sections += [] if groups is None else [_group_section(groups[0], groups[1], plots)]
    sections += [_personal_section(figures) for figures in personal]
    head = "A federated model with a personalised component (Zhao, Liu, Jiang, He): the experiments"
    return plot_page("Personalised component: the experiments", head, sections, plots, plotly)


# -- codecs ------------------------------------------------------------------------------------------------------------


def _codec_section(figures: Mapping[str, Any], plots: list[dict[str, Any]]) -> Section:
    name = f"{figures['data']}-{figures['local']}"
    frontier, elements = drawings.frontier(figures, f"frontier-{name}"), drawings.elements(figures, f"elements-{name}")
    orders, example = drawings.orders(figures, f"orders-{name}"), drawings.example(figures, f"example-{name}")
    plots += [frontier, elements, orders, example]
    sent = "the gradient of all its samples" if figures["local"] == "gradient" else "the change of one epoch"
    whole = figures["uncompressed"]
    frame = f"including {figures['header']} header bytes per message, which no codec can save"
    content = join(
        h(
            "p",
            f"{figures['about']}; a {figures['model']} model of {figures['parameters']:,} numbers, {figures['rounds']} "
            f"rounds. In a round every client sends {sent}, through a codec. Mean of {figures['draws']} draws.",
        ),
        place(frontier),
        _note(
            "For every family and budget: the setting and round that validation accuracy chooses, and their test "
            f"accuracy. Bytes are those one client sends to the hub ({frame}); the way back is not compressed. Dotted: "
            "0.5 points below uncompressed training, and an eighth of its bytes."
        ),
        h("h3", "To within 0.5 points of uncompressed training"),
        _reach_table(figures),
        _note(
            f"Uncompressed training has {100 * whole['test']:.2f} % after {whole['round']} rounds and "
            f"{whole['up'] / 1e3:,.1f} kB. The first round with enough validation accuracy counts."
        ),
        h("h3", "The best codec at equal bytes"),
        _equal_table(figures),
        _note("Test accuracy in per cent; bold: the best by validation accuracy. A dash: one message costs more."),
        h("h3", "After all rounds"),
        _end_table(figures),
        _note(
            "fused-g-k-ef: price g of a jump, k centres, error feedback; constant: g does not decrease over rounds, "
            "as in the draft; qsgd-b: b bits; top-k-f: the share f is sent."
        ),
        h("h3", "What the fused operator does to an update"),
        place(elements),
        _note("The price of a jump is in units of the update's mean absolute value."),
        place(example),
        place(orders),
        _note(
            "The operator makes neighbours equal, so that it matters which elements are neighbours. In an order that "
            "follows the mean of the round before (both ends know it) an update has longer runs, as long as rounds "
            "resemble each other."
        ),
    )
    return f"codecs-{name}", f"Accuracy against uplink bytes: {figures['data']}", content


def _note(words: str) -> Html:
    return h("p", words, class_="note")


def _reach_table(figures: Mapping[str, Any]) -> Html:
    rows = [
        [family, _or_dash(at, "label"), _or_dash(at, "round"), _kilo(at, "up"), _fewer(at, "fewer_same"), _test(at)]
        for family, at in figures["reach"].items()
    ]
    heads = ["text:codec", "text:setting", "round", "kB per client", "times fewer, to there", "test accuracy"]
    return table(heads, map(Row, rows))


def _end_table(figures: Mapping[str, Any]) -> Html:
    rows = [
        [at["label"], _kilo(at, "up"), *(_fewer(at, key) for key in ("fewer", "fewer_bare")), _test(at), _points(at)]
        for at in figures["settings"]
    ]
    heads = ["text:setting", "kB per client", "times fewer", "without headers", "test accuracy"]
    return table([*heads, "points to uncompressed"], map(Row, rows))


def _equal_table(figures: Mapping[str, Any]) -> Html:
    families = list(figures["reach"])
    rows = []
    for row in figures["equal"]:
        cells: list[Any] = [f"1/{1 / row['share']:.0f}" if row["share"] < 1 else "all", bytes_text(row["budget"])]
        for family in families:
            at = row["families"].get(family)
            text = "–" if at is None else f"{100 * at['test']:.2f}"
            cells.append(h("strong", text) if family == row["winner"] else text)
        rows.append(Row(cells))
    return table(["text:share", "per client", *families], rows)


# -- groups and personal models ----------------------------------------------------------------------------------------


def _group_section(
    figures: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], plots: list[dict[str, Any]]
) -> Section:
    plots.append(drawings.path(figures, rows, "path"))
    lines = [
        [
            f"k = {n['neighbours']}",
            f"{n['found']} of {figures['draws']}",
            "–" if n["always"] is None else f"{n['always'][0]:.3g} to {n['always'][1]:.3g}",
            f"{sum(n['best_ari']) / len(n['best_ari']):.3f}",
            f"{100 * n['chosen_test']:.1f} %",
        ]
        for n in figures["networks"]
    ]
    heads = ["text:network", "found exactly", "lam where all draws are", "best index, mean"]
    content = join(
        h(
            "p",
            "40 clients in four groups of ten that name the same classes differently, 20 samples each. The network "
            'lasso from "all equal" to "all apart"; clients are in a cluster if their models are exactly equal.',
        ),
        place(plots[-1]),
        table([*heads, "accuracy at the chosen lam"], map(Row, lines)),
        _note(
            "k is the number of neighbours of a client in the similarity network; a group has nine others, so 12 "
            "include clients of other groups, and 39 are everyone. lam is chosen on validation accuracy, for each draw."
        ),
    )
    return "groups", "Planted groups along the path", content


def _personal_section(figures: Mapping[str, Any]) -> Section:
    lines = []
    for row in figures["methods"]:
        error = "" if row["gain_error"] is None else f" ± {100 * row['gain_error']:.1f}"
        gain = "–" if row["gain"] is None else f"{100 * row['gain']:+.1f}{error}"
        score = f"{100 * row['test']:.1f} ± {100 * row['spread']:.1f}"
        setting = row["label"].removeprefix(f"{row['method']}-")
        worst = f"{100 * row['worst']:.1f}"
        lines.append(Row([row["method"], setting, str(row["round"]), score, worst, gain, bytes_text(row["total"])]))
    heads = ["text:method", "text:chosen setting", "round", "test accuracy", "worst", "over alone", "bytes per client"]
    name = figures["data"]
    words = (
        f"{figures['clients']} clients with few samples. Learning rate, strength of the tie and round are chosen on "
        f"validation accuracy for every method; mean of {figures['draws']} draws ± standard deviation; worst: the mean "
        "of the worst decile of clients (of fewer than 20, the worst)."
    )
    content = join(h("p", words), table(heads, lines))
    return f"personal-{name}-{figures['model']}", f"Personal models: {name}, {figures['model']}", content


# -- cells -------------------------------------------------------------------------------------------------------------


def _or_dash(at: Mapping[str, Any] | None, key: str) -> str:
    return "–" if at is None else str(at[key])


def _kilo(at: Mapping[str, Any] | None, key: str) -> str:
    return "–" if at is None else f"{at[key] / 1e3:,.1f}"


def _fewer(at: Mapping[str, Any] | None, key: str) -> str:
    return "–" if at is None else f"{at[key]:.1f}"


def _test(at: Mapping[str, Any] | None) -> str:
    return "–" if at is None else f"{100 * at['test']:.2f} ± {100 * at['spread']:.2f}"


def _points(at: Mapping[str, Any]) -> str:
    return f"{100 * at['gap']:+.2f}"
