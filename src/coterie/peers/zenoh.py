"""A carrier over Eclipse Zenoh: members of a run on hosts of their own, without a server.

Every message is a request that its receiver answers, because a plain publication never reports a loss. `session.py`
opens and closes the engine, `patience.py` says who is waited for, `courier.py` how a parcel is brought, `inbox.py` what
is taken in, `access.py` who may send what.
"""

import math
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from coterie.codecs.frame import read_header
from coterie.errors import CoterieError
from coterie.peers.access import LONGEST_NOTE, NetworkSettings, inbox_key, load_zenoh
from coterie.peers.control import Control
from coterie.peers.counts import Counts
from coterie.peers.courier import FRAME
from coterie.peers.inbox import Answer, Inbox
from coterie.peers.line import COPY, ESSENTIAL, HUB, Frames
from coterie.peers.parcel import pack_parcel
from coterie.peers.patience import COMPUTES, WAITS, Patience
from coterie.peers.records import Pair
from coterie.peers.session import Session
from coterie.storage.memory import keeping

__all__ = ["ZenohCarrier"]

PING, WHOLE = "ping", "whole"  # topics beside parcels
KEPT = 32  # messages whose memory is kept for the next ones
LEAVE = 10.0  # seconds that the end of a run waits for the last answers
_PAIR = struct.Struct("<II")


class ZenohCarrier:
    """One member's end of the network; one for each process and run. Use it as a context manager, or close it.

    Args:
        me: this member's name.
        members: the names of all members.
        here: for each member the ids of the clients that live there.
        hub: the member where the hub is; None: there is none, and everybody sends to everybody.
        network: addresses, certificates, deadlines.
        run: a number that all processes of this run share, and no other run has; 0: see `begin_run`.
        largest: bytes of the longest frame that the method sends.
    """

    def __init__(
        self,
        *,
        me: str,
        members: Sequence[str],
        here: Mapping[str, Sequence[int]],
        hub: str | None,
        network: NetworkSettings,
        run: int,
        largest: int,
    ):
        if me not in members:
            raise CoterieError(f"{me} is not a member of this federation")
        self.me, self.members, self.hub = me, tuple(members), hub in (None, me)
        self.counts = Counts()
        living = {name: frozenset(here[name]) | ({HUB} if name == hub else frozenset()) for name in members}
        self._home = {client: name for name in members for client in living[name]}
        self._network, self._run, self._largest = network, run, largest
        self._inbox = Inbox(run, living, me, largest, self.counts)
        self._changed = self._inbox.changed
        most = max(self._inbox.most_entries(name) for name in members)
        zenoh = load_zenoh()
        self._session = Session(zenoh, me, self.members, network, largest * most, self.counts, self._changed)
        self._couriers = self._session.couriers
        self._control = Control(zenoh, me, self.members, self.counts)
        self._rounds = 0  # begun since this process is here
        self._round = 0
        self._patience = Patience(self._changed, self._ping, self.counts)
        self._patience.start_round(0, network.start_deadline)
        self._lost: set[Pair] = set()
        self._untaken: set[Pair] = set()

    # -- coming and going ------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Listen, call the others, and say that this member is here."""
        keeping(KEPT * self._largest)
        try:
            self._session.open(self._receive, self._control, self._patience.notice)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Wait for the last answers, say goodbye and end all threads. A process that does not close never ends."""
        if not self._session.is_open:
            return
        try:
            self._patience.leave(LEAVE)
            self._drain(math.inf)
        finally:
            self.stop()
            self._session.close()

    def stop(self) -> None:
        """Stop waiting, for good: an exchange returns at once with what is there. For signal handlers too."""
        self._patience.stop()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.stop()
        self.close()

    def alive(self) -> frozenset[str]:
        """Return the members that are there, this one too."""
        return frozenset(self._patience.alive)

    @property
    def heard_round(self) -> int:
        """The highest round that members were heard in; two must say so, where there are more than two others."""
        rounds = sorted(self._inbox.rounds.values(), reverse=True)
        return rounds[1] if len(self.members) > 3 and len(rounds) > 1 else rounds[0] if rounds else 0

    def name_of(self, client: int) -> str:
        """Return the member with which a client lives."""
        return self._home.get(client, "nobody")

    def given_up(self) -> dict[str, int]:
        """Return the last round that went on without a member, by name: it was given up, or gone."""
        return dict(self._patience.given_up)

    def begin_run(self, run: int) -> None:
        """Send and take frames of this run from now on: its number is agreed on after the members have met."""
        self._run = self._inbox.run = run

    # -- control requests ------------------------------------------------------------------------------------------

    def answer(self, topic: str, fn: Callable[[str, bytes], bytes]) -> None:
        """Answer requests about a topic with `fn(name of the sender, payload)`, in a thread of the carrier."""
        self._control.answers[topic] = fn

    def request(self, name: str, topic: str, payload: bytes, seconds: float) -> bytes | None:
        """Ask a member and return its answer; None if none came in time, or it refused to answer."""
        return self._session.request(self._control, name, topic, payload, seconds)

    # -- rounds and exchanges --------------------------------------------------------------------------------------

    def start_round(self, number: int) -> None:
        """Begin a round: everybody who is there counts again.

        First everything that was sent before is answered, or its receiver given up. So nobody runs far ahead of those
        who hear it, and who hears a later round of a member knows that nothing of an earlier one will come.
        """
        self._drain(number)
        for courier in self._couriers.values():
            courier.forget(number)
        self._rounds += number != self._round or self._rounds == 0
        self._round = number
        limit = self._network.start_deadline if self._rounds <= 2 else self._network.deadline
        self._patience.start_round(number, limit)
        self._inbox.start_round(number)

    def exchange(
        self, number: int, exchange: int, frames: Frames, outgoing: Collection[Pair], incoming: Collection[Pair]
    ) -> Frames:
        """See `Carrier.exchange`."""
        place = (number, exchange)
        self._inbox.begin(*place)
        near = {pair: frame for pair, frame in frames.items() if self._home.get(pair[1]) == self.me}
        essential, given_up = self._send(place, frames, outgoing), frozenset(self._patience.absent)
        awaited = {self._home[sender] for sender, _ in incoming} - {self.me}

        def settled(name: str) -> bool:
            # Who is in a later round has nothing more to say in this one.
            arrived = name not in awaited or self._inbox.has(*place, name) or self._inbox.rounds.get(name, 0) > number
            told = name not in essential or self._couriers[name].answer(place) is not None
            return arrived and told

        self._patience.wait(awaited | essential.keys(), settled)
        with self._changed:
            answers = {name: self._couriers[name].answer(place) for name in essential}
            untaken = [name for name, answer in answers.items() if answer != Answer.TAKEN]
            self._lost.update(pair for name in untaken for pair in essential[name])
            # Who had been given up before was not waited for: no answer says nothing about it.
            unknown = {name for name in untaken if answers[name] is None and name in given_up & self._patience.alive}
            self._untaken = {pair for name in untaken if name not in unknown for pair in essential[name]}
        wanted, got = set(incoming), near
        for name, parcel in self._inbox.take(*place).items():
            self._patience.came(name)
            for pair, frame in parcel.items():
                if pair in wanted:
                    got[pair] = frame
                else:
                    self.counts.refuse(name, "no neighbour of the receiver")
        return got

    def lost_copies(self) -> set[Pair]:
        """Return, once, the pairs whose receiver may not have the last essential frame that was sent to it."""
        with self._changed:
            lost, self._lost = self._lost, set()
        return lost

    def untaken(self) -> set[Pair]:
        """Return the pairs whose receiver does not use the essential frame of the last exchange: it was late, or cut
        off, or gone."""
        return self._untaken

    def ask_whole(self, pair: Pair) -> None:
        """Tell the sender of a pair that its receiver, who lives here, has no copy of its vectors."""
        name = self.name_of(pair[0])
        if name in self._couriers:
            self._couriers[name].tell(WHOLE, _PAIR.pack(*pair))

    def _ping(self, name: str) -> None:
        self._couriers[name].tell(PING, b"", lambda said: self._patience.hear(name, said))

    def _send(self, place: tuple[int, int], frames: Frames, outgoing: Collection[Pair]) -> dict[str, list[Pair]]:
        """Hand parcels to the couriers; returns the essential pairs by the member that gets them."""
        parcels: dict[str, dict[Pair, bytes | None]] = {}
        essential: dict[str, list[Pair]] = {}
        for pair in outgoing:
            name, frame = self._home[pair[1]], frames.get(pair)
            kind = None if frame is None else read_header(frame).kind  # type: ignore[union-attr]
            if frame is not None and pair[0] != pair[1]:
                if kind == COPY:
                    self.counts.copies += len(frame)
                else:
                    self.counts.bytes[pair] += len(frame)
            if name != self.me:
                parcels.setdefault(name, {})[pair] = frame
                if kind == ESSENTIAL:
                    essential.setdefault(name, []).append(pair)
        for name, content in parcels.items():
            if name in self._patience.alive:
                note, body = pack_parcel(self._run, *place, content)
                self._couriers[name].send(place, note, body, name in self._patience.absent)
            else:
                self._patience.miss(name)
        return essential

    def _drain(self, before: float) -> None:
        """Wait until everything that was sent in the rounds before one is answered."""
        couriers = self._couriers
        busy = [name for name, courier in couriers.items() if courier.open_places(before)]
        self._patience.wait(busy, lambda name: not couriers[name].open_places(before))

    def _receive(self, name: str, query: Any) -> None:
        """Answer a message of a member, in the thread for its messages."""
        key, note, body = str(query.key_expr), query.attachment, query.payload
        topic = key.rpartition("/")[2]
        if key != inbox_key(self.me, name, topic):
            self.counts.refuse(name, "a key that is not used here")
            return
        said = b""
        if note is not None and len(note) > LONGEST_NOTE:
            self.counts.refuse(name, "a note that makes no sense")
        elif topic == FRAME:
            self._patience.hear(name)
            said = bytes([self._inbox.offer(name, bytes(note or b""), b"" if body is None else body)])
        elif topic == PING:
            said = WAITS if self._patience.waits else COMPUTES
        elif topic == WHOLE:
            self._start_anew(name, bytes(note or b""))
        query.reply(key, said, express=True)

    def _start_anew(self, name: str, note: bytes) -> None:
        """Note that a receiver with that member has no copy of a sender's vectors."""
        if len(note) != _PAIR.size:
            self.counts.refuse(name, "a note that makes no sense")
            return
        sender, receiver = _PAIR.unpack(note)
        if (self._home.get(sender), self._home.get(receiver)) != (self.me, name):
            self.counts.refuse(name, "another's name")
            return
        with self._changed:
            self._lost.add((sender, receiver))
