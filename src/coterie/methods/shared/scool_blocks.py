"""What SCooL's block models have in common: the settings of their inference, and all clients' cross-losses."""

from typing import Any, ClassVar, Literal

import jax

from coterie.data.clients import Federation
from coterie.errors import CoterieError
from coterie.learning.task import Task, Variables
from coterie.methods.sends import FROM_NUMBERS, Sending, Sends
from coterie.methods.shared.evidence import Evidence, squared
from coterie.methods.shared.scool import Scool
from coterie.peers.base import Peers
from coterie.spec import param, spec

__all__ = ["BlockScool", "share_losses"]


@spec
class BlockScool(Scool):
    """SCooL with a block model as prior, inferred in each round from all clients' cross-losses."""

    sends: ClassVar[Sends] = {
        **Scool.sends,
        "share": Sending(
            "the losses of its model at its neighbours and at home, and how many classes it has", FROM_NUMBERS
        ),
    }

    blocks: int = param(0, "hidden blocks (M); 0: one per four clients, 2 to 25", at_least=0)
    sweeps: int = param(10, "sweeps of variational updates per E-step", at_least=1)
    pseudo_counts: float = param(20.0, "weight of the prior on the block matrix, in pairs of clients", at_least=0)
    within: float = param(
        0.8,
        "how often the prior expects a client to help one of its block; below between: blocks help others",
        above=0,
        below=1,
        static=True,
    )
    between: float = param(0.2, "how often it expects it to help one of another block", above=0, below=1, static=True)
    baseline: Literal["auto", "classes", "median", "own"] = param(
        "auto",
        "what a loss is compared with: log(classes), the median, or its owner's loss; auto: log(classes), but the "
        "median where layers are personal",
    )
    margin: float = param(0.5, "how much worse than its owner a model may be, with baseline = 'own'", at_least=0)

    def check(self, task: Task, federation: Federation) -> None:
        """Refuse more blocks than clients."""
        super().check(task, federation)
        if self.blocks > federation.everyone:
            only = f"but there are only {federation.everyone} clients"
            raise CoterieError(f"method.blocks is {self.blocks} {only}; lower it")

    def rule(self, task: Task) -> Literal["classes", "median", "own"]:
        """Return what losses are compared with: a neighbour's own layers make every model better than guessing."""
        if self.baseline != "auto":
            return self.baseline
        return "median" if task.personal_names else "classes"

    def start_prior(self, task: Task, peers: Peers, variables: Variables, key: jax.Array) -> Any:
        """Return no state: every round starts from k-means on the new losses."""
        return ()


def share_losses(evidence: Evidence, peers: Peers) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Send all cross-losses to everyone: `losses [K, K]`, which are `known`, own losses and baselines `[K]`.

    Row i is client i's model, column j client j's data. All clients get the same table and infer the same from it.
    """
    mine = (evidence.losses, evidence.arrived, peers.neighbours, evidence.own_loss, evidence.baseline)
    (losses, answered, neighbours, own_loss, baseline), arrived = peers.share(mine)
    return *squared(losses, answered & arrived[:, None], neighbours), own_loss, baseline
