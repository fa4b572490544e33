"""`coterie compare --watch`: the page that grows while a comparison trains."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["watched"]


@contextlib.contextmanager
def watched(config: Any, folder: Path, runs: int, port: int | None, console: Any) -> Iterator[Any]:
    """Serve the page that grows while a comparison trains, and print where it is; without a port do nothing."""
    if port is None:
        yield None
        return
    from coterie import registry
    from coterie.comparison.config import choice_of
    from coterie.pages.live import serve

    choices = [choice_of(method) for method in config.methods]
    roles = {choice.label: registry.load("methods", choice.name).role for choice in choices}
    with serve(roles, runs, folder, config.experiment.run.metric, port) as live:
        console.print(f"watch: {live.url}", markup=False, soft_wrap=True)
        yield live
