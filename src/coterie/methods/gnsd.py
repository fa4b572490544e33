"""Decentralised SGD with gradient tracking: each client also keeps an estimate of the mean step of all clients.

Lu, Zhang, Sun, Hong 2019 (GNSD): t^0 = g^0, x <- W x - eta t, t <- W t + g(x_new) - g(x_old). Model and tracker are
sent in one message, with twice the numbers of `gossip-sgd`.
"""

from typing import Any, ClassVar

from coterie.consensus import primal_dual
from coterie.consensus.primal_dual import Memory
from coterie.methods.base import method
from coterie.methods.sends import FROM_GRADIENTS, FROM_MODELS, Sending, Sends
from coterie.methods.shared.corrected import CorrectedSGD
from coterie.peers.base import Peers

__all__ = ["GNSD"]


@method
class GNSD(CorrectedSGD):
    """Gossip without bias by gradient tracking; messages are twice as long."""

    sends: ClassVar[Sends] = {
        "mix": Sending(
            "the shared part of its model, and the gradient that it tracks", FROM_MODELS + " " + FROM_GRADIENTS
        )
    }

    def remember(self, shared: Any) -> Memory:
        """Start with a zero tracker, so that t^0 = s^0."""
        return primal_dual.start_tracking(shared)

    def exchange(self, peers: Peers, shared: Any, memory: Memory, step: Any) -> tuple[Any, Memory]:
        """Compute t^r = W t^{r-1} + s^r - s^{r-1} and x^{r+1} = W x^r - t^r."""
        return primal_dual.gnsd(peers, shared, memory, step)
