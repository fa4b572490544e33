"""The members of a federation: their names, which are also the names in their certificates, and their addresses."""

import ipaddress
from typing import NamedTuple

from coterie.errors import CoterieError, shown
from coterie.spec import param, spec

__all__ = ["LONGEST_NAME", "Address", "Member", "wrong_name"]

# A name is one segment of the network's key space, the common name of a certificate and the name of files.
LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
LONGEST_NAME = 64  # what X.509 allows a common name
RESERVED = ("hub", "none")  # the hub in the ledger; no hub


class Address(NamedTuple):
    """Where a member listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, field: str = "address") -> "Address":
        """Read `host:port`; an IPv6 address stands in brackets, `[::1]:7447`."""
        host, colon, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise CoterieError(f"{field} {shown(text)}: write an IPv6 address in brackets, as in [::1]:7447")
        number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else 0
        if not (colon and host) or any(letter.isspace() or letter in "/*$?#@" for letter in host):
            raise CoterieError(f"{field} must be HOST:PORT, for example north.example.org:7447, not {shown(text)}")
        if not 1 <= number <= 65535:
            raise CoterieError(f"{field} {shown(text)}: the port must be a number from 1 to 65535")
        return cls(host, number)

    @property
    def loopback(self) -> bool:
        """Whether it can be reached from this machine only."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def anywhere(self) -> bool:
        """Whether it stands for all addresses of a machine: a process can listen there, but nobody can connect."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@spec
class Member:
    """One member, `[[members]]` of federation.toml; its place in the file is its number in the run."""

    name: str = param(help="its name, which is also the common name of its certificate")
    address: str | None = param(None, "HOST:PORT where it listens; left out: it only opens connections itself")
    reachable: bool | None = param(None, "whether others can connect to its address; default: if it has one")
    group: int | None = param(None, "its known group, for methods of known clusters", at_least=0, at_most=100_000)

    def __post_init__(self) -> None:
        if wrong := wrong_name(self.name):
            raise CoterieError(f"name {wrong}")
        if self.address is not None and Address.parse(self.address).anywhere:
            raise CoterieError(
                f"address {self.address} is where a process listens (site.listen), and nobody can connect to it; name "
                "the host as the others know it"
            )
        if self.reachable is None:
            object.__setattr__(self, "reachable", self.address is not None)
        if self.reachable and self.address is None:
            raise CoterieError(f"address is required: {self.name} cannot be reached without one")


def wrong_name(name: str) -> str | None:
    """Say what is wrong with the name of a member, or None."""
    if not 1 <= len(name) <= LONGEST_NAME:
        return f"must have 1 to {LONGEST_NAME} letters, not {len(name)}"
    bad = next((letter for letter in name if letter not in LETTERS), None)
    if bad is not None:
        return f"{shown(name)} must not contain {shown(bad)}; use the letters a to z, digits, '.', '_' and '-'"
    if not name[0].isalnum():
        return f"{shown(name)} must begin with a letter or a digit"
    return f"{shown(name)} means something else; choose another" if name.casefold() in RESERVED else None
