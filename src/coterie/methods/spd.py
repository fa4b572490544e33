"""Decentralised SGD that agrees exactly: primal-dual, with the multipliers eliminated.

Lu, Cui, Squillante, Kingsbury, Horesh 2022, eq. (5) without a lower level (SPD):
x^{r+1} = W (2 x^r - x^{r-1}) - (eta_r g^r - eta_{r-1} g^{r-1}). With (I + W) / 2 instead of W it is EXTRA (Shi et al.
2015) with W. `coterie.consensus.primal_dual` says how we start, which the paper leaves open, and why the learning rates
are inside the bracket.
"""

from typing import Any, ClassVar

from coterie.consensus import primal_dual
from coterie.consensus.primal_dual import Memory
from coterie.graphs.mixing import Rule
from coterie.methods.base import method
from coterie.methods.shared.corrected import CorrectedSGD
from coterie.peers.base import Peers

__all__ = ["SPD"]


@method
class SPD(CorrectedSGD):
    """Gossip without bias: a primal-dual correction, with as many messages as gossip."""

    stability: ClassVar[Rule] = "primal-dual"

    def remember(self, shared: Any) -> Memory:
        """Start with x^{-1} = x^0 and a zero step."""
        return primal_dual.start(shared)

    def exchange(self, peers: Peers, shared: Any, memory: Memory, step: Any) -> tuple[Any, Memory]:
        """Compute x^{r+1} = W (2 x^r - x^{r-1}) - (s^r - s^{r-1})."""
        return primal_dual.spd(peers, shared, memory, step)
