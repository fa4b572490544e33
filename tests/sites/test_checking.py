"""What `coterie check` finds in a federation, and what `coterie disclose` says about it."""

from pathlib import Path

import numpy as np
import pytest

from coterie.experiment.engine import Engine
from coterie.experiment.job import Job
from coterie.experiment.training import Training
from coterie.names import METHODS
from coterie.pages.disclosure import disclosure_page
from coterie.peers.ledger import Ledger
from coterie.sites.checking import check_federation
from coterie.sites.data import load_everyone
from coterie.sites.disclose import disclosure, markdown, title
from coterie.sites.keys import Authority
from coterie.sites.outline import Outline
from coterie.sites.site import SiteFile
from coterie.sites.starter import started
from support.site_cases import federation_of, federation_tables, site_of

MEMBERS = federation_tables()["members"]
HIDDEN = [*MEMBERS[:1], {"name": "east"}, {"name": "south"}, MEMBERS[3]]


def page(federation):
    return markdown(title(federation), disclosure(federation))


@pytest.mark.parametrize(
    ("change", "sentences"),
    [
        ({}, []),
        ({"members": HIDDEN}, ["east and south exchange messages, and neither can be reached"]),
        ({"members": HIDDEN, "graph": {"name": "star"}}, []),
        ({"members": HIDDEN, "method": {"name": "fedavg"}}, ["east and south exchange messages"]),
        ({"members": HIDDEN, "method": {"name": "fedavg"}, "federation": {"hub": "west"}}, []),
        ({"members": HIDDEN, "method": {"name": "fedavg"}, "federation": {"hub": "east"}}, ["east and south exch"]),
        ({"members": HIDDEN, "method": {"name": "local"}}, []),
        ({"members": HIDDEN, "federation": {"seeds": ["east"]}, "graph": {"name": "star"}}, ["seeds names east"]),
        ({"members": [{"name": "a"}, {"name": "b"}]}, ["no member can be reached", "a and b exchange messages"]),
        ({"method": {"name": "component"}, "graph": {"name": "ring"}}, ["the model has one layer only"]),
        ({"method": {"name": "component"}, "graph": {"name": "auto"}}, ["is made from the data of all members"]),
        ({"run": {"patience": 2}}, ["run.patience needs the validation scores of all members"]),
    ],
)
def test_what_is_wrong_with_a_federation_is_said(change, sentences):
    if change.get("members") == [{"name": "a"}, {"name": "b"}]:
        change = change | {"graph": {"name": "complete"}}
    found = check_federation(federation_of(**change))
    assert len(found.wrong) == len(sentences), found.wrong
    for said, part in zip(found.wrong, sentences, strict=True):
        assert part in said


@pytest.mark.parametrize(("graph", "warned"), [("ring", True), ("complete", False)])
def test_robust_sums_of_two_neighbours_cannot_tell_who_is_the_attacker(graph, warned):
    found = check_federation(federation_of(run={"robust": "clip"}, graph={"name": graph}))
    assert found.wrong == []
    assert any("fewer than three neighbours" in line and MEMBERS[0]["name"] in line for line in found.lines) is warned


def test_a_site_is_checked_with_its_keys_limits_and_data(tmp_path):
    Authority.create("ours", 10).save(tmp_path)
    Authority.read(tmp_path).issue_files(tmp_path, "north", ["127.0.0.1"], 3)
    files = {"key": "north.key", "certificate": "north.crt", "ca": "ca.crt"}

    def checked(**sections):
        return check_federation(federation_of(), site_of("north", tmp_path / "site.toml", tls=files, **sections)).wrong

    assert checked() == []
    assert checked(limits={"receivers": ["east", "west"]}) == []
    limits = {"receivers": ["east"], "methods": ["ditto"], "training_rows": 10_000, "rounds": 1}
    said = checked(limits=limits)
    for part in ("would send to west", "allows only ditto", "asks for 10,000", "allows 1 (limits.rounds)"):
        assert sum(part in sentence for sentence in said) == 1, part
    assert len(said) == 4
    (tmp_path / "north.key").chmod(0o644)
    assert "can be read by others" in checked()[0]


def test_tables_are_checked_without_any_rows_and_with_a_sites_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("north", "south"):
        lines = [f"{20 + i % 50},{'ab'[i % 2]},{i % 3 == 0}" for i in range(50)]
        Path(f"{name}.csv").write_text("\n".join(["age,ward,died", *lines]))
    for name, text in started(("north", "south"), ["*.csv"], "died")[0].items():
        Path(name).write_text(text.replace(".example.org", "").replace("south:7447", "127.0.0.1:1"))
    from coterie.sites.federation import FederationFile

    federation = FederationFile.read("federation.toml")
    Path("south.csv").unlink()
    assert check_federation(federation).wrong == []
    found = check_federation(federation, SiteFile.read("south.site.toml"))
    assert any("south.csv" in sentence for sentence in found.wrong)
    text = page(federation)
    assert federation.contract.digest in text
    assert "south.csv" not in text
    assert "The column contract, before the run" in text
    similar = FederationFile.from_dict(
        {"federation": {"columns": "columns.json"}, "members": MEMBERS, "graph": {"name": "similarity"},
         "method": {"name": "gossip-sgd"}},
        tmp_path / "federation.toml",
    )  # fmt: skip
    assert "is made from the data of all members" in check_federation(similar).wrong[0]


@pytest.mark.parametrize(
    "change",
    [
        {"method": {"name": "fedavg"}, "federation": {"hub": "north"}},
        {"method": {"name": "fedavg"}},
        {"method": {"name": "fedavg"}, "run": {"all_to_all": 2}},
        pytest.param({}, marks=pytest.mark.soak),
        pytest.param({"method": {"name": "sgp"}}, marks=pytest.mark.soak),
        pytest.param({"method": {"name": "scool-sbm"}, "graph": {"name": "complete"}}, marks=pytest.mark.soak),
    ],
    ids=["hub", "no-hub", "partners", "gossip", "push", "share"],
)
def test_the_bytes_are_those_of_the_ledger(change, device):
    federation = federation_of(**change)
    outline, job = Outline.of(federation), Job.of(*load_everyone(federation))
    engine = Engine.of(job, device)
    training = Training(engine, job.method, job.graph, job.weights, 0, peers=job.simulation(engine.plan))
    ledger = Ledger(federation.names, job.graph.neighbours)
    state, opening = training.init()
    ledger.add(0, opening.traffic, job.graph.neighbours)
    ledger.add(1, training.advance(state, 1, 2)[1].traffic, job.graph.neighbours)
    sent, received = (ledger.totals()[way] for way in ("sent", "received"))
    ours = np.array([outline.total_bytes(i) for i in range(4)])
    if federation.hub is None:
        np.testing.assert_array_equal(ours, sent)
    else:  # the hub's own message to itself does not leave, and what the hub sends down, north sends
        assert ours[1:].tolist() == sent[1:4].tolist()
        assert ours[0] == 3 * received[1]


def test_the_page_says_who_gets_what_and_escapes_what_it_quotes():
    federation = federation_of(method={"name": "fomo"}, graph={"name": "ring"}, federation={"name": "<b>|x"})
    text = page(federation)
    for part in ("how much the model that it was asked about would help", "north", federation.hash, "No row of any"):
        assert part in text
    assert "No differential privacy is applied" in text
    assert "<b>" not in text.replace("\\<b\\>", "")
    shown = disclosure_page(title(federation), disclosure(federation))
    assert "&lt;b&gt;" in shown
    assert "<b>" not in shown
    assert "<script>" not in shown  # nothing runs
    assert federation.hash in shown


def test_rows_that_leave_are_said_in_capitals_and_nothing_that_is_sent_is_nothing():
    pooled = page(federation_of(method={"name": "pooled"}, federation={"samples_may_leave": True}))
    assert "THE ROWS THEMSELVES ARE SENT TO EVERY MEMBER" in pooled
    assert "all rows of its table" not in pooled
    assert "Nothing is sent." in page(federation_of(method={"name": "local"}))


def test_personal_layers_stay_and_a_codec_only_shortens():
    plain = federation_of(model={"name": "mlp", "hidden": [4], "personal": ["layers.1"]})
    assert "layers.1.weight" in page(plain).split("What stays")[1]
    sizes = [sent.size for sent in Outline.of(plain).messages]
    coded = federation_of(model={"name": "mlp", "hidden": [4], "personal": ["layers.1"]}, codec={"name": "qsgd"})
    assert [sent.size for sent in Outline.of(coded).messages] == [size + 1 for size in sizes]
    assert "at most" in page(coded).split("What is sent")[1]


def test_stages_are_told_apart():
    federation = federation_of(
        method={"name": "scool-sbm", "sparsify_after": 1}, graph={"name": "complete"}, run={"rounds": 3}
    )
    text = page(federation)
    assert "in every round from 2 on" in text
    assert "once, before round 2" in text
    outline = Outline.of(federation)
    stages = {first: sum(s.size * s.times * len(outline.receivers(s, 0)) for s in outline.messages
                         if (s.phase, s.first) == ("round", first)) for first in (1, 2)}  # fmt: skip
    once = sum(s.size * len(outline.receivers(s, 0)) for s in outline.messages if s.phase != "round")
    assert outline.total_bytes(0) == stages[1] + 2 * stages[2] + once


@pytest.mark.soak  # what tests/sites/test_tracing.py says of every method, once more as a page
def test_every_method_has_its_page():
    for row in METHODS:
        if row.name in ("pooled", "pooled-exact", "hierarchical", "local-exact", "guess"):
            continue
        change = {"graph": {"name": "complete"}, "model": {"name": "mlp", "hidden": [3]}}
        change |= {"members": [{**member, "group": i % 2} for i, member in enumerate(MEMBERS)]}
        text = page(federation_of(method={"name": row.name}, **change))
        assert "not declared" not in text, row.name
