"""A run whose clients live in two processes writes, for each of them, the rows of the simulation's folder."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coterie.experiment.config import Experiment
from coterie.experiment.job import Job
from coterie.experiment.result import Result
from coterie.experiment.run import execute
from support.two_places import run_in_two_places

METHODS = Path(__file__).parents[1] / "support" / "staged_method.py"
# A graph that is cut down, which needs slots, a hub and a stage; evaluated before, at and after its end.
TABLES = {
    "data": {"name": "digits"},
    "partition": {"name": "classes", "clients": 5, "classes": 3},
    "model": {"name": "linear"},
    "method": {"name": f"{METHODS}:Halving", "cut": 3},
    "graph": {"name": "complete"},
    "run": {"rounds": 5, "evaluate_every": 2, "mode": "exact"},
}
pytestmark = pytest.mark.soak  # tests/sites/test_running.py asks the same of real members


@pytest.fixture(scope="module")
def runs(tmp_path_factory, device):
    """The simulation, and the two folders of the run in two processes."""
    out = tmp_path_factory.mktemp("places")
    simulated = execute(Job.of(Experiment.from_dict(TABLES)), out=out / "simulation", device=device)
    return simulated, [Result.read(folder, trust_code=True) for folder in run_in_two_places(TABLES, out)]


def test_the_metrics_are_the_rows_of_the_simulation(runs):
    simulated, parts = runs
    for part in parts:
        rows = [simulated.names.index(name) for name in part.names]
        assert [row["round"] for row in part.rows] == [2, 3, 4, 5]
        for ours, theirs in zip(part.rows, simulated.rows, strict=True):
            for name in set(theirs) - {"round", "graph_l1", "graph_auroc", "graph_ari"}:
                np.testing.assert_array_equal(ours[name], np.asarray(theirs[name])[rows], err_msg=name)


def test_the_models_are_those_of_the_simulation(runs):
    simulated, parts = runs
    x = np.linspace(0, 1, 128).reshape(2, 64).astype(np.float32)
    for part in parts:
        for name in part.names:
            np.testing.assert_array_equal(part.model(name)(x), simulated.model(name)(x))


def test_both_ledgers_together_are_that_of_the_simulation(runs):
    simulated, parts = runs
    keys = ["round", "sender", "receiver"]
    together = pd.concat([part.ledger.edges() for part in parts]).groupby(keys, as_index=False).sum()
    pd.testing.assert_frame_equal(together, simulated.ledger.edges())
    everyone = simulated.ledger.totals()
    for part in parts:
        for way, total in part.ledger.totals().items():
            np.testing.assert_array_equal(total, everyone[way][list(part.members.here)])


def test_the_graph_tables_are_rows_of_the_simulation(runs):
    simulated, parts = runs
    for part in parts:
        assert part.graphs == {}
        assert part.cooperation.keys() == simulated.graphs.keys()
        for number, table in part.cooperation.items():
            for name, values in table.items():
                np.testing.assert_array_equal(values, simulated.graphs[number][name][list(part.members.here)])
