"""The report: a comparison as one HTML file that opens without network, made to be sent to a colleague.

`content`, `weights` and `path` reduce a comparison to the numbers that are drawn, `page` and `sections` write the HTML,
`figures.js` has the figures and `report.js` draws them with Plotly, which is embedded once. `html` is the skeleton of
every page.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.errors import CoterieError

if TYPE_CHECKING:
    from coterie.comparison.comparison import Comparison
    from coterie.comparison.sweeps.result import Sweep

__all__ = ["plotly_javascript", "report", "write_report"]


def report(what: "Comparison | Sweep | str | Path | Sequence[str | Path]", path: str | Path = "report.html") -> Path:
    """Write the report of a comparison or a sweep, or of folders of runs and comparisons, as one HTML file."""
    from coterie.comparison.comparison import Comparison
    from coterie.comparison.sweeps.folder import SweepFolder
    from coterie.comparison.sweeps.result import Sweep

    if isinstance(what, str | Path):
        what = [what]
    if not isinstance(what, Comparison | Sweep):
        folders = list(what)
        one_sweep = len(folders) == 1 and SweepFolder(folders[0]).exists()
        what = Sweep.read(folders[0]) if one_sweep else Comparison.read(folders)
    if isinstance(what, Sweep):
        from coterie.pages.sweep import render_sweep

        return _written(render_sweep(what, plotly_javascript()), Path(path))
    return write_report(what, path)


def write_report(comparison: "Comparison", path: str | Path) -> Path:
    """Write the report of a comparison (or of a single run) to an HTML file; returns its path.

    Args:
        comparison: the results by method, with the clients they belong to.
        path: the file; its folder is made if it is missing.

    Returns:
        The file, at most 10 MB: with more than some hundred clients, plots show a sample or groups and say so.
    """
    from coterie.pages.page import render

    return _written(render(comparison, plotly_javascript()), Path(path))


def _written(text: str, path: Path) -> Path:
    """Write a page; its folder is made if it is missing."""
    from coterie.storage.durable import durable_write, storage_errors

    with storage_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    durable_write(path, text.encode())
    return path


def plotly_javascript() -> str:
    """Return the plotly.js that comes with the installed Plotly."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise CoterieError("the report needs Plotly; install it with: pip install 'coterie[report]'") from None
    return get_plotlyjs()
