"""The last section of the report: the command that repeats the comparison, every config, device and time."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from coterie.experiment.profiling import PARTS
from coterie.experiment.schemas import read_profile
from coterie.pages.html import Html, Row, h, join, table
from coterie.pages.words import count_text, seconds_text
from coterie.storage.toml import dump_toml

if TYPE_CHECKING:
    from coterie.comparison.comparison import Comparison

__all__ = ["repeat"]

LONGEST_LIST = 200  # values per key that a config is shown with


def repeat(comparison: "Comparison", data: Mapping[str, Any]) -> Html:
    """Return the command, the config of each method, and the time of each run."""
    command = [h("pre", comparison.command, id="command"), h("button", "Copy", type="button", id="copy")]
    where = None
    if comparison.folder is not None:
        where = h("p", "The runs are in ", h("code", comparison.folder), ".")
    return join(
        h("p", "This command repeats the comparison:"),
        h("div", command, class_="command"),
        where,
        h("div", h("h3", "Configuration"), [_config(*item) for item in comparison.results.items()], class_="screen"),
        h("h3", "Device and time"),
        table(
            ["text:method", "runs", "text:device", "seconds of a run", "compiling", "in the program"],
            [_times(method, results) for method, results in comparison.results.items()],
        ),
        [_profile(method, result) for method, results in comparison.results.items() for result in results],
    )


def _profile(method: str, result: Any) -> Html | None:
    """Return where the time of a run went, where `coterie run --profile` has written it down."""
    record = None if result.folder is None else read_profile(result.folder)
    if record is None:
        return None
    rows = [Row([name, seconds_text(spent), PARTS.get(name, "")]) for name, spent in record["parts"].items()]
    rows.append(Row(["together", seconds_text(record["seconds"]), ""]))
    heading = h("h3", f"Where the time of {method} went")
    return join(
        heading, table(["text:part", "seconds", "text:what it is"], rows), h("p", record["note"], class_="note")
    )


def _config(method: str, results: Any) -> Html:
    seeds = ", ".join(str(result.config["run"]["seed"]) for result in results)
    words = f"seed {seeds}" if len(results) == 1 else f"seeds {seeds}; the first is shown"
    text = dump_toml(_shortened(results[0].config))
    return h("details", h("summary", method, " ", h("small", words)), h("pre", text))


def _times(method: str, results: Any) -> Row:
    """Return the mean times of a method's runs."""
    spent = []
    for part in ("wall", "compile", "program"):
        known = [result.seconds[part] for result in results if part in result.seconds]
        spent.append(seconds_text(sum(known) / len(known) if known else None))
    devices = ", ".join(sorted({result.device for result in results}))
    return Row([method, count_text(len(results)), devices, *spent])


def _shortened(config: dict[str, Any]) -> dict[str, Any]:
    """Replace lists that are too long to read (the edges of a given graph) by a note."""

    def short(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: short(item) for key, item in value.items()}
        if isinstance(value, list | tuple) and len(value) > LONGEST_LIST:
            return f"{len(value)} values, left out here: they are in config.toml of the run's folder"
        return value

    return short(config)
