"""What a method of your own may get wrong, found while its first round is traced, each in one sentence with the fix.

Without this, JAX or an index far away would answer. `check_method` finds these mistakes, too, and so do `run` and
`compare`: they use the same functions.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie.data.clients import Clients
from coterie.errors import CoterieError
from coterie.learning.task import Task
from coterie.methods.base import Info, Method
from coterie.models.naming import names
from coterie.peers.base import Peers

__all__ = ["checked_round", "poisoned", "refuse_silence", "refuse_spread"]

VERBS = {"hub": "peers.mean (or centres, hub, share)", "graph": "peers.mix (or blend, push, ask, swap)"}


def checked_round(
    method: Method, task: Task, state: Any, peers: Peers, clients: Clients, key: jax.Array
) -> tuple[Any, Info]:
    """Trace one round of a method and check what it returns."""
    returned = method.round(task, state, peers, clients, key)
    name = f"{type(method).__name__}.round()"
    if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Info)):
        raise CoterieError(
            f"{name} must return the state and an Info, not {_what(returned)}; end it with `return state, "
            "Info(trained.loss)`"
        )
    new, info = returned
    _check_info(name, info, peers)
    _check_state(name, state, new)
    return new, info


def _what(returned: Any) -> str:
    if isinstance(returned, tuple) and not hasattr(returned, "_fields"):
        return f"({', '.join(map(_kind, returned))})"
    return "nothing" if returned is None else f"one {_kind(returned)}"


def _kind(value: Any) -> str:
    return "array" if isinstance(value, jax.Array) else type(value).__name__


def _check_info(name: str, info: Info, peers: Peers) -> None:
    here, slots = peers.ids.shape[0], peers.present.shape[1]
    wanted = {"loss": (here,)} | ({} if info.weights is None else {"weights": (here, slots)})
    for field, shape in wanted.items():
        got = jnp.shape(getattr(info, field))
        if got != shape:
            meaning = "one loss per client [C]" if field == "loss" else "one weight per slot of a neighbour [C, D]"
            raise CoterieError(
                f"{name}: Info.{field} has the shape {got} but must be {meaning}, here {shape}: take no mean of it"
            )
    for key, value in (info.counts or {}).items():
        if jnp.shape(value) != (here,):
            raise CoterieError(
                f"{name}: Info.counts[{key!r}] has the shape {jnp.shape(value)} but must be one number per client [C], "
                f"here {(here,)}"
            )


def _check_state(name: str, before: Any, after: Any) -> None:
    """Refuse a state of another structure, shape or type than the round began with."""
    fix = "return a state of the fields, shapes and types that init() returned"
    structures: list[Any] = [jax.tree.structure(tree) for tree in (before, after)]
    if structures[0] != structures[1]:
        first, second = type(before).__name__, type(after).__name__
        if first != second:
            raise CoterieError(f"{name} got a {first} and returned a {second} as its state; {fix}")
        known, new = ({path for path, _ in names(tree)} for tree in (before, after))
        lost, added = ", ".join(sorted(known - new)), ", ".join(sorted(new - known))
        parts = [f"it lacks {lost}" if lost else "", f"it has {added} besides" if added else ""]
        what = " and ".join(filter(None, parts)) or "its parts are nested in another way"
        raise CoterieError(f"{name} returned another state than it got: {what}; {fix}")
    for (path, one), (_, two) in zip(names(before), names(after), strict=True):
        if (one.shape, one.dtype) != (two.shape, two.dtype):
            raise CoterieError(
                f"{name} changed {path} of its state from {one.dtype}{list(one.shape)} to {two.dtype}"
                f"{list(two.shape)}; {fix}"
            )


def refuse_silence(method: Method, talked: bool) -> None:
    """Refuse a method that says that it communicates, but calls no verb: clients it mixes would cost nothing."""
    if method.topology == "none" or talked:
        return
    name = type(method).__name__
    raise CoterieError(
        f"{name} says topology = {method.topology!r} but calls no verb of peers, so nothing it mixes would be sent or "
        f"counted; use {VERBS[method.topology]} where it takes a mean or a sum over the client axis, or set topology = "
        "'none' if clients train alone"
    )


def poisoned(state: Any, clients: int) -> Any:
    """Return a state in which every real number of the first client is NaN."""

    def spoil(a: Any) -> Any:
        if jnp.issubdtype(a.dtype, jnp.floating) and a.shape[:1] == (clients,):
            return a.at[0].set(jnp.nan)
        return a.copy()  # the program uses up its arguments

    return jax.tree.map(spoil, state)


def refuse_spread(method: Method, params: Any) -> None:
    """Refuse a method without messages in which one client's NaN, after some rounds, are in everyone's model."""
    for leaf in jax.tree.leaves(params):
        others = np.asarray(leaf)[1:]
        if others.size and np.isnan(others.reshape(len(others), -1)).any(1).all():
            raise CoterieError(
                f"{type(method).__name__} mixes clients without a verb: a number of one client has reached all others, "
                "and nobody has sent it; use peers.mean, not a mean over the client axis, and set topology = 'hub'"
            )
