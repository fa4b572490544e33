"""A personalised component and communication-efficient gradients (Zhao et al.)."""

from typing import Any

__all__ = ["expected"]


def expected() -> list[dict[str, Any]]:
    """Return what the draft shows, before anything is run."""
    from coterie.reproduce.component.records import expected_figure6

    return [expected_figure6()]
