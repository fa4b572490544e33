"""The fused operator on the elements of an update (Zhao, Liu, Jiang, He, Fig. 6): runs, values, bytes and error.

The updates are gradients of all samples of each client, along gradient descent on the mean loss. The operator gets them
in the order in which parameters are stored, and for comparison in an order that both ends of a message know without
sending it: by the mean update of the round before, which the hub has sent to everyone.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie.codecs import Fused
from coterie.codecs.numbers import shortened
from coterie.data.buckets import Split, divided
from coterie.data.clients import Federation
from coterie.learning.task import Task
from coterie.numerics.prox import fused

__all__ = ["GAMMAS", "ORDERS", "ROUNDS", "Update", "elements", "example", "figure6", "updates"]

GAMMAS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
ORDERS = ("as stored", "by the last mean")
ROUNDS = (2, 10, 100)
MANY = 10  # clients whose updates are examined


class Update(NamedTuple):
    """The clients' gradients in a round."""

    round: int
    each: np.ndarray  # [K, d]
    before: np.ndarray  # [d] their mean in the round before


def updates(task: Task, federation: Federation, lr: float, rounds: Sequence[int] = ROUNDS) -> list[Update]:
    """Follow gradient descent on the mean loss and return the clients' gradients in some rounds, from the second on."""
    data = divided(federation.train, [np.arange(len(federation))])  # in one stack
    assert isinstance(data, Split)
    masks = np.arange(data.x.shape[1]) < np.asarray(data.count)[:, None]
    weight = jnp.asarray(np.asarray(data.count) / np.sum(data.count), task.dtype)

    def one(variables: Any, x: jax.Array, y: jax.Array, mask: jax.Array) -> Any:
        slope = jax.grad(task.loss, has_aux=True)
        return slope(*variables, task.batch(x, jnp.arange(len(x)), None), y, mask)[0]

    @jax.jit
    def step(variables: Any, *samples: jax.Array) -> tuple[Any, jax.Array]:
        each = jax.vmap(one, in_axes=(None, 0, 0, 0))(variables, *samples)
        params = jax.tree.map(lambda p, g: p - lr * jnp.tensordot(weight, g, 1), variables.params, each)
        flat = [leaf.reshape(len(federation), -1) for leaf in jax.tree.leaves(each)]
        return variables._replace(params=params), jnp.concatenate(flat, axis=1)

    variables, before, chosen = task.init(jax.random.key(0)), np.zeros(0), []
    for number in range(1, max(rounds) + 1):
        variables, flat = step(variables, data.x, data.y, masks)
        if number in rounds:
            chosen.append(Update(number, np.asarray(flat), before))
        before = np.asarray(weight @ flat)
    return chosen


def elements(chosen: Sequence[Update], gammas: Sequence[float] = GAMMAS) -> list[dict[str, Any]]:
    """Return one row per round, order and gamma: means over clients of figures of the operator's result.

    `runs` counts runs of equal elements, `distinct` the different values, `bytes` is the length of the message without
    a codebook, `error` the norm of the difference relative to that of the update.
    """
    rows = []
    for update in chosen:
        x = update.each[:MANY].astype(np.float32)
        places = {ORDERS[0]: np.arange(x.shape[1]), ORDERS[1]: np.argsort(update.before, kind="stable")}
        for order, gamma in ((order, gamma) for order in ORDERS for gamma in gammas):
            ordered = x[:, places[order]]
            result = fused(ordered, gamma * np.abs(ordered).mean(1))
            sent = np.asarray(shortened(jnp.asarray(result))) + 0.0  # -0.0 would count as another number
            error = np.linalg.norm(result - ordered, axis=1) / np.linalg.norm(ordered, axis=1)
            columns = {
                "runs": [1 + np.count_nonzero(np.diff(row)) for row in result],
                "distinct": [len(np.unique(row)) for row in result],
                "bytes": [len(Fused(gamma=gamma, centres=0).encode(row)) for row in sent],
                "error": error,
            }
            about = {"round": update.round, "order": order, "gamma": gamma, "elements": x.shape[1]}
            rows.append(about | {name: float(np.mean(values)) for name, values in columns.items()})
    return rows


def figure6(chosen: Sequence[Update], gamma: float = 0.3) -> list[dict[str, Any]]:
    """Return the four panels of Fig. 6, one row per round and panel, as means over clients.

    The gradient itself (gamma = 0), with the regulariser, and with k-means on top, k = 4 and 3: `distinct` values,
    `bytes` of the message (of the gradient itself uncompressed), and the relative `error`.
    """
    rows = []
    for update in chosen:
        x = update.each[:MANY].astype(np.float32)
        for name, price, centres in (
            ("gamma = 0", 0.0, 0),
            ("regulariser", gamma, 0),
            ("k = 4", gamma, 4),
            ("k = 3", gamma, 3),
        ):
            codec = Fused(gamma=price, centres=centres, settle=0.0)
            sent = np.asarray(codec.reduce(jnp.asarray(x), jax.random.key(0))) if price else x
            columns = {
                "distinct": [len(np.unique(row)) for row in sent],
                "bytes": [len(codec.encode(row)) if price else row.nbytes for row in sent],
                "error": np.linalg.norm(sent - x, axis=1) / np.linalg.norm(x, axis=1),
            }
            about = {"round": update.round, "panel": name, "elements": x.shape[1]}
            rows.append(about | {key: float(np.mean(values)) for key, values in columns.items()})
    return rows


def example(update: Update, gammas: Sequence[float] = (1.0, 10.0), at_most: int = 400) -> dict[str, Any]:
    """Return the first elements of the first client's update, before and after the operator."""
    x = update.each[0].astype(np.float32)
    after = {f"{gamma:g}": fused(x, gamma * np.abs(x).mean())[:at_most].tolist() for gamma in gammas}
    return {"round": update.round, "update": x[:at_most].tolist(), "fused": after, "elements": len(x)}
