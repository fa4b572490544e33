"""The one import for authors of methods, codecs, graphs and data sets.

from coterie.extend import Clients, Info, LocalSGD, Peers, Task, Trained, Variables, blend, method, param, tree
"""

from coterie.codecs.base import Codec
from coterie.data.clients import Clients, Federation, Split
from coterie.data.samples import Samples
from coterie.errors import CoterieError
from coterie.graphs.graph import Graph
from coterie.learning.local_sgd import LocalSGD, Trained
from coterie.learning.task import Task, Variables
from coterie.methods.base import Fitted, Info, Method, Newcomer, Solved, Topology, method
from coterie.methods.sends import Sending, Sends
from coterie.methods.shared.hub import HubSGD
from coterie.numerics import tree
from coterie.peers.base import Peers, blend
from coterie.spec import param, spec
from coterie.traced import changed, is_off, traced

__all__ = [
    "Clients",
    "Codec",
    "CoterieError",
    "Federation",
    "Fitted",
    "Graph",
    "HubSGD",
    "Info",
    "LocalSGD",
    "Method",
    "Newcomer",
    "Peers",
    "Samples",
    "Sending",
    "Sends",
    "Solved",
    "Split",
    "Task",
    "Topology",
    "Trained",
    "Variables",
    "blend",
    "changed",
    "is_off",
    "method",
    "param",
    "spec",
    "traced",
    "tree",
]
