"""Personal models tied along a similarity network: the network lasso (Hallac, Leskovec, Boyd 2015).

    min  sum_n f_n(z_n)  +  lam sum_edges |z_i - z_j|_p

by proximal gradient steps: `component` without a shared component. As lam shrinks along a path (`path_factor`), one
model for all splits into clusters, and these into clients on their own; with full gradients (`batch_size = 0`,
`steps = 1`) it converges to the exact minimiser.
"""

from coterie.learning.task import Task
from coterie.methods.base import method
from coterie.methods.component import TiedComponent

__all__ = ["NetworkLasso"]


@method
class NetworkLasso(TiedComponent):
    """Every client its own model, and exactly the same one for alike clients."""

    def tied(self, task: Task) -> Task:
        """Everything is tied, but for what must not travel."""
        return task.keeping(tuple(task.names))
