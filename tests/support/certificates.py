"""Certificates for tests: good ones, and each kind of bad one."""

import datetime
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coterie.peers.access import NetworkSettings

DAY = datetime.timedelta(days=1)
PEM = serialization.Encoding.PEM


class Authority:
    """A certificate authority with a folder of its own; without an issuer's key a certificate signs itself."""

    def __init__(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.name, self._key = folder, _named("authority"), ec.generate_private_key(ec.SECP256R1())
        basic = (x509.BasicConstraints(ca=True, path_length=None), True)
        self._write("ca", self._sign(self.name, self._key, self._key, [basic], (-DAY, DAY)))

    def issue(self, name, *, days=(-1, 1), self_signed=False, host="127.0.0.1", file=None):
        """Write the certificate and the key of a member; returns the settings that use them."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
        valid = (days[0] * DAY, days[1] * DAY)
        signer = key if self_signed else self._key
        signed = self._sign(_named(name), key, signer, [(usage, False), (names, False)], valid, self_signed)
        file = file or name
        private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (self.folder / f"{file}.key").write_bytes(private)
        self._write(file, signed)
        return self.files(file)

    def files(self, file):
        """Return the settings that name a member's files."""
        return {
            "ca": self.folder / "ca.pem",
            "certificate": self.folder / f"{file}.pem",
            "key": self.folder / f"{file}.key",
        }

    def _sign(self, subject, key, signer, extensions, valid, self_signed=False):
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject if self_signed else self.name)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now + valid[0]).not_valid_after(now + valid[1])
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(signer, hashes.SHA256())

    def _write(self, file, certificate):
        (self.folder / f"{file}.pem").write_bytes(certificate.public_bytes(PEM))


def _named(name):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def mesh(authority, names, ports, deadline=20.0):
    """Return the settings of every member of a mesh on this machine: each calls those before it."""
    settings = {}
    for place, name in enumerate(names):
        files = authority.issue(name)
        calls = tuple(f"127.0.0.1:{port}" for port in ports[:place])
        settings[name] = NetworkSettings(
            f"127.0.0.1:{ports[place]}", calls, **files, deadline=deadline, start_deadline=max(60.0, deadline)
        )
    return settings
