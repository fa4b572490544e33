"""Each client has its own representation of its inputs; what follows it is averaged at a hub.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency 2020, *Think Locally, Act Globally: Federated Learning
with Local and Global Representations* (LG-FedAvg), Algorithm 1: the reverse of `fedper`. Client m's model is g(l_m(x)).
Both parts follow the gradient of the client's loss; the lower one, l_m, stays with it, and only the upper one, by
default the last layer, is sent, which costs few bytes:

    theta_g <- sum_m n_m / n theta_g,m.

The auxiliary and adversarial losses that the paper allows for are not part of it. Nothing had to be inferred. The
authors' program starts from a model trained by `fedavg`; `model.init` can do that, a fresh model is the default.
"""

from typing import ClassVar

from coterie.data.clients import Federation
from coterie.errors import CoterieError
from coterie.learning.task import Task
from coterie.methods.base import Newcomer, Topology, method
from coterie.methods.fedavg import FedAvg
from coterie.methods.shared.personal import last_layer
from coterie.spec import param

__all__ = ["LGFedAvg"]


@method
class LGFedAvg(FedAvg):
    """Personal lower layers under upper ones that are averaged at a hub."""

    topology: ClassVar[Topology] = "hub"
    newcomer: ClassVar[Newcomer] = "mixture"  # there is no shared representation to start from
    shares: tuple[str, ...] = param((), "names of the layers that are averaged; empty: the last layer")

    def adapt(self, task: Task) -> Task:
        """Return the task whose personal layers are all but the shared ones."""
        wanted = self.shares or (last_layer(task),)
        averaged = [name for name in task.keeping(wanted).personal_names if name not in task.personal_names]
        if len(averaged) in (0, len(task.names)):
            raise CoterieError(
                f"shares {', '.join(wanted)} leaves nothing {'to send' if not averaged else 'personal'}; name another "
                f"part of the model in method.shares (known: {', '.join(task.names)}; personal: "
                f"{', '.join(task.personal_names) or 'none'})"
            )
        return task.keeping(tuple(name for name in task.names if name not in averaged))

    def check(self, task: Task, federation: Federation) -> None:
        """Refuse models that cannot be split this way, before anything is compiled."""
        self.adapt(task)
