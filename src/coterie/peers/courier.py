"""Brings parcels to one member: a thread of its own, so that a member that does not read holds up nobody else.

Every parcel is a request that its receiver answers. A parcel without an answer (no route yet, a broken connection, a
receiver that is not that far) is sent again until it is answered, or forgotten because its round is over.
"""

import dataclasses
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from coterie.peers.access import inbox_key
from coterie.peers.counts import Counts
from coterie.peers.inbox import Answer

__all__ = ["FRAME", "Courier"]

FRAME = "frame"  # the topic of parcels
AGAIN = 0.05  # seconds until a parcel is sent again
ANSWER_WITHIN = 10.0  # seconds
SMALL = 32 << 10  # bytes up to which a parcel overtakes larger ones
BACKLOG = 8  # unanswered parcels for a member that was given up; more are not sent
SETTLED = {bytes([answer]) for answer in Answer if answer != Answer.EARLY}

Place = tuple[int, int]  # round, exchange


@dataclasses.dataclass
class _Sending:
    note: bytes
    body: bytes | bytearray
    answer: Answer | None = None
    next_try: float = 0.0  # infinite while a try is under way, and when it is answered
    tries: int = 0


class Courier:
    """Sends parcels to one member.

    Args:
        zenoh: the engine's module.
        session: an open session.
        me: this member.
        to: the other one.
        counts: where bytes are counted.
        changed: notified when an answer has come.
    """

    def __init__(self, zenoh: Any, session: Any, me: str, to: str, counts: Counts, changed: threading.Condition):
        self.to = to
        self._zenoh, self._session, self._key, self._counts = zenoh, session, inbox_key(to, me, ""), counts
        self._changed, self._sendings = changed, dict[Place, _Sending]()
        self._wake, self._closed = threading.Condition(), False
        self._thread = threading.Thread(target=self._run, name=f"to {to}", daemon=True)
        self._thread.start()

    def send(self, place: Place, note: bytes, body: bytes | bytearray, given_up: bool) -> None:
        """Send a parcel as soon as possible; one that `given_up` receivers have no room for is left out."""
        with self._wake:
            if not (given_up and len(self.open_places()) >= BACKLOG):
                self._sendings[place] = _Sending(note, body)
                self._wake.notify()

    def answer(self, place: Place) -> Answer | None:
        """Return what the receiver said about a parcel."""
        sending = self._sendings.get(place)
        return None if sending is None else sending.answer

    def open_places(self, before: float = math.inf) -> list[Place]:
        """Return which parcels (of rounds before one) are on their way."""
        sendings = list(self._sendings.items())
        return [place for place, sending in sendings if sending.answer is None and place[0] < before]

    def forget(self, before: float = math.inf) -> None:
        """Give up all parcels of rounds before one."""
        with self._wake:
            self._sendings = {place: sending for place, sending in self._sendings.items() if place[0] >= before}

    def tell(self, topic: str, note: bytes, hear: Callable[[bytes], None] = lambda said: None) -> None:
        """Tell the member something small, once; `hear` gets the answer, if one comes."""

        def answered(reply: Any) -> None:
            if reply.ok is not None:
                hear(bytes(reply.ok.payload))

        self._get(topic, note, b"", answered, lambda: None, self._zenoh.CongestionControl.DROP)

    def close(self) -> None:
        """End the thread."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join(ANSWER_WITHIN)

    def _run(self) -> None:
        while True:
            with self._wake:
                now = time.monotonic()
                due = [s for s in self._sendings.values() if s.next_try <= now]
                if self._closed:
                    return
                if not due:
                    following = min((s.next_try for s in self._sendings.values()), default=math.inf)
                    self._wake.wait(min(following - now, 3600.0))
                    continue
                for sending in due:
                    sending.next_try = math.inf
            for sending in due:
                self._try(sending)

    def _try(self, sending: _Sending) -> None:
        with self._counts.lock:
            self._counts.overhead += len(sending.note) + len(self._key) + 1
            self._counts.repeated += len(sending.body) if sending.tries else 0
        sending.tries += 1

        def hear(reply: Any) -> None:
            said = bytes(reply.ok.payload) if reply.ok is not None else b""
            if said in SETTLED:
                sending.answer = Answer(said[0])
                with self._changed:
                    self._changed.notify_all()

        def done() -> None:
            if sending.answer is None:
                with self._wake:
                    sending.next_try = time.monotonic() + AGAIN
                    self._wake.notify()

        self._get(FRAME, sending.note, sending.body, hear, done, self._zenoh.CongestionControl.BLOCK)

    def _get(
        self,
        topic: str,
        note: bytes,
        body: Any,
        hear: Callable[[Any], None],
        done: Callable[[], None],
        congestion: Any,
    ) -> None:
        small = len(body) <= SMALL
        priority = self._zenoh.Priority.INTERACTIVE_HIGH if small else self._zenoh.Priority.DATA
        try:
            self._session.get(
                self._key + topic,
                self._zenoh.handlers.Callback(hear, done),
                payload=body,
                attachment=note,
                timeout=ANSWER_WITHIN,
                congestion_control=congestion,
                priority=priority,
                express=small,
            )
        except self._zenoh.ZError:  # the session is closed
            done()
