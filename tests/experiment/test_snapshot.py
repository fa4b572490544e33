"""What a checkpoint of a run holds comes back as it was, also from a file that coterie 0.1 wrote."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.experiment.config import Experiment
from coterie.experiment.engine import Engine
from coterie.experiment.folder import RunFolder
from coterie.experiment.job import Job
from coterie.experiment.run import execute
from coterie.experiment.snapshot import FORMAT, RECORD, Record, Snapshot, load, save
from coterie.storage import checkpoint

OLD = Path(__file__).parents[1] / "reference" / "run-0.1"  # two runs of coterie 0.1, stopped after round 3 of 6
SNAPSHOT = Snapshot(
    state={"w": np.arange(3, dtype=np.float32)},
    best=(np.ones(2),),
    graph={"neighbours": np.array([[1], [0]], np.int32), "present": np.ones((2, 1), bool)},
)
RECORD_OF = Record(
    best_round=4,
    waited=2,
    best_score=0.1 + 0.2,
    written={"metrics.jsonl": 6, "ledger": 7, "graph": 6},
    config='format = 1\n\n[run]\nname = "é"\n',
)


def test_a_snapshot_comes_back(tmp_path):
    save(tmp_path, 6, SNAPSHOT, RECORD_OF)
    saved = load(tmp_path)
    assert (saved.round, saved.record, saved.notes) == (6, RECORD_OF, [])
    names = {"['best'][0]", "['graph']['neighbours']", "['graph']['present']", "['state']['w']"}
    assert saved.arrays.keys() == names  # as version 0.1 names them
    assert [saved.has(field) for field in Snapshot._fields] == [True, True, True]
    assert saved.graph().edges() == 2
    arrays = saved.snapshot(SNAPSHOT)
    np.testing.assert_array_equal(arrays.state["w"], [0, 1, 2])
    np.testing.assert_array_equal(arrays.best[0], [1, 1])


def test_nothing_to_remember_is_not_an_array(tmp_path):
    assert load(tmp_path) is None
    record = RECORD_OF._replace(best_score=None)
    save(tmp_path, 6, SNAPSHOT._replace(best=None, graph=None), record)
    saved = load(tmp_path)
    assert saved.record == record
    assert [saved.has(field) for field in Snapshot._fields] == [True, False, False]
    assert "NaN" not in checkpoint.load(tmp_path)[2][RECORD]  # JSON that any program reads
    assert json.loads(checkpoint.load(tmp_path)[2][RECORD])["format"] == FORMAT


@pytest.mark.parametrize(
    "entries",
    [{"format": FORMAT + 1, "something": "else"}, {"format": FORMAT, **RECORD_OF._asdict(), "something": "else"}],
)
def test_a_newer_format_is_refused_in_one_sentence(entries, tmp_path):
    checkpoint.save(tmp_path, 6, {"x": np.zeros(1)}, {RECORD: json.dumps(entries)})
    with pytest.raises(CoterieError, match=r"^the checkpoints of .* are of a newer format; resume with a newer"):
        load(tmp_path)


@pytest.mark.parametrize(
    "name", ["ditto", pytest.param("scool-sbm", marks=pytest.mark.soak)]
)  # the best models; a changed graph
def test_a_run_of_version_0_1_resumes(name, device, tmp_path):
    config = RunFolder(OLD / name).config()
    saved = load(OLD / name)
    assert RECORD not in checkpoint.load(OLD / name)[2]
    assert saved.round == 3
    assert (saved.has("best"), saved.has("graph")) == (name == "ditto", name == "scool-sbm")
    job = Job.of(Experiment.from_dict(config))
    engine = Engine.of(job, device)
    resumed = execute(job, out=shutil.copytree(OLD / name, tmp_path / name), engine=engine)
    fresh = execute(job, engine=engine)
    assert resumed.config == fresh.config == config
    assert [row["round"] for row in resumed.rows] == [row["round"] for row in fresh.rows]
    for ours, theirs in zip(resumed.rows, fresh.rows, strict=True):
        assert ours.keys() == theirs.keys()
        for key in ours:
            np.testing.assert_allclose(ours[key], theirs[key], rtol=0, atol=1e-6, err_msg=key)  # another CPU may round
    assert resumed.ledger.edges().equals(fresh.ledger.edges())
    assert resumed.best_round == fresh.best_round
    for client in range(4):
        left, right = (result.model(client).variables.params for result in (resumed, fresh))
        np.testing.assert_allclose(left.weight, right.weight, rtol=0, atol=1e-6)
