"""Clients that are spread over the devices of a mesh: the numbers of one device, and a share of its memory."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import coterie as ct
from coterie.errors import CoterieError
from coterie.experiment.config import Experiment
from coterie.experiment.device import Device, choose_device
from coterie.experiment.engine import Engine
from coterie.experiment.folder import RunFolder
from coterie.experiment.job import Job
from coterie.experiment.run import execute
from coterie.experiment.training import Training
from coterie.graphs.mixing import metropolis
from coterie.graphs.topologies import Ring
from coterie.learning.task import Task
from coterie.methods import FedAvg, GossipSGD
from coterie.models.mlp import Mlp
from coterie.numerics.tree import divide
from coterie.peers.local import Plan
from coterie.peers.mesh import simulation
from coterie.peers.ring import BLOCK, in_turn, take, weighted_sum
from coterie.peers.tables import make_tables
from coterie.testing.small import small_federation

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak_mesh.py"


@pytest.fixture
def mesh(device):
    return Mesh(np.array(device.devices), ("clients",))


def spread_over(device):
    return Device("cpu", device.devices, "two devices", spread=True)


def test_rows_come_round_the_ring(mesh):
    random = np.random.default_rng(0)
    rows = {"a": random.normal(size=(8, 3)), "b": random.integers(0, 9, (8, 2, 2))}
    which, second = random.integers(0, 8, (8, 5)), random.integers(0, 2, (8, 5))
    found = jax.jit(lambda r, w: take(mesh, r, w))(rows, which)
    np.testing.assert_array_equal(found["a"], rows["a"].astype(np.float32)[which])
    np.testing.assert_array_equal(found["b"], rows["b"][which])
    pairs = jax.jit(lambda r, w, s: take(mesh, r, w, s))(rows["b"], which, second)
    np.testing.assert_array_equal(pairs, rows["b"][which, second])


@pytest.mark.parametrize("limit", [BLOCK, 1])
def test_weighted_sums_of_rows(mesh, limit, monkeypatch, x64):
    monkeypatch.setattr("coterie.peers.ring.BLOCK", limit)
    random = np.random.default_rng(1)
    rows, weights, start = random.normal(size=(8, 3)), random.normal(size=(8, 4)), random.normal(size=(8, 3))
    which = random.integers(0, 8, (8, 4))
    found = jax.jit(lambda *a: weighted_sum(mesh, *a))(rows, which, weights, start)
    np.testing.assert_allclose(found, start + np.einsum("ck,ckd->cd", weights, rows[which]), rtol=1e-13)


def test_devices_add_one_after_another(mesh):
    values = jnp.asarray([1e8, 1, 1, 1, -1e8, 1, 1, 1], jnp.float32)  # in another order the sum is another one

    def add(total, shard):
        return jax.lax.fori_loop(0, shard.shape[0], lambda k, t: t + shard[k], total)

    expected = np.float32(0)
    for value in np.asarray(values):
        expected += value
    assert float(in_turn(mesh, add, jnp.float32(0), values)) == expected


def test_collectives_of_a_cpu_that_are_not_inside_a_loop(mesh, monkeypatch):
    """Where they are, XLA may begin one that comes after the loop before those inside, on some devices only."""
    rows, which = jnp.arange(2400.0).reshape(8, 300), jnp.asarray(np.random.default_rng(0).integers(0, 8, (8, 5)))
    summed = jax.jit(lambda rows: in_turn(mesh, lambda total, shard: total + shard.sum(0), rows[0], rows))
    program = summed.lower(rows).compile().as_text()
    assert "all-reduce(" in program
    assert " while(" not in program
    monkeypatch.setattr("coterie.peers.ring._of_several_processes", lambda mesh: True)
    taken = jax.jit(lambda rows, which: take(mesh, rows, which)).lower(rows, which).compile()
    assert "collective-permute(" in taken.as_text()
    assert " while(" not in taken.as_text()
    np.testing.assert_array_equal(jax.jit(lambda rows, which: take(mesh, rows, which))(rows, which), rows[which])


@pytest.mark.parametrize(
    ("where", "methods", "mode"),
    [
        (("--devices", "8"), "fedavg,fomo", "exact"),  # a method with a hub, and one that asks its neighbours
        (("--devices", "8"), "feddyn,fedavgm", "fast"),  # whose rounds magnify the rounding of a mean
        (("--devices", "2", "--processes", "2"), "fedavg,scool-sbm", "exact"),
    ],
)
def test_a_mesh_gives_the_numbers_of_one_device(where, methods, mode, tmp_path, monkeypatch):
    """Seven clients on devices of one other process, and of two."""
    monkeypatch.setenv("COTERIE_BENCHMARKS", str(tmp_path))
    command = [sys.executable, str(SOAK), *where, "--methods", methods, "--modes", mode, "--precisions", "float32"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("bytes equal") == 2


@pytest.mark.parametrize("count", [1, 3])
def test_fast_means_do_not_depend_on_the_devices(mesh, count):
    """Added up in float64 and rounded once; float32 would lose the small numbers, each order others of them."""
    random = np.random.default_rng(4)
    values = (random.normal(size=(8, 50)) * 10.0 ** random.integers(-3, 4, (8, 50))).astype(np.float32)
    weight, label = random.integers(3, 12, 8).astype(np.float32), np.arange(8) % count
    graph = Ring(reach=1).build(8, 0)
    tables = jax.tree.map(jnp.asarray, make_tables(graph, metropolis(graph)[0], np.arange(8), np.float32))

    def means(made_by):
        return jax.jit(lambda *a: made_by.make(tables).mean(a[0], a[1], (a[2], count))[0])(values, weight, label)

    one_hot = (label == np.arange(count)[:, None]) * weight.astype(np.float64)
    expected = (one_hot @ values.astype(np.float64) / one_hot.sum(1, keepdims=True)).astype(np.float32)[label]
    for plan in (Plan("fast"), Plan("fast", 0, mesh, spread=True)):
        np.testing.assert_allclose(means(simulation(plan)), expected, rtol=1e-7)


def test_exact_mode_divides_as_one_device(device, mesh):
    """The compiler makes a product of a division by a number that is not used again; of several it must be the same."""
    federation = small_federation(8)
    task = Task.of(federation, Mlp(hidden=(4,)))
    random = np.random.default_rng(2)
    arrays = [random.normal(size=(8, *shape)).astype(np.float32) for shape in ((3, 6), (3, 6), (3,), (3,))]
    by = random.integers(3, 12, 8).astype(np.int32)

    def shares(by, *arrays):
        return [a / by.reshape(-1, *[1] * (a.ndim - 1)).astype(a.dtype) for a in arrays]

    def computed(plan):
        engine = Engine(task, federation, device, plan)
        return engine.call(shares, "shares", *engine.place((by, *arrays)))

    for a, b in zip(computed(Plan("exact", 0, mesh, spread=True)), computed(Plan("exact")), strict=True):
        np.testing.assert_array_equal(a, b)


def test_parts_of_clients_are_divided_alike_on_a_mesh(mesh):
    """In fast mode, too: by a product with the inverse, in one program and in the other."""
    random = np.random.default_rng(3)
    arrays = [random.normal(size=(8, *shape)).astype(np.float32) for shape in ((3, 6), (3, 6), (3,), (3,))]
    by = random.integers(3, 12, 8).astype(np.int32)
    spread = jax.device_put((arrays, by), NamedSharding(mesh, PartitionSpec("clients")))
    for a, before in zip(jax.jit(divide)(*spread), arrays, strict=True):
        inverse = (np.float32(1) / by.astype(np.float32)).reshape(-1, *[1] * (before.ndim - 1))
        np.testing.assert_array_equal(a, before * inverse)


TROUBLE = {"faults": {"drop": [{"rate": 0.3}], "poison": [{"members": ["client-2"], "kind": "nan"}]}, "robust": "clip"}


@pytest.mark.parametrize(
    ("method", "more"),
    [
        pytest.param("fedavg", TROUBLE, marks=pytest.mark.soak),
        ("gossip-sgd", TROUBLE),
        pytest.param("ditto", {"codec": "qsgd"}, marks=pytest.mark.soak),
        pytest.param("fedavg", {"hub": "none", "all_to_all": 1}, marks=pytest.mark.soak),
    ],
)
def test_faults_and_codecs_on_a_mesh(device, method, more):
    settings = {"rounds": 3, "mode": "exact", "evaluate_every": 3, "progress": False, **more}
    whole, spread = (
        ct.run(small_federation(7), "linear", method, device=where, **settings)
        for where in (device, spread_over(device))
    )
    np.testing.assert_equal(spread.rows, whole.rows)
    np.testing.assert_equal(spread.ledger.totals(), whole.ledger.totals())


def test_continues_on_another_number_of_devices(device, tmp_path):
    tables = {"run": {"rounds": 4, "evaluate_every": 2, "mode": "exact", "checkpoint_every": 1},
              "partition": {"clients": 5}, "method": {"name": "fedavg"}, "model": {"name": "linear"}}  # fmt: skip
    job = Job.of(Experiment.from_dict(tables))
    straight = execute(job, device=device)

    class StoppedError(Exception):
        pass

    def stop(stage, number, rounds, metrics):
        if stage == "round":
            raise StoppedError

    with pytest.raises(StoppedError):
        execute(job, out=tmp_path / "run", device=spread_over(device), progress=stop)
    with pytest.warns(UserWarning, match="was begun on"):
        resumed = execute(job, out=tmp_path / "run", device=device._replace(devices=device.devices[:1]))
    np.testing.assert_equal(resumed.final, straight.final)
    assert RunFolder(tmp_path / "run").complete


def test_each_device_holds_a_share(device):
    """The compiler's own account: models and temporary values of one of two devices against one that has all."""
    clients = 16
    federation = small_federation(clients, size=6)
    task, graph = Task.of(federation, Mlp(hidden=(128, 128))), Ring(reach=1).build(clients, 0)
    used = {}
    for count in (1, 2):
        plan = Plan("fast", 0, Mesh(np.array(device.devices[:count]), ("clients",)), spread=True)
        for method in (GossipSGD(lr=0.1, batch_size=0), FedAvg(lr=0.1, batch_size=0)):
            started = Training(Engine(task, federation, device, plan), method, graph, metropolis(graph)[0], 0)
            program, name, inputs = started._rounds_program(started.outline(), 1, 2, None)
            always = (started.method, started._tables, started.engine.clients)
            memory = started.engine.compile(program, name, *always, *inputs, donate=4)[0].memory_analysis()
            used[count, type(method)] = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    models = clients * task.size * 4
    for method in (GossipSGD, FedAvg):
        assert used[1, method] > 2 * models
        assert used[2, method] < 0.85 * used[1, method]


def test_wrong_numbers_of_devices(device):
    for wrong in (0, -1, 5000, 1.5):
        with pytest.raises(CoterieError, match="devices must be a whole number from 1 to 1024"):
            choose_device("cpu", devices=wrong)
    with pytest.raises(CoterieError, match="device cpu:2 is one choice and devices 4 another"):
        choose_device("cpu:2", devices=4)
    with pytest.raises(CoterieError, match="JAX is already in use in this process with 2"):
        choose_device("cpu", devices=64)
