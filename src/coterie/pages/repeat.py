"""The last section of the report: the command that repeats the comparison, every config, device and time."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from coterie.pages.html import Html, Row, h, join, table
from coterie.pages.words import seconds_text
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
            ["text:method", "seed", "text:device", "total", "compiling", "in the program"],
            [_times(method, result) for method, results in comparison.results.items() for result in results],
        ),
    )


def _config(method: str, results: Any) -> Html:
    seeds = ", ".join(str(result.config["run"]["seed"]) for result in results)
    words = f"seed {seeds}" if len(results) == 1 else f"seeds {seeds}; the first is shown"
    text = dump_toml(_shortened(results[0].config))
    return h("details", h("summary", method, " ", h("small", words)), h("pre", text))


def _times(method: str, result: Any) -> Row:
    spent = [seconds_text(result.seconds.get(part)) for part in ("wall", "compile", "program")]
    return Row([method, result.config["run"]["seed"], result.device, *spent])


def _shortened(config: dict[str, Any]) -> dict[str, Any]:
    """Replace lists that are too long to read (the edges of a given graph) by a note."""

    def short(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: short(item) for key, item in value.items()}
        if isinstance(value, list | tuple) and len(value) > LONGEST_LIST:
            return f"{len(value)} values, left out here: they are in config.toml of the run's folder"
        return value

    return short(config)
