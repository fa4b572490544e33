"""The handshake before the engine's: every way in which a member can be there, absent or refused, all at once."""

import contextlib
import socket
import ssl
import threading
import time

import pytest

from coterie.sites.handshake import greet, greet_members
from coterie.sites.members import Member
from support.certificate_cases import signed, write_files
from support.site_cases import federation_of, site_of

REPEATS = 3


@contextlib.contextmanager
def listening(answer):
    """Listen on a free port; `answer(connection)` in a thread for each connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    connection.settimeout(5)
                    threading.Thread(target=quietly, args=(connection,), daemon=True).start()

        def quietly(connection):
            with contextlib.suppress(OSError), connection:
                answer(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def tls(files, newest=ssl.TLSVersion.TLSv1_3):
    """Answer as a peer with these files does: it asks for a certificate, and then waits for the first frame."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.maximum_version = newest

    def answer(connection):
        with context.wrap_socket(connection, server_side=True) as secure:
            secure.recv(1)

    return answer


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """Return our files, and by name of a member how it answers and what is said about it."""
    folder = tmp_path_factory.mktemp("certificates")
    ours, twin, theirs = (signed(name, ca=True) for name in ("authority", "authority", "another authority"))

    def files(name, certificate, ca=ours):
        return write_files(folder / name, certificate, ca)

    stranger = signed("trusts-others", ours)
    answers = {
        "fine": (tls(files("fine", signed("fine", ours))), "connected", "connected to"),
        "older": (tls(files("older", signed("older", ours)), ssl.TLSVersion.TLSv1_2), "connected", "connected to"),
        "other-ca": (tls(files("other-ca", signed("other-ca", theirs))), "refused", "of another authority"),
        "twin-ca": (tls(files("twin-ca", signed("twin-ca", twin))), "refused", "of another authority"),
        "itself": (tls(files("itself", signed("itself"))), "refused", "signed by itself"),
        "expired": (tls(files("expired", signed("expired", ours, end=-0.5))), "refused", "has expired"),
        "early": (tls(files("early", signed("early", ours, start=0.5))), "refused", "is not valid yet"),
        "elsewhere": (tls(files("elsewhere", signed("elsewhere", ours, hosts=["a.org"]))), "refused", "not for this"),
        "another": (tls(files("another", signed("fine", ours))), "refused", "is of 'fine', not of 'another'"),
        "trusts-others": (tls(files("trusts-others", stranger, theirs)), "refused", "does not trust the authority"),
        "plain": (lambda c: c.sendall(b"hello, who is there?\n" * 9), "refused", "does not speak TLS"),
        "hangs-up": (lambda c: None, "refused", "port without TLS"),
    }
    return files("me", signed("me", ours)), answers


def test_each_member_gets_its_sentence(cases):
    files, answers = cases
    with contextlib.ExitStack() as stack:
        addresses = {name: stack.enter_context(listening(answer)) for name, (answer, _, _) in answers.items()}
        closed = socket.create_server(("127.0.0.1", 0))
        addresses["closed"] = f"127.0.0.1:{closed.getsockname()[1]}"
        closed.close()
        addresses["nowhere"] = "host.invalid:1"
        members = [Member(name=name, address=address) for name, address in addresses.items()]
        repeats = [greet(members, files, seconds=30.0) for _ in range(REPEATS)]  # each half a second on an idle machine
    for greetings in repeats:
        by_name = {greeting.name: greeting for greeting in greetings}
        assert list(by_name) == list(addresses)
        for name, (_, state, part) in answers.items():
            assert (by_name[name].state, part in by_name[name].sentence) == (state, True), by_name[name]
        assert by_name["closed"].state == by_name["nowhere"].state == "absent"
        assert "nobody listens" in by_name["closed"].sentence


def test_a_port_that_accepts_and_says_nothing(cases):
    over = threading.Event()
    with listening(lambda connection: connection.recv(1 << 16) and over.wait(20)) as address:
        (greeting,) = greet([Member(name="silent", address=address)], cases[0], seconds=1.0)
        over.set()
    assert greeting.state == "refused"
    assert "does not answer in TLS" in greeting.sentence


def test_an_address_that_never_answers_takes_no_longer_than_it_may(cases, monkeypatch):
    over = threading.Event()

    def looked_up_for_ever(*_, **__):
        over.wait(20)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", looked_up_for_ever)
    start = time.monotonic()
    (greeting,) = greet([Member(name="slow", address="slow.invalid:1")], cases[0], seconds=1.0)
    assert time.monotonic() - start < 10
    assert greeting.state == "absent"
    over.set()


def test_a_site_greets_the_others_that_can_be_reached_and_without_tls_it_only_connects():
    with listening(lambda connection: None) as address:
        members = [{"name": "north", "address": "127.0.0.1:1"}, {"name": "east", "address": address}, {"name": "west"}]
        federation = federation_of(members=members, federation={"tls": False})
        (greeting,) = greet_members(federation, site_of("north"))
        assert (greeting.name, greeting.state) == ("east", "connected")
