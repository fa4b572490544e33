"""Small requests beside the rounds: agreement before a start, where the others are, what a returning member needs."""

import time
from collections.abc import Callable, Collection
from typing import Any

from coterie.errors import printable
from coterie.peers.access import LONGEST_NOTE, inbox_key
from coterie.peers.counts import Counts

__all__ = ["Control"]

ASK = "ask"
PAUSE = 0.05  # seconds between two tries


class Control:
    """Asks members, and answers them.

    Args:
        zenoh: the engine's module.
        me: this member's name.
        members: everybody's.
        counts: where refusals are counted.
    """

    def __init__(self, zenoh: Any, me: str, members: Collection[str], counts: Counts):
        self.inbox = inbox_key(me, "*", f"{ASK}/*")
        self.answers: dict[str, Callable[[str, bytes], bytes]] = {}
        self._zenoh, self._me, self._members, self._counts = zenoh, me, members, counts

    def request(self, session: Any, name: str, topic: str, payload: bytes, seconds: float) -> bytes | None:
        """Ask a member and return its answer; None if none came in time, or it refused to answer."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                replies = session.get(
                    inbox_key(name, self._me, f"{ASK}/{topic}"),
                    payload=payload,
                    timeout=left,
                    priority=self._zenoh.Priority.INTERACTIVE_HIGH,
                    congestion_control=self._zenoh.CongestionControl.BLOCK,
                    express=True,
                )
            except self._zenoh.ZError:  # the session is closed
                return None
            for reply in replies:
                return None if reply.ok is None else bytes(reply.ok.payload)
            time.sleep(min(PAUSE, max(left, 0)))  # no route yet, or it has just left
        return None

    def reply(self, query: Any) -> None:
        """Answer a request."""
        key, payload = str(query.key_expr), query.payload
        parts = key.split("/")  # coterie, receiver, sender, ask, topic
        name, topic = (parts[2], parts[4]) if len(parts) == 5 else ("", "")
        if name not in self._members or key != inbox_key(self._me, name, f"{ASK}/{topic}"):
            self._counts.refuse("somebody", "a key that is not used here")
        elif payload is not None and len(payload) > LONGEST_NOTE:
            self._counts.refuse(name, "a request that is too long")
        elif topic in self.answers:
            try:
                given = self.answers[topic](name, b"" if payload is None else bytes(payload))
            except Exception as error:  # whatever a member sends, this thread goes on
                self._counts.refuse(name, f"a request about {topic} that failed: {printable(str(error))}")
                query.reply_err(b"refused")
            else:
                query.reply(key, given, express=True)
