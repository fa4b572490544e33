"""Members of a federation as processes of this machine, over mutual TLS: they run one small training after another."""

import contextlib
import multiprocessing
import socket
import time

import numpy as np

from coterie.peers.zenoh import ZenohCarrier
from coterie.testing.two_processes import Site
from support.certificates import Authority, mesh

PATIENCE = 200.0  # seconds: machines that test are busy, and nobody is away here
LARGEST = 1 << 16  # bytes of a frame


def free_ports(count):
    """Return ports that nobody uses now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def meet(carrier, seconds=60.0):
    """Wait until everybody is there."""
    end = time.monotonic() + seconds
    while carrier.alive() != set(carrier.members):
        assert time.monotonic() < end, f"{carrier.me} sees only {sorted(carrier.alive())}"
        time.sleep(0.01)


class Members:
    """Processes, kept alive for several runs since each takes seconds to start."""

    def __init__(self, folder, count):
        self.names = [f"site-{i}" for i in range(count)]
        networks = mesh(Authority(folder), self.names, free_ports(count), PATIENCE)
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for name in self.names:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, name, self.names, networks[name]), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, what, number, hub="site-0", seeds=()):
        """Train over the network, the clients dealt out to the members; returns what each member has at the end.

        With `seeds` they train once for each of them, with the same programs, as the runs `number` and those after it;
        each begins when all have ended the one before. Returns, for each seed, what each member has.
        """
        found = []
        for place, seed in enumerate(seeds or (what.seed,)):
            for pipe in self._pipes:
                pipe.send((None if place else what, number + place, hub, seed))
            found.append([pipe.recv() for pipe in self._pipes])
            failed = [each for each in found[-1] if isinstance(each, str)]
            assert not failed, failed[0]
        return found

    def close(self):
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(20)
            assert process.exitcode == 0


def dealt(clients, names):
    """Return which clients live with which member."""
    return {name: list(range(clients))[place :: len(names)] for place, name in enumerate(names)}


def _serve(pipe, me, names, network):
    import traceback

    while (order := pipe.recv()) is not None:
        new, number, hub, seed = order
        try:
            if new is not None:  # otherwise once more the one before, with programs that are compiled
                what, here = new, dealt(len(new.federation), names)
                site = Site(what, np.array(here[me]))
            site.what = what._replace(seed=seed)
            carrier = ZenohCarrier(
                me=me, members=names, here=here, hub=hub, network=network, run=number, largest=LARGEST
            )
            with carrier:
                meet(carrier)
                half = site.run(carrier, number)
            pipe.send((half, carrier.counts))
        except BaseException:
            pipe.send(traceback.format_exc())
