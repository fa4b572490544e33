"""With whom: the table of partners, the groups that weights form, and that fixed graphs are not taken for learned."""

import json

import networkx
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from coterie import registry
from coterie.cli import app
from coterie.comparison.comparison import Comparison
from coterie.comparison.folder import ComparisonFolder
from coterie.comparison.who import LEARNERS, best_learner, groups_found, learns_graph, who, with_whom, write_who
from coterie.errors import CoterieError
from coterie.experiment.folder import RunFolder
from coterie.experiment.result import Result
from coterie.methods.component import TiedComponent
from coterie.peers.ledger import Ledger
from coterie.storage.toml import dump_toml

NAMES = tuple(f"site-{i}" for i in range(6))


def slots(matrix):
    """Return a matrix of weights as slots: all others, in order."""
    clients = len(matrix)
    neighbours = np.array([[j for j in range(clients) if j != i] for i in range(clients)])
    weights = np.take_along_axis(np.asarray(matrix, float), neighbours, 1)
    return {"neighbours": neighbours, "present": np.ones(neighbours.shape, bool), "weights": weights}


def made_up(method, matrix=None, scores=None, seed=0, role="cooperates", heard=0, up=0):
    """Return a run with these weights and final scores; everyone gets `heard` bytes an edge and sends `up` to a hub."""
    names = NAMES if matrix is None else tuple(f"site-{i}" for i in range(len(matrix)))
    count = len(names)
    table = None if matrix is None else slots(matrix)
    neighbours = np.zeros((count, 0), np.int32) if table is None else table["neighbours"]
    block = {"rounds": np.array([1, 2]), "up_bytes": np.full((2, count), up), "up_messages": np.ones((2, count), int)}
    if table is not None:
        block |= {"heard_bytes": np.full((2, *neighbours.shape), heard)}
    return Result(
        config={"method": {"name": method}, "run": {"seed": seed}},
        names=names,
        rows=[{"round": 2, "test_score": list(scores if scores is not None else [0.5] * count)}],
        ledger=Ledger(names, neighbours, [block]),
        graphs={} if table is None else {2: table},
        seconds={"wall": 3.0, "compile": 1.0, "program": 0.5},
        best_round=2,
        metric="accuracy",
        role=role,
        device="cpu",
    )


def blocks(sizes, inside, outside=0.0):
    """Return weights of groups of these sizes."""
    group = np.repeat(np.arange(len(sizes)), sizes)
    matrix = np.where(group[:, None] == group[None, :], inside, outside)
    np.fill_diagonal(matrix, 0)
    return matrix


def together(groups=None, **results):
    by_label = {name.replace("_", "-"): runs for name, runs in results.items()}
    alone = next((label for label, runs in by_label.items() if runs[0].role == "alone"), None)
    names = list(next(iter(by_label.values()))[0].names)
    return Comparison(by_label, {"names": names, "groups": groups}, alone, "")


def on_disk(path, **results):
    """Write made-up runs as the folder of a comparison."""
    by_label = {name.replace("_", "-"): runs for name, runs in results.items()}
    for label, runs in by_label.items():
        for run in runs:
            folder = RunFolder(path / label / f"seed-{run.config['run']['seed']}")
            folder.path.mkdir(parents=True)
            named = {section: {"name": "any"} for section in ("data", "model")}
            (folder.path / "config.toml").write_text(
                dump_toml(run.config | named | {"run": {"seed": run.config["run"]["seed"], "rounds": 2}})
            )
            sizes = dict.fromkeys(("train", "validation", "test"), [1] * len(run.names))
            about = {"names": list(run.names), "groups": None, "digest": "same", "kind": "classification", "about": ""}
            about |= {"classes": 2, "sizes": sizes, "label_counts": []}
            (folder.path / "clients.json").write_text(json.dumps(about))
            measured = ("test_loss", "test_own_score", "validation_loss", "validation_score")
            folder.append("metrics.jsonl", dict.fromkeys(measured, [0.5] * len(run.names)) | run.rows[0])
            for number, table in run.graphs.items():
                folder.save_arrays("graph", number, table)
            folder.save_arrays("ledger", 2, run.ledger.blocks[0] | {"neighbours": run.ledger.neighbours})
            summary = {"round": 2, "metric": "accuracy", "seconds": run.seconds, "device": "cpu", "role": run.role}
            folder.finish(summary)
    seeds = len(next(iter(by_label.values())))
    settings = {"seeds": seeds, "command": "made up"}
    ComparisonFolder(path).write(
        {"data": {"name": "any"}, "run": {"seed": 0}}, {label: {} for label in by_label}, settings
    )
    return path


def call(*words):
    return CliRunner().invoke(app, ["graph", *map(str, words)])


def test_the_command_line_writes_the_table_of_a_comparison_and_of_a_run(tmp_path):
    alone = [made_up("local", None, [0.5] * 6, seed=s, role="alone") for s in (0, 1)]
    scool = [made_up("scool-sbm", blocks([3, 3], 0.25), [0.7] * 6, seed=s, heard=5) for s in (0, 1)]
    fixed = [made_up("gossip-sgd", blocks([6], 0.1), [0.9] * 6, seed=s) for s in (0, 1)]
    folder = on_disk(tmp_path / "comparison", local=alone, scool_sbm=scool, gossip_sgd=fixed)
    outcome = call(folder, "--out", tmp_path / "who.csv")
    assert outcome.exit_code == 0, outcome.output
    assert "scool-sbm: 2 groups of 3 sites each were found.\n" in outcome.stdout
    table = pd.read_csv(tmp_path / "who.csv")
    assert table.columns.tolist() == ["site", "learns_from", "weight", "gain", "bytes"]
    assert table.iloc[0].tolist() == ["site-0", "site-1", 0.25, 0.2, 10]
    assert len(table) == 12
    assert call(folder).exit_code == 0  # GraphML beside the comparison
    assert networkx.read_graphml(folder / "graph.graphml").edges["site-1", "site-0"]["weight"] == 0.25
    run = folder / "scool-sbm" / "seed-1"
    assert call(run, "--out", tmp_path / "run.csv").exit_code == 0
    assert pd.read_csv(tmp_path / "run.csv")["gain"].isna().all()
    for words, sentence in (
        ([folder, "--method", "gossip-sgd"], "its neighbours are given, not learned"),
        ([folder, "--round", 2], "those of"),
        ([run, "--method", "local"], "--method is for the folder of a comparison"),
        ([run, "--round", 2, "--out", tmp_path / "a.csv"], "a .csv has the weights of the models that were kept"),
        ([folder, "--out", tmp_path / "a.xlsx"], "partners are written as .csv, weights as .graphml or .npy"),
    ):
        refused = call(*words)
        assert refused.exit_code == 2, refused.output
        assert sentence in refused.stderr
    read = Comparison.read([folder])
    assert with_whom(read) == "With whom, by scool-sbm: 2 groups of 3 sites each were found."
    pd.testing.assert_frame_equal(read.who(top=1), who(read, "scool-sbm", 1))


def test_the_table_of_a_run_by_hand():
    matrix = np.zeros((3, 3))
    matrix[0] = [0, 0.2, 0.5]
    matrix[1] = [0.005, 0, 0.3]  # 0.005 is not worth a row
    frame = who(made_up("scool-sbm", matrix, heard=7, up=10))
    assert frame.columns.tolist() == ["site", "learns_from", "weight", "gain", "bytes"]
    rows = list(frame[["site", "learns_from", "weight", "bytes"]].itertuples(index=False, name=None))
    assert rows == [  # 2 rounds of 7 bytes on an edge, and 2 of 10 to the hub shared out over the rows
        ("site-0", "site-2", 0.5, 14 + 10),
        ("site-0", "site-1", 0.2, 14 + 10),
        ("site-1", "site-2", 0.3, 14 + 20),
        ("site-2", "nobody", 0.0, 20),
    ]
    assert frame["gain"].isna().all()
    assert who(made_up("scool-sbm", matrix), top=1)["learns_from"].tolist() == ["site-2", "site-2", "nobody"]


def test_a_comparison_takes_the_best_method_that_learned_and_its_gains(tmp_path):
    alone = [made_up("local", None, [0.5] * 6, role="alone")]
    weak = [made_up("fomo", blocks([6], 0.1), [0.55] * 6)]
    seeds = [
        made_up("scool-sbm", blocks([3, 3], w), [0.6, 0.7, 0.5, 0.4, 0.6, 0.6], seed=s)
        for s, w in enumerate((0.2, 0.4))
    ]
    fixed = [made_up("gossip-sgd", blocks([6], 0.15), [0.9] * 6)]  # the best score, but its graph was not learned
    comparison = together(local=alone, fomo=weak, scool_sbm=seeds, gossip_sgd=fixed)
    assert best_learner(comparison) == "scool-sbm"
    frame = who(comparison)
    assert len(frame) == 12
    np.testing.assert_allclose(frame["weight"], 0.3)  # the mean of the two runs
    np.testing.assert_allclose(frame.groupby("site")["gain"].first(), [0.1, 0.2, 0, -0.1, 0.1, 0.1], atol=1e-12)
    assert set(frame[frame["site"] == "site-4"]["learns_from"]) == {"site-3", "site-5"}
    assert len(who(comparison, "fomo")) == 30
    read = pd.read_csv(write_who(comparison, tmp_path / "who.csv"))
    pd.testing.assert_frame_equal(read, frame, check_exact=False, atol=1e-4)


def test_fixed_graphs_and_hubs_are_refused():
    alone, fixed = made_up("local", None, role="alone"), made_up("gossip-sgd", blocks([3, 3], 0.2))
    comparison = together(local=[alone], gossip_sgd=[fixed])
    assert not learns_graph(fixed)
    assert best_learner(comparison) is None
    for subject, method, words in (
        (comparison, None, "no method of this comparison learned with whom to cooperate"),
        (comparison, "gossip-sgd", "gossip-sgd does not learn with whom to cooperate: its neighbours are given"),
        (comparison, "local", "local does not learn .* a hub or to nobody"),
        (comparison, "gossip-sdg", "no method gossip-sdg; did you mean gossip-sgd"),
        (fixed, None, "its neighbours are given, not learned"),
        (made_up("fomo", blocks([6], 0.1)), "dada", "this is one run, of fomo"),
    ):
        with pytest.raises(CoterieError, match=words):
            who(subject, method)


def test_the_list_of_learners_is_that_of_the_methods():
    classes = {row.name: registry.load("methods", row.name) for row in registry.rows("methods")}
    learners = {name for name, c in classes.items() if c.learns_weights or issubclass(c, TiedComponent)}
    assert learners == LEARNERS


def test_groups_are_read_from_the_weights():
    noise = np.random.default_rng(0).uniform(0, 0.02, (9, 9))
    run = made_up("scool-attention", blocks([4, 3, 2], 0.2) + noise)
    found = groups_found(run)
    assert found.groups == (NAMES[:4], ("site-4", "site-5", "site-6"), ("site-7", "site-8"))
    assert found.labels.tolist() == [0] * 4 + [1] * 3 + [2] * 2
    assert found.sentence == "3 groups of 4, 3 and 2 sites were found."
    assert found.agreement is None


def test_groups_are_called_right_or_wrong_only_where_they_are_known():
    run = made_up("scool-sbm", blocks([3, 3], 0.25))
    right = groups_found(together(groups=[1, 1, 1, 0, 0, 0], scool_sbm=[run]))
    assert right.sentence == "2 groups of 3 sites each were found, which are the true ones."
    wrong = groups_found(together(groups=[0, 1, 0, 1, 0, 1], scool_sbm=[run]))
    assert wrong.agreement == pytest.approx(-1 / 9)  # by hand: 2 pairs agree, 2.4 expected, of at most 6
    assert "true" not in wrong.sentence
    assert "adjusted Rand index -0.11" in wrong.sentence


@pytest.mark.parametrize("kind", ["flat", "random", "nothing"])
def test_weights_without_structure_form_no_groups(kind):
    rng = np.random.default_rng(1)
    matrix = {"flat": blocks([20], 0.05), "random": np.zeros((20, 20)), "nothing": np.zeros((20, 20))}[kind]
    if kind == "random":  # two neighbours each: a random sparse graph has a modularity far above zero
        for i in range(20):
            matrix[i, rng.choice([j for j in range(20) if j != i], 2, replace=False)] = 0.3
    assert groups_found(made_up("scool-sbm", matrix)).groups == ()


def test_groups_of_network_lasso_are_the_sites_with_the_same_model():
    """Connected by a chain in two of three runs: one group, although the first and the last are no neighbours."""
    chain = np.zeros((5, 5))
    chain[0, 1] = chain[1, 0] = chain[1, 2] = chain[2, 1] = 1 / 3
    apart = np.zeros((5, 5))
    runs = [made_up("network-lasso", m, seed=s) for s, m in enumerate((chain, chain, apart))]
    found = groups_found(together(network_lasso=runs))
    assert found.labels.tolist() == [0, 0, 0, 1, 2]
    assert groups_found(together(network_lasso=runs[2:])).groups == ()
