"""Members meet: before the first round, and whenever one of them has been away.

Each member has a card (`cards.py`) and shows it to everybody who shows its own. They start only if all of them run the
same configuration and versions. A run has a number, so that nothing sent in another run is ever used: the first member
in the list that is there draws it, and everybody else, whoever comes back later too, takes it from a member that is in
the run. Nobody coordinates: each member decides for itself from the cards it has seen.
"""

import collections
import json
import math
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from coterie.errors import CoterieError
from coterie.peers.access import LONGEST_NOTE
from coterie.sites.cards import Card, differences
from coterie.sites.control import Control
from coterie.sites.stages import Stages
from coterie.storage.toml import difference

__all__ = ["Meeting"]

PAUSE = 0.1  # seconds between two looks at who is there
ANSWER = 2.0  # seconds that a member has to show its card
CONNECTING = 30.0  # seconds that members have to find each other when all of them are ready
CALLING = 10.0  # seconds after which who would finish alone takes the others for gone


class Meeting:
    """One member's view of all of them.

    Args:
        control: the carrier.
        me: this member's name.
        names: everybody's, in the order of their ids.
        card: what this member runs.
        hub: the member that is the hub, if any.
        configuration: what federation.toml says, complete: it tells in which key two members differ.
        patience: seconds to wait for the others before the start, and for anybody when all are gone.
        deadline: seconds to wait for one answer that must come.
        alone: finish a run that has begun, if nobody else is there: the others have come to its end.
        linked: the members that this one has a connection with once all are there; default: all others.
        note: called with a sentence for people.
    """

    def __init__(
        self,
        control: Control,
        me: str,
        names: Sequence[str],
        card: Card,
        *,
        hub: str | None = None,
        configuration: Mapping[str, Any] | None = None,
        patience: float = 600.0,
        deadline: float = 60.0,
        alone: bool = False,
        linked: Collection[str] | None = None,
        note: Callable[[str], None] = lambda sentence: None,
    ):
        self.control, self.me, self.names, self.card = control, me, tuple(names), card
        self.patience, self.note = patience, note
        self.alone = alone
        self.linked = [name for name in names if name != me and (linked is None or name in linked)]
        self._configuration = dict(configuration or {})
        self.cards: dict[str, Card] = {}  # the last one of each other member
        self.done: set[str] = set()  # members that have come to the end of the run
        self._lock = threading.Lock()
        self._wrong: list[str] = []  # what keeps members from running together
        self.stages = Stages(control, me, names, hub, deadline)
        answers = {"hello": self._hello, "bye": self._bye, "configuration": self._configured}
        for topic, fn in answers.items():
            control.answer(topic, fn)

    @property
    def others(self) -> list[str]:
        """The other members that are there, in the order of their ids."""
        alive = self.control.alive()
        return [name for name in self.names if name != self.me and name in alive]

    # -- what others ask -------------------------------------------------------------------------------------------

    def _hello(self, sender: str, payload: bytes) -> bytes:
        card = Card.decode(payload)
        if card is not None:
            self._see(sender, card)
        return self._shown()

    def _configured(self, sender: str, payload: bytes) -> bytes:
        return json.dumps(self._configuration).encode()

    def _bye(self, sender: str, payload: bytes) -> bytes:
        self.done.add(sender)
        return b""

    def _see(self, name: str, card: Card) -> None:
        with self._lock:
            self.cards[name] = card

    def say(self, **changes: Any) -> None:
        """Change this member's card."""
        self.card = self.card._replace(**changes)

    def _shown(self) -> bytes:
        """Return the card as others get it: with who is not connected, and whom this member has gone on without."""
        return self.card._replace(lacks=self._lacks(), given_up=self.control.given_up()).encode()

    def _lacks(self) -> list[str]:
        alive = self.control.alive()
        return [name for name in self.linked if name not in alive]

    # -- the start -------------------------------------------------------------------------------------------------

    def look_around(self) -> dict[str, Card]:
        """Show this member's card to everybody who is there, and return the cards of those that run the same."""
        for name in self.others:
            card = Card.decode(self.control.request(name, "hello", self._shown(), ANSWER))
            if card is not None:
                self._see(name, card)
        with self._lock:
            cards = {name: self.cards[name] for name in self.others if name in self.cards}
        self._wrong = [words for name, card in cards.items() for words in differences(self.card, card, name)]
        return {name: card for name, card in cards.items() if not differences(self.card, card, name)}

    def start(self, run: int, done: int) -> bool:
        """Wait for the others and agree on the number of the run.

        Args:
            run: the number of the run that the folder holds a part of; 0 for none. It binds only who has a state of
                that run: otherwise two members that were cut off while they started could never run together.
            done: rounds that this member has behind it; -1: not even the start.

        Returns:
            Whether this member begins with the others, with the round on its card; otherwise they are in the middle of
            the run.
        """
        if done < 0:  # a process was killed before its first checkpoint: it brings nothing into any run
            run = 0
        self.say(ready=True, run=run, round=done + 1)
        patience = min(self.patience, CALLING) if self.alone else self.patience
        end, connected_by, shown = time.monotonic() + patience, math.inf, ""
        while True:
            cards = self.look_around()
            running = [card for card in cards.values() if card.started]
            if running:
                return self._join(running, run)
            if self._wrong:
                raise CoterieError(
                    f"not all members run the same: {'; '.join([*self._wrong, *self._keys()])}; make them equal"
                )
            ready = [name for name in self.names if name == self.me or (name in cards and cards[name].ready)]
            late = time.monotonic() > end
            if late and len(ready) == 1:
                self._refuse_alone(done)
            # Who begins before two others have found each other makes them go on without each other.
            apart = [name for name in ready if (self._lacks() if name == self.me else cards[name].lacks)]
            if len(ready) < len(self.names):
                connected_by = math.inf
            elif connected_by == math.inf:
                connected_by = time.monotonic() + CONNECTING
            met = len(ready) == len(self.names) and (not apart or time.monotonic() > connected_by)
            if (late or met) and ready[0] == self.me:
                return self._begin({name: cards[name] for name in ready[1:]})
            missing = [name for name in self.names if name not in ready]
            said = f"waiting for {', '.join(missing)}" if missing else f"{ready[0]} starts the run"
            said = f"{', '.join(apart)}: not all are connected yet" if apart and not missing else said
            if said != shown:
                self.note(said)
                shown = said
            time.sleep(PAUSE)

    def _refuse_alone(self, done: int) -> None:
        """Refuse to run without anybody else, unless this member shall finish what has begun."""
        if self.alone and done >= 0:
            self.note("nobody else is there: this member finishes its rounds alone")
            return
        if self.alone:
            raise CoterieError("--alone finishes a run that has begun, and in this folder none has; join without it")
        others = ", ".join(name for name in self.names if name != self.me)
        finish = "; if they have come to the end, finish this run with --alone" if done >= 0 else ""
        raise CoterieError(
            f"none of {others} came within {self.patience:g} seconds (federation.start_deadline); start them, "
            f"too{finish}"
        )

    def _keys(self) -> list[str]:
        """Say in which key the configuration of the first member with another one differs."""
        with self._lock:
            others = [name for name, card in self.cards.items() if card.hash != self.card.hash]
        for name in others[:1]:
            answer = self.control.request(name, "configuration", b"", ANSWER)
            try:
                theirs = json.loads(answer) if answer and len(answer) <= LONGEST_NOTE else {}
                found = difference(theirs, self._configuration) if isinstance(theirs, dict) and theirs else None
            except (ValueError, RecursionError):
                found = None
            if found is not None:
                return [f"{found}, where there is {name}"]
        return []

    def _begin(self, others: dict[str, Card]) -> bool:
        """Start the run, or go on with one that everybody has stopped; this is the first member that is there."""
        for name, card in others.items():
            if card.processor != self.card.processor:
                self.note(f"{name} has another processor ({card.processor}): last bits may differ from a simulation")
        known = [number for number in (self.card.run, *(card.run for card in others.values())) if number]
        first = max([self.card.round, *(card.round for card in others.values())])
        sessions = {name: card.session for name, card in others.items()}
        number = known[0] if known else secrets.randbits(62) | 1
        self.say(run=number, round=first, first=first, began=sessions, started=True)
        return True

    def _join(self, running: Sequence[Card], run: int) -> bool:
        """Enter the run that others are in."""
        number = collections.Counter(card.run for card in running).most_common(1)[0][0]
        if run and run != number:
            raise CoterieError(
                "the others are in another run than the one in this folder; choose another folder (site.out), or stop "
                "them and continue all together"
            )
        missed = any(self.me in card.given_up for card in running)
        # Those who began may be some rounds further when this member looks, without having missed it. Everybody passes
        # on who began: this member may see others that have entered the run before it sees the one that began it.
        begins = [card for card in running if not missed and card.began.get(self.me) == self.card.session]
        for card in begins[:1]:
            self.say(round=max(self.card.round, card.first), first=card.first, began=card.began)
        self.say(run=number, started=True)
        return bool(begins)

    # -- between rounds --------------------------------------------------------------------------------------------

    def current(self, number: int, late: bool = True) -> int:
        """Return the round to go on with, asking those who are there: `number`, or a later one that they are in.

        Others may be ahead without having missed anything of this member, where they do not hear it in every round:
        then it goes on with `number`, and what they sent in that round is here. Members that have given it up for
        their round will hear it in the next one. Where there are more than two others, two must be as far: one alone
        cannot make the others skip rounds that nobody else has begun.

        Args:
            number: the round that follows the last one of this member.
            late: whether it was away: then it goes to the others' round, whether or not they missed it.
        """
        there = self.look_around().items()
        cards = {name: card for name, card in there if card.started and card.run == self.card.run}
        rounds = sorted((card.round for card in cards.values()), reverse=True)
        latest = rounds[min(len(rounds) - 1, 1 if len(self.names) > 3 else 0)] if rounds else 0
        missed = {name: card.given_up.get(self.me, -1) for name, card in cards.items()}
        if latest <= number or not (late or max(missed.values()) >= number):
            return number
        waiting = any(card.round >= latest and missed[name] < card.round for name, card in cards.items())
        return latest if waiting else latest + 1

    def company(self, number: int, refuse: Callable[[], None] = lambda: None) -> None:
        """Wait until somebody else is there; refuse to go on alone, unless the others have come to the end.

        Args:
            number: the round to begin.
            refuse: raises where waiting is in vain.
        """
        ended = self.done >= {name for name in self.names if name != self.me}
        if self.others or len(self.names) == 1 or ended or self.alone:
            return
        self.note(f"all other members are gone; waiting {self.patience:g} seconds for one of them")
        end = time.monotonic() + self.patience
        while not self.others:
            refuse()
            if time.monotonic() > end:
                raise CoterieError(
                    f"all other members are gone since round {number - 1}; this one has stopped there: start it again "
                    "when they are back"
                )
            time.sleep(PAUSE)

    # -- the end ---------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Say that this member has come to the end: who is left need not wait for it to come back."""
        for name in self.others:
            self.control.request(name, "bye", b"", ANSWER)
