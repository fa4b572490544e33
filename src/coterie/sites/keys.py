"""The federation's own certificate authority: its key, and short-lived certificates for the members.

A certificate names one member (its common name) and the hosts it is reached at. Elliptic curve P-256, from the
`cryptography` library; private keys are files that only their owner can read, and no file is overwritten.
"""

import contextlib
import datetime
import ipaddress
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.errors import CoterieError, shown
from coterie.sites.certificates import common_name, hosts_of, signed_by
from coterie.sites.members import LONGEST_NAME, wrong_name
from coterie.sites.pem import TlsFiles, crypto, read_certificates, read_key, read_request
from coterie.storage.commands import command
from coterie.storage.durable import durable_write, storage_errors

if TYPE_CHECKING:
    from cryptography import x509

__all__ = ["Authority", "files_of", "request_certificate", "throwaway"]

SKEW = datetime.timedelta(minutes=5)  # by which clocks of members may differ
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
AUTHORITY_KEY, AUTHORITY = "ca.key", "ca.crt"


class Authority(NamedTuple):
    """A certificate authority: its certificate and its private key."""

    certificate: "x509.Certificate"
    key: Any

    @classmethod
    def create(cls, name: str, days: int) -> "Authority":
        """Make a new authority in memory."""
        x509, usage = crypto("x509"), crypto("x509.oid").NameOID
        if not 1 <= len(name) <= LONGEST_NAME or not name.isprintable():
            raise CoterieError(f"the name of the authority must have 1 to {LONGEST_NAME} letters, not {shown(name)}")
        key = _new_key()
        subject = x509.Name([x509.NameAttribute(usage.COMMON_NAME, name)])
        builder = (
            _builder(subject, subject, key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(sign_certificates=True), critical=True)
        )
        return cls(builder.sign(key, crypto("hazmat.primitives.hashes").SHA256()), key)

    @classmethod
    def read(cls, folder: Path) -> "Authority":
        """Read the authority that `save` wrote."""
        if not os.path.lexists(folder / AUTHORITY_KEY):
            init = command("keys", "init", "--folder", folder)
            raise CoterieError(f"{folder / AUTHORITY_KEY} does not exist; make an authority first: {init}")
        key = read_key(folder / AUTHORITY_KEY)
        certificate = read_certificates(folder / AUTHORITY)[0]
        if certificate.public_key() != key.public_key():
            raise CoterieError(f"{folder / AUTHORITY} and {folder / AUTHORITY_KEY} do not belong together")
        return cls(certificate, key)

    def save(self, folder: Path) -> None:
        """Write certificate and key; refuse to replace an authority, since all members trust the old one."""
        _refuse_existing([folder / AUTHORITY_KEY, folder / AUTHORITY])
        _make_folder(folder)
        _write_private(folder / AUTHORITY_KEY, _key_pem(self.key))
        durable_write(folder / AUTHORITY, _pem(self.certificate))

    def issue(self, name: str, hosts: Sequence[str], days: int, public_key: Any) -> "x509.Certificate":
        """Sign a certificate for a member; it ends no later than the authority's own."""
        x509, oid = crypto("x509"), crypto("x509.oid")
        if wrong := wrong_name(name):
            raise CoterieError(f"the name {wrong}")
        subject = x509.Name([x509.NameAttribute(oid.NameOID.COMMON_NAME, name)])
        usage = [oid.ExtendedKeyUsageOID.SERVER_AUTH, oid.ExtendedKeyUsageOID.CLIENT_AUTH]
        ours = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = (
            _builder(subject, self.certificate.subject, public_key, days, self.certificate.not_valid_after_utc)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(sign_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
            .add_extension(ours, critical=False)
        )
        names = [_host(host) for host in dict.fromkeys(hosts)]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self.key, crypto("hazmat.primitives.hashes").SHA256())

    def issue_files(
        self,
        folder: Path,
        name: str,
        hosts: Sequence[str],
        days: int,
        *,
        request: Path | None = None,
        renew: bool = False,
    ) -> Path:
        """Write a member's certificate, and its private key unless it made one itself; returns the certificate's file.

        Args:
            folder: of the keys.
            name: of the member.
            hosts: names or IP addresses that it is reached at.
            days: how long the certificate is valid.
            request: a certificate request of a member that keeps its private key to itself.
            renew: replace the certificate by one for the same private key, and for the same hosts if none are named.
        """
        files, private = files_of(folder, name), None
        key, certificate = Path(files.key), Path(files.certificate)
        if not renew:
            _refuse_existing([certificate] if request is not None else [key, certificate])
        if request is not None:
            public = read_request(request).public_key()
        elif renew:
            before = self._own(certificate, name)
            public, hosts = before.public_key(), hosts or hosts_of(before)
        else:
            private = _new_key()
            public = private.public_key()
        signed = self.issue(name, hosts, days, public)  # before anything is written
        _make_folder(folder)
        if private is not None:
            _write_private(key, _key_pem(private))
        durable_write(certificate, _pem(signed))
        return certificate

    def _own(self, path: Path, name: str) -> "x509.Certificate":
        """Read a certificate that this authority has issued for a member."""
        if not os.path.lexists(path):
            raise CoterieError(f"{path} does not exist, so there is nothing to renew; issue it without --renew")
        certificate = read_certificates(path)[0]
        if common_name(certificate) != name or not signed_by(certificate, self.certificate):
            raise CoterieError(
                f"{path} is not a certificate of this authority for {name}; move it away, and issue one without --renew"
            )
        return certificate


def files_of(folder: Path, name: str) -> TlsFiles:
    """Return where a member's key, its certificate and the authority's certificate are."""
    key, certificate = (str(folder / f"{name}{ending}") for ending in (".key", ".crt"))
    return TlsFiles(key=key, certificate=certificate, ca=str(folder / AUTHORITY))


def request_certificate(folder: Path, name: str) -> Path:
    """Write a new private key and a request for its certificate, which goes to the authority; the key stays here."""
    x509, oid = crypto("x509"), crypto("x509.oid").NameOID
    if wrong := wrong_name(name):
        raise CoterieError(f"the name {wrong}")
    private, request = folder / f"{name}.key", folder / f"{name}.csr"
    _refuse_existing([private, request])
    key = _new_key()
    subject = x509.Name([x509.NameAttribute(oid.COMMON_NAME, name)])
    signed = x509.CertificateSigningRequestBuilder().subject_name(subject)
    signed = signed.sign(key, crypto("hazmat.primitives.hashes").SHA256())
    _make_folder(folder)
    _write_private(private, _key_pem(key))
    durable_write(request, _pem(signed))
    return request


def throwaway(
    folder: Path, names: Iterable[str], hosts: Sequence[str] = ("localhost", "127.0.0.1", "::1"), days: int = 2
) -> dict[str, TlsFiles]:
    """Write certificates for members on one machine, of an authority whose key exists in memory only."""
    authority = Authority.create("throw-away authority", days)
    _make_folder(folder)
    durable_write(folder / AUTHORITY, _pem(authority.certificate))
    for name in names:
        authority.issue_files(folder, name, hosts, days)
    return {name: files_of(folder, name) for name in names}


def _builder(subject: Any, issuer: Any, public_key: Any, days: int, latest: datetime.datetime | None = None) -> Any:
    x509 = crypto("x509")
    now = datetime.datetime.now(datetime.UTC)
    end = now + datetime.timedelta(days=days)
    if latest is not None and latest <= now:
        raise CoterieError("the certificate of the authority has expired; make a new authority in another folder")
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(end if latest is None else min(end, latest))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _usage(sign_certificates: bool) -> Any:
    no = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
    return crypto("x509").KeyUsage(
        **dict.fromkeys((*no, "decipher_only"), False),
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
    )


def _host(host: str) -> Any:
    """Return the entry of a certificate for a host's name or IP address."""
    x509 = crypto("x509")
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    if not HOST.fullmatch(host):
        raise CoterieError(f"--host {shown(host)} must be a host's name or IP address, without a port")
    return x509.DNSName(host)


def _new_key() -> Any:
    ec = crypto("hazmat.primitives.asymmetric.ec")
    return ec.generate_private_key(ec.SECP256R1())


def _key_pem(key: Any) -> bytes:
    form = crypto("hazmat.primitives.serialization")
    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())


def _pem(certificate: Any) -> bytes:
    return certificate.public_bytes(crypto("hazmat.primitives.serialization").Encoding.PEM)


def _make_folder(folder: Path) -> None:
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def _write_private(path: Path, data: bytes) -> None:
    """Write a private key so that at no moment anybody else can read it, and no file is replaced."""
    with storage_errors(path.parent):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())


def _refuse_existing(paths: Iterable[Path]) -> None:
    for path in paths:
        if os.path.lexists(path):
            raise CoterieError(
                f"{path} exists already, and keys are not overwritten; choose another folder, or --renew"
            )
