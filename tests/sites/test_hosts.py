"""Members on hosts of their own, and one whose certificate ends: real processes, in `make soak` only."""

import pytest

from coterie.sites import local as local_federation
from coterie.sites.keys import Authority, files_of
from coterie.sites.local import LocalFederation
from support.namespaces import CutNetwork, can_cut
from support.peer_runs import Watch, differences, simulate, write_federation

pytestmark = pytest.mark.soak
NAMES = ("north", "east", "south")
VALID = 150.0  # seconds: three processes start in 10, on two busy cores in 60


@pytest.mark.timeout(600)
def test_hosts_of_which_one_cannot_be_reached(tmp_path, device):
    """Each member has a network of its own; south has no address, and everybody talks to it all the same."""
    if not can_cut():
        pytest.skip("needs root and network namespaces")
    graph = {"name": "complete"}
    path = write_federation(tmp_path, NAMES, outbound=["south"], graph=graph, run={"rounds": 5, "evaluate_every": 2})
    with CutNetwork(path, tmp_path / "peers") as hosts:
        watch = Watch(hosts)
        hosts.start()
        assert watch.until(lambda w: w.exits == dict.fromkeys(NAMES, 0), 300)[0], _why(hosts)
        folders = [hosts.folder(name) for name in NAMES]
    assert differences(folders, simulate(path, tmp_path / "simulation", device)) == []


@pytest.mark.timeout(900)
def test_a_member_whose_certificate_ends_says_so_and_the_others_go_on(tmp_path, monkeypatch):
    def keys(folder, names, hosts):
        authority = Authority.create("ours", 2)
        authority.save(folder)
        for name in names:
            authority.issue_files(folder, name, hosts, VALID / 86_400 if name == "south" else 1)
        return {name: files_of(folder, name) for name in names}

    monkeypatch.setattr(local_federation, "throwaway", keys)
    path = write_federation(tmp_path, NAMES, run={"rounds": 1_000_000, "evaluate_every": 1000})
    with LocalFederation(path, tmp_path / "peers", options=["--pace", "0.5"]) as local:
        watch = Watch(local)
        local.start()
        assert watch.until(lambda w: all(w.round(name) >= 3 for name in NAMES), VALID)[0], _why(local)
        assert any("south.crt expires on" in note for name, note in watch.notes if name == "south")
        assert watch.until(lambda w: "south" in w.exits, VALID + 60)[0], _why(local)
        assert watch.exits["south"] == 2
        assert "south.crt has expired on" in local.why("south")
        assert (local.folder("south") / "checkpoints").is_dir()
        ended = watch.round("south")
        assert watch.until(lambda w: min(w.round("north"), w.round("east")) >= ended + 5, 120)[0], _why(local)
        assert watch.exits.keys() == {"south"}


def _why(local):
    return {name: local.why(name) for name in local.names}
