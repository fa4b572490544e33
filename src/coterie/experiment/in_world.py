"""Which methods the settings of `[world]` are about, and with what they cannot be combined."""

import warnings

from coterie import registry
from coterie.errors import CoterieError, CoterieWarning
from coterie.experiment.config import Experiment
from coterie.methods.base import Method, Solved
from coterie.methods.shared.hub import HubSGD

__all__ = ["check_world", "lives_in_world"]


def lives_in_world(method: Method) -> bool:
    """Whether clients take part in rounds of a method: not where it is solved at once, or has all data in one place."""
    return not isinstance(method, Solved) and method.role != "pooled"


def check_world(experiment: Experiment, coded: bool) -> None:
    """Refuse a world that a run cannot have; warn where it changes nothing."""
    world, method = experiment.world, experiment.method.spec
    if not world:
        return
    name = registry.name_of("methods", method) or type(method).__name__
    if not lives_in_world(method):
        if method.role == "cooperates":  # that a guess or a model on all data has no rounds goes without saying
            warnings.warn(f"[world] changes nothing for {name}, which is solved at once", CoterieWarning, stacklevel=3)
        return
    own = getattr(method, "participation", 1.0)
    if own != 1:
        raise CoterieError(f"participation of {name} and [world] are both given; write participation in [world] alone")
    if coded and (world.dropout or world.slow or not isinstance(method, HubSGD)):
        what = "dropout" if world.dropout else "slow" if world.slow else "participation"
        raise CoterieError(f"world.{what} needs codec none for {name}, since a codec's messages must all arrive")
