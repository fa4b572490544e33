"""The folders of sites, joined: what every run's folder has, and what happened on the network."""

import re
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

import coterie
from coterie.cli.commands import app
from coterie.errors import CoterieError
from coterie.experiment.folder import RunFolder
from coterie.experiment.result import Result
from coterie.sites.gather import gather, site_folders
from coterie.sites.joined import join_rows
from coterie.sites.network import read_network_record
from coterie.sites.replay import replay
from support.site_folders import write_sites


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small simulation on a ring of four, in exact mode."""
    path = tmp_path_factory.mktemp("gather") / "run"
    tables = """format = 1
[data]
name = "digits"
[partition]
name = "classes"
clients = 4
[model]
name = "linear"
[method]
name = "gossip-sgd"
[graph]
name = "ring"
[run]
rounds = 4
evaluate_every = 1
mode = "exact"
"""
    path.parent.joinpath("experiment.toml").write_text(tables)
    outcome = CliRunner().invoke(app, ["run", str(path.parent / "experiment.toml"), "--out", str(path)])
    assert outcome.exit_code == 0, outcome.output
    return path


def test_what_sites_wrote_is_joined_as_one_run(run, tmp_path):
    folder = gather(write_sites(run, tmp_path / "sites"), tmp_path / "all", with_models=True)
    whole, joined = Result.read(run), Result.read(folder)
    assert joined.names == whole.names
    for a, b in zip(whole.rows, joined.rows, strict=True):
        assert {k: v for k, v in a.items() if isinstance(v, list)} == {k: v for k, v in b.items() if k != "round"}
    for way, total in whole.ledger.totals().items():
        np.testing.assert_array_equal(total, joined.ledger.totals()[way])
    assert whole.ledger.edges().equals(joined.ledger.edges())
    np.testing.assert_array_equal(whole.weights(), joined.weights())
    for name, values in whole.scores.items():
        np.testing.assert_array_equal(values, joined.scores[name])
    x = np.zeros((1, 64), np.float32)
    np.testing.assert_array_equal(whole.model(2)(x), joined.model(2)(x))
    record = read_network_record(folder)
    assert (record["rounds"], record["notes"], sum(record["missing"].values())) == (4, [], 0)


def test_the_folder_of_all_sites_stands_for_them(run, tmp_path):
    """As `coterie peers --local` leaves it: beside the members' folders are their logs and what was gathered."""
    parent = tmp_path / "peers"
    folders = write_sites(run, parent)
    (parent / "north.log").write_text("")
    gather([parent], parent / "gathered")
    assert site_folders([parent]) == sorted(folders)
    assert site_folders(folders) == folders
    assert site_folders([parent / "gathered", tmp_path / "nowhere"]) == [parent / "gathered", tmp_path / "nowhere"]
    for words in (["gather", str(parent), "--out", str(tmp_path / "all")], ["replay", str(parent)]):
        done = CliRunner().invoke(app, [*words, "--json"])
        assert done.exit_code == 0, done.output
    assert Result.read(tmp_path / "all").names == Result.read(run).names


def test_models_stay_where_they_are_unless_asked_for(run, tmp_path):
    folder = gather(write_sites(run, tmp_path / "sites"), tmp_path / "all")
    assert list((folder / "models").iterdir()) == []
    with pytest.raises(CoterieError, match="gather them with --with-models"):
        replay([folder])


def test_a_site_that_was_away_and_one_that_never_ended_are_told_about(run, tmp_path):
    sites = write_sites(run, tmp_path / "sites", away={1: [2, 3], 3: [4]}, unfinished=[3])
    outcome = CliRunner().invoke(app, ["gather", *map(str, sites), "--out", str(tmp_path / "all")])
    assert outcome.exit_code == 0, outcome.output
    record = read_network_record(tmp_path / "all")
    names = Result.read(run).names
    assert record["there"][names[1]] == [[1, 1], [4, 4]]
    assert any("was away in rounds 2 to 3" in note for note in record["notes"])
    assert any(f"{names[3]} did not come to the end" in note for note in record["notes"])
    joined = Result.read(tmp_path / "all")
    assert [row["round"] for row in joined.rows] == [1, 2, 3, 4]
    whole = Result.read(run)
    assert joined.rows[2]["test_loss"][1] == whole.rows[0]["test_loss"][1]  # its last figures before stand
    assert joined.rows[2]["test_loss"][0] == whole.rows[2]["test_loss"][0]
    report = (tmp_path / "all" / "report.html").read_text()
    assert "On the network" in report
    assert "1, 4" in report
    # The ledger has no row of a member that was away.
    edges = joined.ledger.edges()
    assert names[1] not in set(edges[edges["round"] == 2]["receiver"])


def test_replay_agrees_with_what_the_sites_kept(run, tmp_path):
    sites = write_sites(run, tmp_path / "sites")
    folder = gather(sites, tmp_path / "all", with_models=True)
    for paths in ([folder], sites):
        assert [one.difference for one in replay(paths)] == [0.0] * 4
    first, second, *_ = sorted((folder / "models").iterdir())
    shutil.copy(second, first)
    outcome = CliRunner().invoke(app, ["replay", str(folder)])
    assert outcome.exit_code == 1
    assert "differs by" in outcome.output
    assert outcome.output.count("bit for bit") == 3


def test_folders_that_do_not_belong_together_are_refused(run, tmp_path):
    sites = write_sites(run, tmp_path / "sites")
    with pytest.raises(CoterieError, match="missing: name those of all members"):
        gather(sites[:3], tmp_path / "all")
    with pytest.raises(CoterieError, match="are both of"):
        gather([*sites, sites[0]], tmp_path / "all")
    with pytest.raises(CoterieError, match=r"is not the folder of a site: it has no members\.json"):
        gather([run], tmp_path / "all")
    config = sites[1] / "config.toml"
    config.write_text(config.read_text().replace("seed = 0", "seed = 1"))
    with pytest.raises(CoterieError, match=r"are not of the same run: .*seed is 0 there and 1 here"):
        gather(sites, tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_rounds_before_everybody_was_evaluated_are_left_out():
    early = [{"round": 1, "a": [1]}, {"round": 3, "a": [3]}]
    rows = join_rows([early, [{"round": 2, "a": [5]}, {"round": 4, "a": [6]}]])
    assert rows == [{"round": 2, "a": [1, 5]}, {"round": 3, "a": [3, 5]}, {"round": 4, "a": [3, 6]}]


def test_a_simulation_with_faults_says_so_in_its_report(tmp_path):
    federation = coterie.load("digits", "classes", clients=4)
    names = federation.names
    faults = {"drop": {"rate": 0.3}, "freeze": {"members": [names[1]], "rounds": [2, 3]}}
    attack = {"poison": {"members": [names[2]], "kind": "scale", "factor": 100.0}}
    result = coterie.run(
        federation, "linear", "gossip-sgd", graph="complete", rounds=4, out=tmp_path / "run", faults=faults | attack,
        robust="clip", progress=False,
    )  # fmt: skip
    assert result.ledger.went_wrong("clipped").argmax() == 2
    assert result.ledger.went_wrong("lost").sum() > 0
    text = coterie.report(tmp_path / "run", tmp_path / "report.html").read_text()
    for words in ("Faults were injected: drop 30%", f"poison (scale) of {names[2]}", "2 to 3", "robust = clip"):
        assert words in text
    clipped, sent = int(result.ledger.went_wrong("clipped")[2]), 3 * 4  # messages to three others in four rounds
    accused = f"Clipped in half of their messages or more: {names[2]} ({clipped} of {sent}). They send"
    assert accused in text
    folder = gather(write_sites(tmp_path / "run", tmp_path / "sites"), tmp_path / "all")
    gathered = coterie.report(folder, tmp_path / "gathered.html").read_text()
    assert accused in gathered
    sites = [coterie.report(tmp_path / "sites" / names[i], tmp_path / f"{i}.html").read_text() for i in (0, 1, 3)]
    own = rf"Clipped in half of their messages or more: {names[2]} \([234] of 4\)\. They send"  # that came to this site
    assert any(re.search(own, site) for site in sites)
    row = gathered[gathered.index(">clipped<") :]
    row = row[row.index(names[2]) :]
    assert f">{clipped}<" in row[: row.index("</tr>")]
    assert RunFolder(tmp_path / "run").config()["faults"]["drop"] == [{"rate": 0.3, "members": [], "rounds": []}]
