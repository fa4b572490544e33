"""What the draft of Zhao, Liu, Jiang and He shows beside ours: its Fig. 6, and the same four cases in training.

The draft has no table and no accuracy. Fig. 6 is a drawing of one gradient, of which only the number of elements and k
are known. Every way in which we differ is listed here.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.reproduce import Difference, differences_of
from coterie.reproduce.record import Record, make_record

__all__ = ["DIFFERENCES", "codecs_record", "expected_figure6", "figure6_record"]

SOURCE = "Zhao, Liu, Jiang, He (draft), Figure 6"
FIGURE6 = "component, Figure 6: one gradient on covtype"
FIGURE6_PAPER = {"gamma = 0": "55 elements", "regulariser": "drawn", "k = 4": "4 values", "k = 3": "3 values"}

# The rows of the training, and the setting of `layout.CODECS` in each column of ours.
TRAINED = {
    "gamma = 0": {"printed": "none"},
    "regulariser": {"printed": "fused-0.3-constant", "tuned": "fused-0.3"},
    "k = 4": {"printed": "fused-0.3-k4-constant", "tuned": "fused-0.3-k4-ef"},
    "k = 3": {"printed": "fused-0.3-k3-constant", "tuned": "fused-0.3-k3-ef"},
}

DIFFERENCES = (
    Difference("gamma (0.3 times the mean absolute element), step size, 20 clients and iteration are ours: not stated"),
    Difference("a gradient is of all samples of a client; the draft draws one sample in each iteration"),
    Difference("the operator is computed exactly; the draft's Algorithm 4 diverges as printed"),
    Difference("the draft's text draws k = 4 before k = 3, its caption the other way round", ("k = 4", "k = 3")),
    Difference("numbers are sent as bfloat16 in a message of our codec", ("regulariser", "k = 4", "k = 3")),
    Difference("regulariser, tuned: gamma decreases over the rounds", ("regulariser",), "tuned"),
    Difference("k = 4 and k = 3, tuned: with error feedback", ("k = 4", "k = 3"), "tuned"),
)


def expected_figure6() -> Record:
    """Return the record of Fig. 6 before anything is run."""
    rows = [{"row": name, "paper": text} for name, text in FIGURE6_PAPER.items()]
    return make_record(
        FIGURE6,
        SOURCE,
        rows,
        statistics="",
        command="coterie reproduce component --part codecs --data covtype-binary",
        needs="covtype",
    )


def figure6_record(panels: Sequence[Mapping[str, Any]], command: str, device: str) -> Record:
    """Return the record of Fig. 6 from the rows of `elements.figure6`."""
    rows = []
    for row in panels:
        text = f"{row['distinct']:.3g} / {row['bytes']:.0f} / {row['error']:.3f}"
        name = f"{row['panel']}, round {row['round']}"
        rows.append(
            {"row": name, "paper": FIGURE6_PAPER[row["panel"]], "printed": text, "figures": {"printed": dict(row)}}
        )
    return make_record(
        FIGURE6,
        SOURCE,
        rows,
        statistics="distinct values / bytes of the encoded gradient / relative error, means over 10 of the clients",
        command=command,
        differences=differences_of(DIFFERENCES, FIGURE6_PAPER, ("printed",)),
        seeds=1,
        device=device,
        needs="covtype",
    )


def codecs_record(figures: Mapping[str, Any], command: str, device: str) -> Record | None:
    """Return the record of training with the four cases from the figures of `run_codecs`; None if one is missing."""
    settings = {row["label"]: row for row in figures["settings"]}
    if not all(label in settings for columns in TRAINED.values() for label in columns.values()):
        return None
    rows = []
    for name, columns in TRAINED.items():
        own = {block: settings[label] for block, label in columns.items()}
        shown = ("label", "test", "spread", "gap", "fewer", "fewer_bare")
        figure = {block: {key: row[key] for key in shown} for block, row in own.items()}
        cells = {block: _cell(row) for block, row in own.items()}
        rows.append({"row": name, "figures": figure, **cells})
    return make_record(
        f"component, training with the gradients of Figure 6: {figures['data']}",
        f"{SOURCE}; the draft does not train",
        rows,
        statistics=f"test accuracy in per cent after {figures['rounds']} rounds / times fewer bytes of the uplink / "
        "the same without the headers of the messages",
        command=command,
        differences=differences_of(DIFFERENCES, TRAINED, ("printed", "tuned")),
        seeds=figures["draws"],
        device=device,
    )


def _cell(row: Mapping[str, Any]) -> str:
    return f"{100 * row['test']:.2f} / {row['fewer']:.1f} / {row['fewer_bare']:.1f}"
