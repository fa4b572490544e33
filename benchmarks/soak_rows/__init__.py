"""The rows of soak_peers.py, one file each.

A row has `run(args)`, which returns what came of each repeat, by its number or name, and `figures(each)`, which sums
that up and says whether all is well. So the repeats of one row can be done by several processes, or on several
machines, and their results are joined afterwards.
"""

import sys
from pathlib import Path

__all__ = ["START", "names"]

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

START = 600.0  # seconds until 12 processes have compiled, on two busy cores


def names(count):
    """Return the names of some members."""
    return [f"site-{i}" for i in range(count)]
