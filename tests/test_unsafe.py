"""Nothing in the package can turn bytes from outside into code: no pickle, marshal, eval, exec or unsafe loaders."""

import ast
from pathlib import Path

import pytest

import coterie

SOURCE = Path(coterie.__file__).parent
MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "yaml", "jsonpickle"}
CALLS = {"eval", "exec", "compile", "__import__"}


def unsafe(tree):
    """Name what is not allowed in a module."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        yield from (f"line {node.lineno}: imports {n}" for n in names if n.partition(".")[0] in MODULES)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in CALLS:
                yield f"line {node.lineno}: calls {node.func.id}"
            for keyword in node.keywords:
                never = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                if keyword.arg in ("allow_pickle", "weights_only") and not (keyword.arg == "allow_pickle" and never):
                    yield f"line {node.lineno}: {keyword.arg}"
            if ast.unparse(node.func) in ("np.load", "numpy.load") and not any(
                keyword.arg == "allow_pickle" for keyword in node.keywords
            ):
                yield f"line {node.lineno}: np.load must say allow_pickle=False"


def test_no_module_can_run_what_it_reads():
    found = [
        f"{path.relative_to(SOURCE)}, {said}"
        for path in SOURCE.rglob("*.py")
        for said in unsafe(ast.parse(path.read_text()))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "import pickle", "from yaml import load", "eval(text)", "exec(text)", "marshal = __import__('marshal')",
        "np.load(file, allow_pickle=True)", "np.load(file)", "import joblib.parallel",
    ],
)  # fmt: skip
def test_the_scan_finds_each_of_them(line):
    assert list(unsafe(ast.parse(line)))
