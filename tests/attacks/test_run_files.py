"""Every file of a run that somebody else has made or damaged: one sentence with the file and the field."""

import json
import os

import numpy as np
import pytest

from support.attacks import Attack, call, refuse
from support.folder_cases import (
    DEEP,
    REPORT,
    RESUME,
    block,
    chain,
    entries,
    folder_instead,
    forged,
    line,
    npz,
    pipe_instead,
    record,
    replaced,
    saved,
    stopped,
    text,
)

CONFIG, CLIENTS, METRICS, SUMMARY = "x/config.toml", "x/clients.json", "x/metrics.jsonl", "x/summary.json"
TIMING = "x/timing.jsonl"
MINIMAL = '[data]\nname="a"\n[model]\nname="a"\n[run]\nseed=0\nrounds=1'
NO_FILE = "cannot be read (it is not a plain file)"
LATER = '\n{"round": 2}\n'


def wide(arrays):
    """Return the arrays for nine clients and slots."""
    shapes = {1: (1,), 2: (9, 9), 3: (1, 9, 9)}
    return {name: np.zeros(shapes[a.ndim], a.dtype) for name, a in arrays.items()}


def ledger(**arrays):
    return block("ledger", lambda there: there | arrays)


def graph(**arrays):
    return block("graph", lambda there: there | arrays)


BOTH = [  # `report` of the complete run, and `resume` of the stopped one
    ("config empty", text(CONFIG, ""), f'{CONFIG}: "data" is missing'),
    ("config nested 5000 deep", text(CONFIG, f"a = {'[' * 5000}"), f"{CONFIG} is nested too deeply"),
    ("config 900 tables deep", text(CONFIG, f"[{'.'.join('a' * 900)}]"), CONFIG),
    ("config not UTF-8", lambda f: (f / CONFIG).write_bytes(b"\xff"), f"{CONFIG} is not valid TOML"),
    ("config without [method]", replaced(CONFIG, "[method]", "[codec2]"), f'{CONFIG}: "method" is missing'),
    ("config without [run]", replaced(CONFIG, "[run]", "[augment2]"), f'{CONFIG}: "run" is missing'),
    ("config: method = 3", text(CONFIG, "method = 3\n" + MINIMAL), f'{CONFIG}: "method" must be a table, not 3'),
    (
        "config: seed is HTML",
        replaced(CONFIG, "seed = 0\neval", 'seed = "<b>"\neval'),
        '"run.seed" must be a whole number',
    ),
    ("config newer", replaced(CONFIG, "format = 1", "format = 2"), f'{CONFIG}: "format" must be 1, not 2'),
    ("clients {}", text(CLIENTS, "{}"), f'{CLIENTS}: "names" is missing'),
    ("clients []", text(CLIENTS, "[]"), f"{CLIENTS} must be a table, not a list"),
    ("clients deep", text(CLIENTS, DEEP), f"{CLIENTS} cannot be read (it is nested too deeply)"),
    ("clients: names = 5", entries(CLIENTS, names=5), f'{CLIENTS}: "names" must be a list, not 5'),
    ("clients without kind", entries(CLIENTS, kind=...), f'{CLIENTS}: "kind" is missing'),
    ("clients: classes is HTML", entries(CLIENTS, classes="<b>"), '"classes" must be a whole number'),
    ("clients: too few sizes", entries(CLIENTS, sizes={"train": [1]}), f'{CLIENTS}: "sizes.validation" is missing'),
    ("clients: a name twice", entries(CLIENTS, names=["a", "a", "b"]), '"names" must not name anything twice'),
    ("clients: a huge sample", entries(CLIENTS, sample_shape=[10**9, 10**9]), '"sample_shape'),
    ("clients: half a character", entries(CLIENTS, about="\udcff"), '"about" must be text in UTF-8'),
    ("metrics {} first", text(METRICS, "{}" + LATER), METRICS),
    ("metrics [] first", text(METRICS, "[]" + LATER), METRICS),
    ("metrics deep", text(METRICS, DEEP + LATER), f"line 1 of {METRICS} is damaged"),
    ("metrics only round", text(METRICS, '{"round": 1}' + LATER), f'{METRICS}, line 1: "test_loss" is missing'),
    ("metrics a folder", folder_instead(METRICS), f"{METRICS} {NO_FILE}"),
    ("metrics a pipe", pipe_instead(METRICS), f"{METRICS} {NO_FILE}"),
    ("metrics: words", line(1, test_score=["a"] * 3), "line 1: \"test_score.1\" must be a finite number, not 'a'"),
    ("metrics: wrong number of clients", line(2, test_loss=[1.0]), 'line 2: "test_loss" must have 3 entries, not 1'),
    ("metrics: not finite", line(2, test_score=[float("nan")] * 3), '"test_score" must be finite numbers'),
    ("ledger without arrays", block("ledger", lambda a: {}), "x/ledger.blocks, round 2 lacks the array 'rounds'"),
    ("ledger of other shapes", block("ledger", wide), "has 9 clients where 3 are expected"),
    ("ledger with other slots", ledger(heard_bytes=np.ones((1, 3, 5), int)), "has 5 slots where 2 are expected"),
    (
        "ledger: client 10**9",
        ledger(neighbours=np.full((3, 2), 10**9)),
        "names number 1000000000, where there are 3 members",
    ),
    ("ledger: client -1", ledger(neighbours=np.full((3, 2), -1)), "neighbours names number -1, where there are 3"),
    (
        "ledger: negative bytes",
        ledger(heard_bytes=np.full((1, 3, 2), -1)),
        "heard_bytes has -1, and must be at least 0",
    ),
    ("ledger holds objects", ledger(rounds=np.array([{}])), "x/ledger.blocks, round 2 cannot be read"),
    ("ledger no archive", block("ledger", lambda a: b"garbage"), "round 2 cannot be read (File is not a zip file)"),
    ("ledger with another array", ledger(evil=np.ones(1)), "has an array 'evil', which does not belong there"),
    ("graph without arrays", block("graph", lambda a: {}), "x/graph.blocks, round 2 lacks the array 'neighbours'"),
    ("graph of other shapes", block("graph", wide), "has 9 clients where 3 are expected"),
    ("graph: client 10**9", graph(neighbours=np.full((3, 2), 10**9)), "neighbours names number 1000000000"),
    ("graph of words", graph(weights=np.full((3, 2), "a")), "weights must be numbers, not <U1"),
]

REPORTED = [
    ("metrics: round is HTML", line(2, round="<b>"), f"{METRICS}, line 2: \"round\" must be a whole number, not '<b>'"),
    ("metrics 3", text(METRICS, "3\n"), f"{METRICS}, line 1 must be a table, not 3"),
    ("metrics: a round twice", line(2, round=1), 'line 2: "round" must be above 1, not 1'),
    ("metrics: the kept round is absent", entries(SUMMARY, round=9), f"{METRICS} lacks round 9"),
    ("summary {}", text(SUMMARY, "{}"), f'{SUMMARY}: "round" is missing'),
    ("summary []", text(SUMMARY, "[]"), f"{SUMMARY} must be a table, not a list"),
    ("summary deep", text(SUMMARY, DEEP), f"{SUMMARY} cannot be read (it is nested too deeply)"),
    ("summary: seconds = {}", entries(SUMMARY, seconds={}), f'{SUMMARY}: "seconds.wall" is missing'),
    ("summary: metric is HTML", entries(SUMMARY, metric="<img src=x>"), f'{SUMMARY}: "metric" must be'),
    ("summary: role is new", entries(SUMMARY, role="boss"), f'{SUMMARY}: "role" must be guess or'),
    ("scores garbage", text("x/scores.npz", "PK"), "x/scores.npz cannot be read"),
    (
        "scores of other clients",
        lambda folder: (folder / "x/scores.npz").write_bytes(npz(counts=np.ones(9, int))),
        "x/scores.npz: counts has 9 clients where 3 are expected",
    ),
    (
        "ledger cut",
        lambda folder: os.truncate(folder / "x/ledger.blocks", 700),
        "x/ledger.blocks cannot be read (record",
    ),
]

WEIGHT = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
BYTES = {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}
COVERED = {"metrics.jsonl": 2, "ledger": 9, "graph": 2}
RESUMED = [
    ("timing {} first", text(TIMING, "{}" + LATER), f"line 1 of {TIMING} is damaged"),
    ("timing deep", text(TIMING, DEEP + LATER), f"line 1 of {TIMING} is damaged"),
    ("timing: round is text", line(1, TIMING, round="a"), f"line 1 of {TIMING} is damaged"),
    ("timing only round", text(TIMING, '{"round": 1}\n'), f'{TIMING}, line 1: "wall" is missing'),
    ("metrics: round is text", line(1, round="a"), f"line 1 of {METRICS} is damaged"),
    ("checkpoint without a record", saved(lambda meta: {}), 'step-00000002: "best_round" is missing'),
    ("checkpoint: record {}", saved(lambda meta: {"record": "{}"}), 'step-00000002: "format" is missing'),
    ("checkpoint: record deep", saved(lambda meta: {"record": DEEP}), "it is nested too deeply"),
    ("checkpoint: config is garbage", record(config="garbage"), "step-00000002: config is not valid TOML"),
    ("checkpoint: best_round is text", record(best_round="x"), "\"best_round\" must be a whole number, not 'x'"),
    ("checkpoint without written", record(written=...), 'step-00000002: "written" is missing'),
    (
        "checkpoint covers more",
        record(written=COVERED),
        "x/ledger holds 3 records but the checkpoint of round 2 covers 9",
    ),
    ("checkpoint: dtype F8_E4M3", forged({"x": BYTES}), "step-00000002: numbers of type F8_E4M3 are not known"),
    ("checkpoint: offsets beyond the file", forged({"x": WEIGHT | {"data_offsets": [0, 800]}}), "is corrupt"),
    ("checkpoint: negative shape", forged({"x": WEIGHT | {"shape": [-2]}}), "is corrupt"),
    ("checkpoint: header deep", forged({"x": json.loads("[" * 900 + "]" * 900)}), "is corrupt"),
    ("checkpoint of another program", forged({"x": WEIGHT}), 'step-00000002: "format" is missing'),
]

ATTACKS = [
    *(Attack(f"report: {name}", prepare, REPORT, sentence) for name, prepare, sentence in [*BOTH, *REPORTED]),
    *(
        Attack(f"resume: {name}", chain(stopped, prepare), RESUME, sentence)
        for name, prepare, sentence in [*BOTH, *RESUMED]
    ),
    Attack("graph: config empty", text(CONFIG, ""), ("graph", "x"), f'{CONFIG}: "data" is missing'),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_refused(attack, work):
    refuse(attack, work)


def test_an_unreadable_file(work, monkeypatch):
    opened = os.open

    def denied(path, *given, **named):
        if str(path).endswith("metrics.jsonl"):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *given, **named)

    monkeypatch.setattr(os, "open", denied)  # root may read everything
    refuse(Attack("", lambda folder: None, REPORT, f"{METRICS} cannot be read (Permission denied)"), work)


@pytest.mark.parametrize("ours", [True, False])
def test_only_the_owner_of_a_folder_has_a_copy_of_it(ours, work):
    (work / SUMMARY).write_text('{"rou')
    if not ours:
        (work / "x" / "coterie.json").unlink()
    assert ("restore it from a copy" in call(*REPORT).stderr) == ours
