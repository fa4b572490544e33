"""`coterie join` and `coterie peers`: what is refused before anybody starts."""

import pytest
from typer.testing import CliRunner

from coterie.cli import app
from support.peer_runs import write_federation


def refused(*words):
    """Run a command that must end with one sentence; returns it."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 2
    assert done.output.startswith("coterie: ")
    assert done.output.count("\n") == 1
    return done.output


def test_peers_says_where_it_starts_them(tmp_path):
    assert "add --local" in refused("peers", write_federation(tmp_path, ("north", "south")))


@pytest.mark.parametrize(
    ("faults", "sentence"),
    [("[drip]\nrate = 0.1\n", "did you mean drop?"), ('[[freeze]]\nmembers = ["nobody"]\n', "which is no member")],
)
def test_wrong_faults_are_refused_once_and_not_by_every_member(tmp_path, faults, sentence):
    path = write_federation(tmp_path, ("north", "south"))
    (tmp_path / "faults.toml").write_text(faults)
    words = ("--faults", tmp_path / "faults.toml", "--out", tmp_path / "peers")
    assert sentence in refused("peers", path, "--local", *words)
    assert not (tmp_path / "peers").exists()


def test_join_refuses_a_site_that_is_no_member(tmp_path):
    site = tmp_path / "site.toml"
    site.write_text('format = 1\n[site]\nname = "nort"\n')
    assert "north" in refused("join", write_federation(tmp_path, ("north", "south")), "--site", site)
