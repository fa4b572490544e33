"""The table of `coterie run --profile`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["print_profile"]


def print_profile(console: Any, record: Mapping[str, Any], folder: Path) -> None:
    """Print where the time of a run went, and where its trace is."""
    from rich import box
    from rich.table import Table

    from coterie.experiment.profiling import PARTS

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("where the time went")
    for column in ("seconds", "share"):
        table.add_column(column, justify="right")
    table.add_column("what it is", overflow="fold")
    total = record["seconds"]
    for name, seconds in record["parts"].items():
        table.add_row(name, f"{seconds:.2f}", f"{100 * seconds / total:.1f} %", PARTS[name])
    table.add_section()
    table.add_row("together", f"{total:.2f}", "100 %", "")
    console.print(table)
    console.print(record["note"], markup=False)
    trace = folder / "profile"
    if trace.is_dir():
        words = f"trace: {trace} (open its .trace.json.gz at ui.perfetto.dev, or the folder in TensorBoard)"
        console.print(words, markup=False, soft_wrap=True)
