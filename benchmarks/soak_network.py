"""Hostile traffic against members that go on with their work: malformed and replayed messages, bad certificates.

    python benchmarks/soak_network.py                # about three minutes
    python benchmarks/soak_network.py --malformed 2000 --attempts 40

Three members on this machine exchange a frame with each other again and again, over mutual TLS. Meanwhile
- a fourth member, whose certificate is good, sends malformed messages and replays what it was sent before: in another
  round, to another member, in another run;
- somebody without a good certificate tries to connect again and again.
Counted are messages that were taken of them (none), how the honest exchanges went on (all complete), how much slower
the median one was, and how much memory the process has more at the end.
"""

import argparse
import contextlib
import dataclasses
import random
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import publish

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from coterie.codecs.frame import Header, encode
from coterie.peers.access import NetworkSettings, engine_settings, inbox_key, load_zenoh
from coterie.peers.inbox import Answer
from coterie.peers.line import ORDINARY
from coterie.peers.parcel import pack_parcel
from coterie.peers.zenoh import ZenohCarrier
from support.certificates import Authority, mesh
from support.members import free_ports

HONEST, INSIDER = ["amber", "birch", "cedar"], "dogwood"
RUN, NUMBERS = 7, 25_000  # 100 kB


class Federation:
    """Three honest members that exchange frames until they are told to stop."""

    def __init__(self, folder: Path):
        self.authority, self.names = Authority(folder), [*HONEST, INSIDER]
        self.networks = mesh(self.authority, self.names, free_ports(4), deadline=30.0)
        self.here = {name: [place] for place, name in enumerate(self.names)}
        self.carriers: list[ZenohCarrier] = []
        self.seconds: list[float] = []  # of each exchange of the first member
        self.missing = 0
        self.round = 0
        self._stop = threading.Event()

    @contextlib.contextmanager
    def at_work(self) -> Iterator["Federation"]:
        with contextlib.ExitStack() as stack:
            for name in HONEST:
                network = dataclasses.replace(self.networks[name], start_deadline=30.0)
                carrier = ZenohCarrier(
                    me=name, members=self.names, here=self.here, hub=None, network=network, run=RUN, largest=200_000
                )
                self.carriers.append(stack.enter_context(carrier))
            for carrier in self.carriers:
                end = time.monotonic() + 60
                while not set(HONEST) <= carrier.alive():
                    assert time.monotonic() < end
                    time.sleep(0.01)
            barrier = threading.Barrier(len(HONEST))
            threads = [threading.Thread(target=self._work, args=(place, barrier)) for place in range(len(HONEST))]
            for thread in threads:
                thread.start()
            try:
                yield self
            finally:
                self._stop.set()
                for thread in threads:
                    thread.join(60)

    def _work(self, me: int, barrier: threading.Barrier) -> None:
        others = [place for place in range(len(HONEST)) if place != me]
        carrier, values, number = self.carriers[me], [np.full(NUMBERS, me, np.float32)], 0
        while True:
            number += 1
            if me == 0:
                self.round = number if not self._stop.is_set() else -1
            barrier.wait(60)
            if self.round < 0:
                return
            start = time.perf_counter()
            carrier.start_round(number)
            for exchange in range(2):
                frames = {(me, j): encode(Header(ORDINARY, RUN, number, exchange, me, j), values) for j in others}
                got = carrier.exchange(number, exchange, frames, list(frames), [(j, me) for j in others])
                self.missing += len(others) - len(got)
            if me == 0:
                self.seconds.append(time.perf_counter() - start)
            barrier.wait(60)

    def median(self, seconds: float, meanwhile: Callable[[], None] | None = None) -> float:
        """Return the median time of a round in a while, in which something else may happen."""
        first, end = len(self.seconds), time.monotonic() + seconds
        if meanwhile is not None:
            meanwhile()
        time.sleep(max(0.0, end - time.monotonic()))
        return statistics.median(self.seconds[first:])


def malformed(federation: Federation, count: int, seed: int) -> dict[str, int]:
    """Send malformed and replayed messages as a member; returns how many were answered, by answer."""
    chance, zenoh = random.Random(seed), load_zenoh()
    calls = tuple(str(federation.networks[name].listen) for name in HONEST)
    network = NetworkSettings(None, calls, **federation.authority.files(INSIDER))
    settings = engine_settings(INSIDER, federation.names, network, 10_000_000)
    answers: dict[str, int] = {}
    with zenoh.open(settings) as session:
        time.sleep(1.5)
        for _ in range(count):
            receiver = chance.randrange(len(HONEST))
            note, body = spoiled(chance, receiver, federation.round)
            key = inbox_key(HONEST[receiver], INSIDER, "frame")
            replies = session.get(key, payload=body, attachment=note, timeout=10.0)
            said = [bytes(reply.ok.payload) for reply in replies if reply.ok is not None]
            name = Answer(said[0][0]).name.lower() if said and said[0] else "none"
            answers[name] = answers.get(name, 0) + 1
    return answers


def spoiled(chance: random.Random, receiver: int, number: int) -> tuple[bytes, bytes]:
    """Return a message that no honest member sends now: changed, cut, too long, of another run, round or member."""
    run, sender, to, when = RUN, len(HONEST), receiver, number
    kind = chance.choice(["run", "sender", "receiver", "past", "bytes", "cut", "longer", "random", "lengths"])
    run += kind == "run"
    sender = chance.randrange(3) if kind == "sender" else sender
    to = (receiver + 1) % 3 if kind == "receiver" else to
    when = max(0, number - chance.randrange(5, 50)) if kind == "past" else number
    frame = encode(Header(ORDINARY, run, when, chance.randrange(2), sender, to), [np.zeros(chance.randrange(500))])
    note, body = pack_parcel(run, when, 0 if kind == "past" else chance.randrange(2), {(sender, to): frame})
    if kind == "bytes":  # in the note or in the header, so that it is noticed before a method sees it
        place = chance.randrange(18)
        note = note[:place] + bytes([note[place] ^ (1 << chance.randrange(8))]) + note[place + 1 :]
        body = body[:-1]
    elif kind == "cut":
        note, body = note[: chance.randrange(len(note))], body[: chance.randrange(len(body))]
    elif kind == "longer":
        body = bytes(body) + bytes(chance.randrange(1, 1_000_000))
    elif kind == "random":
        note, body = chance.randbytes(chance.randrange(1, 200)), chance.randbytes(chance.randrange(10_000))
    elif kind == "lengths":
        note = note[:-8] + chance.randrange(2**64).to_bytes(8, "little")
    return note, bytes(body)


def attempts(federation: Federation, count: int, seconds: float, folder: Path) -> None:
    """Try to connect without a good certificate, evenly over some seconds."""
    other = Authority(folder / "other")
    files = other.issue(HONEST[1]) | {"ca": federation.authority.folder / "ca.pem"}
    bad = NetworkSettings(None, (str(federation.networks[HONEST[0]].listen),), **files)
    zenoh = load_zenoh()
    start = time.monotonic()
    for attempt in range(count):
        with contextlib.suppress(zenoh.ZError), zenoh.open(engine_settings(HONEST[1], HONEST, bad, 1000)):
            time.sleep(max(0.0, start + (attempt + 1) * seconds / count - time.monotonic()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--malformed", type=int, default=20_000)
    parser.add_argument("--attempts", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0, help="over which attempts are spread")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        federation = Federation(Path(folder) / "keys")
        with federation.at_work():
            federation.median(3.0)
            before = federation.median(args.seconds / 4)
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            answers = malformed(federation, args.malformed, args.seed)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
            under = federation.median(
                args.seconds, lambda: attempts(federation, args.attempts, args.seconds, Path(folder))
            )
        refused: dict[str, int] = {}
        for carrier in federation.carriers:
            for (_, why), times in carrier.counts.refused.items():
                refused[why] = refused.get(why, 0) + times
        strangers = set().union(*(carrier.alive() for carrier in federation.carriers)) - set(federation.names)
        rounds, missing = len(federation.seconds), federation.missing
    figures: dict[str, Any] = {
        "malformed": args.malformed,
        "answers": answers,
        "refused": refused,
        "memory_grown_kilobytes": grown,
        "honest_rounds": rounds,
        "honest_frames_missing": missing,
        "attempts": args.attempts,
        "median_round_ms": {"before": round(1000 * before, 2), "under attempts": round(1000 * under, 2)},
        "slower": round(under / before - 1, 3),
        "slower_goal": 0.15,
    }
    publish("soak-network", "CPU", figures)
    assert not strangers
    assert "taken" not in answers, "a malformed or replayed message was taken"
    assert missing == 0, "an honest frame did not arrive"
    assert grown < 200_000, "memory grew"


if __name__ == "__main__":
    main()
