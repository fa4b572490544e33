"""Known clusters (Lyu et al. 2022)."""

from typing import Any

__all__ = ["expected"]


def expected() -> list[dict[str, Any]]:
    """Return the paper's tables, before anything is run."""
    from coterie.reproduce.clusters.donors import expected_donors
    from coterie.reproduce.clusters.table1 import expected_table1

    return [expected_table1(), *expected_donors()]
