"""How near one SGD step of all clients comes to what the device can do, why it stops there, and what changes it.

    python benchmarks/step_bound.py --device gpu                # everything, in at most a minute
    python benchmarks/step_bound.py --device cpu --tiny         # to try it

For the CNN of FedAvg's paper on CIFAR's shape and an MLP 784-64-10; 100 clients, batches of 10. The bound of a step is
the longer of two times. Memory: its bytes (the parameters read forward and backward, the gradient written, the update
read and written, every activation once; copies made for convolutions are not counted) at the speed of a copy on this
device. Compute: its multiplications at the speed of a large product. Both are measured in the same call; in float32
both may round products to TF32. Every variant of the step is a line of `PROGRAMS`, every set of compiler flags one of
`FLAGS`; each set has a process of its own. All compile first; then each is timed while no other is at work. Kernels are
counted and timed from a trace of the profiler.
"""

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

from common import publish
from step_programs import PROGRAMS

# Compiler flags beside the usual ones, and the programs that are tried with them, by model.
FLAGS: dict[str, tuple[str, dict[str, list[str]]]] = {
    "usual flags": ("", {"cnn": list(PROGRAMS["cnn"])}),
    "usual flags (mlp)": ("", {"mlp": list(PROGRAMS["mlp"])}),
    "loops in command buffers": (
        "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,WHILE,CONDITIONAL "
        "--xla_gpu_graph_min_graph_size=1",
        {"mlp": ["as it is", "ahead, 4 at a time"], "cnn": ["as it is"]},
    ),
    "no command buffers": ("--xla_gpu_enable_command_buffer=", {"mlp": ["as it is", "ahead, 4 at a time"]}),
    "cublasLt": ("--xla_gpu_enable_cublaslt=true", {"cnn": ["as it is", "descent"]}),
    "double buffering": (
        "--xla_gpu_enable_while_loop_double_buffering=true",
        {"mlp": ["as it is"], "cnn": ["as it is", "descent"]},
    ),
}
USUAL = list(FLAGS)[:2]
COMPILING = 0.65  # the share of the time after which no more programs are compiled


class Worker:
    """A process with one set of flags; it answers in lines of JSON."""

    def __init__(self, name: str, args: argparse.Namespace, until: float, cache: str):
        self.name, self.failed = name, ""
        flags = os.environ.get("XLA_FLAGS", "") + " " + FLAGS[name][0]
        if args.device.startswith("gpu"):  # what one process has tried out for a product, the others need not
            flags += f" --xla_gpu_per_fusion_autotune_cache_dir={cache}"
        environment = os.environ | {"XLA_FLAGS": flags.strip(), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        words = [sys.executable, __file__.replace("step_bound", "step_programs"), name, json.dumps(FLAGS[name][1])]
        words += [args.device, str(until), str(args.clients), str(args.steps), str(args.batch), str(int(args.tiny))]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def ask(self, word: str = "", until: float = 0.0) -> dict[str, Any]:
        """Send a word and return the next answer; where none comes, nothing and the reason in `failed`."""
        try:
            if word:
                assert self.process.stdin is not None
                print(word, file=self.process.stdin, flush=True)
            while True:
                line = self.lines.get(timeout=max(0.1, until - time.time()))
                if line.startswith("{"):
                    return json.loads(line)
                if not line:
                    break
            self.process.wait(5)
            self.errors.seek(0)
            self.failed = (self.errors.read().strip().splitlines() or ["it ended"])[-1][:300]
        except queue.Empty:
            self.failed = "it was not ready in time"
        except BrokenPipeError:
            self.failed = "it ended"
        return {}

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def measure(args: argparse.Namespace) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what each worker measured, by flags, and why others did not."""
    began = time.time()
    end, answers, failures = began + args.seconds, {}, {}
    with tempfile.TemporaryDirectory() as cache:
        workers = [Worker(name, args, began + COMPILING * args.seconds, cache) for name in args.flags]
        try:
            for worker in workers[: len(USUAL)]:
                print("first", file=worker.process.stdin, flush=True)
            for worker in workers[: len(USUAL)]:  # what is compiled first finds out the fastest products for all
                worker.ask("", end)
            for worker in workers:
                if not worker.failed:
                    print("compile", file=worker.process.stdin, flush=True)
            for worker in workers:
                if not worker.failed:
                    worker.ask("", end)
            for worker in workers:
                if not worker.failed:
                    answer = worker.ask(f"time {end}", end + 5)
                    if answer:
                        answers[worker.name] = answer
                if worker.failed:
                    failures[worker.name] = worker.failed
        finally:
            for worker in workers:
                worker.end()
    return answers, failures


def table(answers: dict[str, Any], limits: dict[str, float]) -> list[dict[str, Any]]:
    """Return a row for each program and set of flags: its time and its share of the bound."""
    rows = []
    for flags, answer in answers.items():
        for row in answer["programs"]:
            counts = row["counts"]
            memory, compute = counts["bytes"] / limits["bytes_per_second"], counts["flops"] / limits[row["products"]]
            bound = max(memory, compute)
            figures = {
                "model": row["model"],
                "program": row["program"],
                "flags": flags,
                "microseconds": round(1e6 * row["seconds"], 2),
                "bound_microseconds": round(1e6 * bound, 2),
                "binding": "memory" if memory >= compute else "compute",
                "share_of_bound": round(bound / row["seconds"], 3),
                "kernels_per_step": row.get("kernels_per_step"),
                "compile_seconds": round(row["compile_seconds"], 2),
                "loss": row["loss"],
            }
            rows.append(figures)
    return sorted(rows, key=lambda row: (row["model"], row["microseconds"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--steps", type=int, default=48, help="of one call; the MLP does four times as many")
    parser.add_argument("--seconds", type=float, default=55, help="for everything; what does not fit is left out")
    parser.add_argument("--flags", nargs="*", choices=list(FLAGS), default=list(FLAGS))
    parser.add_argument("--tiny", action="store_true", help="few clients and small measurements, to try it")
    args = parser.parse_args()
    if args.tiny:
        args.clients, args.steps = 3, 4
    args.flags = [*USUAL, *(name for name in args.flags if name not in USUAL)]
    began = time.time()
    answers, failures = measure(args)
    if USUAL[0] not in answers:
        sys.exit(f"the step was not measured: {failures.get(USUAL[0])}")
    limits, device = answers[USUAL[0]]["limits"], answers[USUAL[0]]["device"]
    rows = table(answers, limits)
    measured = [row for name in USUAL if name in answers for row in answers[name]["programs"]]
    figures = {name: getattr(args, name) for name in ("clients", "batch", "steps")}
    kernels = {f"{row['model']}, {row['program']}": row["kernels"] for row in measured if row.get("kernels")}
    counts = {row["model"]: row["counts"] for row in measured if row["program"] == "as it is"}
    figures |= {"limits": limits, "counts": counts, "rows": rows, "failures": failures, "kernels": kernels}
    figures["skipped"] = {name: answer["skipped"] for name, answer in answers.items() if answer["skipped"]}
    figures["benchmark_seconds"] = round(time.time() - began, 1)
    if "OUT" in os.environ:
        os.environ.setdefault("COTERIE_BENCHMARKS", os.environ["OUT"])
    publish("step-bound", device, figures)
    print(
        f"copy {limits['bytes_per_second'] / 1e12:.2f} TB/s, product {limits['float32'] / 1e12:.0f} TFLOP/s (float32, "
        f"TF32 allowed), {limits['bfloat16'] / 1e12:.0f} (bfloat16)"
    )
    for row in rows:
        launched = "" if row["kernels_per_step"] is None else f"{row['kernels_per_step']:5.1f} kernels"
        print(
            f"{row['model']:4} {row['program']:24} {row['flags']:25} {row['microseconds']:9.1f} us, bound "
            f"{row['bound_microseconds']:8.1f} ({row['binding']}), {100 * row['share_of_bound']:5.1f} % {launched}"
        )
    for name, longest in kernels.items():
        if not name.endswith("as it is"):
            continue  # the others' are in the file
        print(f"{name}: the longest kernels, microseconds of a step")
        for kernel in longest:
            time_and_count = f"{kernel['microseconds']:8.2f} x{kernel['count']:<5}"
            print(f"  {time_and_count} {kernel['kernel'][:70]:70} {kernel['op'][:90]}")
    for name, reason in failures.items():
        print(f"{name}: not measured: {reason}")


if __name__ == "__main__":
    main()
