"""Names that are imported on first use: all of them are listed, and none of them costs anything before."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.names import CODECS, METHODS, MODELS

SOURCE = Path(__file__).parents[1] / "src" / "coterie"
PACKAGES = {"coterie": [], "coterie.codecs": CODECS, "coterie.methods": METHODS, "coterie.models": MODELS,
            "coterie.estimators": []}  # fmt: skip


@pytest.mark.parametrize("package", PACKAGES)
def test_every_listed_name_is_there(package):
    module = importlib.import_module(package)
    assert dir(module) == sorted(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Unknown'"):
        _ = module.Unknown
    with pytest.raises(ImportError, match="cannot import name 'Unknown'"):
        exec(f"from {package} import Unknown")


@pytest.mark.parametrize(("package", "rows"), PACKAGES.items())
def test_type_checkers_see_every_row(package, rows):
    stub = SOURCE.joinpath(*package.split(".")[1:], "__init__.pyi")
    imports = [node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom)]
    seen = {f"{node.module}:{alias.name}" for node in imports for alias in node.names if alias.asname == alias.name}
    missing = {row.target for row in rows} - seen
    lines = ["from {} import {} as {}".format(*target.split(":"), target.split(":")[1]) for target in sorted(missing)]
    assert not missing, f"add to {stub}: {lines}"


def test_a_class_is_the_one_of_its_file():
    import coterie as ct
    from coterie.methods import Ditto
    from coterie.models.mobilenet import MobileNet

    assert ct.methods.Ditto is Ditto
    assert ct.models.MobileNet is MobileNet


def test_nothing_heavy_is_imported_to_list_names():
    check = "import sys; " + "; ".join(f"import {p}; dir({p})" for p in PACKAGES)
    check += "; assert not {'jax', 'numpy', 'sklearn', 'equinox'} & set(sys.modules), sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)
