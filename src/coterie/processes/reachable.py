"""The address at which JAX's collectives on a CPU listen: one that the processes of other machines can reach.

JAX lets them listen where the machine's own name points to. On many Linux systems that is a loopback address
(127.0.1.1), and in containers often nothing at all. So each process listens at the address from which it reaches the
coordinator; process 0, and others on its machine, at the one where other machines have reached process 0.
"""

import contextlib
import functools
import ipaddress
import socket
from typing import Protocol

from coterie.errors import CoterieError

__all__ = ["both_ends", "listen_at_own_address", "unreachable"]

PATIENCE = 10.0  # seconds
FAILED = "Gloo context initialization failed"  # what JAX says when processes have met, but cannot reach each other
LETTERS = 300


class Exchanges(Protocol):
    """What is needed of a `Group`."""

    index: int

    def exchange(self, what: str, text: str = "") -> list[str]:
        """See `Group.exchange`."""
        ...


def both_ends(coordinator: str) -> tuple[str, str]:
    """Return the two addresses of a connection to HOST:PORT: this process's, and the other one's."""
    host, _, port = coordinator.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE) as connection:
        return str(connection.getsockname()[0]), str(connection.getpeername()[0])


def listen_at_own_address(group: Exchanges, coordinator: str) -> str:
    """Let JAX's collectives listen at this process's address; returns it. All processes must call this."""
    own = first = ""
    if group.index > 0:
        with contextlib.suppress(OSError):  # then JAX falls back to the machine's name
            own, first = both_ends(coordinator)
    reached = [address for address in group.exchange("address of process 0", first) if address]
    here = own
    if not own or _is_loopback(own):  # on the machine of process 0, which others may have reached from elsewhere
        here = next((address for address in reached if not _is_loopback(address)), own or "".join(reached[:1]))
    with contextlib.suppress(ImportError, AttributeError):  # JAX has no public way to say it
        from jax._src.lib import _jax

        if here:
            _jax.make_gloo_tcp_collectives = functools.partial(_jax.make_gloo_tcp_collectives, hostname=here)
    return here


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def unreachable(index: int, error: BaseException) -> CoterieError | None:
    """Return the sentence for processes that met and then cannot reach each other; None for every other error."""
    text = str(error)
    if FAILED not in text:
        return None
    return CoterieError(
        f"process {index} cannot reach another one, though they have met ({text.rpartition('] ')[2][:LETTERS]}): let "
        "the machines of a run reach each other on all ports"
    )
