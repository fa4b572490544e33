"""The interface of a method: what is missing or misspelt is an error that names it."""

from types import SimpleNamespace
from typing import ClassVar

import pytest

from coterie import registry
from coterie.errors import CoterieError
from coterie.extend import Info, LocalSGD, Method, Solved, Topology, method


class Whole(LocalSGD, Method):
    """Everything a method must have, but its topology."""

    def init(self, task, peers, clients, key):
        return ()

    def round(self, task, state, peers, clients, key):
        return state, Info(clients.train.count)

    def models(self, state):
        return state


def refusal(base=Whole, topology="none", **members):
    """Make a method of a class with these members; returns what it is refused with."""
    given = {"topology": topology} if topology else {}
    with pytest.raises(CoterieError) as error:
        method(type("Mine", (base,), given | members))
    return str(error.value)


def test_defaults_suffice():
    made = method(type("Mine", (Whole,), {"topology": "hub"}))(lr=0.1)
    assert (made.role, made.learns_weights, made.default_graph) == ("cooperates", False, "exponential")
    assert (made.stages(), made.rounds_per_model, made.mutual) == ((), 0, False)
    assert made.finetune(None, (), None, None, None) is None
    assert made.adapt("task") == "task"


def test_a_class_that_does_not_derive_from_method_is_refused():
    with pytest.raises(CoterieError, match=r"Mine must derive from Method: class Mine\(LocalSGD, Method\)"):
        method(type("Mine", (LocalSGD,), {}))


def test_what_is_missing_is_named():
    assert refusal(topology=None) == "Mine must say its topology: none, hub, graph"
    part = type("Part", (LocalSGD, Method), {"init": Whole.init, "models": Whole.models})
    assert refusal(part) == "Mine has no round(), which every method needs"
    assert refusal(Solved) == "Mine has no fit(), which every method needs"


def test_models_are_the_variables_of_the_state_by_default():
    whole = type("Mine", (LocalSGD, Method), {"topology": "hub", "init": Whole.init, "round": Whole.round})
    made = method(whole)()
    assert made.models(SimpleNamespace(variables="theirs")) == "theirs"
    with pytest.raises(CoterieError, match=r"Mine has no models\(\), and its state has no `variables`"):
        made.models(())


def test_a_wrong_choice_is_named():
    assert refusal(topology="star") == "Mine.topology must be one of none, hub, graph, not 'star'"
    assert "Mine.role must be one of guess, alone, pooled, cooperates" in refusal(role="boss")


def test_a_misspelt_flag_is_an_error():
    assert refusal(learn_weights=True) == "Mine.learn_weights is not a flag of a method; did you mean learns_weights?"
    annotated = {"__annotations__": {"toplogy": ClassVar[Topology]}, "toplogy": "graph"}
    assert "Mine.toplogy is not a flag of a method; did you mean topology?" in refusal(**annotated)


def test_a_misspelt_hook_is_an_error():
    assert refusal(fine_tune=lambda self: None) == "Mine.fine_tune() is never called; did you mean finetune()?"
    assert refusal(stage=lambda self: ()) == "Mine.stage() is never called; did you mean stages()?"


def test_helpers_of_a_method_may_have_any_other_name():
    method(type("Mine", (Whole,), {"topology": "hub", "average": lambda self: 0, "_stage": lambda self: 0}))


@pytest.mark.parametrize("name", [row.name for row in registry.KINDS["methods"].rows])
def test_every_method_has_the_type_and_a_plain_form(name):
    cls = registry.load("methods", name)
    assert issubclass(cls, Method)
    assert isinstance(cls().plain(), cls)


def test_roles_say_what_guesses_what_trains_alone_and_what_pools():
    roles = {row.name: registry.load("methods", row.name).role for row in registry.KINDS["methods"].rows}
    assert {name for name, role in roles.items() if role == "alone"} == {"local", "local-exact"}
    assert {name for name, role in roles.items() if role == "guess"} == {"guess"}
    assert {name for name, role in roles.items() if role == "pooled"} == {"pooled", "pooled-exact"}
