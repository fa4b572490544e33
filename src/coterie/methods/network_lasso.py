"""Personal models tied along a similarity network: the network lasso (Hallac, Leskovec, Boyd 2015).

    min  sum_n f_n(z_n)  +  lam sum_edges |z_i - z_j|_p

by proximal gradient steps: `component` without a shared component. As lam shrinks along a path (`path_factor`), one
model for all splits into clusters, and these into single clients; with full gradients (`batch_size = 0`, `steps = 1`)
it converges to the exact minimiser.
"""

from coterie.learning.task import Task
from coterie.methods.base import method
from coterie.methods.component import TiedComponent

__all__ = ["NetworkLasso"]


@method
class NetworkLasso(TiedComponent):
    """A model for each client, and exactly the same one for similar clients."""

    def tied(self, task: Task) -> Task:
        """Return the task with the whole model tied, except for what is never sent."""
        return task.keeping(tuple(task.names))
