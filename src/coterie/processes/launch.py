"""Several processes of one run on one machine: started, watched and ended together. No JAX here.

The first one speaks for all of them. When one ends before its time the others cannot go on, so they are stopped, and a
sentence says which one it was.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from coterie.errors import CoterieError
from coterie.processes.address import MOST, free_port, gpus_in_words, share_of
from coterie.processes.signals import ENDING

__all__ = ["Ended", "gpus_here", "launch", "refuse_more_than_clients", "shares"]

POLL = 0.05  # seconds
GRACE = 10.0  # seconds in which processes that are asked to stop may do so
OWN_GROUP: dict[str, Any] = {"process_group": 0} if os.name == "posix" else {}
LONGEST = 65_536  # bytes of what a process printed that are looked at


class Ended(CoterieError):  # noqa: N818 (as Diverged)
    """A process of a run has ended before its time."""


def launch(count: int, words: Sequence[str], shared: Sequence[Mapping[str, str]]) -> int:
    """Start `coterie WORDS` in several processes and wait for all of them; returns the exit status of the first.

    Args:
        count: how many.
        words: of the command, which every process gets besides its number and where they meet.
        shared: for each process the variables of its environment that are its own: which GPUs it sees.
    """
    meeting = f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        prints = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(count - 1)]
        started: list[subprocess.Popen] = []
        try:
            for index in range(count):
                own = {"COTERIE_COORDINATOR": meeting, "COTERIE_PROCESSES": str(count), "COTERIE_PROCESS": str(index)}
                output: dict[str, Any] = (
                    {} if index == 0 else {"stdout": subprocess.DEVNULL, "stderr": prints[index - 1]}
                )
                command = [sys.executable, "-m", "coterie", *words]
                environment = {**os.environ, **shared[index], **own}
                # In a group of its own a process gets a signal once, from here, and not from the terminal, too.
                started.append(subprocess.Popen(command, env=environment, **OWN_GROUP, **output))
            return _watched(started, prints)
        finally:
            _stop(started)


def _watched(started: Sequence[subprocess.Popen], prints: Sequence[IO[bytes]]) -> int:
    """Wait until all have ended, or one of them before its time."""
    asked: list[int] = []
    passed_on = 0
    heard = [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]  # under nohup it stays ignored
    former = {number: signal.signal(number, lambda number, _: asked.append(number)) for number in heard}
    try:
        while True:
            codes = [process.poll() for process in started]
            for _ in asked[passed_on:]:  # they agree on when to end, and write a checkpoint; asked twice, they end now
                _ask_to_end(started)
                passed_on += 1
            if all(code == 0 for code in codes):
                return 0
            bad = [index for index, code in enumerate(codes) if code]
            if bad and asked:
                _wait(started[0])
                return 128 + asked[0]
            if bad:
                return _failed(started, prints, bad[0])
            time.sleep(POLL)
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _ask_to_end(started: Sequence[subprocess.Popen]) -> None:
    for process in started:
        if process.poll() is None:
            process.terminate()


def _failed(started: Sequence[subprocess.Popen], prints: Sequence[IO[bytes]], first: int) -> int:
    """Stop the others, and say which process ended first and why."""
    code = started[first].returncode
    if code < 0:  # a process that ended by itself has told the others why
        _stop(started)
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        raise Ended(
            f"process {first} of {len(started)} was killed ({name}), so the others were stopped; start it again with "
            "the same command, and it continues from the last checkpoint"
        )
    _wait(started[0])
    _stop(started)
    if started[0].returncode > 0 or first == 0:  # it has said why, or that another one has stopped and why
        return int(abs(started[0].returncode)) or 1
    raise Ended(f"process {first} of {len(started)} has stopped: {_last_words(prints[first - 1])}")


def _wait(process: subprocess.Popen) -> int:
    """Wait a while for a process to end by itself."""
    try:
        return int(process.wait(GRACE))
    except subprocess.TimeoutExpired:
        return 1


def _stop(started: Sequence[subprocess.Popen]) -> None:
    """End the processes that are left: those that do not listen, by force."""
    left = [process for process in started if process.poll() is None]
    _ask_to_end(left)
    until = time.monotonic() + GRACE
    for process in left:
        try:
            process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _last_words(stream: IO[bytes]) -> str:
    """Return the last line that a process printed to its standard error."""
    stream.seek(0, os.SEEK_END)
    stream.seek(max(0, stream.tell() - LONGEST))
    lines = stream.read().decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("coterie: ") if lines else "it has printed nothing"


def refuse_more_than_clients(processes: int, clients: int) -> None:
    """Refuse processes that would have no client."""
    if processes > clients:
        raise CoterieError(
            f"{processes} processes are more than there are clients ({clients}), and each holds some of them; use "
            "fewer --processes"
        )


def gpus_here() -> list[str]:
    """Return the GPUs of this machine that may be used, by the numbers that CUDA_VISIBLE_DEVICES has."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name.strip()]
    place = Path("/proc/driver/nvidia/gpus")
    return [str(number) for number in range(len(list(place.iterdir())))] if place.is_dir() else []


def shares(count: int, kind: str, devices: int | None, gpus: Sequence[str]) -> list[dict[str, str]]:
    """Share out the GPUs among processes; returns the variables of each.

    Args:
        count: how many processes.
        kind: "auto", "cpu" or "gpu".
        devices: of all processes together; None: all GPUs, or one virtual device of the CPU for each.
        gpus: those that are here.
    """
    if not 1 <= count <= MOST:
        raise CoterieError(f"--processes must be a whole number from 1 to {MOST}, not {count}")
    each = share_of(devices, count)
    if kind == "cpu" or not gpus:
        return [{} for _ in range(count)]
    if devices is None:
        each = len(gpus) // count
    if not 0 < each * count <= len(gpus):
        needed = f"--devices {devices}" if devices else f"{count} processes"
        raise CoterieError(f"{needed}: {gpus_in_words(len(gpus))} here; use fewer, or --device cpu")
    return [{"CUDA_VISIBLE_DEVICES": ",".join(gpus[i * each : (i + 1) * each])} for i in range(count)]
