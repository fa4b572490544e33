"""Greet every member before the engine does: the engine refuses without a word, and this says why.

One TLS handshake of Python's own with each address, all at once, in five seconds. It shows our certificate, so that a
member that does not accept it says so, and it looks at theirs.
"""

import dataclasses
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from coterie.errors import CoterieError, shown
from coterie.sites.federation import FederationFile
from coterie.sites.members import Address, Member
from coterie.sites.pem import TlsFiles
from coterie.sites.site import SiteFile

__all__ = ["Greeting", "greet", "greet_members"]

SECONDS = 5.0
RESERVE = 0.5  # seconds of them in which the answers are put together
REFUSAL = 0.3  # seconds in which a member that does not accept our certificate says so

State = Literal["connected", "absent", "refused"]

# OpenSSL's codes of what is wrong with their certificate
THEIRS = {
    2: "its certificate is of another authority",
    7: "its certificate is of another authority",  # of the same name
    9: "its certificate is not valid yet",
    10: "its certificate has expired",
    18: "its certificate is signed by itself, not by our authority",
    19: "its certificate is of another authority",
    20: "its certificate is of another authority",
    21: "its certificate is of another authority",
    26: "its certificate is not meant for a server (extended key usage)",
    62: "its certificate is not for this host",
    64: "its certificate is not for this address",
}
# words in the alerts with which they refuse ours
OURS = {
    "UNKNOWN_CA": "it does not trust the authority of our certificate",
    "EXPIRED": "our certificate has expired, or is not valid yet, by its clock",
    "REVOKED": "our certificate was revoked",
    "REQUIRED": "it got no certificate of ours",
    "UNSUPPORTED_CERTIFICATE": "our certificate is not meant for a client (extended key usage)",
    "CERTIFICATE": "it does not accept our certificate",
    "DECRYPT": "it does not accept our certificate",
    "ACCESS_DENIED": "it does not accept our certificate",
}


@dataclasses.dataclass(frozen=True)
class Greeting:
    """What came of greeting a member: connected, nobody there, or refused; and one sentence."""

    name: str
    state: State
    sentence: str


class Refused(Exception):  # noqa: N818 (it never reaches a user)
    """A member that answers, but with which no connection is possible."""


def greet_members(federation: FederationFile, site: SiteFile, seconds: float = SECONDS) -> list[Greeting]:
    """Greet all members that can be reached, other than this one."""
    own = federation.number(site.name)
    others = [member for i, member in enumerate(federation.members) if i != own and member.reachable]
    return greet(others, site.tls if federation.settings.tls else None, seconds)


def greet(members: Sequence[Member], files: TlsFiles | None, seconds: float = SECONDS) -> list[Greeting]:
    """Greet some members at once; without `files`, without TLS. Returns after at most that many seconds."""
    context = None if files is None else _context(files)
    answers: dict[str, Greeting] = {}
    until = time.monotonic() + seconds - RESERVE

    def ask(member: Member, address: Address) -> None:
        answers[member.name] = _greeting(member, address, lambda: _shake(member, address, context, until))

    threads = []
    for member in members:
        if member.address is not None:
            work = threading.Thread(target=ask, args=(member, Address.parse(member.address)), daemon=True)
            work.start()
            threads.append(work)
    for work in threads:  # looking up a name cannot be stopped: who is not done by then is left behind
        work.join(max(0.0, until + RESERVE / 2 - time.monotonic()))
    return [answers.get(m.name) or Greeting(m.name, "absent", f"{m.name}: no answer from {m.address}") for m in members]


def _context(files: TlsFiles) -> ssl.SSLContext:
    """Return what makes handshakes with our certificate, and checks theirs as the engine does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # an intermediate authority may be the one that is trusted
    try:
        context.load_cert_chain(files.certificate, files.key)
        context.load_verify_locations(files.ca)
    except (OSError, ValueError) as error:
        raise CoterieError(f"{files.certificate}, its key and {files.ca} cannot be used ({error})") from None
    return context


def _greeting(member: Member, address: Address, shake: Callable[[], None]) -> Greeting:
    """Turn the outcome of a handshake into a sentence."""

    def said(state: State, what: str) -> Greeting:
        return Greeting(member.name, state, f"{member.name}: {what}")

    try:
        shake()
        return said("connected", f"connected to {address}")
    except Refused as wrong:
        return said("refused", f"refused: {wrong}")
    except ssl.SSLCertVerificationError as error:
        return said("refused", f"refused: {THEIRS.get(error.verify_code, error.verify_message)}")
    except ssl.SSLEOFError:
        return said("refused", f"refused: {address} closed the connection; is it a port without TLS?")
    except ssl.SSLError as error:
        return said("refused", f"refused: {_alert(error, address)}")
    except socket.gaierror:
        return said("absent", f"the host {shown(address.host)} is not known; look at the address, or at DNS")
    except ConnectionRefusedError:
        return said("absent", f"nobody listens on {address}")
    except TimeoutError:
        return said("absent", f"no answer from {address}; a firewall may be in between")
    except ConnectionError:
        return said("refused", f"refused: {address} closed the connection; is it a port without TLS?")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        return said("absent", f"{address} cannot be reached ({reason})")


def _alert(error: ssl.SSLError, address: Address) -> str:
    """Say what an error of a handshake means."""
    reason = (error.reason or str(error)).upper()
    if "ALERT" in reason or "CERTIFICATE_REQUIRED" in reason:
        for word, sentence in OURS.items():
            if word in reason:
                return sentence
        return f"it ended the handshake ({reason.lower().replace('_', ' ')})"
    return f"{address} does not speak TLS; is it a port without it?"


def _shake(member: Member, address: Address, context: ssl.SSLContext | None, until: float) -> None:
    """Connect, make a handshake, and wait for a moment whether they refuse our certificate after it (TLS 1.3)."""

    def left() -> float:
        return max(0.05, until - time.monotonic())

    with socket.create_connection(address, timeout=left()) as plain:
        if context is None:
            return
        plain.settimeout(left())
        try:
            secure = context.wrap_socket(plain, server_hostname=address.host)
        except TimeoutError:
            raise Refused(
                f"{address} accepts connections but does not answer in TLS; is it a port without it?"
            ) from None
        with secure:
            _check_name(secure, member)
            secure.settimeout(min(REFUSAL, left()))
            try:
                if secure.recv(1) == b"":
                    raise Refused("it closed the connection after it had seen our certificate")
            except (ConnectionError, ssl.SSLEOFError):
                raise Refused("it closed the connection after it had seen our certificate") from None
            except TimeoutError:
                pass  # it waits for what the engine says next: we are welcome


def _check_name(secure: ssl.SSLSocket, member: Member) -> None:
    """Refuse a certificate with another common name."""
    theirs: Any = secure.getpeercert() or {}
    names = [value for part in theirs.get("subject", ()) for key, value in part if key == "commonName"]
    if names != [member.name]:
        raise Refused(f"its certificate is of {', '.join(map(shown, names)) or 'nobody'}, not of {shown(member.name)}")
