"""The usual mistakes in a method or a call of one's own: each is answered by one sentence that says what to change."""

import dataclasses
import re
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coterie as ct
from coterie.errors import CoterieError
from coterie.extend import Info, LocalSGD, Method, Topology, Variables, method, tree
from coterie.methods import FedAvg
from coterie.testing.case import Case
from coterie.testing.checking import Checked, Result, check_method, why_skipped
from coterie.testing.contract import CHECKS
from coterie.testing.small import small_federation


class State(NamedTuple):
    variables: Variables
    count: jax.Array


class Base(LocalSGD, Method):
    """Every client trains alone; what a round returns is left to the mistakes below."""

    topology: ClassVar[Topology] = "none"

    def init(self, task, peers, clients, key):
        return State(tree.broadcast(task.init(key), peers.ids.shape[0]), jnp.zeros(peers.ids.shape[0]))

    def trained(self, task, state, peers, clients, key):
        def train(variables, data, key):
            return self.train(task, variables, data, key)

        return peers.each(train, state.variables, clients.train, peers.keys(key))


class Plain(Base):
    def round(self, task, state, peers, clients, key):
        trained = self.trained(task, state, peers, clients, key)
        return State(trained.variables, state.count + 1), Info(trained.loss)


@method
class Right(Plain):
    """No mistake."""


@method
class NoInfo(Base):
    """Returns only the state."""

    def round(self, task, state, peers, clients, key):
        return State(self.trained(task, state, peers, clients, key).variables, state.count)


@method
class LossAlone(Base):
    """Returns the loss instead of an Info."""

    def round(self, task, state, peers, clients, key):
        trained = self.trained(task, state, peers, clients, key)
        return State(trained.variables, state.count), trained.loss


@method
class MeanLoss(Base):
    """Takes the mean of the losses."""

    def round(self, task, state, peers, clients, key):
        trained = self.trained(task, state, peers, clients, key)
        return State(trained.variables, state.count), Info(trained.loss.mean())


@method
class OtherState(Base):
    """Returns only the models as the state."""

    def round(self, task, state, peers, clients, key):
        trained = self.trained(task, state, peers, clients, key)
        return trained.variables, Info(trained.loss)


@method
class OtherShape(Base):
    """Counts for all clients together."""

    def round(self, task, state, peers, clients, key):
        trained = self.trained(task, state, peers, clients, key)
        return State(trained.variables, state.count.sum()), Info(trained.loss)


def averaged(self, task, state, peers, clients, key):
    trained = self.trained(task, state, peers, clients, key)
    params = jax.tree.map(lambda a: jnp.broadcast_to(a.mean(0), a.shape), trained.variables.params)
    return State(Variables(params, trained.variables.statistics), state.count), Info(trained.loss)


@method
class SecretMean(Base):
    """Averages over the first axis, and says that nobody talks."""

    round = averaged


@method
class SilentHub(Base):
    """Averages over the first axis, and says that there is a hub."""

    topology: ClassVar[Topology] = "hub"
    round = averaged


MISTAKES = [
    (NoInfo, r"NoInfo.round\(\) must return the state and an Info, not one State; end it with `return state, Info\(.*"),
    (LossAlone, r"LossAlone.round\(\) must return the state and an Info, not \(State, array\); end it with .*"),
    (
        MeanLoss,
        r"MeanLoss.round\(\): Info.loss has the shape \(\) but must be one loss per client \[C\], here \(7,\).*",
    ),
    (OtherState, r"OtherState.round\(\) got a State and returned a Variables as its state; return .* that init\(\) .*"),
    (
        OtherShape,
        r"OtherShape.round\(\) changed count of its state from float32\[7\] to float32\[\]; return a state of .*",
    ),
    (SilentHub, r"SilentHub says topology = 'hub' but calls no verb of peers, .*; use peers.mean .*"),
]


@pytest.mark.parametrize(("cls", "sentence"), MISTAKES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_mistake_in_round_is_one_sentence(cls, sentence):
    with pytest.raises(CoterieError) as raised:
        CHECKS["stays_finite"](Case(cls))
    assert re.fullmatch(sentence, str(raised.value))  # without the note that JAX adds to it


def test_clients_are_not_mixed_in_secret():
    sentence = "SecretMean mixes clients without a verb: a number of one client has reached all others"
    with pytest.raises(CoterieError, match=sentence):
        CHECKS["sends_what_it_mixes"](Case(SecretMean))
    CHECKS["sends_what_it_mixes"](Case(Right))


@pytest.mark.parametrize(("cls", "sentence"), [(SecretMean, "without a verb"), (SilentHub, "calls no verb of peers")])
def test_a_comparison_does_not_report_mixing_that_costs_nothing(device, cls, sentence):
    """Both were reported with 0 bytes: the one that says that nobody talks, and the one that says that a hub does."""
    with pytest.raises(CoterieError, match=sentence):
        ct.compare(small_federation(4), [cls()], model="linear", rounds=2, tune=False, device=device)


def test_a_class_without_the_decorator_is_told_to_have_one():
    sentence = r"Plain is not a method yet: put @method above the class \(from coterie.extend import method\)"
    with pytest.raises(CoterieError, match=sentence):
        Case(Plain)
    with pytest.raises(CoterieError, match=sentence):
        ct.run(small_federation(2), "linear", Plain())


def test_a_class_instead_of_a_method():
    with pytest.raises(CoterieError, match=r"method must be configured: write FedAvg\(\)"):
        ct.run(small_federation(2), "linear", FedAvg)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: FedAvg(local_epochs=3), r"FedAvg has no setting 'local_epochs'; did you mean epochs\?"),
        (lambda: FedAvg(qqq=3), r"FedAvg has no setting 'qqq'; known: lr, momentum, .*"),
        (lambda: dataclasses.replace(FedAvg(), lrr=1.0), r"FedAvg has no setting 'lrr'; did you mean lr\?"),
        (
            lambda: ct.run(small_federation(2), "linear", "fedavg", lr=0.1),
            r"lr is a setting of the method, not of the run: write method=FedAvg\(lr=...\) with coterie.methods.FedAvg",
        ),
    ],
)
def test_a_misspelt_or_misplaced_setting(call, sentence):
    with pytest.raises(CoterieError, match=f"^{sentence}$"):
        call()


def test_a_torch_module_is_told_how_to_become_ours():
    torch_module = type("Module", (), {"__module__": "torch.nn.modules.module", "__call__": lambda self, x: x})
    network = type("Net", (torch_module,), {})
    for model in (network(), network):
        with pytest.raises(CoterieError, match="model is a PyTorch module, and coterie trains Equinox modules"):
            ct.run(small_federation(2), model)


def test_the_table_says_what_passed_failed_and_was_skipped():
    results = (
        Result("a", "passed"),
        Result("longer", "failed", "because"),
        Result("c", "failed", "because"),
        Result("d", "skipped", "it declares x"),
    )
    assert str(Checked("Mine", results)).splitlines() == [
        "Mine breaks the contract in 2 of 4 checks:",
        "  a       passed",
        "  longer  failed   because",
        "  c       failed   the same",
        "  d       skipped  it declares x",
    ]
    assert not Checked("Mine", results).ok
    assert Checked("Mine", results[:1]).ok


def test_what_a_method_declares_is_skipped():
    from coterie.methods import FedDyn, LocalExact

    assert why_skipped("alone_without_others", FedDyn()) == "it declares alone_is_sgd = False"
    assert why_skipped("alone_without_others", FedAvg()) == ""
    assert why_skipped("links_come_and_go", FedAvg()) == "it declares random_links = False"
    assert why_skipped("lives_anywhere", LocalExact()) == "it is solved at once, without rounds and messages"


def test_all_checks_run_although_one_fails(monkeypatch):
    """Three checks of one's own in place of the contract's, which take half a minute."""

    def fails(case):
        raise AssertionError("no")

    def breaks(case):
        raise IndexError("index 6 is out of bounds\nmore")

    monkeypatch.setattr("coterie.testing.checking.CHECKS", {"one": fails, "two": breaks, "three": lambda case: None})
    checked = check_method(Right, raises=False)
    assert [tuple(result) for result in checked.results] == [
        ("one", "failed", "no"),
        ("two", "failed", "IndexError: index 6 is out of bounds"),
        ("three", "passed", ""),
    ]
    with pytest.raises(AssertionError, match="Right breaks the contract in 2 of 3 checks"):
        check_method(Right)
    assert np.isfinite(Case(Right).straight("fast").loss).all()
