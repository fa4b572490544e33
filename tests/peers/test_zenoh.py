"""Members on this machine, over mutual TLS: who is waited for, what is acknowledged, who is let in.

All members of a test live in this process, each with a session, threads and certificate of its own. Whole methods
between processes are in test_zenoh_methods.py.
"""

import contextlib
import dataclasses
import socket
import threading
import time

import numpy as np
import pytest

from coterie.codecs.frame import Header, encode
from coterie.errors import CoterieError
from coterie.peers.access import NetworkSettings, alive_key, engine_settings, inbox_key, load_zenoh
from coterie.peers.line import ESSENTIAL, ORDINARY
from coterie.peers.zenoh import ZenohCarrier
from support.certificates import Authority, mesh
from support.members import free_ports, meet

NAMES = ["amber", "birch", "cedar"]
RUN, LARGEST = 77, 4096
ATTEMPTS = 3  # of each outsider


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("keys"))


@contextlib.contextmanager
def members(authority, names=NAMES, deadline=30.0, networks=None):
    """Open a carrier for each of some members (client i lives with member i), who then all see each other."""
    networks = networks or mesh(authority, names, free_ports(len(names)), deadline)
    here = {name: [place] for place, name in enumerate(names)}
    with contextlib.ExitStack() as stack:
        carriers = []
        for name in names:
            network = dataclasses.replace(networks[name], start_deadline=deadline)
            carrier = ZenohCarrier(
                me=name, members=names, here=here, hub=None, network=network, run=RUN, largest=LARGEST
            )
            carriers.append(stack.enter_context(carrier))
        for carrier in carriers:
            meet(carrier)
        yield carriers


def frame(number, exchange, pair, kind=ORDINARY, run=RUN):
    return encode(Header(kind, run, number, exchange, *pair), [np.full(10, pair[0], np.float32)])


def exchange(carrier, number, number_of_exchange, silent=(), kind=ORDINARY, to=None, of=None):
    """Let a member send to all others (or `to` some), and hear all others (or `of` some); returns whom it heard."""
    me = carrier.members.index(carrier.me)
    others = [other for other in range(len(carrier.members)) if other != me]
    outgoing = [(me, other) for other in (others if to is None else to)]
    incoming = [(other, me) for other in (others if of is None else of)]
    frames = {pair: frame(number, number_of_exchange, pair, kind) for pair in outgoing if pair[1] not in silent}
    got = carrier.exchange(number, number_of_exchange, frames, outgoing, incoming)
    assert got == {pair: frame(number, number_of_exchange, pair, kind) for pair in got}
    return {sender for sender, _ in got}


def together(*work):
    """Run functions in threads; returns what each returned."""
    found, failed = [None] * len(work), []

    def run(place, each):
        try:
            found[place] = each()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=item) for item in enumerate(work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed, failed[0]
    return found


# -- exchanges ------------------------------------------------------------------------------------------------------


def test_everything_arrives_and_nobody_waits_for_what_was_not_sent(authority):
    with members(authority) as carriers:

        def run(carrier):
            heard = []
            for number in (0, 1, 2):
                carrier.start_round(number)
                heard += [exchange(carrier, number, 0), exchange(carrier, number, 1, silent={1}, kind=ESSENTIAL)]
            return heard

        start = time.monotonic()
        found = together(*(lambda c=c: run(c) for c in carriers))
        assert time.monotonic() - start < 15  # half of one deadline: "nothing this time" is a message, too
        assert found[0] == [{1, 2}, {1, 2}] * 3
        assert found[1] == [{0, 2}, set()] * 3
        assert found[2] == [{0, 1}, {0, 1}] * 3
        size = len(frame(0, 0, (0, 1)))
        assert carriers[0].counts.bytes == {(0, 1): 3 * size, (0, 2): 6 * size}
        for carrier in carriers:
            assert not carrier.counts.refused
            assert not carrier.counts.absent
            assert not carrier.lost_copies()
            assert carrier.heard_round == 2


def test_a_member_that_only_sends_does_not_run_far_ahead(authority):
    """Amber hears nobody, so nothing but acknowledgements keeps it from being done before birch has begun."""
    with members(authority, NAMES[:2]) as (amber, birch):
        ahead = []

        def send():
            for number in range(8):
                amber.start_round(number)
                ahead.append(number - birch._round)
                exchange(amber, number, 0, of=())

        def hear():
            heard = []
            for number in range(8):
                time.sleep(0.1)
                birch.start_round(number)
                heard.append(exchange(birch, number, 0, to=()))
            return heard

        assert together(send, hear)[1] == [{0}] * 8
        assert max(ahead) <= 3
        assert amber.counts.repeated > 0


def test_a_member_that_does_not_answer_is_given_up_once_and_comes_back(authority):
    deadline = 2.0
    with members(authority, NAMES[:2], deadline) as (amber, birch):
        waited, heard = [], []
        for number in range(1, 5):
            amber.start_round(number)
            start = time.monotonic()
            heard += [exchange(amber, number, 0), exchange(amber, number, 1, kind=ESSENTIAL)]
            waited.append(time.monotonic() - start)
        # Birch lives (it answers pings) but computes: three quarters of the deadline, once for a round; after two
        # rounds a tenth.
        assert heard == [set()] * 8
        assert all(0.7 * deadline <= each for each in waited[:2])
        assert max(waited[2:]) < min(waited[:2])
        assert amber.counts.absent["birch"] == 3
        assert amber.lost_copies() == {(0, 1)}
        # It finds out where the others are, and they are together again.
        assert birch.heard_round == 4
        for number in (5, 6):
            heard = together(
                *(lambda c=c, number=number: (c.start_round(number), exchange(c, number, 0))[1] for c in (amber, birch))
            )
            assert heard == [{1}, {0}]


def test_an_acknowledgement_that_comes_too_late_is_known_to_be_of_no_use(authority):
    """Amber sends, and birch gets it; but amber is in the next exchange before birch says so."""
    with members(authority, NAMES[:2], 2.0) as (amber, birch):
        amber.start_round(1)
        birch.start_round(1)
        assert together(
            lambda: exchange(amber, 1, 0, of=()), lambda: exchange(birch, 1, 0, to=())
        ) == [set(), {0}]  # fmt: skip
        assert exchange(amber, 1, 1, to=(), of=(1,)) == set()
        assert exchange(birch, 1, 1, kind=ESSENTIAL, to=(0,), of=()) == set()
        assert birch.untaken() == {(1, 0)}
        for carrier in (amber, birch):
            carrier.start_round(2)
        assert together(
            lambda: exchange(amber, 2, 0, kind=ESSENTIAL, to=(), of=(1,)),
            lambda: exchange(birch, 2, 0, kind=ESSENTIAL, to=(0,), of=())
        ) == [{1}, set()]  # fmt: skip
        assert birch.untaken() == set()


def test_who_leaves_is_not_waited_for(authority):
    with members(authority) as (amber, birch, cedar):
        cedar.close()
        start = time.monotonic()
        heard = together(lambda: exchange(amber, 1, 0), lambda: exchange(birch, 1, 0))
        assert heard == [{1}, {0}]
        assert time.monotonic() - start < 10
        assert amber.alive() == {"amber", "birch"}


def test_who_leaves_waits_until_its_last_message_has_arrived(authority, monkeypatch):
    with members(authority, NAMES[:2], deadline=60.0) as (amber, birch):
        offer = birch._inbox.offer

        def slow(*parcel):
            time.sleep(0.5)
            return offer(*parcel)

        monkeypatch.setattr(birch._inbox, "offer", slow)

        def send_and_leave():
            amber.start_round(1)
            exchange(amber, 1, 0, of=())
            amber.close()

        def hear():
            birch.start_round(1)
            return exchange(birch, 1, 0, to=())

        assert together(send_and_leave, hear)[1] == {0}


def test_stop_ends_every_wait(authority):
    with members(authority, NAMES[:2]) as (amber, _):
        threading.Timer(0.2, amber.stop).start()
        start = time.monotonic()
        assert exchange(amber, 1, 0) == set()
        assert exchange(amber, 1, 1) == set()
        assert time.monotonic() - start < 10


def test_a_receiver_without_a_copy_asks_its_sender(authority):
    with members(authority, NAMES[:2]) as (amber, birch):
        birch.ask_whole((0, 1))
        end = time.monotonic() + 10
        while not (lost := amber.lost_copies()):
            assert time.monotonic() < end
            time.sleep(0.01)
        assert lost == {(0, 1)}
        birch.ask_whole((1, 0))  # it is no receiver of its own: nobody is told
        assert amber.lost_copies() == set()


def test_requests_are_answered_by_name(authority):
    def fail(sender, payload):
        raise ValueError("no")

    with members(authority, NAMES[:2]) as (amber, birch):
        birch.answer("greeting", lambda sender, payload: sender.encode() + payload)
        birch.answer("failing", fail)
        assert amber.request("birch", "greeting", b"!", 10.0) == b"amber!"
        assert amber.request("birch", "failing", b"", 10.0) is None
        assert amber.request("birch", "unknown", b"", 0.2) is None
        assert amber.request("nobody", "greeting", b"", 0.2) is None
        assert birch.counts.refused == {("amber", "a request about failing that failed: no"): 1}


# -- who is let in ---------------------------------------------------------------------------------------------------


def outsiders(authority, folder):
    """Return the files of those who must not get in."""
    other = Authority(folder / "other")
    return {
        "wrong authority": other.issue("cedar") | {"ca": authority.folder / "ca.pem"},
        "self-signed": authority.issue("cedar", self_signed=True, file="self-signed"),
        "expired": authority.issue("cedar", days=(-9, -8), file="expired"),
        "not yet valid": authority.issue("cedar", days=(8, 9), file="early"),
        "not in the list": authority.issue("mallory"),
    }


def test_who_is_not_a_member_gets_nothing_through(authority, tmp_path):
    """Each of them tries for a while to be seen, to ask and to send; the members notice nothing and go on."""
    with members(authority) as (amber, birch, cedar), contextlib.ExitStack() as stack:
        cedar.close()
        address = amber._network.listen
        sessions = {}
        for kind, files in outsiders(authority, tmp_path).items():
            network = NetworkSettings(None, (address,), **files)
            name = "mallory" if kind == "not in the list" else "cedar"
            sessions[kind] = (name, stack.enter_context(_session(name, network)))
        plain = NetworkSettings(None, (address,), insecure=True)
        sessions["plaintext"] = ("cedar", stack.enter_context(_session("cedar", plain)))
        sessions["another's name"] = ("birch", stack.enter_context(_session("mallory", _files(authority, address))))
        with socket.create_connection(address.split(":"), timeout=5) as raw:  # what is no TLS at all
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        for name, session in sessions.values():
            stack.enter_context(session.liveliness().declare_token(alive_key(name)))
        time.sleep(1.0)
        amber.answer("greeting", lambda sender, payload: b"hello")
        tries = [
            (kind, session.get(inbox_key("amber", name, topic), payload=b"x", attachment=b"x", timeout=0.5))
            for _ in range(ATTEMPTS)
            for kind, (name, session) in sessions.items()
            for topic in ("frame", "ask/greeting")
        ]
        for kind, replies in tries:
            assert not [reply for reply in replies if reply.ok is not None], kind
        assert amber.alive() == {"amber", "birch"}
        heard = together(lambda: exchange(amber, 1, 0), lambda: exchange(birch, 1, 0))
        assert heard == [{1}, {0}]
        assert not amber.counts.refused
        names = {link.auth_identifier for link in amber._session._open.info.links()}
        assert names <= {"birch", "mallory"}  # mallory's certificate is good, and opens nothing


def _files(authority, address):
    return NetworkSettings(None, (address,), **authority.issue("mallory"))


def _session(name, network):
    """Open a session that keeps none of our rules."""
    settings = engine_settings(name, [name], network, LARGEST)
    settings.insert_json5("access_control", '{"enabled": false}')
    return load_zenoh().open(settings)


def test_a_member_cannot_speak_for_another(authority):
    with members(authority) as (amber, _, cedar):
        cedar.close()
        with _session("cedar", NetworkSettings(None, (amber._network.listen,), **authority.files("cedar"))) as insider:
            time.sleep(0.5)
            stolen = frame(1, 0, (1, 0))
            keys = ("amber/birch/frame", "amber/*/frame", "*/birch/frame", "amber/birch/*", "**")
            tries = [
                (key, insider.get(f"coterie/{key}", payload=stolen, attachment=b"x" * 34, timeout=0.5))
                for key in keys * ATTEMPTS
            ]
            for key, replies in tries:
                assert not [reply for reply in replies if reply.ok is not None], key
            with insider.liveliness().declare_token(alive_key("dogwood")):
                answers = [reply.ok for reply in insider.get("coterie/amber/cedar/frame", payload=b"", timeout=2.0)]
            assert len(answers) == 1  # as itself it is heard, and refused
            assert amber.counts.refused == {("cedar", "a note that makes no sense"): 1}
            assert amber.alive() == {"amber", "birch"}
            assert amber._inbox.rounds == {}


def test_a_server_with_another_name_is_not_called(authority):
    """Somebody answers at the address of a member with a good certificate for another host."""
    port = free_ports(1)[0]
    files = authority.issue("birch", host="10.9.8.7", file="elsewhere")
    with _session("birch", NetworkSettings(f"127.0.0.1:{port}", (), **files)) as impostor:
        token = impostor.liveliness().declare_token(alive_key("birch"))
        network = NetworkSettings(None, (f"127.0.0.1:{port}",), **authority.issue("amber"))
        amber = ZenohCarrier(
            me="amber", members=NAMES[:2], here={"amber": [0], "birch": [1]}, hub=None, network=network, run=RUN,
            largest=LARGEST,
        )  # fmt: skip
        with amber:
            time.sleep(0.7)
            assert amber.alive() == {"amber"}
        token.undeclare()


def test_settings_that_would_send_in_the_open_are_refused(authority):
    files = authority.issue("amber")
    with pytest.raises(CoterieError, match="is not on this machine"):
        NetworkSettings("0.0.0.0:7447", insecure=True)
    with pytest.raises(CoterieError, match="is not on this machine"):
        NetworkSettings("127.0.0.1:7447", ("hospital.example:7447",), insecure=True)
    with pytest.raises(CoterieError, match="all needed: nothing is sent without TLS"):
        NetworkSettings("127.0.0.1:7447", ca=files["ca"], key=files["key"])
    with pytest.raises(CoterieError, match="write host:port"):
        NetworkSettings("127.0.0.1", **files)
    with pytest.raises(CoterieError, match="cannot be the name of a member"):
        engine_settings("a", ["a", "b/c"], NetworkSettings("127.0.0.1:7447", **files), LARGEST)
    with pytest.raises(CoterieError, match="eve is not a member"):
        ZenohCarrier(
            me="eve", members=NAMES, here={}, hub=None, network=NetworkSettings(None, **files), run=1, largest=1
        )


def test_a_network_that_cannot_start_says_why(authority):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        network = NetworkSettings(f"127.0.0.1:{taken.getsockname()[1]}", **authority.issue("amber"))
        carrier = ZenohCarrier(
            me="amber", members=["amber"], here={"amber": [0]}, hub=None, network=network, run=1, largest=1
        )
        with pytest.raises(CoterieError, match="the network did not start"):
            carrier.open()


@pytest.mark.soak  # the engine sometimes takes longer than the 20 s that are waited for here
def test_a_certificate_that_expires_ends_the_connections(authority):
    """Birch was called by cedar and has called amber: it is gone for both, and both are gone for it."""
    networks = mesh(authority, NAMES, free_ports(3), 30.0)
    files = authority.issue("birch", days=(-1, 5 / 86_400), file="short")  # members meet in a tenth of a second
    networks["birch"] = dataclasses.replace(networks["birch"], **files)
    with members(authority, networks=networks) as (amber, birch, cedar):
        end = time.monotonic() + 20
        while birch.alive() != {"birch"} or "birch" in amber.alive() | cedar.alive():
            assert time.monotonic() < end
            time.sleep(0.02)
        assert amber.alive() == cedar.alive() == {"amber", "cedar"}
        assert together(lambda: exchange(amber, 1, 0), lambda: exchange(cedar, 1, 0)) == [{2}, {0}]
