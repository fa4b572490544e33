"""The command that a comparison names leads to the same experiments, whatever it was asked for."""

import shlex

import pytest
from typer.testing import CliRunner

from coterie import registry
from coterie.cli import app, comparing
from coterie.comparison.config import choice_of, with_method
from coterie.comparison.repeat import repeat_command
from coterie.comparison.tuning import tuned_values


@pytest.fixture
def understood(monkeypatch):
    """Return a function from words of the command line to what `compare` would run."""
    configs = []
    monkeypatch.setattr(comparing, "run_comparison", lambda planned, *rest: configs.append(planned))

    def read(words):
        result = CliRunner().invoke(app, ["compare", *words])
        assert result.exit_code == 0, result.output
        return configs[-1]

    return read


def experiments(planned):
    return [with_method(planned.experiment, choice_of(method)) for method in planned.methods]


def tuned(method):
    choice = choice_of(method)
    return tuned_values(registry.load("methods", choice.name)(), choice)


@pytest.mark.parametrize(
    "asked",
    [
        "",
        "--splits 3 --no-tune",
        "--set compare.splits=2 --methods ditto,fedprox --set method.lr=0.05 --set methods.ditto.tie=0.1",  # defaults
        "--rounds 50 --seeds 1",  # the default of a run, which is not what compare begins with
        "--set method.lr=0.05",
        "--set partition.validation=0.1 --set partition.test=0.2",  # defaults of a partition, not of the comparison
        "--set methods.ditto.lr=0.05 --methods local,ditto",
        "--partition classes --set partition.classes=2 --clients 7",
        "--partition dirichlet --clients 5 --model linear --set partition.alpha=1.0",
        "--data planted-groups --partition classes --clients 5 --rounds 200 --seeds 3 --set method.lr=0.1",
        "--data csv --set data.path=a.csv --set data.target=y --set data.client=who",
        "--data digits --set graph.name=ring --set graph.reach=2 --set run.seed=4 --set augment.flip=true",
        "--methods local,strong --set methods.strong.name=ditto --set methods.strong.tie=1.0",
        "--methods gossip-sgd,fomo --set methods.gossip-sgd.graph=ring --set methods.gossip-sgd.rounds=7 "
        "--set 'methods.fomo.graph={name=\"k-regular\", k=2}' --set 'methods.fomo.lr=[0.01, 0.1]'",
    ],
)
def test_the_command_is_understood_as_what_was_asked(understood, asked):
    first = understood(shlex.split(asked))
    choices = [choice_of(method) for method in first.methods]
    words = shlex.split(repeat_command(first.experiment, choices, first.seeds, first.splits, first.tune))
    assert words[:2] == ["coterie", "compare"]
    again = understood(words[2:])
    assert experiments(again) == experiments(first)
    assert (again.seeds, again.splits, again.tune) == (first.seeds, first.splits, first.tune)
    assert [tuned(method) for method in again.methods] == [tuned(method) for method in first.methods]
