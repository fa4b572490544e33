"""Programs that are compiled on a GPU's host before they are needed, several at a time.

XLA takes ten seconds and more for the rounds of a method on a GPU, all of it on the host's processor, which training
leaves idle. So while the first stage of a method is compiled and trained, its evaluation and the programs of the next
stage are compiled beside it. On a CPU compiling and training want the same cores, and nothing is gained (two cores: 6.2
to 5.95 s).
"""

import copy
from typing import Any

import jax

from coterie.experiment.training import Training
from coterie.peers.local import Simulation

__all__ = ["compile_ahead"]


def compile_ahead(training: Training, state: Any, first: int, last: int) -> None:
    """Begin to compile what rounds `first` to `last` need, if it is worth while: this stage's programs and the next's.

    What the next stage's programs get has the right shapes if a stage keeps equally many neighbours whatever the
    weights are. Where it does not, they were compiled for nothing, and others are when they are needed.
    """
    plain = type(training) is Training and training.faults is None and training.codec is None
    if not (plain and isinstance(training.peers, Simulation) and training.engine.compiles_aside):
        return
    _begin(training, state)
    ends = [end for end in training.method.stages() if first <= end < last]
    if ends:
        _begin(*_at_next_stage(training, state, min(ends)))


def _begin(training: Training, state: Any) -> None:
    """Begin to compile the rounds of a training's present stage, and its evaluation."""
    for program, name, inputs, how in training.programs(state):
        training.compile(program, name, *inputs, aside=True, **how)


def _at_next_stage(training: Training, state: Any, end: int) -> tuple[Training, Any]:
    """Return a training as it will be after round `end`, and what its state will be like, in shapes and types."""
    later = copy.copy(training)
    later.peers = copy.copy(training.peers)
    graph = training.kept_graph(state, end)[0]
    narrow, take = training.method.narrow, later.use_stage(graph, end + 1)
    shapes = jax.eval_shape(lambda state: narrow(state, take), state)
    place = jax.sharding.SingleDeviceSharding(training.engine.device.devices[0])
    return later, jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place), shapes)
