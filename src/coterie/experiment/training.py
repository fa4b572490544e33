"""One method, one graph and one seed on an engine: the rounds between two evaluations are a single compiled program."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie.codecs.base import Codec
from coterie.data.clients import Clients
from coterie.experiment.engine import Engine
from coterie.experiment.judging import Judging
from coterie.experiment.looping import looped
from coterie.experiment.returned import checked_round, poisoned, refuse_silence, refuse_spread
from coterie.experiment.rounds import Rounds, joined
from coterie.experiment.stages import Stages
from coterie.experiment.states import Coded, is_hub
from coterie.graphs.graph import Graph
from coterie.methods.base import Info, Method
from coterie.numerics.tree import column
from coterie.peers.base import Traffic, on_host
from coterie.peers.coding import Coder
from coterie.peers.factory import Lost, PeersFactory
from coterie.peers.injection import FaultTables, Injection, injected, one_round
from coterie.peers.local import Simulation
from coterie.peers.mesh import padded_tables, simulation
from coterie.peers.shards import fetched
from coterie.peers.tables import make_tables, widened

__all__ = ["Training"]

FEW_PARAMETERS = 300_000  # of a model whose first weights are drawn faster than code that draws faster is made


class Training(Stages, Judging):
    """One method with one seed on an engine.

    Args:
        engine: the federation on its device.
        method: how the clients cooperate.
        graph: who hears whom (`Graph.empty` for methods without neighbours).
        weights: `[K, D]` mixing weights of the graph.
        seed: everything random is drawn from (seed, round, client id).
        ids: the id of the client in each row of the federation; default 0, 1, 2, ...
        codec: how messages are encoded; None sends them as they are. Its memory is then part of the state.
        peers: how clients reach each other; default: a simulation, in which all of them live here.
        faults: what goes wrong; None: nothing.
        robust: how far received values may be away (`peers/robust.py`); None: as far as they are.
    """

    def __init__(
        self,
        engine: Engine,
        method: Method,
        graph: Graph,
        weights: np.ndarray,
        seed: int,
        ids: np.ndarray | None = None,
        codec: Codec | None = None,
        peers: PeersFactory | None = None,
        faults: Injection | None = None,
        robust: float | None = None,
    ):
        self.peers, self.faults = peers or simulation(engine.plan), faults
        self.peers.robust = robust
        self.peers.certain = faults is None and codec is None and robust is None
        self.peers.most_present = None if faults is None else faults.most_present
        self.engine, self.task, self.method, self.codec = engine, method.adapt(engine.task), method, codec
        self._ids = ids
        self._width = graph.listeners[0].shape[1]
        self.longest = 1  # rounds that one call is to run at most, as far as is known: shorter calls share its program
        self._use(graph, weights)
        keys = jax.random.split(jax.random.key(seed), 3)
        self._init_key, self._round_key, self._tune_key = (engine.put(key) for key in keys)

    def _use(self, graph: Graph, weights: np.ndarray) -> None:
        self.graph = graph
        tables = make_tables(graph, weights, self._ids, np.dtype(self.task.dtype).type)
        if self.codec is None and isinstance(self.peers, Simulation):  # elsewhere an empty place is a place for bytes
            tables = widened(tables, self._width)
        self.peers.use_tables(tables)
        place = self.engine.place if self.engine.plan.spread else self.engine.put
        self._tables = place(padded_tables(tables, self.engine.rows))

    def init(self, arrivals: Lost = None) -> tuple[Any, Rounds]:
        """Return the state before the first round, and what it cost to get there."""
        lost = one_round(self.faults.tables(0)) if arrivals is None and self.faults is not None else arrivals
        # A program that is not optimised rounds by what else is in it: not where clients elsewhere need the same bits.
        light = self.engine.plan.mode != "exact" and self.task.size <= FEW_PARAMETERS
        state, traffic = self.call(self._init, "init", self._init_key, lost, ready=self._starts(0), light=light)
        zero = np.zeros((1, self.engine.size))
        return self._placed(self._with_memory(state)), Rounds(zero, self._one_round(traffic), None)

    def _init(self, method: Method, tables: Any, clients: Clients, key: Any, lost: Any) -> tuple[Any, Traffic]:
        peers = self.peers.make(tables, lost)
        state = method.init(self.task, peers, clients, key)
        if peers.talked:
            self.engine.talked_at_start.add(type(method))
        return state, peers.traffic()

    def outline(self) -> Any:
        """Return a state of the right structure, shapes and types, of zeros: nothing is computed or sent for it."""
        state = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), self.shapes())
        return self.engine.place(self._with_memory(state))

    def shapes(self) -> Any:
        """Return the structure, shapes and types of the method's state; nothing is computed or sent for it.

        In a later stage they are those of the first one on the present graph, after each stage that has ended.
        """

        def state(methods: tuple[Method, ...], tables: Any, clients: Clients, key: Any) -> Any:
            state, _ = self._init(methods[0], tables, clients, key, None)
            for ended in methods[:-1]:
                state = ended.narrow(state, lambda slots: slots)
            return state

        return jax.eval_shape(state, (*self.former, self.method), self._tables, self.engine.clients, self._init_key)

    def _starts(self, number: int) -> Callable[[], None]:
        return lambda: self.peers.start_round(number)

    def prepare(self) -> None:
        """Compile a round and its evaluation, and trace what else is sent, before anybody waits for this process."""
        state = self.outline()
        for program, name, inputs, how in self.programs(state):
            self.compile(program, name, *inputs, **how)
        if self.method.stages():
            jax.eval_shape(self._keep, self.method, self._tables, self.engine.clients, self.inner(state))

    def programs(self, state: Any) -> list[tuple[Callable, Any, tuple, dict[str, Any]]]:
        """Return what trains and evaluates in this stage, as arguments of `compile`; of `state`, only what it is like
        counts."""
        rounds = self.peers.rounds_per_call or self.longest
        trains = self._rounds_program(state, 1, rounds, self._faults_of(1, rounds))
        evaluates = (self._evaluate, "evaluate", self._evaluated(state, 1))
        return [(*trains, {"donate": 4}), (*evaluates, {"light": self._light})]

    def advance(self, state: Any, first: int, rounds: int, arrivals: Lost = None) -> tuple[Any, Rounds]:
        """Run rounds `first`, ..., `first + rounds - 1` (counted from 1); `state` is used up."""
        per_call, blocks = self.peers.rounds_per_call or rounds, []
        arrivals = self._faults_of(first, rounds) if arrivals is None else arrivals
        for start in range(0, rounds, per_call):
            end = min(start + per_call, rounds)
            lost = jax.tree.map(lambda a, start=start, end=end: a[start:end], arrivals)
            state, block = self._advance(state, first + start, end - start, lost)
            blocks.append(block)
        return state, joined(blocks)

    def _advance(self, state: Any, first: int, rounds: int, arrivals: Lost) -> tuple[Any, Rounds]:
        """Run some rounds as one program."""
        program, name, inputs = self._rounds_program(state, first, rounds, arrivals)
        state, (info, traffic) = self.call(program, name, *inputs, donate=4, ready=self._starts(first))
        info, traffic = fetched((info, traffic))
        info, traffic = self.engine.trimmed((info, on_host(traffic)), axis=1)
        return self._placed(state), self._reported(info, traffic, rounds)

    def _one_round(self, traffic: Traffic) -> Traffic:
        """Copy what one round sent to the host, as a block of rounds."""
        return jax.tree.map(lambda a: a[None], self.engine.trimmed(on_host(fetched(traffic))))

    def _placed(self, state: Any) -> Any:
        """Copy a state to the device."""
        return self.engine.place(state)

    def _reported(self, info: Any, traffic: Traffic, rounds: int) -> Any:
        """Return what a block of rounds tells the loop, from what its program returned, on the host."""
        info, traffic = jax.tree.map(lambda a: a[:rounds], (info, traffic))
        weights = None if info.weights is None else info.weights[-1]
        counts = None if info.counts is None else {name: value[-1] for name, value in info.counts.items()}
        return Rounds(info.loss, traffic, weights, counts)

    def _rounds_program(self, state: Any, first: int, rounds: int, arrivals: Any) -> tuple[Callable, Any, tuple]:
        """Return the program of some rounds, its name and its arguments.

        Blocks of rounds differ in length where a stage ends between two evaluations, or a run. One program serves all
        of them: it has place for the longest, and how many rounds it runs is an argument.
        """
        self.longest = most = max(self.longest, rounds)

        def program(
            method: Method,
            tables: Any,
            clients: Clients,
            key: Any,
            state: Any,
            first: Any,
            lost: Any,
            codec: Any,
            count: Any,
        ) -> Any:
            def one(state: Any, inputs: tuple) -> tuple[Any, tuple[Info, Traffic]]:
                number, arrivals = inputs
                after = self._round(method, tables, clients, key, state, number, arrivals, codec)
                return self.engine.constrained(after[0]), after[1]

            return looped(one, state, first, rounds if count is None else count, lost, most)

        shared = most > 1 and arrivals is None
        count, name = (np.int32(rounds), most) if shared else (None, rounds)
        inputs = (self._round_key, state, np.int32(first), arrivals, self.codec, count)
        return program, ("advance", name, shared), inputs

    def _round(
        self,
        method: Method,
        tables: Any,
        clients: Clients,
        key: Any,
        state: Any,
        number: Any,
        arrivals: Any,
        codec: Any,
    ) -> tuple[Any, tuple[Info, Traffic]]:
        """Trace one round; returns the state after it, what a person wants to see of it, and what it sent."""
        now, round_key = method.at_round(number), jax.random.fold_in(key, number)
        if codec is None:
            peers = self.peers.make(tables, arrivals)
            after, info = checked_round(now, self.task, state, peers, clients, round_key)
            refuse_silence(method, peers.talked or type(method) in self.engine.talked_at_start)
            if (faults := injected(arrivals)) is not None:
                after = self._of_those_present(faults, tables.ids, state, after)
            return after, (info, peers.traffic())
        coder = Coder(codec.at_round(number), round_key, state.memory)
        peers = self.peers.make(tables, arrivals, coder)
        inner, info = checked_round(now, self.task, state.method, peers, clients, round_key)
        return Coded(inner, peers.memory), (info, peers.traffic())

    def _faults_of(self, first: int, rounds: int) -> FaultTables | None:
        return None if self.faults is None else self.faults.tables(first, rounds)

    def _of_those_present(self, faults: FaultTables, ids: Any, before: Any, after: Any) -> Any:
        """Return the state after a round in which some clients were frozen, busy or took no part."""
        frozen = faults.frozen[ids]
        if faults.world:
            after = self.without(faults.world.out[ids], self.method.absent(self.task, before, after), after)
            frozen = frozen | faults.world.busy[ids]
        return self.without(frozen, before, after)

    def without(self, away: Any, before: Any, after: Any) -> Any:
        """Return the state after a round in which the clients `away [C]` did nothing; the hub is not one of them."""
        count = len(away)

        def kept(path: Any, old: Any, new: Any) -> Any:
            hub = is_hub(self.method, path)
            return new if hub or new.shape[:1] != (count,) else jnp.where(column(away, new), old, new)

        return jax.tree_util.tree_map_with_path(kept, before, after)

    def _nothing_remembered(self, state: Any) -> dict:
        """Return the codec's memory before the first round of a stage, which starts with whole messages.

        Which verbs a round calls is discovered by tracing one.
        """

        def trial(method: Method, tables: Any, clients: Clients, key: Any, state: Any, codec: Any) -> Any:
            return self._round(method, tables, clients, key, Coded(state, None), 1, None, codec)[0].memory

        inputs = (self.method, self._tables, self.engine.clients, self._round_key, state, self.codec)
        return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(trial, *inputs))

    def price(self, state: Any) -> Traffic:
        """Return what a round sends, without its training: the compiler drops what the traffic does not need."""

        def program(method: Method, tables: Any, clients: Clients, key: Any, state: Any, codec: Any) -> Traffic:
            return self._round(method, tables, clients, key, state, 1, None, codec)[1][1]

        traffic = self.call(program, "price", self._round_key, state, self.codec, ready=self._starts(1))
        return self.engine.trimmed(on_host(fetched(traffic)))

    def refuse_secret_mixing(self, state: Any, rounds: int) -> None:
        """Refuse a method of the user's own that sends nothing and still mixes clients; the state stays as it is."""
        ours = type(self.method).__module__.startswith("coterie.")
        if ours or self.method.topology != "none" or self.engine.size < 2:
            return
        after, _ = self.advance(self.engine.place(poisoned(state, self.engine.rows)), 1, rounds)
        refuse_spread(self.method, fetched(self.method.models(self.inner(after)).params))

    def inner(self, state: Any) -> Any:
        """Return the method's own part of a state."""
        return state if self.codec is None else state.method

    def _with_memory(self, state: Any) -> Any:
        """Return a state from the method's own part, with a codec that remembers nothing."""
        return state if self.codec is None else Coded(state, self._nothing_remembered(state))

    def call(
        self,
        program: Callable,
        name: Any,
        *arguments: Any,
        donate: int | None = None,
        ready: Callable[[], None] | None = None,
        light: bool = False,
    ) -> Any:
        """Run a program of this training, as `Engine.call` does; the method, its tables and the data come first."""
        key, always = (name, self.peers.programs), (self.method, self._tables, self.engine.clients)
        return self.engine.call(program, key, *always, *arguments, donate=donate, ready=ready, light=light)

    def compile(self, program: Callable, name: Any, *arguments: Any, **how: Any) -> None:
        """Compile a program of this training, or begin to, as `Engine.compile` does."""
        key, always = (name, self.peers.programs), (self.method, self._tables, self.engine.clients)
        self.engine.compile(program, key, *always, *arguments, **how)
