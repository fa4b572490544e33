"""What a run will take, said beforehand: bytes are those of the ledger, and nothing is trained."""

import numpy as np
import pytest

import coterie as ct
from coterie.experiment.config import Experiment
from coterie.experiment.engine import Engine
from coterie.experiment.estimate import Pace, estimate, local_steps, measure
from coterie.experiment.job import Job
from coterie.methods import Ditto, FedAvg, GossipSGD
from coterie.testing.small import small_federation


def job_of(method, **options):
    federation = small_federation(6)
    return Job.of(Experiment.from_objects(federation, "linear", method, rounds=2, **options), federation)


@pytest.mark.parametrize(("method", "graph"), [(FedAvg(), "auto"), (GossipSGD(), "ring")])
def test_bytes_per_round_are_those_of_the_ledger(method, graph, device):
    job = job_of(method, graph=graph)
    foreseen = estimate(job, Engine.of(job, device), Pace(0.0, 0.0))
    totals = ct.run(small_federation(6), "linear", method, graph=graph, rounds=2, progress=False).ledger.totals()
    assert 2 * foreseen.sent == pytest.approx(totals["sent"].mean())
    assert 2 * foreseen.received == pytest.approx(totals["received"].mean())
    assert foreseen.parameters == 3 * 6 + 3


def test_the_time_grows_with_rounds_and_local_steps(device):
    pace = Pace(gradient=0.5, evaluation=0.25)
    job = job_of(Ditto(batch_size=4, epochs=3))
    largest = int(np.max(job.federation.train.count))
    assert local_steps(job) == 3 * -(-largest // 4)
    assert estimate(job, Engine.of(job, device), pace).seconds == 2 * local_steps(job) * 0.5 + 20 * 0.25
    assert local_steps(job_of(FedAvg(steps=7))) == 7
    measured = measure(job, Engine.of(job, device))
    assert measured.gradient > 0
    assert measured.evaluation > 0
