"""What a run is charged besides the messages of its rounds: its graph, its inputs, the start of a new stage."""

import numpy as np

from coterie.data.clients import Federation
from coterie.experiment.job import Job
from coterie.experiment.rounds import Rounds
from coterie.graphs.measured import HubTraffic
from coterie.peers.base import Traffic

__all__ = ["with_cost_of_graph", "with_cost_of_inputs", "with_stage"]


def with_stage(block: Rounds, announced: Traffic) -> Rounds:
    """Charge what announces a new stage to the block's last round; it goes through the hub, whatever the slots."""
    return _with_hub(block, HubTraffic(*(getattr(announced, name)[0] for name in HubTraffic._fields)))


def with_cost_of_graph(opening: Rounds, job: Job) -> Rounds:
    """Charge what it cost to make the graph, where it was made from the clients' data, to the start."""
    return opening if job.measured_graph is None else _with_hub(opening, job.measured_graph.sent)


def with_cost_of_inputs(opening: Rounds, federation: Federation) -> Rounds:
    """Charge the statistics that clients share to prepare the inputs of a table to the start.

    Sites with a column contract agreed on them before the run.
    """
    if federation.preparation is None or not federation.preparation.sent:
        return opening
    sent = federation.preparation.sent_bytes
    if not sent:  # each site has prepared its own rows, by a contract
        return opening
    up, down = np.array([sent[name] for name in federation.names]).T
    once = np.ones_like(up)
    return _with_hub(opening, HubTraffic(once, up, once, down))


def _with_hub(block: Rounds, sent: HubTraffic) -> Rounds:
    """Add what clients sent to the hub and received from it, `[K]` each, to the block's last round."""
    traffic = dict(block.traffic._asdict())
    for name, value in sent._asdict().items():
        traffic[name] = traffic[name].copy()
        traffic[name][-1] += value
    return block._replace(traffic=Traffic(**traffic))
