"""How the processes of a run meet, and how each tells the others that it has done its part, or why it stops."""

import contextlib
import math
import os
import time
from collections.abc import Iterator

from coterie.errors import CoterieError
from coterie.processes.abort import before_abort, sentences_for
from coterie.processes.address import AUTO, Address, refuse_unreachable
from coterie.processes.group import LEAVING, SENTENCE, SILENCE, Group
from coterie.processes.reachable import listen_at_own_address, unreachable

__all__ = ["current", "join", "told"]

_joined: list[Group] = []


def join(address: Address, versions: dict[str, str]) -> Group:
    """Meet the other processes, before JAX uses a device; they must have the same versions."""
    import jax

    until = time.monotonic() + address.patience
    if address.coordinator != AUTO:
        refuse_unreachable(address)
    left = max(1.0, until - time.monotonic())
    # Otherwise JAX aborts all processes when one is gone, before anybody can say which.
    jax.config.update("jax_enable_recoverability", True)
    jax.config.update("jax_enable_preemption_service", False)  # it keeps SIGTERM to itself, and the run would go on
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    where = {} if address.coordinator == AUTO else {
        "coordinator_address": address.coordinator, "num_processes": address.processes, "process_id": address.process,
    }  # fmt: skip
    late = (
        f"process {address.process} of {address.processes} has not met the others at {address.coordinator} within "
        f"{address.patience:g} s: start all of them, each with its own --process; --meet-within lets them wait longer"
    )
    twice = (
        f"process {address.process} of {address.processes} is not let in at {address.coordinator}, where another one "
        "may have the same number: give each its own --process"
    )
    try:
        with sentences_for(left, late, twice):
            jax.distributed.initialize(
                **where,  # type: ignore[arg-type]
                initialization_timeout=10 * math.ceil(left),
                heartbeat_timeout_seconds=2 * int(SILENCE),
                shutdown_timeout_seconds=int(LEAVING),
            )
    except (RuntimeError, ValueError) as error:
        raise CoterieError(f"{late} ({str(error).strip().partition(chr(10))[0][:SENTENCE]})") from None
    from jax._src.distributed import global_state  # the texts have no public name yet; Orbax takes them here, too

    group = Group(address, global_state.client)
    meeting = global_state.coordinator_address or address.coordinator
    group.take_number(twice)
    if group.index > 0:  # JAX aborts as soon as process 0 is gone
        before_abort(lambda: group.last_words(meeting), 1)
    group.watch()
    _joined.append(group)
    group.refuse_another_count()
    group.refuse_differences(versions)
    listen_at_own_address(group, meeting)
    return group


def current() -> Group | None:
    """Return the processes that this one has met; None where it is alone."""
    return _joined[0] if _joined else None


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Tell the other processes that this one has done its part, or why it stops; nothing where it is alone."""
    try:
        yield
    except BaseException as error:
        group = current()
        if group is None:
            raise
        sentence = unreachable(group.index, error)
        _tell(group, sentence or error)
        if sentence is not None:
            raise sentence from None
        raise
    group = current()
    if group is not None:
        group.leave()


def _tell(group: Group, error: BaseException) -> None:
    """Tell the others why this process stops, if they do not stop, too."""
    if type(error).__name__ == "JaxRuntimeError" and "RESOURCE_EXHAUSTED" not in str(error):  # is another one gone?
        try:
            group.wait_for_news()
        except KeyboardInterrupt:  # whoever has started this process knows it, too
            os._exit(1)
    sentence = str(error).strip().partition("\n")[0][:SENTENCE]
    if isinstance(error, KeyboardInterrupt) or hasattr(error, "exit_code"):  # the command line's own end after a signal
        group.leave(None if group.agreed else "it was asked to end")
    else:
        group.leave(sentence if isinstance(error, CoterieError) else f"{type(error).__name__}: {sentence}")
