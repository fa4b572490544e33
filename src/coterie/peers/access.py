"""Who may connect, and what each may do: the engine's configuration, from the settings of one process of a run.

Mutual TLS, and rules by the name in a certificate: `coterie/<receiver>/<sender>/...` can be written only by the member
whose certificate says <sender>, and only a member itself can answer for its own keys. So the sender of a message is
known from its key, never from a field of the message. Nothing is sent by multicast, nothing goes around the
encryption (shared memory), and without certificates only this machine can be reached.
"""

import dataclasses
import ipaddress
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError, shown

__all__ = ["NetworkSettings", "alive_key", "engine_settings", "inbox_key", "is_loopback", "load_zenoh"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # in keys, so none of / * $ ? #
LONGEST_NOTE = 1 << 20  # bytes of a control message (see `ZenohCarrier.request`)


@dataclasses.dataclass(frozen=True)
class NetworkSettings:
    """The network of one process.

    Attributes:
        listen: "host:port" where other members reach this one; None: it only opens connections.
        connect: "host:port" of the members that this one calls. Of two members one calls the other, never both: after a
            cut of the network two connections between them may not come back.
        ca: certificate of the authority that all members trust (PEM).
        certificate: this member's; its common name is the member's name.
        key: the private key of the certificate.
        deadline: seconds that a round may wait for others, in all its exchanges together.
        start_deadline: the same for a process's first two rounds, in which everybody compiles programs.
        insecure: no certificates at all; only on this machine, for tests.
    """

    listen: str | None
    connect: tuple[str, ...] = ()
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    deadline: float = 60.0
    start_deadline: float = 300.0
    insecure: bool = False

    def __post_init__(self) -> None:
        files = (self.ca, self.certificate, self.key)
        if self.insecure and any(files):
            raise CoterieError("insecure goes without certificates: leave out ca, certificate and key, or insecure")
        if not self.insecure and not all(files):
            raise CoterieError("ca, certificate and key are all needed: nothing is sent without TLS")
        for address in (*([self.listen] if self.listen else []), *self.connect):
            host = host_of(address)
            if self.insecure and not is_loopback(host):
                raise CoterieError(f"{shown(address)} is not on this machine: without certificates use 127.0.0.1")


def host_of(address: str) -> str:
    """Return the host of "host:port"."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535 or set(address) & set("#?/"):
        raise CoterieError(f"{shown(address)} is no address: write host:port")
    return host.strip("[]")


def is_loopback(host: str) -> bool:
    """Say whether a host is this machine, seen from itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def inbox_key(receiver: str, sender: str, topic: str) -> str:
    """Return the key of messages about a topic."""
    return f"coterie/{receiver}/{sender}/{topic}"


def alive_key(name: str) -> str:
    """Return the key of the token that says a member is there."""
    return f"coterie-live/{name}"


def load_zenoh() -> Any:
    """Import the engine, which is an optional part of the installation."""
    try:
        import zenoh
    except ImportError:
        raise CoterieError("a network of peers needs Eclipse Zenoh: pip install 'coterie[network]'") from None
    zenoh.init_log_from_env_or("off")  # it is for our own words to say what is wrong
    return zenoh


def engine_settings(me: str, members: Sequence[str], network: NetworkSettings, largest: int) -> Any:
    """Return the engine's configuration for one member.

    Args:
        me: its name.
        members: everybody's names.
        network: addresses and certificates.
        largest: bytes of the longest message; the engine gives up on longer ones before they are put together.
    """
    for name in members:
        if NAME.fullmatch(name) is None:
            raise CoterieError(f"{shown(name)} cannot be the name of a member: use letters, digits, '.', '_' and '-'")
    scheme = "tcp" if network.insecure else "tls"
    link: dict[str, Any] = {
        "protocols": [scheme],
        "rx": {"max_message_size": max(largest, LONGEST_NOTE) + (64 << 10)},
    }
    if not network.insecure:
        own = {"private_key": str(network.key), "certificate": str(network.certificate)}
        link["tls"] = {
            "root_ca_certificate": str(network.ca),
            "enable_mtls": True,
            "verify_name_on_connect": True,
            "close_link_on_expiration": True,
            **{f"{way}_{what}": path for way in ("listen", "connect") for what, path in own.items()},
        }
    settings = {
        "mode": "peer",
        "listen": {"endpoints": [f"{scheme}/{network.listen}"] if network.listen else []},
        "connect": {
            "endpoints": [f"{scheme}/{address}" for address in network.connect],
            "timeout_ms": -1,  # those who are not there yet are called again and again,
            "exit_on_failure": False,  # without holding up the start
            "retry": {"period_init_ms": 200, "period_max_ms": 1000, "period_increase_factor": 2},
        },
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
        "transport": {"shared_memory": {"enabled": False}, "link": link},
    }
    if not network.insecure:
        settings["access_control"] = access_rules(me, members)
    return load_zenoh().Config.from_json5(json.dumps(settings))


def access_rules(me: str, members: Sequence[str]) -> dict[str, Any]:
    """Return what the engine lets each member do, by the name in its certificate; everything else is refused."""
    rules, policies = [], []
    live = ["liveliness_query", "declare_liveliness_subscriber"]
    declare = ["declare_subscriber", "declare_queryable"]
    others = [name for name in members if name != me]
    for name in others:
        allowed = {
            "in": ("ingress", ["query"], inbox_key(me, name, "**")),  # binds <sender> to the certificate
            "reply": ("ingress", ["reply"], inbox_key(name, me, "**")),
            "declare": ("ingress", declare, f"coterie/{name}/**"),  # it answers for itself only
            "token": ("ingress", ["liveliness_token"], alive_key(name)),
            "watch": ("ingress", live, "coterie-live/*"),
            "out": ("egress", ["query"], inbox_key(name, me, "**")),
            "own-reply": ("egress", ["reply"], inbox_key(me, name, "**")),
            "own-declare": ("egress", declare, f"coterie/{me}/**"),
            "own-token": ("egress", ["liveliness_token"], alive_key(me)),
            "own-watch": ("egress", live, "coterie-live/*"),
        }
        for what, (flow, messages, key) in allowed.items():
            rules.append(
                {
                    "id": f"{what}/{name}",
                    "permission": "allow",
                    "flows": [flow],
                    "messages": messages,
                    "key_exprs": [key],
                }
            )
        policies.append({"rules": [f"{what}/{name}" for what in allowed], "subjects": [name]})
    subjects = [{"id": name, "cert_common_names": [name]} for name in others]
    return {"enabled": True, "default_permission": "deny", "rules": rules, "subjects": subjects, "policies": policies}
