"""How clients are batched: the choice for a model, a federation and a device."""

import jax
import numpy as np
from jax.sharding import Mesh

from coterie.data.clients import PARTS, Clients, Federation
from coterie.data.streams import BUFFERS, Reader, bytes_per_client
from coterie.errors import CoterieError
from coterie.experiment.device import Device
from coterie.learning.evaluate import BATCH
from coterie.learning.streams import Streamed
from coterie.learning.task import Task
from coterie.peers.local import Plan
from coterie.peers.ring import CLIENTS
from coterie.storage.memory import available, in_words

__all__ = ["plan_for", "refuse_too_large", "streamed"]

SMALL = 10_000  # parameters up to which a CPU runs dense models faster batched than client by client


def plan_for(
    task: Task, federation: Federation, device: Device, mode: str = "auto", chunk: int = 0, memory: int | None = None
) -> Plan:
    """Choose how clients are batched.

    On an accelerator everything is batched. On a CPU, only small dense models gain from it (`fast`); convolutions,
    recurrent cells and larger layers run best client by client (`exact`). Each core takes a share of the clients, and
    a chunk bounds the memory that batching takes. With a limit of `memory` one device does the work, on data that are
    there, or that come in groups.
    """
    if mode == "auto":
        mode = "fast" if device.platform != "cpu" or (task.dense and task.size <= SMALL) else "exact"
    if memory is not None and device.spread:
        raise CoterieError("run.memory is for one device: leave out --devices, or --memory")
    sharers = len(device.devices) if device.spread else min(len(device.devices), len(federation))
    sharers = sharers if memory is None else 1
    mesh = Mesh(np.array(device.devices[:sharers]), (CLIENTS,)) if sharers > 1 or device.spread else None
    if mode == "fast" and not chunk:
        fits = (memory_budget(device) if memory is None else memory // 2) // sharers // working_bytes(task, federation)
        chunk = max(1, fits) if fits < -(-len(federation) // sharers) else 0
    return Plan("exact" if mode == "exact" else "fast", chunk, mesh, device.spread)


def memory_budget(device: Device) -> int:
    """Return the bytes that batching may take: a quarter of a GPU's memory, 2 GiB on a CPU."""
    if device.platform == "cpu":
        return 2 << 30
    return int((device.here.memory_stats() or {}).get("bytes_limit", 32 << 30)) // 4


def streamed(federation: Federation, clients: Clients, memory: int) -> Clients:
    """Return the input of programs whose data may take half of `memory`, the other half being for batches: as they are
    where they fit, else read in groups of as many clients as fit."""
    parts = {name: getattr(federation, name) for name in PARTS}
    if sum(len(part.count) * bytes_per_client(part) for part in parts.values()) <= memory // 2:
        return clients
    group = memory // 2 // BUFFERS // max(map(bytes_per_client, parts.values()))
    if group < 1:
        raise CoterieError(
            f"run.memory: one client's samples take {in_words(max(map(bytes_per_client, parts.values())))}, and a "
            f"{BUFFERS * 2}th of {in_words(memory)} is for a group of them; raise it"
        )
    rows = np.arange(len(federation), dtype=np.int32)
    readers = {name: Streamed(rows, np.asarray(part.count), Reader(part, group)) for name, part in parts.items()}
    return clients._replace(**readers)


def refuse_too_large(clients: Clients, device: Device) -> None:
    """Refuse data that do not fit into the memory of the device, before they are copied to it."""
    needed = sum(np.asarray(array).nbytes for array in jax.tree.leaves(clients))
    if device.spread:  # each device has its share, and a CPU those of all devices of this process
        mine = sum(one.process_index == device.here.process_index for one in device.devices)
        needed = needed * (mine if device.platform == "cpu" else 1) // len(device.devices)
    stats = {} if device.platform == "cpu" else device.here.memory_stats() or {}
    free = available() if device.platform == "cpu" else stats.get("bytes_limit")
    if free is not None and needed > free - stats.get("bytes_in_use", 0):
        raise CoterieError(
            f"the data need {in_words(needed)} of memory on {device.platform} and {in_words(free)} are free; lower "
            "partition.samples and partition.test_samples (per client) or partition.clients, or set run.memory "
            "(--memory), beyond which data are read in groups"
        )


def working_bytes(task: Task, federation: Federation) -> int:
    """Estimate what one client needs while it trains or is evaluated: every intermediate value of one batch, and
    several copies of the model (gradient, update, momentum)."""
    x = jax.ShapeDtypeStruct((BATCH, *federation.sample_shape), jax.dtypes.canonicalize_dtype(federation.dtype))
    model = jax.eval_shape(task.init, jax.random.key(0))
    traced = jax.make_jaxpr(lambda model, x: task.apply(model, x)[0])(model, x)
    values = [variable.aval for equation in traced.eqns for variable in equation.outvars]
    return sum(a.size * a.dtype.itemsize for a in values) + 5 * task.size * np.dtype(task.dtype).itemsize
