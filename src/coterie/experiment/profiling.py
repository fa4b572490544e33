"""Where the time of a run goes: compilation, local steps, exchange, evaluation, input and output, and what is left.

Everything is timed by the clock, and every second belongs to exactly one part, so that the parts add up to the whole.
Only local steps and exchange cannot be told apart by the clock, since a block of rounds is one compiled program. There
the profiler looks on: the first blocks are traced (to be opened in Perfetto or TensorBoard, too), and the rounds'
seconds are divided as the times of the traced operations are. Verbs name their operations (`LOCAL`, `EXCHANGE`).
"""

import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from coterie.experiment.trace import operations, part_of, parts_of
from coterie.peers import EXCHANGE, LOCAL
from coterie.storage.durable import durable_write

__all__ = ["NO_PROFILE", "PARTS", "NoProfile", "Profile"]

# The parts, in the order of the table, and what each one is.
PARTS = {
    "start": "finding the device, importing and starting JAX",
    "compile": "tracing and compiling programs",
    "local steps": "what every client computes for itself",
    "exchange": "messages, averages, mixing, and what a hub computes",
    "rest of the rounds": "neither of them: clients' states, counting, what the compiler could not assign",
    "rounds": "local steps, exchange and the rest, which could not be told apart",
    "evaluation": "metrics of every client's model, and the scores at the end",
    "other programs": "the first models, the kept models",
    "input and output": "data read and copied to the device; records, checkpoints and models written",
    "profiler": "starting it, and writing and reading the trace",
    "remainder": "Python between all these",
}
EVALUATIONS = ("evaluate", "scores", "residuals", "losses")
TRACED = 2  # blocks of rounds; the last one counts, since the first has a cold start
IN_WORDS = {LOCAL: "local steps", EXCHANGE: "exchange"}


class NoProfile:
    """Times nothing."""

    def part(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Return the scope of some work."""
        return contextlib.nullcontext()

    def compiling(self) -> contextlib.AbstractContextManager[None]:
        """Return the scope of a compilation."""
        return contextlib.nullcontext()

    def run(self, name: Any, program: Any, call: Callable[[], Any]) -> Any:
        """Run a compiled program."""
        return call()


NO_PROFILE = NoProfile()


class Profile(NoProfile):
    """Times a run in a folder.

    Args:
        folder: of the run; the trace goes to `profile/` in it, the table to `profile.json`.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.note = ""
        self._seconds: dict[str, float] = defaultdict(float)
        self._open, self._since = ["remainder"], time.perf_counter()
        self._traced: list[Any] = []  # the programs that were

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time of some work as a part; parts inside it count apart."""
        self._stop_clock()
        self._open.append(name)
        try:
            yield
        finally:
            self._stop_clock()
            self._open.pop()

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Count a compilation; a program that was kept on disk is used only if its operations have the same names."""
        import jax

        setting = "jax_compilation_cache_include_metadata_in_key"
        before = getattr(jax.config, setting)
        jax.config.update(setting, True)
        try:
            with self.part("compile"):
                yield
        finally:
            jax.config.update(setting, before)

    def _stop_clock(self) -> None:
        now = time.perf_counter()
        self._seconds[self._open[-1]] += now - self._since
        self._since = now

    def run(self, name: Any, program: Any, call: Callable[[], Any]) -> Any:
        """Run a compiled program as the part that its name in the engine says; trace the first blocks of rounds."""
        while isinstance(name, tuple):
            name = name[0]
        if name != "advance":
            with self.part("evaluation" if name in EVALUATIONS else "other programs"):
                return call()
        if len(self._traced) == TRACED:
            with self.part("rounds"):
                return call()
        self._traced.append(program)
        with self.part("profiler"), self._trace(), self.part("rounds"):
            return call()

    @contextlib.contextmanager
    def _trace(self) -> Iterator[None]:
        import jax

        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # Python's own calls would fill the trace
        with jax.profiler.trace(self.folder / "profile", profiler_options=options):
            yield

    def finish(self) -> dict[str, Any]:
        """Divide the rounds' seconds, write `profile.json` and return what is in it."""
        with self.part("profiler"):
            shares = self._shares()
        self._stop_clock()
        seconds = dict(self._seconds)
        if shares:
            rounds = seconds.pop("rounds", 0.0)
            for name, share in shares.items():
                seconds[name] = share * rounds
        parts = {name: round(seconds[name], 4) for name in PARTS if seconds.get(name, 0.0) > 0}
        record = {"seconds": round(sum(seconds.values()), 4), "parts": parts, "note": self.note}
        durable_write(self.folder / "profile.json", (json.dumps(record, indent=1) + "\n").encode())
        return record

    def _shares(self) -> dict[str, float]:
        """Return the shares of a block of rounds by the trace; none, and a note, where it does not say."""
        if not self._traced:
            self.note = "no block of rounds was run, so there is no trace"
            return {}
        try:
            found = operations(self.folder / "profile")
            where = parts_of(self._traced[-1].as_text(), list(IN_WORDS))
        except Exception as error:  # a profiler that writes other traces must not cost the result of a run
            self.note = f"the trace could not be read ({error}), so local steps and exchange are not told apart"
            return {}
        sums = dict.fromkeys((*IN_WORDS.values(), "rest of the rounds"), 0.0)
        for operation in found:
            sums[IN_WORDS.get(part_of(operation, where), "rest of the rounds")] += operation.seconds
        total = sum(sums.values())
        if sums["rest of the rounds"] == total:
            self.note = "the trace does not name operations, so local steps and exchange are not told apart"
            return {}
        count = sum(operation.calls for operation in found)
        self.note = f"local steps and exchange are divided by {count:,} traced operations of a block of rounds"
        return {name: value / total for name, value in sums.items()}
