"""No model at all: what a client scores if it ignores the inputs. Whatever does not beat this has learned nothing.

Every client predicts from the targets of its own training samples alone. For classes it always names the commonest
one (of equally common ones the first), with the frequencies of the classes as probabilities, so that log-loss and Brier
score are as good as they can be without inputs. The frequencies are Laplace-smoothed: with m_c of n samples in class c
out of C,

    p_c = (m_c + 1) / (n + C),

so that a class the client has not met yet keeps a little probability and no log-loss is infinite. For text the classes
are the next characters. For numbers it predicts the mean. Nothing is sent, and there are no rounds: the counts are
round 1.
"""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from coterie.data.clients import Clients
from coterie.learning.task import Task, Variables
from coterie.methods.base import Fitted, Newcomer, Role, Solved, Topology, method
from coterie.models.constant import ConstantNetwork

__all__ = ["Guess"]


@method
class Guess(Solved):
    """Name the commonest class, or the mean, of the client's own training data."""

    topology: ClassVar[Topology] = "none"
    role: ClassVar[Role] = "guess"
    newcomer: ClassVar[Newcomer] = "none"

    def adapt(self, task: Task) -> Task:
        """Return the task with a model whose output does not depend on the input."""
        return task.constant()

    def fit(self, task: Task, clients: Clients) -> Fitted:
        """Count the classes, or average the targets, of every client's training samples."""
        rows = [self._bias(task, np.asarray(clients.train.rows(i)[1])) for i in range(len(clients.train.count))]
        return Fitted(Variables(ConstantNetwork(jnp.asarray(np.stack(rows)), task.kind == "next-character")))

    def _bias(self, task: Task, targets: np.ndarray) -> np.ndarray:
        """Return the constant output `[outputs]` of one client: the mean, or log-probabilities of the classes."""
        if task.kind == "regression":
            return targets.reshape(len(targets), task.outputs).mean(axis=0, dtype=np.float64)
        counts = np.bincount(targets.ravel(), minlength=task.outputs)
        return np.log((counts + 1) / (counts.sum() + task.outputs))
