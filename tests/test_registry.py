"""Names lead to classes without importing what is not used, and a wrong name leads to the right one."""

import dataclasses
import subprocess
import sys

import pytest

from coterie import registry
from coterie.errors import CoterieError
from coterie.methods import FedAvg

MINE = """
from coterie.methods.fedavg import FedAvg
from coterie.methods.base import method

@method
class Mine(FedAvg):
    "A method of my own."
"""


@pytest.mark.parametrize(
    ("kind", "name"), [(kind.name, row.name) for kind in registry.KINDS.values() for row in kind.rows]
)
def test_every_name_leads_to_a_spec_that_explains_itself(kind, name):
    cls = registry.load(kind, name)
    assert dataclasses.is_dataclass(cls)
    assert cls.__doc__
    assert all(field.metadata["help"] for field in dataclasses.fields(cls))
    assert any(registry.KINDS[kind].functions[0] in vars(base) for base in cls.__mro__)
    assert registry.kind_of(cls, name) == kind
    assert registry.name_of(kind, object.__new__(cls)) == name


def test_names_are_unique_and_can_be_typed():
    for kind in registry.KINDS:
        names = [row.name for row in registry.rows(kind)]
        assert len(set(names)) == len(names)
        assert all(name == name.lower() and " " not in name and ":" not in name for name in names)


@pytest.mark.parametrize(
    ("kind", "name", "sentence"),
    [
        ("methods", "fedavgg", r"there is no method called 'fedavgg'; did you mean fedavg\?"),
        ("graphs", "rings", r"there is no graph called 'rings'; did you mean ring\?"),
        ("models", "xyz", r"there is no model called 'xyz'; choose from linear, mlp, .*"),
        ("methods", "dpsgd", r"dpsgd is differentially private SGD everywhere else, .* gossip-sgd with order = .*"),
        ("methods", "D-PSGD", r"D-PSGD is gossip-sgd with order = 'mix-and-step'"),
        ("methods", "dsgd", r"DSGD is gossip-sgd with order = 'step-then-mix'"),
    ],
)
def test_an_unknown_name_gets_the_nearest_or_an_explanation(kind, name, sentence):
    with pytest.raises(CoterieError, match=f"^{sentence}$"):
        registry.load(kind, name)


def test_the_orders_that_the_explanations_name_exist():
    from coterie.methods import GossipSGD

    for text in registry.EXPLAINED.values():
        assert GossipSGD(order=text.rsplit("'", 2)[1]).order in text


def test_an_unknown_kind_is_refused():
    with pytest.raises(CoterieError, match=r"there is no list of 'method'; .*did you mean methods\?"):
        registry.rows("method")


def test_a_method_from_a_file_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    cls = registry.load("methods", "./mine.py:Mine")
    assert issubclass(cls, FedAvg)
    assert cls(lr=0.3).lr == 0.3
    assert registry.load("methods", str(tmp_path / "mine.py") + ":Mine") is cls  # one file is one module
    assert registry.find("methods", "./mine.py:Mine").summary == "your own"


def test_a_class_from_a_package():
    assert registry.load("methods", "coterie.methods.fedavg:FedAvg") is FedAvg


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("./none.py:Mine", None, r"'\./none\.py' is not a file; a method of your own is named FILE\.py:CLASS"),
        ("./mine.py:Mein", MINE, r"\./mine\.py:Mein: \./mine\.py has no 'Mein'; did you mean Mine\?"),
        ("./mine.py:Mine", "class Mine(:", r"\./mine\.py:Mine: \./mine\.py cannot be imported \(.*\)"),
        ("./mine.py:Mine", "import no_such_module_", r"\./mine\.py:Mine: \./mine\.py cannot be imported \(.*\)"),
        ("./mine.py:Mine", "class Mine: pass", r"\./mine\.py:Mine is not a method, which is a class with @method .*"),
        ("no.such.package:Mine", None, r"no\.such\.package:Mine: no\.such\.package cannot be imported \(.*\)"),
    ],
)
def test_a_file_that_cannot_be_used_is_explained(tmp_path, monkeypatch, name, text, sentence):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    for _ in range(2):  # the second time as the first: a failed import leaves nothing behind
        with pytest.raises(CoterieError, match=f"^{sentence}$"):
            registry.load("methods", name)


def test_an_installed_package_offers_methods_by_entry_point(tmp_path, monkeypatch):
    folder = tmp_path / "other-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[coterie.methods]\ntheirs = coterie.methods.fedavg:FedAvg\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert registry.load("methods", "theirs") is FedAvg
    assert registry.rows("methods")[-1].name == "theirs"


def test_listing_imports_no_jax():
    program = "\n".join(
        [
            "import coterie, coterie.registry, coterie.spec, sys",
            "for kind in coterie.registry.KINDS: coterie.registry.rows(kind)",
            "assert 'jax' not in sys.modules and 'numpy' not in sys.modules",
        ]
    )
    subprocess.run([sys.executable, "-c", program], check=True)
