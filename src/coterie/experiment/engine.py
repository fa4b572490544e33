"""A federation on a device, and the programs compiled for it: what is heavy and shared by all runs on that federation.

It knows nothing of methods (`experiment/training.py`) or files.
"""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from coterie.data.buckets import Buckets
from coterie.data.clients import Clients, Federation
from coterie.experiment.compiler import compiled, compiled_aside, options_for
from coterie.experiment.device import Device
from coterie.experiment.job import Job, precision
from coterie.experiment.plan import plan_for, refuse_too_large, streamed
from coterie.experiment.profiling import NO_PROFILE
from coterie.experiment.programs import fitting, repairing
from coterie.learning.buckets import buckets_of, is_buckets
from coterie.learning.streams import streamed_of
from coterie.learning.task import Task
from coterie.numerics.tree import is_same
from coterie.peers.local import Plan
from coterie.peers.mesh import padded_rows, passes_left_out
from coterie.peers.ring import CLIENTS
from coterie.peers.shards import elsewhere, fetched, my_rows, own_rows, placed, rows_placed, spread_rows
from coterie.storage.memory import in_bytes

__all__ = ["Engine"]

LITTLE = 500_000_000  # products of a parameter and a row: a tenth of a second for a program that is not optimised


class Engine:
    """A federation on a device, and the programs compiled for it.

    Args:
        task: what each client learns.
        federation: the clients' data; it is copied to the device once and is an argument of every program.
        device: where to run.
        plan: how clients are batched; default chosen for the model and the device.
        like: an engine with the same task, device and plan, whose programs serve here, too.
        memory: bytes that data and batches may take on the device; None: as many as there are.
    """

    def __init__(
        self,
        task: Task,
        federation: Federation,
        device: Device,
        plan: Plan | None = None,
        like: "Engine | None" = None,
        memory: int | None = None,
    ):
        self.task, self.device = task, device
        self._limited = memory is not None
        self.plan = plan or plan_for(task, federation, device, memory=memory)
        self.size = len(federation)
        # Rows of every array of clients: on a mesh, each device has equally many.
        devices = self.plan.mesh.size if self.plan.mesh is not None and self.plan.spread else 1
        self.rows = spread_rows(devices, self.size)
        if devices > 1 and buckets_of(federation.train) is not None:  # a device could not hold a part of a bucket
            federation = federation.in_buckets([np.arange(self.size)])
        clients = federation.arrays()
        clients = clients if memory is None else streamed(federation, clients, memory)
        refuse_too_large(clients, device)
        # Rows are only added where there are no buckets, which have fewer rows than there are clients.
        self.clients: Clients = self.place(clients) if buckets_of(clients) else self.place_clients(clients)
        self.seconds = {"compile": 0.0, "program": 0.0}
        self.profile = NO_PROFILE
        self.traces = 0
        self._settings: dict[Any, jax.Array] = {}
        self._compiled: dict[Any, Any] = {} if like is None else like._compiled
        # Methods that sent something before the first round; known where a program was traced, so shared with it.
        self.talked_at_start: set[type] = set() if like is None else like.talked_at_start

    @classmethod
    def of(cls, job: Job, device: Device, like: "Engine | None" = None) -> "Engine":
        """Make the engine of a job: its task and its federation on a device, batched as its settings say."""
        with precision(job.settings.precision):
            settings = job.settings
            memory = None if settings.memory is None else in_bytes(settings.memory, "run.memory")
            plan = plan_for(job.task, job.federation, device, settings.mode, settings.chunk, memory)
            like = like if like is not None and like.plan == plan else None
            return cls(job.task, job.federation, device, plan, like, memory)

    def put(self, x: Any) -> Any:
        """Copy to the device, or to all devices that share the work."""
        if self.plan.mesh is None:
            return jax.device_put(x, self.device.devices[0])
        return placed(x, NamedSharding(self.plan.mesh, PartitionSpec()))

    def place(self, x: Any, axis: int = 0) -> Any:
        """Copy to the device; arrays whose `axis` is the clients are shared out if they divide evenly."""
        mesh = self.plan.mesh
        if mesh is None:
            return self.put(x)
        split = NamedSharding(mesh, PartitionSpec(*[None] * axis, CLIENTS))
        whole = NamedSharding(mesh, PartitionSpec())

        def sharding(value: Any, size: int) -> Any:
            if is_same(value):
                return jax.tree.map(lambda _: whole, value)
            if is_buckets(value):
                parts = tuple(of_all(part, len(where)) for part, where in value.stacks)
                return Buckets(parts, *jax.tree.map(lambda _: whole, tuple(value)[1:]))
            return split if np.shape(value)[axis : axis + 1] == (size,) and size % mesh.size == 0 else whole

        def of_all(x: Any, size: int) -> Any:
            return jax.tree.map(lambda a: sharding(a, size), x, is_leaf=lambda node: is_buckets(node) or is_same(node))

        return placed(x, of_all(x, self.rows))

    @property
    def mine(self) -> slice:
        """Which rows of all clients' arrays are on devices of this process."""
        return my_rows(self.plan.mesh, self.rows)

    def place_clients(self, x: Any) -> Any:
        """Copy arrays that have a row for every client to the devices."""
        if not elsewhere(self.plan.mesh):
            return self.place(x if self.rows == self.size else padded_rows(x, self.rows))
        return rows_placed(x, self.plan.mesh, self.rows, slice(0, self.size))

    def place_kept(self, x: Any) -> Any:
        """Copy arrays that `kept` has brought to the host back to the devices."""
        if not elsewhere(self.plan.mesh):
            return self.place_clients(x)
        return self._where(x, lambda a: rows_placed(a, self.plan.mesh, self.rows, self.mine), self.put)

    def kept(self, x: Any) -> Any:
        """Copy arrays that have a row for every client to the host: all rows, or those that live in this process."""
        if not elsewhere(self.plan.mesh):
            return self.trimmed(jax.device_get(x))
        return self._where(x, own_rows, fetched)

    def _where(self, x: Any, of_clients: Callable[[Any], Any], of_all: Callable[[Any], Any]) -> Any:
        """Return one function of the arrays that have a row for every client, another of what is the same for all."""
        return jax.tree.map(lambda a: of_all(a) if is_same(a) else of_clients(a), x, is_leaf=is_same)

    def fetched(self, x: Any, axis: int = 0) -> Any:
        """Copy to the host, without the rows that were added for the devices; every process gets the whole."""
        return self.trimmed(fetched(x), axis)

    def constrained(self, x: Any) -> Any:
        """Keep arrays of all clients spread over the mesh, inside a program."""
        if self.plan.mesh is None or not self.plan.spread:
            return x
        spread = NamedSharding(self.plan.mesh, PartitionSpec(CLIENTS))
        of_clients = lambda a: not is_same(a) and a.shape[:1] == (self.rows,)  # noqa: E731
        return jax.tree.map(
            lambda a: lax.with_sharding_constraint(a, spread) if of_clients(a) else a, x, is_leaf=is_same
        )

    def trimmed(self, x: Any, axis: int = 0) -> Any:
        """Return arrays of all clients on the host, without the rows that were added for the devices."""
        if self.rows == self.size:
            return x
        rows = (slice(None),) * axis + (slice(self.size),)

        def cut(a: Any) -> Any:
            of_clients = not is_same(a) and np.shape(a)[axis : axis + 1] == (self.rows,)
            return np.asarray(a)[rows] if of_clients else a

        return jax.tree.map(cut, x, is_leaf=is_same)

    def call(
        self,
        program: Callable,
        name: Any,
        *arguments: Any,
        donate: int | None = None,
        ready: Callable[[], None] | None = None,
        light: bool = False,
    ) -> Any:
        """Run a program, compiled once for a name and the structure of its arguments; compilation is timed apart.

        `ready` is called between the two: what begins there (the time that peers wait for each other) is not spent on
        compilation. A `light` program takes longer to compile than to run.
        """
        runs, arguments = self.compile(program, name, *arguments, donate=donate, light=light)
        if ready is not None:
            ready()
        start = time.perf_counter()
        with fitting():
            result = self.profile.run(name, runs, lambda: jax.block_until_ready(runs(*arguments)))
        self.seconds["program"] += time.perf_counter() - start
        return result

    def evaluates_little(self, task: Task, times: int) -> bool:
        """Whether it takes longer to compile a program that evaluates all clients than to run it so many times.

        Not where clients are computed one by one: their numbers must be those of clients with other data elsewhere. On
        a GPU it always does.
        """
        if self.device.platform == "gpu":
            return True
        parts = (self.clients.validation, self.clients.test)
        if self.plan.mode == "exact" or not task.dense or streamed_of(parts) is not None:
            return False
        stacks = [stack for part in parts for stack in (part.parts if is_buckets(part) else (part,))]
        return times * sum(math.prod(stack.x.shape[:2]) for stack in stacks) * task.size <= LITTLE

    def compile(
        self,
        program: Callable,
        name: Any,
        *arguments: Any,
        donate: int | None = None,
        light: bool = False,
        aside: bool = False,
    ) -> tuple[Any, Any]:
        """Return the compiled program of `call`, and its arguments on the device.

        `aside` returns at once what will be the program, a future, while a thread compiles it.
        """
        start = time.perf_counter()
        apart = elsewhere(self.plan.mesh)
        there = lambda a: hasattr(a, "sharding") and not (apart and a.is_fully_addressable)  # noqa: E731
        arguments = jax.tree.map(lambda a: a if there(a) else self._copied(a), arguments)
        leaves, structure = jax.tree.flatten(arguments)
        signature = (name, structure, tuple((a.shape, a.dtype, a.sharding) for a in leaves))
        found = self._compiled.get(signature)
        if found is not None and (aside or not isinstance(found, Future)):
            return found, arguments
        if found is not None and found.exception() is None:
            found = found.result()
        else:  # also where a thread found too little memory to try kernels, beside a program that ran: once more, alone
            self.traces += 1
            # A GPU's products without kernels of XLA's own take a workspace that no limit on memory knows of.
            light = light and not (self._limited and self.device.platform == "gpu")
            options = options_for(self.device.platform, light, passes_left_out(self.plan))
            with self.profile.compiling(), repairing(), fitting():
                lowered = jax.jit(program, donate_argnums=() if donate is None else donate).lower(*arguments)
                found = (compiled_aside if aside else compiled)(lowered, options)
        self._compiled[signature] = found
        self.seconds["compile"] += time.perf_counter() - start
        return found, arguments

    @property
    def compiles_aside(self) -> bool:
        """Whether threads that compile take nothing from what trains, is timed, or needs most of the memory."""
        if self.device.platform != "gpu" or self.plan.mesh is not None or self.profile is not NO_PROFILE:
            return False
        used = self.device.devices[0].memory_stats() or {}  # XLA tries kernels on arrays of their size
        return not self._limited and 4 * used.get("bytes_in_use", 0) <= used.get("bytes_limit", 0)

    def _copied(self, value: Any) -> Any:
        """Copy an argument to the device: settings of a method once, since each copy delays a round on a GPU."""
        if not isinstance(value, bool | int | float):
            return self.put(value if isinstance(value, np.generic) else jnp.asarray(value))
        key = type(value), value
        if key not in self._settings:
            self._settings[key] = self.put(jnp.asarray(value))
        return self._settings[key]
