"""Decentralised SGD for clients that differ: D2 mixes the corrected step itself.

Tang, Lian, Yan, Zhang, Liu 2018, Algorithm 1: x^1 = W (x^0 - eta g^0), then
x^{r+1} = W (2 x^r - x^{r-1} - (eta_r g^r - eta_{r-1} g^{r-1})).
"""

from typing import Any, ClassVar

from coterie.consensus import primal_dual
from coterie.consensus.primal_dual import Memory
from coterie.graphs.mixing import Rule
from coterie.methods.base import method
from coterie.methods.shared.corrected import CorrectedSGD
from coterie.peers.base import Peers

__all__ = ["D2"]


@method
class D2(CorrectedSGD):
    """Gossip without bias: the corrected step is mixed."""

    stability: ClassVar[Rule] = "primal-dual"

    def remember(self, shared: Any) -> Memory:
        """Start with x^{-1} = x^0 and a zero step."""
        return primal_dual.start(shared)

    def exchange(self, peers: Peers, shared: Any, memory: Memory, step: Any) -> tuple[Any, Memory]:
        """Compute x^{r+1} = W (2 x^r - x^{r-1} - (s^r - s^{r-1}))."""
        return primal_dual.d2(peers, shared, memory, step)
