"""What the documentation promises: examples run, the skeleton keeps the contract, config files are valid."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import coterie as ct
from coterie.comparison.config import ComparisonConfig
from coterie.comparison.sweeps.plan import SweepConfig, by_key
from coterie.errors import CoterieWarning
from coterie.experiment.config import SECTIONS, Experiment, RunSettings
from coterie.experiment.job import Job
from coterie.experiment.run import execute
from coterie.methods.base import Method
from coterie.models.augment import Augment
from coterie.pages import page as report_page
from coterie.peers.base import Peers
from coterie.peers.world import World
from coterie.registry import imported
from coterie.sites.federation import FederationFile
from coterie.sites.site import SiteFile
from coterie.spec import describe
from coterie.storage.toml import read_toml
from coterie.testing.contract import CHECKS, Case

ROOT = Path(__file__).parents[2]
BILEVEL = ROOT / "docs" / "methods" / "bilevel.md"
EXTEND = sorted(page for page in (ROOT / "docs" / "extend").glob("*.md") if page.stem != "index")
PARTS = ["Files", "Example", "Check it", "Reference implementations"]
GENERATED = {
    "reference/catalogue.md": "page()",
    "methods/choose.md": "page()",
    "results/papers.md": "page(read_expected(), read_results())",
    "results/pfllib.md": "page()",
    "results/estimators.md": "page(newest('*-lme4.json'), newest('*-interval-coverage.json'))",
}
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def run_python(program: list[str], folder: Path) -> str:
    done = subprocess.run([sys.executable, *program], cwd=folder, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", EXTEND, ids=lambda page: page.stem)
def test_pages_on_extending_run(page, tmp_path, monkeypatch):
    """Blocks that begin with a file's name are written to that file, the others are run beside it, in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(report_page, "SECTIONS", report_page.SECTIONS)  # one page adds to it
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    programs = []
    for block in blocks(page, "python"):
        name = re.match(r"# (\w+\.py)\n", block)
        if name:
            (tmp_path / name[1]).write_text(block)
        else:
            programs.append(block)
    assert programs, "the page shows nothing that runs"
    exec(compile("\n".join(programs), page.name, "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("page", EXTEND, ids=lambda page: page.stem)
def test_pages_on_extending_have_the_same_parts(page):
    parts = re.findall(r"^## (.*)$", page.read_text(), re.MULTILINE)
    assert [part for part in parts if part in PARTS] == PARTS


def test_method_page_documents_the_whole_interface():
    page = (ROOT / "docs" / "extend" / "method.md").read_text()
    names = {name for name in [*vars(Method), *Method.__annotations__] if not name.startswith("_")}
    assert {name for name in names if f"\n| `{name}" not in page} == set()
    assert {name for name in CHECKS if f"\n| `{name}`" not in page} == set()


def test_verbs_page(capsys):
    (example,) = blocks(ROOT / "docs" / "concepts" / "verbs.md", "python")
    exec(compile(example, "verbs.md", "exec"), {})
    numbers = [float(word) for word in capsys.readouterr().out.strip("[] \n").split()]
    np.testing.assert_allclose(numbers, [4 / 3, 1, 2, 5 / 3], 1e-5)  # means of three neighbours of a ring


def test_verbs_page_names_every_verb():
    page = (ROOT / "docs" / "concepts" / "verbs.md").read_text()
    verbs = [name for name in dir(Peers) if callable(getattr(Peers, name)) and not name.startswith("_")]
    assert [verb for verb in verbs if f"`{verb}(" not in page] == ["traffic"]  # read by the engine


@pytest.mark.parametrize("name", GENERATED)
def test_generated_pages_are_up_to_date(name, tmp_path):
    page = ROOT / "docs" / name
    source = str(ROOT / "docs" / "_build" / f"{page.stem}.py")
    program = f"import runpy; print(eval({GENERATED[name]!r}, runpy.run_path({source!r})), end='')"
    assert page.read_text() == run_python(["-c", program], tmp_path), "run make docs"


def test_every_package_has_an_api_page():
    packages = {init.parent.name for init in (ROOT / "src" / "coterie").glob("*/__init__.py")}
    assert {page.stem for page in (ROOT / "docs" / "reference" / "api").glob("*.md")} == packages | {"coterie", "index"}


@pytest.mark.parametrize(
    "chosen", [("stays_finite", "alone_without_others", "resumes"), pytest.param(tuple(CHECKS), marks=pytest.mark.soak)]
)
def test_skeleton_keeps_the_contract(chosen):
    """The checks that need no second process; `gossip-sgd` runs the others for it."""
    case = Case(imported(f"{ROOT / 'examples' / 'my_method.py'}:MyMethod", "MyMethod"))
    for name in chosen:
        CHECKS[name](case)
    case.close()


def test_pfllib_files(tmp_path):
    """Its preset is a valid comparison, and its data files become a federation with the same division."""
    planned = ComparisonConfig.from_dict(read_toml(ROOT / "examples" / "pfllib_dirichlet.toml"))
    assert planned.tune is False
    assert planned.experiment.method.spec.lr == 0.005
    random = np.random.default_rng(0)
    for part, count in (("train", 6), ("test", 2)):
        (tmp_path / part).mkdir()
        for client in (0, 1, 10):
            stored = {"x": random.normal(size=(count + client, 1, 4, 4)), "y": np.arange(count + client) % 3}
            np.savez_compressed(tmp_path / part / f"{client}.npz", data=np.array(stored, dtype=object))
    made = imported(f"{ROOT / 'examples' / 'pfllib_data.py'}:federation", "federation")(tmp_path)
    assert made.names == ("0", "1", "10")
    assert made.train.count.tolist() == [6, 7, 16]
    assert made.test.count.tolist() == [2, 3, 12]


@pytest.mark.soak
def test_first_experiment(tmp_path):
    printed = run_python([str(ROOT / "examples" / "first_experiment.py"), "3"], tmp_path)
    assert "client-0 listens to" in printed
    assert len(list((tmp_path / "models").glob("*.safetensors"))) == 20


@pytest.mark.soak
def test_decentralised_regularisation(tmp_path):
    printed = run_python([str(ROOT / "examples" / "decentralised_regularisation.py"), "12"], tmp_path)
    common, own = (float(line.rsplit(" ", 1)[1]) for line in printed.splitlines()[:2])
    assert own < common - 0.1
    weights = [float(word) for word in printed.splitlines()[2].split()[2:]]
    assert max(weights[:6]) < min(weights[6:])  # the stations whose instruments say nothing find out


@pytest.mark.soak
def test_network_lasso_path(tmp_path):
    """The example's claim: from one cluster of all over exactly the planted groups to clients on their own."""
    with pytest.warns(CoterieWarning, match="shortest edges"):
        job = Job.of(Experiment.from_dict(read_toml(ROOT / "examples" / "network_lasso_path.toml")))
    path = execute(job, out=tmp_path / "run", device="cpu").path()
    assert path["clusters"].iloc[[0, -1]].tolist() == [1, 40]
    groups = job.federation.groups
    assert any(((labels[:, None] == labels) == (groups[:, None] == groups)).all() for labels in path["labels"])
    assert path["test_score"][path["kept"]].item() > 0.75  # one model for all is a guess, 0.25


def test_readme_example(tmp_path):
    example, _ = blocks(ROOT / "README.md", "python")
    printed = run_python(["-c", example.replace("rounds=30", "rounds=2")], tmp_path)
    assert "test_score" in printed
    assert "clients" in printed.splitlines()[-1]


def test_readme_estimator(tmp_path):
    _, example = blocks(ROOT / "README.md", "python")
    table = """
import numpy as np, pandas as pd
random = np.random.default_rng(0)
school = random.integers(0, 12, 300)
frame = pd.DataFrame({"age": random.normal(15, 1, 300), "school": school, "district": school % 3})
score = frame.age + school % 3 + random.normal(0, 1, 12)[school] + random.normal(0, 1, 300)
new = pd.DataFrame({"age": [15.0], "school": [99], "district": [1]})
"""
    printed = run_python(["-c", table + example], tmp_path)
    assert "Intraclass correlation" in printed
    assert re.search(r"^school +12 ", printed, re.M)
    assert re.search(r"^district +3 ", printed, re.M)


def test_quickstart_examples(capsys):
    examples = blocks(ROOT / "docs" / "start" / "quickstart.md", "python")
    printed, swept = [], None
    for example in examples:
        found = {"__name__": "__main__"}
        exec(compile(re.sub(r"rounds=\d+", "rounds=2", example), "quickstart.md", "exec"), found)
        swept = found.get("swept", swept)
        printed.append(capsys.readouterr().out)
    _, second, last = printed
    assert "test_score" in second
    assert len(swept.to_frame()) == 10
    assert 0 <= float(last) <= 1


@pytest.mark.soak
def test_implicit_example_prints_the_derivative(tmp_path):
    (example,) = [
        text
        for text in blocks(ROOT / "docs" / "methods" / "bilevel.md", "python")
        if "coterie.bilevel.implicit" in text
    ]
    assert run_python(["-c", example], tmp_path).split()[0] == "6.0"


@pytest.mark.soak
def test_hypergradients_page(tmp_path):
    (example,) = [text for text in blocks(BILEVEL, "python") if "from coterie.bilevel import" in text]
    values = [float(word) for word in run_python(["-c", example], tmp_path).strip("[] \n").split()]
    # sum f = |x|^2 (4 + r) / 2 - x @ sum(data) with r = sum exp(lambda): d x / d lambda_i = - exp(lambda_i) x / (4 + r)
    decay = np.exp([0.0, -1.0, -2.0, -3.0])
    x = (np.arange(12.0).reshape(4, 3) + 1).sum(0) / (4 + decay.sum())
    np.testing.assert_allclose(values, -4 * decay * x.sum() / (4 + decay.sum()), rtol=1e-4)


@pytest.mark.parametrize("page", ["start/quickstart.md", "reference/files.md"])
def test_config_files_in_the_docs_are_valid(page):
    files = blocks(ROOT / "docs" / page, "toml")
    assert files
    for text in files:
        tables = tomllib.loads(text)
        if "federation" in tables:
            FederationFile.from_dict(tables, "federation.toml")
        elif "site" in tables:
            SiteFile.from_dict(tables, "site.toml")
        elif "sweep" in tables:
            SweepConfig.from_dict(tables)
        else:
            ComparisonConfig.from_dict(tables)


def test_the_example_of_a_sweep_has_the_programs_it_names():
    swept = SweepConfig.from_dict(read_toml(ROOT / "examples" / "sweep.toml"))
    assert (swept.runs[-1].candidate, len(swept.runs), len(by_key(swept.runs, "program"))) == (24, 48, 2)


def test_files_page_shows_the_defaults():
    """The example experiment names every common setting, at its default unless the digits have another."""
    text = blocks(ROOT / "docs" / "reference" / "files.md", "toml")[0]
    tables = tomllib.loads(text)
    commons = {section: imported(kind.common, section) for section, kind in SECTIONS.items() if kind.common}
    for section, common in (commons | {"run": RunSettings, "augment": Augment, "world": World}).items():
        for field in describe(common):
            if field.name == "clients":  # 20 for the digits, whatever the data have elsewhere
                continue
            if field.default is None:  # TOML has no None: a comment names the setting
                assert f"\n# {field.name} = " in text, f"{section}.{field.name}"
            else:
                assert tables[section][field.name] == _plain(field.default), f"{section}.{field.name}"


def _plain(value):
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.soak
def test_evaluation_page_prices_a_round():
    """48 + 650 * 4 + 4 bytes up and as many down: the sum a reader can redo."""
    federation = ct.load("digits", "classes", clients=20, classes=3)
    result = ct.run(federation, model="linear", method="fedavg", rounds=2, device="cpu")
    assert result.ledger.bytes_per_client() == 2 * (2652 + 2652)
    assert "2652 bytes" in (ROOT / "docs" / "concepts" / "evaluation.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
