"""A run whose clients live in two processes, each with a folder of its own; they talk through a pipe."""

import multiprocessing
from pathlib import Path

from coterie.experiment.config import Experiment
from coterie.experiment.device import choose_device
from coterie.experiment.job import Job
from coterie.experiment.members import Members
from coterie.experiment.place import Place
from coterie.experiment.run import execute
from coterie.peers.line import Line
from coterie.peers.pipe import PipeCarrier
from coterie.peers.remote import Remote
from coterie.sites.recording import RecordingCarrier

__all__ = ["run_in_two_places"]


class Half(Place):
    """The even clients, or the others."""

    def __init__(self, names, ids, connection):
        self.members = Members(tuple(names), tuple(ids), run=5)
        line = Line()
        self.carrier = RecordingCarrier(PipeCarrier(connection, set(ids), ids[0] == 0), names, ids)
        line.connect(self.carrier, 5)
        self.peers = Remote(line)

    def frames(self, first, rounds):
        """Return what the carrier has counted."""
        return self.carrier.frames(first, rounds)


def run_half(tables, connection, first, out):
    """Run every second client, from the first or from the second one on."""
    device = choose_device("cpu", cores=1)
    experiment, everyone = Experiment.from_dict(tables).load()
    ids = list(range(first, len(everyone), 2))
    job = Job.of(experiment, everyone.select(ids), clients=len(everyone))
    return execute(job, out=out, device=device, place=Half(everyone.names, ids, connection))


def run_in_two_places(tables, out):
    """Run it; the folders are `out/0` and `out/1`."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    partner = context.Process(target=run_half, args=(tables, there, 1, Path(out) / "1"), daemon=True)
    partner.start()
    try:
        run_half(tables, here, 0, Path(out) / "0")
    finally:
        partner.join(60)
    assert partner.exitcode == 0
    return [Path(out) / "0", Path(out) / "1"]
