"""What a round of `gossip-sgd` costs on the network, beyond its local computation, against the bare engine.

    python benchmarks/ring.py

Eight processes in a ring on this machine, over mutual TLS, a model of 3.5 MB; each sends it to two neighbours in every
round and hears two. Three things are measured in the same processes, one after another:
- bare: the same frames between the same processes over the same TLS, with plain publications and no checks;
- local: the same training without neighbours;
- round: `gossip-sgd` through the verbs, callbacks, frames, acknowledgements and checks; with the share of each stage.
The goal is (round - local) / bare <= 2.5.
"""

import argparse
import itertools
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import federation, publish

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.certificates import Authority, mesh
from support.members import free_ports, meet

MEMBERS = 8
STAGES = ("encode", "send and wait", "open")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--hidden", type=int, default=1100, help="units of the hidden layer; 1100: 3.5 MB")
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        names = [f"member-{i}" for i in range(MEMBERS)]
        networks = mesh(Authority(Path(folder)), names, free_ports(MEMBERS), deadline=60.0)
        results: Any = context.Queue()
        together: Any = context.Barrier(MEMBERS)
        work = [
            context.Process(target=member, args=(i, names, networks[name], args.rounds, args.hidden, together, results))
            for i, name in enumerate(names)
        ]
        for process in work:
            process.start()
        found = [results.get(timeout=600) for _ in work]
        for process in work:
            process.join(60)
    milliseconds = {
        what: round(1000 * statistics.median(t for each in found for t in each[what]), 2)
        for what in ("bare", "local", "round", *STAGES)
    }
    beyond = milliseconds["round"] - milliseconds["local"]
    processor = {
        what: round(1000 * sum(each["processor"][what] for each in found), 1) for what in ("bare", "local", "round")
    }
    figures = {
        "members": MEMBERS,
        "frame_bytes": found[0]["bytes"],
        "milliseconds": milliseconds,
        "beyond_local": round(beyond, 2),
        "times_bare": round(beyond / milliseconds["bare"], 2),
        "goal": 2.5,
        "processor_milliseconds_of_all": processor,
        "processor_times_bare": round((processor["round"] - processor["local"]) / processor["bare"], 2),
        "shares": {stage: round(milliseconds[stage] / milliseconds["round"], 3) for stage in STAGES},
    }
    publish("ring", "CPU", figures)


def member(me: int, names: list[str], network: Any, rounds: int, hidden: int, together: Any, results: Any) -> None:
    """Measure as one of the processes."""
    from coterie.graphs.mixing import metropolis
    from coterie.graphs.topologies import Ring
    from coterie.methods import GossipSGD, Local
    from coterie.models import Mlp
    from coterie.peers.zenoh import ZenohCarrier
    from coterie.testing.two_processes import Site, SplitRun

    data, graph = federation(MEMBERS, 2, (784,), 10), Ring().build(MEMBERS, 0)
    weights = metropolis(graph)[0]
    line = timed_line()
    settings = {"lr": 0.01, "batch_size": 1, "steps": 1}

    def site(method: Any) -> Any:
        made = Site(SplitRun(method, data, Mlp(hidden=(hidden,)), graph, weights, rounds, 0), np.array([me]))
        made.line = line
        return made

    size = 48 + 4 * (784 * hidden + hidden + 10 * hidden + 10)
    here = {name: [place] for place, name in enumerate(names)}
    neighbours = [int(j) for j in graph.neighbours[me]]
    found: dict[str, Any] = {"bytes": size} | bare(me, names, network, neighbours, rounds, size, together)
    for number, what, method in ((5, "local", Local(**settings)), (6, "round", GossipSGD(**settings))):
        together.wait()
        carrier = ZenohCarrier(
            me=names[me], members=names, here=here, hub=names[0], network=network, run=number, largest=size
        )
        with carrier:
            meet(carrier, 120.0)
            found[what] = line.rounds_of(site(method), carrier, number)
    assert not carrier.counts.refused
    assert not carrier.counts.absent
    processor = {"bare": found.pop("bare processor"), "local": line.processor[5], "round": line.processor[6]}
    results.put(found | line.stages | {"processor": processor})


def timed_line() -> Any:
    """Return a line that notes when rounds begin, and how long the stages of an exchange take."""
    from coterie.peers.line import Line

    class TimedLine(Line):
        def __init__(self) -> None:
            super().__init__()
            self.begun: list[tuple[float, float]] = []
            self.processor: dict[int, float] = {}  # seconds of a round, in all threads
            self.stages: dict[str, list[float]] = {}

        def rounds_of(self, site: Any, carrier: Any, number: int) -> list[float]:
            """Return the seconds of each round of a run, without the first ones, in which programs are compiled."""
            self.begun, self.stages = [], {stage: [] for stage in STAGES}
            site.run(carrier, number)
            used, in_the_end = self.begun[4][1], self.begun[-1][1]
            self.processor[number] = (in_the_end - used) / (len(self.begun) - 5)
            return [b - a for (a, _), (b, _) in itertools.pairwise(self.begun[4:])]

        def start_round(self, number: int) -> None:
            super().start_round(number)
            self.begun.append((time.perf_counter(), time.process_time()))

        def exchange_frames(self, messages: Any, outgoing: Any, incoming: Any) -> Any:
            start = time.perf_counter()
            ready = list(messages)
            taken = [time.perf_counter()]
            exchange = self.carrier.exchange

            def timed(*what: Any) -> Any:
                taken.append(time.perf_counter())
                return exchange(*what)

            self.carrier.exchange = timed  # type: ignore[method-assign]
            try:
                return super().exchange_frames(ready, outgoing, incoming)
            finally:
                self.carrier.exchange = exchange  # type: ignore[method-assign]
                self.stages["encode"].append(taken[-1] - start)
                self.stages["send and wait"].append(time.perf_counter() - taken[-1])
                self.stages["open"].append(0.0)

        def open(self, *what: Any) -> Any:
            start = time.perf_counter()
            opened = super().open(*what)
            self.stages["open"][-1] += time.perf_counter() - start
            return opened

    return TimedLine()


def bare(me: int, names: list[str], network: Any, neighbours: list[int], rounds: int, size: int, together: Any) -> Any:
    """Send the same bytes with plain publications: no acknowledgement, no check, no program around it."""
    from coterie.peers.access import engine_settings, load_zenoh

    zenoh = load_zenoh()
    settings = engine_settings(names[me], names, network, size)
    settings.insert_json5("access_control", '{"enabled": false}')
    frame, came, changed = bytes(size), dict.fromkeys(neighbours, 0), threading.Condition()
    with zenoh.open(settings) as session:

        def take(sample: Any) -> None:
            payload = bytes(sample.payload)
            with changed:
                came[int(str(sample.key_expr).rpartition("/")[2])] += len(payload) == size
                changed.notify_all()

        session.declare_subscriber(f"ring/{me}/*", take)
        time.sleep(2.0)  # subscriptions have to become known
        together.wait()
        times, used = [], -time.process_time()
        for number in range(1, rounds + 1):
            start = time.perf_counter()
            for j in neighbours:
                session.put(f"ring/{j}/{me}", frame, congestion_control=zenoh.CongestionControl.BLOCK)
            with changed:
                arrived = changed.wait_for(lambda number=number: all(n >= number for n in came.values()), 60)
            assert arrived, "a message got lost"
            times.append(time.perf_counter() - start)
        used += time.process_time()
        together.wait()
    return {"bare": times[4:], "bare processor": used / rounds}


if __name__ == "__main__":
    main()
