"""federation.toml and site.toml: what they say, what is refused, and that a simulation of them is the same run."""

import copy

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.experiment.config import Experiment
from coterie.sites.data import load_everyone, load_site
from coterie.sites.federation import FederationFile, simulated
from coterie.sites.members import Address
from coterie.sites.site import SiteFile
from coterie.storage.toml import dump_toml
from support.site_cases import NAMES, federation_of, federation_tables, site_of


def test_the_file_is_a_run_and_its_members(tmp_path):
    tables = federation_tables()
    text = dump_toml({k: v for k, v in tables.items() if k != "members"})
    text += "".join(f'[[members]]\nname = "{m["name"]}"\naddress = "{m["address"]}"\n' for m in tables["members"])
    (tmp_path / "federation.toml").write_text(text)
    read = FederationFile.read(tmp_path / "federation.toml")
    assert read.names == NAMES
    assert read.hub is None
    assert [read.number(name) for name in NAMES] == [0, 1, 2, 3]
    run = {key: value for key, value in tables.items() if key not in ("federation", "members")}
    run |= {"partition": {"name": "iid", "clients": 4}, "run": {**run["run"], "hub": "none"}}
    assert read.experiment == Experiment.from_dict(run) == Experiment.from_dict(simulated(tables))
    assert read.hash == federation_of().hash


def test_code_that_the_file_names_needs_trust(tmp_path):
    (tmp_path / "mine.py").write_text("open('ran', 'w')")
    rows = '[[members]]\nname = "a"\n[[members]]\nname = "b"\n'
    (tmp_path / "federation.toml").write_text(f'{rows}[method]\nname = "{tmp_path / "mine.py"}:Mine"\n')
    with pytest.raises(CoterieError, match=r"wants to run code: method\.name"):
        FederationFile.read(tmp_path / "federation.toml")


@pytest.mark.parametrize(
    "change",
    [
        {"method": {"lr": 0.02}},
        {"run": {"seed": 1}},
        {"federation": {"deadline": 61.0}},
        {"members": [*federation_tables()["members"][:3], {"name": "west", "address": "127.0.0.1:9999"}]},
        {"members": federation_tables()["members"][::-1]},
    ],
    ids=["method", "seed", "deadline", "address", "order"],
)
def test_every_setting_is_in_the_hash_and_a_default_that_is_written_out_is_not(change):
    plain = federation_of()
    assert federation_of(federation={"hub": "none"}, codec={"name": "none"}).hash == plain.hash
    assert federation_of(**change).hash != plain.hash


MEMBERS = federation_tables()["members"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"members": MEMBERS[:1]}, "must list at least two members"),
        ({"members": [*MEMBERS, {"name": "North"}]}, "two members have the name 'North'"),
        ({"members": [*MEMBERS, {"name": "up", "address": MEMBERS[0]["address"]}]}, "two members have the address"),
        ({"members": [*MEMBERS[:1], {"name": "a/b"}]}, "members.2.name 'a/b' must not contain '/'"),
        ({"members": [*MEMBERS[:1], {"name": "a*"}]}, "must not contain '*'"),
        ({"members": [*MEMBERS[:1], {"name": "x" * 65}]}, "must have 1 to 64 letters, not 65"),
        ({"members": [*MEMBERS[:1], {"name": "Hub"}]}, "means something else"),
        ({"members": [*MEMBERS[:1], {"name": "b\n"}]}, "must not contain '\\\\n'"),
        ({"members": [*MEMBERS[:1], {"name": "b", "address": "b.org"}]}, "members.2.address must be HOST:PORT"),
        ({"members": [*MEMBERS[:1], {"name": "b", "address": "b.org:0"}]}, "port must be a number from 1"),
        ({"members": [*MEMBERS[:1], {"name": "b", "address": "::1:80"}]}, "IPv6 address in brackets"),
        ({"members": [*MEMBERS[:1], {"name": "b", "address": "0.0.0.0:80"}]}, "nobody can connect to it"),
        ({"members": [*MEMBERS[:1], {"name": "b", "reachable": True}]}, "b cannot be reached without one"),
        ({"members": [*MEMBERS[:1], {"name": "b", "adress": "x"}]}, "unknown key members.2.adress; did you mean"),
        ({"members": [*MEMBERS[:1], {"name": "b", "group": 1}]}, "members.1.group is missing"),
        ({"members": "north"}, "must list at least two members"),
        ({"federation": {"hub": "nort"}}, "federation.hub names 'nort', which is no member; did you mean north"),
        ({"federation": {"seeds": ["x"]}}, "federation.seeds names 'x'"),
        ({"federation": {"deadline": 0}}, "federation.deadline must be greater than 0"),
        ({"federation": {"tsl": False}}, "unknown key federation.tsl; did you mean tls"),
        (
            {"federation": {"tls": False}, "members": [*MEMBERS[:3], {"name": "w", "address": "10.0.0.1:1"}]},
            "federation.tls is false, but w listens on 10.0.0.1:1",
        ),
        ({"partition": {"clients": 3}}, "partition.clients is 3, but there are 4 members"),
        ({"method": {"name": "pooled"}}, "pooled sends every member's samples"),
        ({"method": {"name": "hierarchical"}}, "runs in a simulation only"),
        ({"federation": {"columns": "columns.json"}}, "federation.columns says that each site has its own data"),
        ({"run": {"rounds": 0}}, "run.rounds must be at least 1"),
    ],
)
def test_what_is_wrong_in_the_file_is_one_sentence(change, sentence):
    with pytest.raises(CoterieError, match=sentence.replace("*", r"\*")) as refused:
        federation_of(**change)
    assert "\n" not in str(refused.value)


def test_of_two_members_one_calls_the_other_and_seeds_are_called_first():
    members = [*MEMBERS[:3], {"name": "west"}]
    north, east, south = (member["address"] for member in MEMBERS[:3])
    read = federation_of(members=members, federation={"seeds": ["south"]})
    assert read.dials("west") == (south, north, east)
    assert read.dials("south") == (north, east)
    assert read.dials("east") == (north,)
    assert read.dials("north") == ()
    both = federation_of(members=[*MEMBERS[:2], {"name": "south"}, {"name": "west"}])
    assert [both.linked(name) for name in ("north", "west")] == [("east", "south", "west"), ("north", "east")]


def test_addresses():
    assert Address.parse("[::1]:80") == ("::1", 80)
    assert str(Address.parse("[::1]:80")) == "[::1]:80"
    assert [Address.parse(a).loopback for a in ("127.8.0.1:1", "localhost:1", "[::1]:1")] == [True] * 3
    assert [Address.parse(a).loopback for a in ("0.0.0.0:1", "128.0.0.1:1", "localhost.org:1")] == [False] * 3


def test_a_site_takes_its_own_part_of_data_that_the_shared_file_names():
    federation = federation_of(members=[{**m, "group": i // 2 * 7} for i, m in enumerate(MEMBERS)])
    _, everyone = load_everyone(federation)
    assert everyone.names == NAMES
    assert everyone.groups.tolist() == [0, 0, 1, 1]
    _, pool = federation.experiment.load()
    _, own = load_site(federation, site_of("south"))
    assert own.names == ("south",)
    assert own.membership().tolist() == [[False, True]]
    np.testing.assert_array_equal(own.train.x[0], pool.train.x[2])  # with the padding of all, as in a simulation
    with pytest.raises(CoterieError, match=r"south has \d+ training rows, and site.toml asks for 9,999"):
        load_site(federation, site_of("south", limits={"training_rows": 9999}))


def test_limits_only_narrow_and_each_is_said():
    federation, loose = federation_of(), site_of()
    assert loose.wrong(federation) == []
    limits = {"methods": ["ditto"], "rounds": 1, "receivers": ["nobody"]}
    said = site_of(limits=limits, data={"path": "x.csv"}).wrong(federation)
    for part in ("allows only ditto", "allows 1 (limits.rounds)", "names 'nobody'", "leave [data] out"):
        assert any(part in sentence for sentence in said), part
    with pytest.raises(CoterieError, match=r"'nrth' is not a member of federation.toml; did you mean north"):
        site_of("nrth").wrong(federation)
    without = SiteFile.from_dict({"site": {"name": "north", "listen": "0.0.0.0:1"}}, "site.toml")
    assert "must name key, certificate and ca" in without.wrong(federation)[0]
    assert "federation.tls is false" in without.wrong(federation_of(federation={"tls": False}))[0]


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ({}, "must say which member it is of"),
        ({"site": {"name": "a/b"}}, "site.name 'a/b' must not contain '/'"),
        ({"site": {"name": "a", "listen": "x"}}, "site.listen must be HOST:PORT"),
        ({"site": {"name": "a"}, "sit": {}}, r"unknown section \[sit\] in site.toml; did you mean site"),
        ({"site": {"name": "a"}, "tls": {"key": "k"}}, "tls.certificate is required"),
        ({"site": {"name": "a"}, "limits": {"rounds": 0}}, "limits.rounds must be at least 1"),
        ({"site": 1}, "site must be a section"),
        ({"site": {"name": "a"}, "format": 2}, "format must be 1, not 2"),
    ],
)
def test_what_is_wrong_in_a_site_file_is_one_sentence(tables, sentence):
    with pytest.raises(CoterieError, match=sentence):
        SiteFile.from_dict(copy.deepcopy(tables), "site.toml")


def test_paths_of_a_site_are_relative_to_its_file(tmp_path):
    site = site_of(path=tmp_path / "a" / "site.toml", data={"path": "x.csv"})
    assert site.tls.key == str(tmp_path / "a" / "site.key")
    assert site.data.path == str(tmp_path / "a" / "x.csv")
    assert site.folder(federation_of()) == tmp_path / "a" / "runs" / "compass-north"
