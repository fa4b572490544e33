"""One model on all data, in one place: what these clients cannot have, to compare with.

Where clients differ, personal models may well beat it.

Before the first round every client sends its samples (the ledger counts them); one model is then trained on the union
with early stopping on the union of the validation samples, and every client gets it.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from coterie.data.buckets import Part, Split
from coterie.data.clients import Clients
from coterie.learning.buckets import bucket_by_bucket
from coterie.learning.evaluate import client_metrics
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.task import Task, Variables
from coterie.methods.base import Info, Method, Newcomer, Role, Topology, method
from coterie.methods.sends import SAMPLES, Sends
from coterie.methods.shared.stopping import Best, keep_best, start_best
from coterie.numerics import tree
from coterie.peers.base import Peers
from coterie.spec import param

__all__ = ["Pooled"]


class State(NamedTuple):
    """One model and its optimiser for all, the best model so far, and the pooled samples (equal for all clients)."""

    variables: Variables
    optimiser: Any
    best: Best
    train: Split
    validation: Split


@method
class Pooled(LocalSGD, Method):
    """Train one model on the union of all data."""

    topology: ClassVar[Topology] = "hub"
    sends: ClassVar[Sends] = {"share": SAMPLES}
    role: ClassVar[Role] = "pooled"
    newcomer: ClassVar[Newcomer] = "shared"
    patience: int = param(0, "rounds without a better validation loss before training stops; 0: never", at_least=0)

    def init(self, task: Task, peers: Peers, clients: Clients, key: jax.Array) -> State:
        """Collect everyone's samples in one place."""
        samples = [bucket_by_bucket(_zero_padding, part) for part in (clients.train, clients.validation)]
        (train, validation), _ = peers.share(tuple(samples))
        variables = tree.broadcast(task.init(key), peers.ids.shape[0])
        optimiser = jax.vmap(self.optimiser().init)(variables.params)
        best = start_best(variables, jnp.zeros(peers.ids.shape[0], task.dtype))
        return State(variables, optimiser, best, _union(train), _union(validation))

    def round(self, task: Task, state: State, peers: Peers, clients: Clients, key: jax.Array) -> tuple[State, Info]:
        """Train the one model on the union; in a split run every process computes the same numbers."""
        variables, optimiser = jax.tree.map(lambda a: a[0], (state.variables, state.optimiser))
        train, validation = (Split(part.x[0], part.y[0], part.count[0]) for part in (state.train, state.validation))
        trained = self.train(task, variables, train, key, optimiser_state=optimiser)
        all_labels = jnp.ones(clients.labels.shape[1:], bool)
        loss = client_metrics(task, trained.variables, validation, all_labels).loss
        trained, loss = tree.broadcast((trained, loss), peers.ids.shape[0])
        best = keep_best(state.best, trained.variables, loss, self.patience, state.validation.count > 0)
        return state._replace(variables=trained.variables, optimiser=trained.optimiser, best=best), Info(trained.loss)

    def models(self, state: State) -> Variables:
        """Return the best model so far, the same for each client."""
        return state.best.variables


def _zero_padding(split: Split) -> Split:
    """Return the samples with zeros as padding, whatever was there: padding must not decide what arrives."""
    real = jnp.arange(split.x.shape[1]) < split.count[:, None]
    x, y = (jnp.where(tree.column(real, a), a, 0) for a in (split.x, split.y))
    return Split(x, y, split.count)


def _union(split: Part) -> Split:
    """Concatenate the clients' samples in the order of their ids, padding last: `x [1, N, ...]`."""
    owners, flat = [], []
    for stack, ids in split.stacks:
        clients, n = stack.x.shape[:2]
        real = jnp.arange(n) < stack.count[:, None]
        owners.append(jnp.where(real, jnp.asarray(ids)[:, None], jnp.iinfo(jnp.int32).max).reshape(-1))
        flat.append([a.reshape(clients * n, *a.shape[2:]) for a in (stack.x, stack.y)])
    order = jnp.argsort(jnp.concatenate(owners), stable=True)
    x, y = (jnp.concatenate(arrays)[order][None] for arrays in zip(*flat, strict=True))
    return Split(x, y, sum(stack.count.sum() for stack, _ in split.stacks)[None])
