"""The programs of `step_bound.py`, and the process that compiles and times them with one set of compiler flags.

It is told what to do in words on standard input (first, compile, time SECONDS) and answers in lines of JSON.
"""

import contextlib
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Variants of a step, by model; what they switch is explained at `make_steps`. The first is the product's own.
PROGRAMS: dict[str, dict[str, dict[str, Any]]] = {
    "cnn": {
        "as it is": {},
        "bfloat16": {"bfloat16": True},
        "descent": {"descent": True},
        "aligned patches": {"convolution": "aligned"},
        "no patches": {"convolution": "rows"},
        "bfloat16, descent": {"bfloat16": True, "descent": True},
        "ahead, 2 at a time": {"ahead": True, "unroll": 2},
    },
    "mlp": {
        "as it is": {},
        "ahead, 4 at a time": {"ahead": True, "unroll": 4},
        "ahead": {"ahead": True},
        "4 at a time": {"unroll": 4},
        "ahead, descent, 8": {"ahead": True, "descent": True, "unroll": 8},
        "bfloat16, ahead, 4": {"bfloat16": True, "ahead": True, "unroll": 4},
    },
}
REPEATS = 4
LONGEST = 15  # kernels that are listed


def make_steps(task: Any, steps: int, batch: int, options: dict[str, Any]) -> Callable:
    """Return a function of one client that takes `steps` steps; `options` switch what is tried.

    ahead: the minibatches of all steps are drawn before the first (the same numbers) instead of in each.
    unroll: steps in one iteration of the loop.
    descent: the gradient of -lr * loss is added, so that the product that makes it can add it to the parameters.
    """
    import jax
    import jax.numpy as jnp
    from jax import lax

    from coterie.learning.local_sgd import LocalSGD
    from coterie.traced import changed

    method = LocalSGD(batch_size=batch, steps=steps)
    if not set(options) & {"ahead", "unroll", "descent"}:
        return lambda lr, variables, data, key: changed(method, lr=lr).train(task, variables, data, key)[::2]

    def train(lr: Any, variables: Any, data: Any, key: Any) -> Any:
        def draw(t: Any) -> Any:
            return method._draw(data.x.shape[0], data.count, key, t)

        def step(carry: tuple, at: Any) -> tuple[tuple, None]:
            variables, total = carry
            indices, mask, step_key = at if options.get("ahead") else draw(at)
            x, model_key = task.batch(data.x, indices, None), jax.random.split(step_key)[1]
            sign = -lr if options.get("descent") else 1.0

            def objective(params: Any) -> Any:
                loss, statistics = task.loss(params, variables.statistics, x, data.y[indices], mask, model_key)
                return sign * loss, (loss, statistics)

            (_, (loss, statistics)), slope = jax.value_and_grad(objective, has_aux=True)(variables.params)
            factor = 1.0 if options.get("descent") else -lr
            params = jax.tree.map(lambda p, g: p + factor * g, variables.params, slope)
            return (variables._replace(params=params, statistics=statistics), total + loss), None

        every = jnp.arange(steps)
        over = jax.vmap(draw)(every) if options.get("ahead") else every
        (variables, total), _ = lax.scan(step, (variables, jnp.zeros(())), over, unroll=options.get("unroll", 1))
        return variables, total / steps

    return train


@contextlib.contextmanager
def convolution(kind: str | None) -> Iterator[None]:
    """Let the layers use another way of convolving (stride 1, no padding, as the CNN has it).

    aligned: patches have a multiple of eight columns, so that rows begin where tensor cores can read.
    rows: only rows of the kernel are unfolded; there is a product for each of its columns, and their sum.
    """
    import jax.numpy as jnp

    from coterie.models import layers

    def unfolded(x: Any, size: int) -> Any:
        return jnp.concatenate([x[k : x.shape[0] - size + 1 + k] for k in range(size)], axis=-1)

    def aligned(x: Any, weight: Any, bias: Any, **_: Any) -> Any:
        size = weight.shape[2]
        rows = unfolded(x, size)
        patches = unfolded(rows.transpose(1, 0, 2), size).transpose(1, 0, 2)
        kernels = weight.transpose(0, 3, 2, 1).reshape(weight.shape[0], -1)
        spare = -kernels.shape[1] % 8
        patches, kernels = jnp.pad(patches, ((0, 0), (0, 0), (0, spare))), jnp.pad(kernels, ((0, 0), (0, spare)))
        return jnp.einsum("hwp,op->hwo", patches, kernels) + bias

    def rows_only(x: Any, weight: Any, bias: Any, **_: Any) -> Any:
        size = weight.shape[2]
        rows, width = unfolded(x, size), x.shape[1] - size + 1
        kernels = weight.transpose(3, 0, 2, 1).reshape(size, weight.shape[0], -1)
        return sum(jnp.einsum("hwp,op->hwo", rows[:, k : k + width], kernels[k]) for k in range(size)) + bias

    usual = layers.conv2d
    layers.conv2d = {"aligned": aligned, "rows": rows_only, None: usual}[kind]
    try:
        yield
    finally:
        layers.conv2d = usual


def counts(model: str, task: Any, clients: int, batch: int) -> dict[str, float]:
    """Return the bytes and the operations of one step of all clients, as the bound counts them."""
    # Outputs of a layer, and the length of the sums they are.
    layers = {
        "cnn": [(28 * 28 * 32, 75), (14 * 14 * 32, 0), (10 * 10 * 64, 800), (5 * 5 * 64, 0), (512, 1600), (10, 512)],
        "mlp": [(64, 784), (10, 64)],
    }[model]
    inputs = {"cnn": 3 * 32 * 32, "mlp": 784}[model]
    forward = [2 * outputs * length for outputs, length in layers]
    activations = inputs + sum(outputs for outputs, _ in layers)
    flops = clients * batch * (3 * sum(forward) - forward[0])  # nobody needs the gradient of the data
    size = 4 * clients * (5 * task.size + batch * activations)
    return {
        "bytes": size,
        "flops": flops,
        "parameters": clients * task.size,
        "activations": clients * batch * activations,
    }


class Bench:
    """The data and models of one process, and its programs."""

    def __init__(self, device: str, clients: int, steps: int, batch: int, tiny: bool):
        from coterie.experiment.device import choose_device

        self.device = choose_device(device)
        self.clients, self.steps, self.batch, self.tiny = clients, steps, batch, tiny
        self.compiled: dict[tuple[str, str], tuple[Any, Any, float, dict]] = {}

    def compile(self, model: str, program: str) -> None:
        """Compile one program, as the product maps it over clients."""
        import jax

        from coterie.learning.task import Task
        from coterie.models.cnn import Cnn
        from coterie.models.mlp import Mlp

        options = PROGRAMS[model][program]
        data = self.data(model)
        task = Task.of(data, Cnn() if model == "cnn" else Mlp(hidden=(64,)), bfloat16=options.get("bfloat16", False))
        steps = self.steps * (4 if model == "mlp" else 1)
        keys = jax.random.split(jax.random.key(1), self.clients)
        variables = jax.jit(jax.vmap(task.init))(jax.random.split(jax.random.key(0), self.clients))
        inputs = jax.device_put((0.01, variables, data.train, keys))
        with convolution(options.get("convolution")):
            train = make_steps(task, steps, self.batch, options)
            mapped = jax.jit(jax.vmap(train, in_axes=(None, 0, 0, 0)), donate_argnums=1).lower(*inputs)
            began = time.time()
            ready = mapped.compile()
        spent = time.time() - began
        self.compiled[model, program] = ready, inputs, spent, counts(model, task, self.clients, self.batch)

    @functools.cache  # noqa: B019 (there is one bench in a process)
    def data(self, model: str) -> Any:
        """Return random samples of a model's shape."""
        from common import federation

        shape = {"cnn": (3, 32, 32), "mlp": (784,)}[model]
        return federation(self.clients, 10 if self.tiny else 100, shape, 10)

    def time(self, model: str, program: str, traced: bool) -> dict[str, Any]:
        """Return seconds of a step, and its kernels from a trace."""
        import jax

        ready, (lr, variables, data, keys), spent, counted = self.compiled.pop((model, program))
        steps, times = self.steps * (4 if model == "mlp" else 1), []
        for _ in range(REPEATS + 1):
            began = time.perf_counter()
            variables, loss = jax.block_until_ready(ready(lr, variables, data, keys))
            times.append(time.perf_counter() - began)
        row: dict[str, Any] = {"model": model, "program": program, "seconds": min(times[1:]) / steps, "counts": counted}
        row |= {"loss": float(loss.mean()), "compile_seconds": spent}
        row["products"] = "bfloat16" if PROGRAMS[model][program].get("bfloat16") else "float32"
        if traced:
            row |= self._kernels(ready, (lr, variables, data, keys), steps)
        return row

    def _kernels(self, ready: Any, inputs: tuple, steps: int) -> dict[str, Any]:
        import jax

        from coterie.experiment.trace import operations, scopes

        with tempfile.TemporaryDirectory() as folder:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0
            with jax.profiler.trace(folder, profiler_options=options):
                jax.block_until_ready(ready(*inputs))
            found, names = operations(Path(folder)), scopes(ready.as_text())
        if not found:
            return {}
        kernels = [
            {
                "kernel": each.kernel,
                "op": f"{each.name} {'/'.join(names.get(each.name, '').split('/')[-3:])}",
                "count": each.calls,
                "microseconds": round(1e6 * each.seconds / steps, 2),
            }
            for each in found[:LONGEST]
        ]
        return {
            "kernels": kernels,
            "kernels_per_step": round(sum(each.calls for each in found) / steps, 1),
            "kernel_microseconds": round(1e6 * sum(each.seconds for each in found) / steps, 2),
        }

    def limits(self) -> dict[str, float]:
        """Measure what the device can do: a copy, and products of square matrices."""
        import jax
        import jax.numpy as jnp

        def best(run: Callable, *inputs: Any) -> float:
            times = []
            for _ in range(8):
                began = time.perf_counter()
                jax.block_until_ready([run(*inputs) for _ in range(4)])
                times.append((time.perf_counter() - began) / 4)
            return min(times)

        numbers, side = (1 << 20, 256) if self.tiny else (1 << 28, 8192)
        copied = best(jax.jit(lambda x: x + 1), jnp.zeros(numbers, jnp.float32))  # a bare copy could be left out
        result = {"bytes_per_second": 2 * 4 * numbers / copied}
        for kind in ("float32", "bfloat16"):
            a = jax.random.normal(jax.random.key(0), (side, side)).astype(kind)
            result[kind] = 2 * side**3 / best(jax.jit(jnp.matmul), a, a)
        return result


def main() -> None:
    name, given, device, until, clients, steps, batch, tiny = sys.argv[1:]
    programs = [(model, program) for model, those in json.loads(given).items() for program in those]
    # The models in turn: if time runs out, both have their most promising programs.
    programs.sort(key=lambda pair: json.loads(given)[pair[0]].index(pair[1]))
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    bench = Bench(device, int(clients), int(steps), int(batch), bool(int(tiny)))
    skipped: list[str] = []

    def compile_all(pairs: list[tuple[str, str]]) -> None:
        for pair in pairs:
            if pair in bench.compiled:
                continue
            if time.time() > float(until):
                skipped.append(", ".join(pair))
                continue
            try:
                bench.compile(*pair)
            except Exception as error:  # one variant that a version of XLA cannot compile does not end the others
                skipped.append(f"{', '.join(pair)}: {str(error).splitlines()[0][:200]}")

    for line in sys.stdin:
        word, _, end = line.strip().partition(" ")
        result: dict[str, Any] = {"done": word}
        if word == "first":
            compile_all([pair for pair in programs if pair[1] == "as it is"])
        elif word == "compile":
            compile_all(programs)
            if name == "usual flags":
                bench.limits()  # compiled here, measured below
        elif word == "time":
            result = {"device": bench.device.label, "programs": [], "skipped": skipped}
            if name == "usual flags":
                result["limits"] = bench.limits()
            for pair in [pair for pair in programs if pair in bench.compiled]:
                time_left = float(end) - time.time()
                result["programs"].append(
                    bench.time(*pair, traced="usual" in name and (time_left > 8 or pair[1] == "as it is"))
                )
        print(json.dumps(result), file=answer, flush=True)


if __name__ == "__main__":
    main()
