"""The commands for real peers that need no network: init, check, disclose, run, and their mistakes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coterie.cli import app


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_example_is_checked_disclosed_and_simulated():
    outcome = call("init", "--federation", "3")
    assert outcome.exit_code == 0, outcome.output
    assert sorted(path.name for path in Path().iterdir()) == [
        "federation.toml",
        *(f"site-{i}.site.toml" for i in (1, 2, 3)),
    ]
    assert call("init", "--federation", "3").exit_code == 2  # nothing is overwritten
    checked = call("check", "federation.toml", "--json")
    assert checked.exit_code == 0, checked.output
    assert call("disclose", "federation.toml", "--out", "page.md").exit_code == 0
    assert json.loads(checked.stdout)["digest"] in Path("page.md").read_text()
    assert call("disclose", "federation.toml", "--out", "page.txt").exit_code == 2
    simulated = call("run", "federation.toml", "--rounds", "1", "--device", "cpu", "--json")
    assert simulated.exit_code == 0, simulated.output
    assert len(json.loads(simulated.stdout)["scores"]) == 3


def test_findings_are_one_line_each_and_status_2():
    assert call("init", "--federation", "a,b").exit_code == 0
    text = Path("federation.toml").read_text()
    Path("federation.toml").write_text(text.replace('address = "127.0.0.1', '# address = "127.0.0.1'))
    outcome = call("check", "federation.toml", "--site", "a.site.toml")
    assert outcome.exit_code == 2
    lines = outcome.stderr.strip().splitlines()
    assert all(line.startswith("coterie: ") for line in lines)
    for part in ("no member can be reached", "a and b exchange messages", "keys/a.key and keys/a.crt do not exist"):
        assert sum(part in line for line in lines) == 1, part
    assert "a.site.toml is a site's own file; check it with the shared one" in call("check", "a.site.toml").stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("init",), "name a table and --target COLUMN, or --federation 4"),
        (("init", "--federation", "1"), "2 to 100 members"),
        (("init", "x.csv", "--federation", "a,b"), "which column of x.csv is predicted?"),
        (("check", "--site", "s.toml"), "--site belongs to a federation"),
        (("keys", "issue", "a", "--host", "h"), "make an authority first: coterie keys init"),
        (("keys", "show", "none.crt"), "none.crt cannot be read"),
        (("disclose", "none.toml"), "none.toml cannot be read"),
    ],
)
def test_mistakes_are_one_sentence(words, sentence):
    outcome = call(*words)
    assert outcome.exit_code == 2, outcome.output
    assert sentence in outcome.stderr
    assert len(outcome.stderr.strip().splitlines()) == 1


def test_each_sites_own_data_cannot_be_simulated_without_them():
    Path("t.csv").write_text("\n".join(["age,died", *(f"{20 + i % 50},{i % 2}" for i in range(60))]))
    assert call("init", "t.csv", "--target", "died", "--federation", "a,b").exit_code == 0
    outcome = call("run", "federation.toml")
    assert outcome.exit_code == 2
    assert "a simulation needs them in one place" in outcome.stderr
