"""One model for all clients in the state of FedAvg and its kin: the same numbers as with a copy for each of them."""

import jax
import numpy as np
import pytest

from coterie.learning.task import Task
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedavg_finetuned import FedAvgFinetuned
from coterie.methods.fedopt import FedAdam
from coterie.methods.fedprox import FedProx
from coterie.numerics.tree import Same
from coterie.peers.local import Plan
from support.cases import regression, training

ROUNDS = 3


def trained(method, device, plan, copies):
    """Models, losses and bytes after some rounds, and the metrics; `copies` lets every client have its own model."""
    started = training(regression([3, 5, 2, 6, 4]), method, device, plan=plan)
    started.peers.certain = not copies
    state, rounds = started.advance(started.init()[0], 1, ROUNDS)
    assert isinstance(state.variables, Same) != copies
    metrics = started.evaluate(state, ROUNDS)
    weights = np.asarray(started.method.models(state).params.w)
    return weights, rounds.loss, metrics, rounds.traffic


def compare(method, device, plan, exactly):
    one, many = (trained(method, device, plan, copies) for copies in (False, True))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(many), strict=True):
        if exactly:
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def mesh_of(device):
    from jax.sharding import Mesh

    return Mesh(np.array(device.devices[:2]), ("clients",))


def test_one_client_after_another_gives_the_same_bits(device, x64):
    compare(FedAvg(lr=0.1, batch_size=2, momentum=0.9, participation=0.6), device, Plan("exact"), exactly=True)


def test_chunks_on_two_devices_give_the_same_numbers(device, x64):
    compare(FedAdam(lr=0.1, batch_size=2, momentum=0.9), device, Plan("fast", 2, mesh_of(device)), exactly=False)


@pytest.mark.soak
@pytest.mark.parametrize("participation", [0.6, 1.0])
@pytest.mark.parametrize("kind", [FedAvg, FedProx, FedAvgFinetuned, FedAdam])
@pytest.mark.parametrize("settings", [("fast",), ("fast", 2), ("fast", 1, True), ("exact",), ("exact", 0, True)])
def test_every_plan_gives_the_same_numbers(device, x64, settings, kind, participation):
    plan = Plan(settings[0], *settings[1:2], *[mesh_of(device)] * (len(settings) > 2))
    method = kind(lr=0.1, batch_size=2, momentum=0.9, participation=participation)
    compare(method, device, plan, exactly=kind is not FedAdam and settings[0] == "exact")


def test_personal_layers_and_lossy_runs_keep_a_model_for_each(device, x64):
    federation = regression([3, 5])
    started = training(federation, FedAvg(lr=0.1), device)
    assert isinstance(started.shapes().variables, Same)
    started.peers.certain = False
    assert not isinstance(started.shapes().variables, Same)
    started = training(federation, FedAvg(lr=0.1), device, personal=("w",))
    assert isinstance(started.task, Task)
    assert not isinstance(started.shapes().variables, Same)
