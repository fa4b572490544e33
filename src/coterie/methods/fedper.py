"""A shared base and a head of one's own, trained together; only the base is averaged at a hub.

Arivazhagan, Aggarwal, Singh, Choudhary 2019 (FedPer), Algorithms 1 and 2. It is `fedavg` with personal layers, under
its own name and with the last layer as default, so that it can stand beside methods that share everything.
"""

from typing import ClassVar

from coterie.methods.base import Topology, method
from coterie.methods.fedavg import FedAvg
from coterie.methods.shared.personal import KeepsLayers

__all__ = ["FedPer"]


@method
class FedPer(KeepsLayers, FedAvg):
    """Layers of one's own on a base that is averaged at a hub."""

    topology: ClassVar[Topology] = "hub"
