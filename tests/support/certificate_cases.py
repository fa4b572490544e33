"""Certificates as other authorities, and people who make mistakes, write them."""

import datetime
import ipaddress
import os
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coterie.sites.pem import TlsFiles

__all__ = ["Signed", "signed", "write_files"]

BOTH = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
NOW = datetime.datetime.now(datetime.UTC)


class Signed(NamedTuple):
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: object


def signed(name, by=None, *, ca=False, hosts=("127.0.0.1", "localhost"), uses=BOTH, start=-1, end=1, key=None):
    """Make a certificate that is valid from `start` to `end` days from now, signed by another one or by itself."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([] if name is None else [x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if by is None else by.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW + datetime.timedelta(days=start))
        .not_valid_after(NOW + datetime.timedelta(days=end))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    )
    names = [x509.IPAddress(ipaddress.ip_address(h)) if h[0].isdigit() else x509.DNSName(h) for h in hosts]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    if uses and not ca:
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    return Signed(builder.sign(key if by is None else by.key, hashes.SHA256()), key)


def pem(*parts):
    """Return certificates as one file."""
    return b"".join(part.certificate.public_bytes(serialization.Encoding.PEM) for part in parts)


def write_files(folder, own, ca, *between, key=None, mode=0o600):
    """Write a member's key, its certificate with intermediate ones, and the authority's."""
    form = serialization
    folder.mkdir(parents=True, exist_ok=True)
    private = (key or own.key).private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    (folder / "own.key").write_bytes(private)
    os.chmod(folder / "own.key", mode)
    (folder / "own.crt").write_bytes(pem(own, *between))
    (folder / "ca.crt").write_bytes(pem(ca))
    return TlsFiles(key=str(folder / "own.key"), certificate=str(folder / "own.crt"), ca=str(folder / "ca.crt"))
