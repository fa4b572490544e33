"""A shared base and a personal head, trained together; only the base is averaged at a hub.

Arivazhagan, Aggarwal, Singh, Choudhary 2019 (FedPer), Algorithms 1 and 2. It is `fedavg` with personal layers, by
default the last one. It has its own name so that one comparison can also run methods that share everything.
"""

from typing import ClassVar

from coterie.methods.base import Topology, method
from coterie.methods.fedavg import FedAvg
from coterie.methods.shared.personal import KeepsLayers

__all__ = ["FedPer"]


@method
class FedPer(KeepsLayers, FedAvg):
    """Personal layers on a base that is averaged at a hub."""

    topology: ClassVar[Topology] = "hub"
