"""Reading private keys, certificates and certificate requests from PEM files of anybody. No JAX here."""

import importlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.errors import CoterieError
from coterie.spec import param, spec
from coterie.storage.owned import read_file

if TYPE_CHECKING:
    from cryptography import x509

__all__ = ["TlsFiles", "crypto", "exposed", "read_certificates", "read_key", "read_request"]

LARGEST = 1 << 20  # bytes of a PEM file


@spec
class TlsFiles:
    """The section `[tls]` of site.toml: PEM files."""

    key: str = param(help="the private key of this member, readable by its owner only")
    certificate: str = param(help="its certificate, with intermediate ones after it")
    ca: str = param(help="the certificates of the authority that all members trust")


def crypto(module: str) -> Any:
    """Import a part of the `cryptography` library; one sentence if it is not installed."""
    try:
        return importlib.import_module(f"cryptography.{module}")
    except ImportError as error:
        raise CoterieError("keys and certificates need the network extra: pip install 'coterie[network]'") from error


def read_key(path: Path) -> Any:
    """Read a private key; refuse a file that others can read, and a key with a passphrase."""
    data, form = _data(path), crypto("hazmat.primitives.serialization")
    if wrong := exposed(path):
        raise CoterieError(wrong)
    try:
        return form.load_pem_private_key(data, None)
    except TypeError:
        raise CoterieError(f"{path} is locked with a passphrase, which nobody is there to type; unlock it") from None
    except Exception:  # damaged bytes make the library raise almost anything
        raise CoterieError(f"{path} is not a private key in PEM format") from None


def exposed(path: Path) -> str | None:
    """Say whether others can read or replace a private key, or None; Windows has no such mode."""
    if os.name == "nt":
        return None
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o077:
        return f"{path} can be read by others (mode {mode:o}); run: chmod 600 {path}"
    return None


def read_certificates(path: Path) -> "list[x509.Certificate]":
    """Read the certificates of a file, in its order."""
    x509, data = crypto("x509"), _data(path)
    try:
        found = x509.load_pem_x509_certificates(data)
        for certificate in found:  # parts are parsed when they are first used
            certificate.extensions, certificate.subject, certificate.issuer, certificate.public_key()
    except Exception:  # the library has an error of its own for each way in which bytes can be wrong
        raise CoterieError(f"{path} is not a certificate in PEM format") from None
    return found


def read_request(path: Path) -> "x509.CertificateSigningRequest":
    """Read a certificate request whose sender has the private key."""
    x509, data = crypto("x509"), _data(path)
    try:
        request = x509.load_pem_x509_csr(data)
        valid = request.is_signature_valid
        request.public_key()
    except Exception:  # the library has an error of its own for each way in which bytes can be wrong
        raise CoterieError(f"{path} is not a certificate request in PEM format") from None
    if not valid:
        raise CoterieError(f"{path} is not signed by the key in it; ask for it once more")
    return request


def _data(path: Path) -> bytes:
    """Return the bytes of a file, which may lie anywhere: system folders of keys are full of links."""
    real = Path(os.path.realpath(path))
    data = read_file(real.parent, real.name)
    if len(data) > LARGEST:
        raise CoterieError(f"{path} is too large for a PEM file ({len(data):,} bytes)")
    return data
