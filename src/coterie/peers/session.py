"""A member's session with the network engine: opened, its handlers declared in the right order, and closed.

Handlers are declared first and the token that says "I am here" last, so that nobody sends to a member that does not
listen yet. A process that does not close its session never ends.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from coterie.errors import CoterieError, printable
from coterie.peers.access import NetworkSettings, alive_key, engine_settings, inbox_key
from coterie.peers.control import Control
from coterie.peers.counts import Counts
from coterie.peers.courier import Courier

__all__ = ["Session"]

QUEUE = 16  # messages of one member that wait for a thread; the oldest give way (and are sent again)


class Session:
    """One member's session.

    Args:
        zenoh: the engine's module.
        me: this member.
        members: the names of all members.
        network: addresses, certificates, deadlines.
        longest: bytes of the longest message.
        counts: where bytes are counted.
        changed: notified when an answer has come.

    Attributes:
        couriers: who brings parcels to each other member; none before the session is open.
    """

    def __init__(
        self,
        zenoh: Any,
        me: str,
        members: Sequence[str],
        network: NetworkSettings,
        longest: int,
        counts: Counts,
        changed: threading.Condition,
    ):
        self.couriers: dict[str, Courier] = {}
        self._zenoh, self._me, self._members, self._network = zenoh, me, members, network
        self._counts, self._changed = counts, changed
        self._settings = engine_settings(me, members, network, longest)
        self._open: Any = None
        self._declared: list[Any] = []

    @property
    def is_open(self) -> bool:
        """Whether it was opened and not closed yet."""
        return self._open is not None

    def open(self, receive: Callable[[str, Any], None], control: Control, notice: Callable[[str, bool], None]) -> None:
        """Listen, call the others, and say that this member is here.

        Args:
            receive: gets each member's name and its messages, in a thread for that member.
            control: answers requests.
            notice: told of each member that comes or goes, and which of the two.
        """
        try:
            self._open = self._zenoh.open(self._settings)
        except self._zenoh.ZError as error:
            why = printable(str(error).split(" at /")[0])
            raise CoterieError(
                f"the network did not start (listen = {self._network.listen}, certificate = "
                f"{self._network.certificate}): {why}"
            ) from None
        ring, session = self._zenoh.handlers.RingChannel, self._open
        for name in self._members:
            if name != self._me:
                self.couriers[name] = Courier(self._zenoh, session, self._me, name, self._counts, self._changed)
                frames = session.declare_queryable(inbox_key(self._me, name, "*"), ring(QUEUE))
                self._serve(frames, partial(receive, name))
        asks = session.declare_queryable(control.inbox, ring(QUEUE * len(self._members)))
        self._serve(asks, control.reply)

        def changed(sample: Any) -> None:
            name = str(sample.key_expr).rpartition("/")[2]
            if name in self._members:
                notice(name, sample.kind == self._zenoh.SampleKind.PUT)

        watch = session.liveliness().declare_subscriber(alive_key("*"), changed, history=True)
        self._declared += [watch, session.liveliness().declare_token(alive_key(self._me))]

    def _serve(self, queryable: Any, handle: Callable[[Any], None]) -> None:
        """Answer queries in a thread of their own until the session is closed."""

        def run() -> None:
            while True:
                try:
                    query = queryable.recv()
                except self._zenoh.ZError:  # closed
                    return
                with contextlib.suppress(self._zenoh.ZError), query:  # an answer that cannot be given any more
                    handle(query)

        self._declared.append(queryable)
        threading.Thread(target=run, name="from the network", daemon=True).start()

    def request(self, control: Control, name: str, topic: str, payload: bytes, seconds: float) -> bytes | None:
        """Ask a member; None if no answer came in time, or the session is closed."""
        session = self._open
        return None if session is None else control.request(session, name, topic, payload, seconds)

    def close(self) -> None:
        """Give up what was not brought yet, say goodbye and end all threads."""
        session, self._open = self._open, None
        for courier in self.couriers.values():
            courier.forget()
        with contextlib.suppress(self._zenoh.ZError):  # a member that does not answer any more cannot be told
            session.close()
        for courier in self.couriers.values():
            courier.close()
