"""Prediction intervals of regressions: split conformal, from the residuals of validation rows.

For n residuals the half-width at level 1 - a is the ceil((n + 1)(1 - a))-th smallest of their absolute values: an
interval around the prediction of that half-width covers a new row of the same client with probability at least 1 - a,
whatever the model and the distribution of the rows (Vovk et al. 2005; Lei et al. 2018). A client with fewer than
`OWN_ROWS` validation rows, or too few for a level, gets the half-width of the pooled residuals of all clients, which
covers a row of a client drawn like these on average, not each client. No JAX until residuals are computed.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.data.clients import Federation
from coterie.errors import CoterieError

__all__ = ["LEVELS", "OWN_ROWS", "half_width", "half_width_of", "interval_record", "intervals_of"]

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
OWN_ROWS = 20  # validation rows from which a client's own residuals are used


def half_width(residuals: np.ndarray, level: float) -> np.ndarray:
    """Return the half-width `[outputs]` at a level from absolute residuals `[n, outputs]`; inf where n is too small."""
    place = math.ceil((len(residuals) + 1) * level - 1e-9)  # 0.9 * 20 must not be 18.000000000000004
    if place > len(residuals):
        return np.full(residuals.shape[1:], np.inf)
    return np.sort(residuals, axis=0)[place - 1]


def interval_record(names: Sequence[str], residuals: Sequence[np.ndarray]) -> dict[str, Any]:
    """Return the half-widths of every client and of all together, as plain values; None stands for infinity."""

    def widths(values: np.ndarray) -> dict[str, Any]:
        half = [half_width(values, level) for level in LEVELS]
        return {"rows": len(values), "half_widths": [[float(h) if np.isfinite(h) else None for h in hs] for hs in half]}

    clients = {name: widths(values) for name, values in zip(names, residuals, strict=True)}
    return {"levels": list(LEVELS), "pooled": widths(np.concatenate(list(residuals))), "clients": clients}


def half_width_of(record: Mapping[str, Any], client: str | None, level: float) -> tuple[list[float | None], bool]:
    """Return a client's half-width for each output and whether it is from the client's own rows; None: too few rows."""
    levels = record["levels"]
    if level not in levels:
        raise CoterieError(f"level must be one of {', '.join(map(str, levels))}, not {level!r}")
    place = levels.index(level)
    own = record["clients"].get(client)
    if own is not None and own["rows"] >= OWN_ROWS and None not in own["half_widths"][place]:
        return own["half_widths"][place], True
    return record["pooled"]["half_widths"][place], False


def intervals_of(training: Any, models: Any, federation: Federation) -> dict[str, Any] | None:
    """Return the half-widths of a regression in the target's unit; None for classes, or without validation rows.

    Args:
        training: what trained the models (`Training`); the program is compiled once for all methods of a comparison.
        models: the clients' models `[K, ...]`.
        federation: the data.
    """
    if federation.kind != "regression" or not np.any(federation.validation.count):
        return None
    import jax
    import jax.numpy as jnp

    from coterie.graphs.graph import Graph
    from coterie.learning.buckets import real_rows
    from coterie.peers.local import LocalPeers
    from coterie.peers.shards import fetched
    from coterie.peers.tables import make_tables

    engine, task = training.engine, training.task
    tables = make_tables(Graph.empty(engine.size), np.zeros((engine.size, 0)))  # nobody talks to anybody

    def one(model: Any, data: Any) -> jax.Array:
        output = task.apply(model, data.x)[0]
        return jnp.abs(output - data.y.reshape(output.shape))

    def program(method: Any, models: Any, clients: Any) -> Any:
        return LocalPeers(jax.tree.map(jnp.asarray, tables), engine.plan).each(one, models, clients.validation)

    method = None if task is engine.task else training.method
    errors = engine.call(program, "residuals", method, engine.place_kept(models), engine.clients)
    scaled = [
        np.asarray(row, np.float64).reshape(len(row), federation.classes) * federation.target_std
        for row in real_rows(fetched(errors), federation.validation.count)
    ]
    return interval_record(federation.names, scaled)
