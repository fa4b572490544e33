"""`compare`: several methods on one federation, and the answer to "would cooperation help my clients?".

Every method and seed is a run of its own in `OUT/<method>/seed-<n>/`, so that a second call does only what is missing.
All of them share one federation, one task and one engine: data are placed once, programs compiled once a method.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.clients import Federation
from coterie.comparison import ComparisonFolder, Entry, plan_entries, repeat_command
from coterie.config import Experiment
from coterie.errors import CoterieError
from coterie.result import Result, worst
from coterie.statistics import paired_interval, verdict
from coterie.storage import RunFolder, about_clients

__all__ = ["Comparison", "compare", "report"]

CEILING = "pooled"
ALONE = "local"

Progress = Callable[[str, int, str, int, int, dict[str, Any]], None]  # (label, seed, stage, round, rounds, metrics)
