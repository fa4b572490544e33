"""What is wrong with a member's key and certificate, before the engine, which refuses without a word, sees them."""

import datetime
import ipaddress
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.errors import CoterieError, shown
from coterie.sites.members import wrong_name
from coterie.sites.pem import TlsFiles, crypto, read_certificates, read_key
from coterie.storage.commands import command

if TYPE_CHECKING:
    from cryptography import x509

__all__ = ["Validity", "common_name", "described", "hosts_of", "signed_by", "wrong_certificate"]

LONGEST_CHAIN = 8
LEAST_RSA = 2048
CURVES = ("secp256r1", "secp384r1")
SOON = datetime.timedelta(days=1)


class Validity(NamedTuple):
    """Until when a member's certificate can be used; the engine then closes all its connections without a word."""

    file: str
    end: datetime.datetime

    @classmethod
    def of(cls, files: TlsFiles) -> "Validity":
        """Read it from the member's file; of several certificates in it the first one to end counts."""
        chain = read_certificates(Path(files.certificate))
        return cls(files.certificate, min(certificate.not_valid_after_utc for certificate in chain))

    def refuse(self, now: datetime.datetime | None = None) -> None:
        """End a run whose certificate has expired meanwhile."""
        if (now or datetime.datetime.now(datetime.UTC)) >= self.end:
            raise CoterieError(
                f"{self.file} has expired on {self.end:%Y-%m-%d %H:%M} UTC, and no member talks to this one any more; "
                "issue a new one (coterie keys issue NAME --renew), and start this member again: it goes on from its "
                "checkpoint"
            )

    def warning(self, now: datetime.datetime | None = None) -> str | None:
        """Say that the end is near, or None."""
        left = self.end - (now or datetime.datetime.now(datetime.UTC))
        if left > SOON:
            return None
        return f"{self.file} expires on {self.end:%Y-%m-%d %H:%M} UTC; this member stops then: renew it in time"


def wrong_certificate(
    files: TlsFiles,
    name: str,
    members: Collection[str],
    host: str | None = None,
    now: datetime.datetime | None = None,
) -> list[str]:
    """Say everything that is wrong with a member's key and certificate, one sentence each; empty if they are fine.

    Args:
        files: key, certificate (with intermediate ones after it) and authority.
        name: the member.
        members: the names of all members.
        host: where the others reach it; None: they do not.
        now: when; default: now.
    """
    if missing := _missing(files, name, host):
        return missing
    said: list[str] = []
    key, chain, trusted = (
        _read(reader, Path(path), said)
        for reader, path in (
            (read_key, files.key),
            (read_certificates, files.certificate),
            (read_certificates, files.ca),
        )
    )
    if chain is None:
        return said
    file, own = files.certificate, chain[0]
    if key is not None and key.public_key() != own.public_key():
        said.append(f"{files.key} and {file} do not belong together; use the key that the certificate was made for")
    said += [f"{file} {wrong}" for wrong in _wrong_name(own, name, members)]
    said += [f"{file} {wrong}" for wrong in (*_wrong_use(own), *_wrong_key(own))]
    if host is not None and not _covers(own, host):
        said.append(
            f"{file} is not for {host}, where {name} listens ({_hosts(own) or 'it names no host'}); issue one with "
            f"--host {host}"
        )
    if trusted is not None:
        said += _wrong_chain(file, chain, files.ca, trusted, now or datetime.datetime.now(datetime.UTC))
    return said


def _missing(files: TlsFiles, name: str, host: str | None) -> list[str]:
    """Say which files are not there, and which command makes them."""
    said = []
    own = [file for file in (files.key, files.certificate) if not os.path.lexists(file)]
    if own:
        issue = f"`{command('keys', 'issue', name, *(() if host is None else ('--host', host)))}`"
        verb = "does" if len(own) == 1 else "do"
        said.append(f"{' and '.join(own)} {verb} not exist; whoever has the authority's key runs {issue}")
    if not os.path.lexists(files.ca):
        init = f"`{command('keys', 'init')}`"
        said.append(f"{files.ca} does not exist: it is the ca.crt that {init} writes once and every member gets")
    return said


def _read(reader: Any, path: Path, said: list[str]) -> Any:
    try:
        return reader(path)
    except CoterieError as error:
        said.append(str(error))
        return None


def common_name(certificate: "x509.Certificate") -> str | None:
    """Return the common name, if there is exactly one."""
    names = certificate.subject.get_attributes_for_oid(crypto("x509.oid").NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else None


def _wrong_name(own: Any, name: str, members: Collection[str]) -> list[str]:
    called = common_name(own)
    if called is None:
        return ["has no common name (CN); it must be the member's name"]
    if wrong := wrong_name(called):
        return [f"has a common name (CN) that cannot be used: it {wrong}"]
    if called not in members:
        return [f"is of {shown(called)}, who is not among the members"]
    return [] if called == name else [f"is of {shown(called)}, and this site is {shown(name)}"]


def _wrong_use(own: Any) -> list[str]:
    """Say which uses a certificate does not allow; both ends of a connection show one."""
    x509, usage = crypto("x509"), crypto("x509.oid").ExtendedKeyUsageOID
    allowed = _extension(own, x509.ExtendedKeyUsage) or ()
    wanted = {"serverAuth": usage.SERVER_AUTH, "clientAuth": usage.CLIENT_AUTH}
    lacking = [word for word, oid in wanted.items() if oid not in allowed]
    said = [f"lacks the extended key usage {' and '.join(lacking)}; issue one with both"] if lacking else []
    basic = _extension(own, x509.BasicConstraints)
    return said + (["is the certificate of an authority, not of a member"] if basic is not None and basic.ca else [])


def _wrong_key(own: Any) -> list[str]:
    ec, rsa = (crypto(f"hazmat.primitives.asymmetric.{kind}") for kind in ("ec", "rsa"))
    public = own.public_key()
    if isinstance(public, ec.EllipticCurvePublicKey) and public.curve.name in CURVES:
        return []
    if isinstance(public, rsa.RSAPublicKey) and public.key_size >= LEAST_RSA:
        return []
    return [
        f"has a key that is not supported; use an elliptic curve (P-256, P-384) or RSA of {LEAST_RSA:,} bits or more"
    ]


def _wrong_chain(file: str, chain: Sequence[Any], ca: str, trusted: Sequence[Any], now: datetime.datetime) -> list[str]:
    """Follow the signatures from the member's certificate to the authority; each on the way must be valid now."""
    said, current = _wrong_time(file, chain[0], now, "issue a new one (coterie keys issue NAME --renew)"), chain[0]
    for _ in range(LONGEST_CHAIN):
        issuer = next((each for each in trusted if signed_by(current, each)), None)
        if issuer is not None:
            return said + _wrong_time(ca, issuer, now)
        issuer = next((each for each in chain[1:] if signed_by(current, each)), None)
        if issuer is None or issuer == current:
            break
        said += _wrong_time(f"an intermediate certificate in {file}", issuer, now)
        current = issuer
    if chain[0].issuer == chain[0].subject:
        return [*said, f"{file} is signed by itself, not by the authority in {ca}"]
    return [*said, f"{file} is not of the authority in {ca}; its issuer is {shown(chain[0].issuer.rfc4514_string())}"]


def signed_by(certificate: Any, issuer: Any) -> bool:
    """Say whether an authority signed a certificate."""
    basic = _extension(issuer, crypto("x509").BasicConstraints)
    try:
        certificate.verify_directly_issued_by(issuer)
    except Exception:  # another name, another key, or a kind of signature that the library does not know
        return False
    return basic is not None and basic.ca


def _wrong_time(
    file: str, certificate: Any, now: datetime.datetime, anew: str = "its authority has to make a new one"
) -> list[str]:
    if now < certificate.not_valid_before_utc:
        start = certificate.not_valid_before_utc
        return [f"{file} is not valid before {start:%Y-%m-%d %H:%M} UTC; look at this machine's clock, or wait"]
    if now > certificate.not_valid_after_utc:
        return [f"{file} has expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC; {anew}"]
    return []


def hosts_of(certificate: Any) -> list[str]:
    """Return the hosts that a certificate is for."""
    x509 = crypto("x509")
    names = _extension(certificate, x509.SubjectAlternativeName)
    if names is None:
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def _hosts(certificate: Any) -> str:
    return ", ".join(hosts_of(certificate)[:8])


def _covers(certificate: Any, host: str) -> bool:
    """Whether a certificate is for a host: by its IP address, its name, or a name with a star in front."""
    names = [name.lower() for name in hosts_of(certificate)]
    try:
        return str(ipaddress.ip_address(host)) in names
    except ValueError:
        _, dot, rest = host.lower().partition(".")
        return host.lower() in names or (bool(dot) and f"*.{rest}" in names)


def _extension(certificate: Any, kind: Any) -> Any:
    found = [entry.value for entry in certificate.extensions if isinstance(entry.value, kind)]
    return found[0] if found else None


def described(path: Path) -> list[str]:
    """Say what the certificates in a file are, one line for each fact."""
    lines = []
    hashes = crypto("hazmat.primitives.hashes")
    for certificate in read_certificates(path):
        basic = _extension(certificate, crypto("x509").BasicConstraints)
        what = "authority" if basic is not None and basic.ca else "member"
        lines.append(f"{what}: {common_name(certificate) or certificate.subject.rfc4514_string()}")
        lines.append(f"  hosts: {_hosts(certificate) or 'none'}")
        lines.append(f"  issuer: {certificate.issuer.rfc4514_string()}")
        start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        lines.append(f"  valid: {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC")
        lines += [f"  careful: it {wrong}" for wrong in _wrong_use(certificate) if what == "member"]
        lines.append(f"  SHA-256: {certificate.fingerprint(hashes.SHA256()).hex(':')}")
    return lines
