"""Keys and certificates: what we issue is accepted, and everything that is wrong with others' is said."""

import dataclasses
import datetime
import os
import re
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from typer.testing import CliRunner

from coterie.cli.commands import app
from coterie.errors import CoterieError
from coterie.sites.certificates import Validity, described, wrong_certificate
from coterie.sites.keys import Authority, files_of, request_certificate, throwaway
from coterie.sites.pem import TlsFiles, read_certificates, read_key
from support.certificate_cases import signed, write_files

MEMBERS = ("north", "south")


def shaken(server, client, host):
    """Make a TLS handshake in memory with Python's ssl; raises what either end refuses."""
    sides = []
    for files, kind in ((server, ssl.PROTOCOL_TLS_SERVER), (client, ssl.PROTOCOL_TLS_CLIENT)):
        context = ssl.SSLContext(kind)
        context.load_cert_chain(files.certificate, files.key)
        context.load_verify_locations(files.ca)
        context.verify_mode = ssl.CERT_REQUIRED
        sides.append(context)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        sides[1].wrap_bio(back, there, server_hostname=host),
        sides[0].wrap_bio(there, back, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ends[1].getpeercert()["subject"]


def test_what_we_issue_is_accepted_by_both_ends(tmp_path):
    folder = tmp_path / "keys"
    Authority.create("ours", 10).save(folder)
    authority = Authority.read(folder)
    for name in MEMBERS:
        authority.issue_files(folder, name, ["127.0.0.1", f"{name}.example.org"], 30)
        assert wrong_certificate(files_of(folder, name), name, MEMBERS, f"{name}.example.org") == []
        assert stat.S_IMODE(os.stat(folder / f"{name}.key").st_mode) == 0o600
    assert stat.S_IMODE(os.stat(folder / "ca.key").st_mode) == 0o600
    assert shaken(files_of(folder, "north"), files_of(folder, "south"), "north.example.org") == (
        (("commonName", "south"),),
    )
    own = read_certificates(folder / "north.crt")[0]
    assert own.not_valid_after_utc == authority.certificate.not_valid_after_utc  # 30 days, but the authority has 10
    assert "member: north" in described(folder / "north.crt")


def test_nothing_is_overwritten_and_a_renewal_keeps_the_key(tmp_path):
    authority = Authority.create("ours", 10)
    authority.save(tmp_path)
    with pytest.raises(CoterieError, match=r"ca\.key exists already, and keys are not overwritten"):
        Authority.create("other", 10).save(tmp_path)
    authority.issue_files(tmp_path, "north", ["a.org"], 3)
    with pytest.raises(CoterieError, match=r"north\.key exists already"):
        authority.issue_files(tmp_path, "north", ["a.org"], 3)
    before = (tmp_path / "north.key").read_bytes(), (tmp_path / "north.crt").read_bytes()
    authority.issue_files(tmp_path, "north", ["b.org"], 3, renew=True)
    assert (tmp_path / "north.key").read_bytes() == before[0]
    assert (tmp_path / "north.crt").read_bytes() != before[1]
    assert wrong_certificate(files_of(tmp_path, "north"), "north", MEMBERS, "b.org") == []
    authority.issue_files(tmp_path, "north", [], 3, renew=True)
    assert wrong_certificate(files_of(tmp_path, "north"), "north", MEMBERS, "b.org") == []


def test_only_a_certificate_of_this_authority_for_this_member_is_renewed(tmp_path):
    with pytest.raises(CoterieError, match=r"ca\.key does not exist; make an authority first: coterie keys init"):
        Authority.read(tmp_path)
    authority = Authority.create("ours", 10)
    with pytest.raises(CoterieError, match=r"north\.crt does not exist, so there is nothing to renew"):
        authority.issue_files(tmp_path, "north", [], 3, renew=True)
    authority.issue_files(tmp_path, "east", [], 3)
    (tmp_path / "north.crt").write_bytes((tmp_path / "east.crt").read_bytes())
    Authority.create("ours", 10).issue_files(tmp_path, "south", [], 3)
    for name in ("north", "south"):
        with pytest.raises(CoterieError, match=f"not a certificate of this authority for {name}"):
            authority.issue_files(tmp_path, name, [], 3, renew=True)


def test_a_member_may_keep_its_key_to_itself(tmp_path):
    request = request_certificate(tmp_path / "site", "north")
    authority = Authority.create("ours", 10)
    authority.save(tmp_path / "ca")
    authority.issue_files(tmp_path / "ca", "north", ["a.org"], 3, request=request)
    assert sorted(path.name for path in (tmp_path / "ca").iterdir()) == ["ca.crt", "ca.key", "north.crt"]
    files = TlsFiles(
        key=str(tmp_path / "site" / "north.key"),
        certificate=str(tmp_path / "ca" / "north.crt"),
        ca=str(tmp_path / "ca" / "ca.crt"),
    )
    assert wrong_certificate(files, "north", MEMBERS, "a.org") == []
    authority.issue_files(tmp_path / "ca", "north", [], 4, renew=True)
    assert wrong_certificate(files, "north", MEMBERS, "a.org") == []


def test_throwaway_certificates_leave_no_authority_behind(tmp_path):
    made = throwaway(tmp_path, MEMBERS)
    assert not (tmp_path / "ca.key").exists()
    for name in MEMBERS:
        for host in ("127.0.0.1", "localhost", "::1"):
            assert wrong_certificate(made[name], name, MEMBERS, host) == []


@pytest.fixture(scope="module")
def authority():
    return signed("authority", ca=True)


@pytest.mark.parametrize("kind", ["ec", "rsa"])
def test_an_authority_of_ones_own_with_intermediates(tmp_path, authority, kind):
    key = rsa.generate_private_key(65537, 2048) if kind == "rsa" else ec.generate_private_key(ec.SECP384R1())
    middle = signed("middle", authority, ca=True, key=key)
    own = signed("north", signed("lower", middle, ca=True, key=key) if kind == "ec" else middle, hosts=["*.a.org"])
    lower = [signed("lower", middle, ca=True, key=key)] if kind == "ec" else []
    files = write_files(tmp_path, own, authority, *lower, middle)
    assert wrong_certificate(files, "north", MEMBERS, "x.a.org") == []
    assert "is not for x.y.a.org" in wrong_certificate(files, "north", MEMBERS, "x.y.a.org")[0]
    without = write_files(tmp_path, own, authority)
    assert "is not of the authority" in wrong_certificate(without, "north", MEMBERS, "x.a.org")[0]


SERVER = [ExtendedKeyUsageOID.SERVER_AUTH]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda a: signed("north", a, end=-0.5), "has expired on"),
        (lambda a: signed("north", a, start=0.5), "is not valid before"),
        (lambda a: signed("north", signed("authority", ca=True)), "is not of the authority in"),
        (lambda a: signed("north"), "is signed by itself"),
        (lambda a: signed("south", a), "is of 'south', and this site is 'north'"),
        (lambda a: signed("nobody", a), "is of 'nobody', who is not among the members"),
        (lambda a: signed("no/rth", a), "it 'no/rth' must not contain '/'"),
        (lambda a: signed("nor$th", a), "must not contain '$'"),
        (lambda a: signed(None, a), "has no common name"),
        (lambda a: signed("north", a, hosts=[]), "it names no host"),
        (lambda a: signed("north", a, hosts=["127.0.0.2"]), "is not for 127.0.0.1"),
        (lambda a: signed("north", a, uses=()), "lacks the extended key usage serverAuth and clientAuth"),
        (lambda a: signed("north", a, uses=SERVER), "lacks the extended key usage clientAuth"),
        (lambda a: signed("north", a, ca=True), "is the certificate of an authority"),
        (lambda a: signed("north", a, key=rsa.generate_private_key(65537, 1024)), "has a key that is not supported"),
    ],
)
def test_each_mistake_in_a_certificate_is_said(tmp_path, authority, make, sentence):
    files = write_files(tmp_path, make(authority), authority)
    assert any(sentence in said for said in wrong_certificate(files, "north", MEMBERS, "127.0.0.1"))


def test_each_mistake_in_the_files_is_said(tmp_path, authority):
    own = signed("north", authority)

    def said(**options):
        return wrong_certificate(write_files(tmp_path, own, authority, **options), "north", MEMBERS, "127.0.0.1")

    assert said() == []
    assert "can be read by others (mode 640); run: chmod 600" in said(mode=0o640)[0]
    assert "do not belong together" in said(key=ec.generate_private_key(ec.SECP256R1()))[0]
    assert "do not belong together" in said(key=ed25519.Ed25519PrivateKey.generate())[0]
    (tmp_path / "ca.crt").write_text("nothing")
    files = TlsFiles(key=str(tmp_path / "own.key"), certificate=str(tmp_path / "own.crt"), ca=str(tmp_path / "ca.crt"))
    assert f"{tmp_path / 'ca.crt'} is not a certificate in PEM format" in wrong_certificate(files, "north", MEMBERS)
    (tmp_path / "own.key").unlink()
    assert "own.key does not exist; whoever has" in wrong_certificate(files, "north", MEMBERS)[0]
    (tmp_path / "own.key").mkdir()
    assert "own.key cannot be read" in wrong_certificate(files, "north", MEMBERS)[0]
    (tmp_path / "own.key").rmdir()
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)
    write_files(tmp_path, own, authority)
    both = wrong_certificate(files, "north", MEMBERS, now=later)
    assert [sentence.split()[0].rpartition("/")[2] for sentence in both] == ["own.crt", "ca.crt"]


def test_files_that_are_not_there_come_with_the_command_that_makes_them(tmp_path):
    """The commands that the sentences name make files with which nothing is wrong."""
    files = TlsFiles(**{part: str(tmp_path / "keys" / f"{name}") for part, name in
                        (("key", "north.key"), ("certificate", "north.crt"), ("ca", "ca.crt"))})  # fmt: skip
    own, ca = wrong_certificate(files, "north", MEMBERS, "10.0.0.1")
    assert own.startswith(f"{files.key} and {files.certificate} do not exist")
    issue = re.search("`coterie (keys issue north --host 10.0.0.1)`", own).group(1)
    init = re.search("`coterie (keys init)`", ca).group(1)
    for words in (init, issue):
        done = CliRunner().invoke(app, [*words.split(), "--folder", str(tmp_path / "keys")])
        assert done.exit_code == 0, done.output
    assert wrong_certificate(files, "north", MEMBERS, "10.0.0.1") == []
    assert "`coterie keys issue north`" in wrong_certificate(dataclasses.replace(files, key="a"), "north", MEMBERS)[0]


def test_a_locked_key_is_refused(tmp_path, authority):
    from cryptography.hazmat.primitives import serialization as form

    own = signed("north", authority)
    locked = own.key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.BestAvailableEncryption(b"x"))
    (tmp_path / "a.key").write_bytes(locked)
    os.chmod(tmp_path / "a.key", 0o600)
    with pytest.raises(CoterieError, match="locked with a passphrase"):
        read_key(tmp_path / "a.key")


@pytest.mark.parametrize(("name", "host"), [("a/b", "x"), ("a", "x:1"), ("a", ""), ("a", "x y"), ("x" * 65, "x")])
def test_names_and_hosts_that_no_certificate_can_have(tmp_path, name, host):
    authority = Authority.create("ours", 10)
    with pytest.raises(CoterieError):
        authority.issue_files(tmp_path, name, [host], 3)
    assert not list(tmp_path.iterdir())


def test_the_commands_need_neither_jax_nor_a_second_word(tmp_path):
    program = """
import sys
from typer.testing import CliRunner
from coterie.cli import app
def call(*words):
    outcome = CliRunner().invoke(app, ["keys", *words])
    assert outcome.exit_code == 0, outcome.output
    return outcome.output
call("init")
call("issue", "north", "--host", "127.0.0.1")
assert "member: north" in call("show", "keys/north.crt")
assert "jax" not in sys.modules
assert CliRunner().invoke(app, ["keys", "init"]).exit_code == 2
"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_a_certificate_that_ends_during_a_run(tmp_path):
    """A warning on its last day; a refusal from the moment on in which it, or an intermediate one, has expired."""
    authority = signed("ours", ca=True)
    between = signed("between", authority, ca=True, end=0.5)
    long, short = (
        Validity.of(write_files(tmp_path / name, signed("north", by, end=3), authority, *above))
        for name, by, above in (("long", authority, ()), ("short", between, (between,)))
    )
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    assert (long.warning(now), long.refuse(now)) == (None, None)
    assert "stops then" in long.warning(now + 2.5 * day)
    assert short.end == between.certificate.not_valid_after_utc
    assert "own.crt expires on" in short.warning(now)
    for validity in (long, short):
        validity.refuse(validity.end - datetime.timedelta(seconds=1))
        with pytest.raises(CoterieError, match=r"own\.crt has expired on .* issue a new one"):
            validity.refuse(validity.end)
