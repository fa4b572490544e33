"""The folder of a run: nothing is lost wherever a run dies, and nothing else is taken for it."""

import os
import random
import shutil

import networkx as nx
import numpy as np
import pytest
import safetensors.numpy

import coterie as ct
from coterie.errors import CoterieError
from coterie.experiment.config import Experiment
from coterie.experiment.engine import Engine
from coterie.experiment.fingerprint import earlier_fingerprint, fingerprint
from coterie.experiment.folder import RunFolder
from coterie.experiment.job import Job
from coterie.experiment.run import execute
from coterie.methods import GossipSGD, ScoolAttention
from coterie.storage import checkpoint
from coterie.testing.small import small_federation
from support.killing import SAME, differences
from support.run_cases import Scripted, make_job, plain_federation

FOUR = small_federation(4)
GOSSIP = GossipSGD(lr=0.1, momentum=0.9, batch_size=4)
SETTINGS = {"rounds": 3, "evaluate_every": 1, "checkpoint_every": 1, "patience": 5}


def contents(folder):
    files = [path for name in SAME for path in [folder / name, *(folder / name).glob("*")]]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if path.is_file()}


@pytest.fixture(scope="module")
def job():
    return make_job(FOUR, "linear", GOSSIP, graph="ring", **SETTINGS)


@pytest.fixture(scope="module")
def engine(job, device):
    return Engine(job.task, job.federation, device)


@pytest.fixture(scope="module")
def whole(job, engine, tmp_path_factory):
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return execute(job, out=folder, engine=engine)


@pytest.fixture
def stopped(whole, tmp_path):
    """The folder of a run that was killed as its last checkpoint was just written."""
    shutil.copytree(whole.folder, tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    shutil.rmtree(tmp_path / "run" / "models")
    return tmp_path / "run"


# -- it dies, wherever ------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """In place of SIGKILL: nothing catches it."""


def dying_at(patch, moment):
    """Let the process die at its `moment`-th write (which tears the file), sync or rename; returns what is left."""
    left = [moment]

    def due():
        left[0] -= 1
        return left[0] < 0

    def dies(real):
        def wrapped(*arguments, **named):
            if due():
                raise Killed
            return real(*arguments, **named)

        return wrapped

    write = RunFolder._write

    def torn(self, path, data, mode="wb"):
        if due():
            write(self, path, data[: len(data) // 2], mode)
            raise Killed
        write(self, path, data, mode)

    patch.setattr(RunFolder, "_write", torn)
    patch.setattr(os, "fsync", dies(os.fsync))
    patch.setattr(os, "replace", dies(os.replace))
    return left


def test_it_may_die_at_every_write(job, engine, whole, tmp_path):
    expected, second = contents(whole.folder), random.Random(0)
    moment, dead = 0, True
    while dead:
        folder, dead = tmp_path / str(moment), False
        for strike in (moment, second.randrange(30)):  # once at each place, and somewhere again as it resumes
            with pytest.MonkeyPatch.context() as patch:
                dying_at(patch, strike)
                try:
                    execute(job, out=folder, engine=engine)
                except Killed:
                    dead = True
        execute(job, out=folder, engine=engine)
        assert differences(contents(folder), expected) == [], f"killed at {moment}"
        shutil.rmtree(folder)
        moment += 1
    # 4 writes or more of ledger, graph, metrics and times after each of 3 rounds, as many syncs, and a checkpoint
    assert moment > 3 * (4 + 4 + 3)


def test_what_a_checkpoint_covers_is_synced_before_it(job, engine, tmp_path, monkeypatch):
    synced, real_sync, real_save = set(), os.fsync, checkpoint.save

    def sync(handle):
        synced.add(os.readlink(f"/proc/self/fd/{handle}"))
        real_sync(handle)

    def save(folder, step, arrays, meta):
        for name in ("metrics.jsonl", "timing.jsonl", "ledger.blocks", "graph.blocks", "."):
            assert str((folder / name).resolve()) in synced, name
        synced.clear()
        return real_save(folder, step, arrays, meta)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(checkpoint, "save", save)
    execute(job, out=tmp_path / "run", engine=engine)
    last = {str((tmp_path / "run" / name).resolve()) for name in ("models", "summary.json.tmp")}
    assert last < synced
    assert sum(path.endswith(".safetensors") and "models" in path for path in synced) == 5  # one is shared


def test_early_stop_is_remembered_over_a_resume(tmp_path):
    script = (2, 0, 1, 1, 0, 2, 0, 0)  # the best is round 2, and with patience 3 the end is after round 5
    given = {"method": Scripted(script=script), "rounds": 8, "evaluate_every": 1, "patience": 3, "checkpoint_every": 1}
    given |= {"federation": plain_federation(), "model": "linear", "out": tmp_path / "run"}
    reached = []

    def die(stage, number, rounds, metrics):
        reached.append(number)
        if stage == "round" and number == 4:
            raise Killed

    with pytest.raises(Killed):
        ct.run(progress=die, **given)
    found = ct.run(progress=lambda *event: reached.append(event[1]), **given)
    assert reached == [0, 1, 2, 3, 4, 0, 5, 5]
    assert found.best_round == 2
    np.testing.assert_array_equal(found.model(0).variables.params.bias, [2, 0, 0])
    times = [line["wall"] for line in RunFolder(tmp_path / "run").lines("timing.jsonl")]
    assert times == sorted(times)  # the clock goes on where it stood
    assert len(times) == 5


@pytest.mark.soak
def test_a_graph_that_changes_on_the_way(device, tmp_path):
    method = ScoolAttention(lr=0.1, batch_size=4, sparsify_after=2, fraction=0.3)
    settings = {"rounds": 4, "evaluate_every": 1, "checkpoint_every": 1}
    job = make_job(FOUR, "linear", method, graph="complete", **settings)
    engine = Engine(job.task, job.federation, device)
    whole = execute(job, out=tmp_path / "whole", engine=engine)
    assert [whole.graphs[number]["present"].sum(1).tolist() for number in (2, 3)] == [[3] * 4, [2] * 4]
    for last in (1, 2, 3):  # before, at and after the change

        def die(stage, number, rounds, metrics, last=last):
            if (stage, number) == ("round", last):
                raise Killed

        with pytest.raises(Killed):
            execute(job, out=tmp_path / str(last), engine=engine, progress=die)
        found = execute(job, out=tmp_path / str(last), engine=engine)
        assert differences(contents(found.folder), contents(whole.folder)) == []
        assert found.ledger.edges().equals(whole.ledger.edges())


@pytest.mark.soak
def test_double_precision_resumes(tmp_path):
    job = make_job(FOUR, "linear", GOSSIP, graph="ring", precision="float64", **SETTINGS)
    expected = contents(execute(job, out=tmp_path / "whole", device="cpu").folder)
    with pytest.MonkeyPatch.context() as patch:
        dying_at(patch, 30)
        with pytest.raises(Killed):
            execute(job, out=tmp_path / "run", device="cpu")
    assert checkpoint.load(tmp_path / "run")[0] == 1
    found = execute(job, out=tmp_path / "run", device="cpu")
    assert differences(contents(tmp_path / "run"), expected) == []
    file = next((tmp_path / "run" / "models").iterdir())
    assert safetensors.numpy.load_file(file)["weight"].dtype == np.float64
    again = execute(job, out=tmp_path / "run")
    np.testing.assert_array_equal(again.model(2)(FOUR.test.x[2]), found.model(2)(FOUR.test.x[2]))


# -- damage -----------------------------------------------------------------------------------------------------------


def test_a_corrupt_checkpoint_falls_back_and_says_so(job, engine, whole, stopped):
    newest = stopped / "checkpoints" / "step-00000003.safetensors"
    newest.write_bytes(newest.read_bytes()[:-7])
    events = []
    execute(job, out=stopped, engine=engine, progress=lambda *event: events.append(event))
    notes = [metrics["note"] for stage, _, _, metrics in events if stage == "note"]
    assert notes == ["step-00000003 is corrupt (digest differs): continuing from step-00000002"]
    assert [number for stage, number, _, _ in events if stage == "round"] == [3]
    assert differences(contents(stopped), contents(whole.folder)) == []


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("ledger.blocks", "ledger holds 0 records but the checkpoint of round 3 covers 4; restore it"),
        ("graph.blocks", "graph holds 0 records but the checkpoint of round 3 covers 3; restore it"),
        ("metrics.jsonl", r"metrics.jsonl holds 0 records but the checkpoint of round 3 covers 3; restore it"),
        ("clients.json", r"clients.json cannot be read .*; restore it from a copy"),
    ],
)
def test_a_missing_file_is_noticed_at_resume(job, engine, stopped, file, message):
    (stopped / file).unlink()
    with pytest.raises(CoterieError, match=message):
        execute(job, out=stopped, engine=engine)


@pytest.mark.parametrize("file", ["metrics.jsonl", "ledger.blocks", "graph.blocks", "summary.json"])
def test_a_damaged_file_is_noticed_when_it_is_read(whole, tmp_path, file):
    folder = shutil.copytree(whole.folder, tmp_path / "run")
    data = (folder / file).read_bytes()
    (folder / file).write_bytes(data[: len(data) // 2])
    with pytest.raises(CoterieError, match=rf"{file.split('/')[-1]} (is damaged|cannot be read .*); restore"):
        ct.Result.read(folder)


# -- what is refused --------------------------------------------------------------------------------------------------


def test_a_changed_setting_is_named(job, engine, whole, stopped):
    changed = make_job(FOUR, "linear", GossipSGD(lr=0.2, momentum=0.9, batch_size=4), graph="ring", **SETTINGS)
    for folder in (whole.folder, stopped):
        with pytest.raises(CoterieError, match=rf"{folder} holds another experiment: method\.lr is 0\.1 there"):
            execute(changed, out=folder, engine=engine)
    longer = make_job(FOUR, "linear", GOSSIP, graph="ring", **(SETTINGS | {"rounds": 9}))
    with pytest.raises(CoterieError, match=r"run\.rounds is 3 there and 9 here; choose another --out or remove"):
        execute(longer, out=stopped, engine=engine)
    config = stopped / "config.toml"  # by hand, behind our back
    config.write_text(config.read_text().replace("lr = 0.1", "lr = 0.2"))
    with pytest.raises(CoterieError, match=r"config.toml was changed since the last checkpoint: method\.lr is 0\.1"):
        execute(changed, out=stopped, engine=engine)


def test_changed_data_are_noticed(tmp_path):
    path = tmp_path / "data.csv"
    table = [f"{site},{i / 10},{site * i % 2}" for site in range(2) for i in range(20)]
    path.write_text("\n".join(["site,x,label", *table]))
    tables = {"data": {"name": "csv", "path": str(path), "client": "site", "target": "label"}}
    tables |= {"model": {"name": "linear"}, "run": {"rounds": 1}}
    experiment = Experiment.from_dict(tables)
    execute(Job.of(experiment), out=tmp_path / "run", device="cpu")
    assert ct.resume(tmp_path / "run").best_round == 1
    path.write_text("\n".join(["site,x,label", *table]).replace("0.3", "0.4"))
    with pytest.raises(CoterieError, match=r"the data are not those .*run was started with"):
        ct.resume(tmp_path / "run")


def test_another_graph_with_as_many_edges_is_another_experiment(tmp_path):
    path, star = nx.path_graph(4), nx.star_graph(3)
    given = {"model": "linear", "method": "gossip-sgd", "rounds": 1, "out": tmp_path / "run"}
    ct.run(FOUR, graph=path, **given)
    assert ct.run(FOUR, graph=nx.path_graph(4), **given).best_round == 1
    with pytest.raises(CoterieError, match=r"holds another experiment: graph\.digest is"):
        ct.run(FOUR, graph=star, **given)


def test_folders_that_are_no_run(job, engine, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CoterieError, match=r"exists and is not the folder of a run; choose another --out"):
        execute(job, out=tmp_path, engine=engine)
    assert os.listdir(tmp_path) == ["notes.txt"]
    with pytest.raises(CoterieError, match="exists and is not the folder of a run"):
        execute(job, out=tmp_path / "notes.txt", engine=engine)
    with pytest.raises(CoterieError, match=r"cannot be written .Not a directory"):
        execute(job, out=tmp_path / "notes.txt" / "run", engine=engine)
    with pytest.raises(CoterieError, match=r"is not the folder of a run: it has no config.toml"):
        ct.resume(tmp_path)
    RunFolder(tmp_path / "begun").path.mkdir()
    RunFolder(tmp_path / "begun").owned.mark()
    with pytest.raises(CoterieError, match=r"stopped before its folder was made, start it again"):
        ct.resume(tmp_path / "begun")
    half = RunFolder(tmp_path / "half")
    with half.lock():
        half.create(job.config, FOUR)
    with pytest.raises(CoterieError, match=r"is not complete; continue it with `coterie resume"):
        ct.Result.read(half.path)


def test_data_from_python_are_needed_to_continue_but_not_for_the_models(whole, stopped):
    with pytest.raises(CoterieError, match=r"was started with data from Python: call coterie.run with the same data"):
        ct.resume(stopped)
    x = FOUR.test.x[0]
    np.testing.assert_array_equal(ct.Result.read(whole.folder).model(0)(x), whole.model(0)(x))


def test_a_run_whose_data_have_the_fingerprint_of_an_earlier_version_goes_on(whole, tmp_path, engine):
    folder, job = tmp_path / "run", make_job(FOUR, "linear", GOSSIP, graph="ring", **SETTINGS)
    shutil.copytree(whole.folder, folder)
    (folder / "summary.json").unlink()
    shutil.rmtree(folder / "checkpoints")  # a checkpoint of that version would have the same digest in its config
    for name in ("config.toml", "clients.json"):
        text = (folder / name).read_text()
        assert fingerprint(FOUR) in text
        (folder / name).write_text(text.replace(fingerprint(FOUR), earlier_fingerprint(FOUR)))
    before = (folder / "config.toml").read_bytes()
    again = execute(job, out=folder, engine=engine)
    assert (folder / "config.toml").read_bytes() == before
    assert again.rows == whole.rows
    other = small_federation(4)
    other.train.x[2, 0] += 1
    with pytest.raises(CoterieError, match=r"holds another experiment: data\.digest"):
        execute(make_job(other, "linear", GOSSIP, graph="ring", **SETTINGS), out=folder, engine=engine)
