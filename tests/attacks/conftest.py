"""A trained run for attacks on its folder: trained once, copied for each attack."""

import shutil

import pytest

from coterie.experiment.engine import Engine
from support.attacks import call
from support.folder_cases import EXPERIMENT, RUN


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A working folder with an experiment and its run, `x`; and the engine whose programs serve all resumes."""
    place = tmp_path_factory.mktemp("trained")
    (place / "e.toml").write_text(EXPERIMENT)
    engines, make = [], Engine.of.__func__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "of", classmethod(lambda cls, *given: engines.append(make(cls, *given)) or engines[0]))
        patch.chdir(place)
        outcome = call(*RUN)
    assert outcome.exit_code == 0, outcome.output
    return place, engines[0]


@pytest.fixture
def work(trained, tmp_path, monkeypatch):
    """A copy of the working folder, which is the current one."""
    monkeypatch.setattr(Engine, "of", lambda *given: trained[1])
    place = tmp_path / "work"
    shutil.copytree(trained[0], place)
    monkeypatch.chdir(place)
    return place
