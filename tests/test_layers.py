"""The plan of the package: a package imports only packages listed above it, and the root is small."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "coterie"
ROOT = ["errors", "spec", "traced", "names", "lazy", "registry"]  # anyone may import these
ORDER = [
    "numerics", "storage", "processes", "codecs", "data", "models", "learning", "graphs", "peers", "consensus",
    "bilevel", "estimators", "methods", "experiment", "sites", "serving", "comparison", "pages", "testing", "reproduce",
    "cli",
]  # fmt: skip
FRONT = ["__init__", "__main__", "extend"]  # the public face: it may import everything, and nobody imports it


def modules():
    """Every module by name (a package by its folder's name), with its file."""
    names = {path: ".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in SOURCE.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for path, name in sorted(names.items())}


def imports(path, types=True):
    """Every name of ours that a file imports, at its top or inside a function; with `types` also for types only."""
    tree = ast.parse(path.read_text())
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    left_out = set() if types else {id(node) for block in blocks for node in ast.walk(block)}
    for node in ast.walk(tree):
        if id(node) not in left_out and isinstance(node, ast.ImportFrom) and node.module:
            if node.module.split(".")[0] == "coterie":
                yield from (f"{node.module}.{alias.name}".removeprefix("coterie.") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (a.name.removeprefix("coterie.") for a in node.names if a.name.startswith("coterie."))


@pytest.mark.parametrize("package", [*ROOT, *ORDER])
def test_imports_point_up(package):
    allowed = [*ROOT, *ORDER[: ORDER.index(package) + 1]] if package in ORDER else ROOT
    for module, path in modules().items():
        if module.split(".")[0] == package:
            for target in set(imports(path)) - {"__version__"}:
                assert target.split(".")[0] in allowed, f"{module} imports coterie.{target}, which is not above it"


def test_the_root_is_small_and_every_package_has_its_place():
    assert {path.stem for path in SOURCE.glob("*.py")} == {*ROOT, *FRONT}
    assert {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(ORDER)


def test_no_cycle_between_modules():
    known = modules()
    graph = {}
    for name, path in known.items():
        whole = {target if target in known else target.rpartition(".")[0] for target in imports(path, types=False)}
        graph[name] = (whole & known.keys()) - {name}
    while graph:  # take away what imports nothing that is left; what never goes is a cycle
        free = [name for name, targets in graph.items() if not targets & graph.keys()]
        assert free, f"these import each other in a circle: {sorted(graph)}"
        graph = {name: targets for name, targets in graph.items() if name not in free}
