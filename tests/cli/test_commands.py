"""The command line, in this process and in real ones: output, exit statuses, and one sentence per mistake."""

import dataclasses
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import coterie
from coterie import registry
from coterie.cli import app

SMALL = ["--rounds", "2", "--device", "cpu", "--model", "linear", "--clients", "5", "--data", "digits", "--no-tune"]
HEAVY = ("jax", "numpy", "pandas", "sklearn", "networkx", "scipy", "plotly", "equinox")
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(coterie.__file__).parents[1])}


def call(*words):
    """Run the command line in this process."""
    return CliRunner().invoke(app, [str(word) for word in words])


def refuse(sentence, *words):
    """Expect one sentence on standard error, exit status 2 and nothing else."""
    outcome = call(*words)
    assert outcome.exit_code == 2, outcome.output
    assert sentence in outcome.stderr
    assert len(outcome.stderr.strip().splitlines()) == 1
    assert "Traceback" not in outcome.output


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    file = tmp_path_factory.mktemp("files") / "experiment.toml"
    file.write_text(
        """
        format = 1
        [partition]
        clients = 5
        [model]
        name = "linear"
        [method]
        name = "ditto"
        lr = 0.2
        [run]
        rounds = 3
        [compare]
        methods = ["local", "ditto", "pooled"]
        [methods.ditto]
        tie = 0.7
        """
    )
    return file


@pytest.fixture(scope="module")
def compared(experiment, tmp_path_factory):
    """One real comparison for all tests that only look at it."""
    folder = tmp_path_factory.mktemp("compared") / "out"
    outcome = call("compare", experiment, "--out", folder, "--device", "cpu")
    assert outcome.exit_code == 0, outcome.output
    return folder, outcome


# -- list and show -----------------------------------------------------------------------------------------------------


def test_help_names_every_command():
    outcome = call("--help")
    assert outcome.exit_code == 0
    for command in ("run", "compare", "resume", "report", "list", "show"):
        assert f"  {command} " in outcome.stdout


@pytest.mark.parametrize("words", [["--help"], ["list"], ["list", "methods"], ["compare", "--help"]])
def test_what_must_answer_at_once_imports_nothing_heavy(words):
    command = [sys.executable, "-X", "importtime", "-m", "coterie", *words]
    outcome = subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in outcome.stderr.splitlines()}
    assert "typer" in imported
    assert not imported & set(HEAVY)


def test_importing_the_package_does_not_import_jax_and_its_names_are_not_hidden_by_modules():
    program = (
        "import sys, coterie as ct\n"
        "assert 'jax' not in sys.modules and 'numpy' not in sys.modules\n"
        "import coterie.experiment.run, coterie.comparison.compare, coterie.pages\n"
        "from coterie.experiment.run import execute\n"
        "assert all(callable(f) for f in (ct.run, ct.compare, ct.report, ct.resume, ct.load, ct.federation))\n"
        "assert set(dir(ct)) == set(ct.__all__)\n"
        "assert all(getattr(ct, name) is not None for name in ct.__all__)\n"
        "try: ct.absent\n"
        "except AttributeError as error: assert 'absent' in str(error)\n"
        "else: raise SystemExit(1)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=ENVIRONMENT)


@pytest.mark.parametrize("kind", registry.KINDS)
def test_list_prints_every_row(kind):
    outcome = call("list", kind)
    lines = outcome.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [row.name for row in registry.rows(kind)]
    assert all(row.summary in line for row, line in zip(registry.rows(kind), lines, strict=True))
    names = [row["name"] for row in json.loads(call("list", kind, "--json").stdout)]
    assert names == [row.name for row in registry.rows(kind)]


def test_list_without_a_kind_lists_all():
    assert list(json.loads(call("list", "--json").stdout)) == list(registry.KINDS)
    assert "gossip-sgd" in call("list").stdout
    refuse("there is no list of 'metods'", "list", "metods")


@pytest.mark.parametrize(("kind", "name"), [(k.name, row.name) for k in registry.KINDS.values() for row in k.rows])
def test_show_describes_every_name_with_all_its_settings(kind, name):
    shown = json.loads(call("show", name, "--json").stdout)  # a list where several kinds have a thing of this name
    about = next(each for each in (shown if isinstance(shown, list) else [shown]) if f"{each['kind']}s" == kind)
    cls = registry.load(kind, name)
    shown = {field["name"]: field for field in about["settings"]}
    for field in dataclasses.fields(cls):
        assert shown[field.name]["help"] == field.metadata["help"] != ""
    text = call("show", name).stdout
    assert all(f"{about['section']}.{key}" in text for key in shown)


def test_show_a_method_prints_paper_and_equation():
    text = " ".join(call("show", "ditto").stdout.split())
    for part in ("Li et al. 2021", "Algorithm 1", "lambda", "method.tie", "number", "0.1"):
        assert part in text


def test_show_a_model_prints_the_names_of_its_parameters():
    assert json.loads(call("show", "mlp", "--shape", "2,3", "--json").stdout)["parameters"] == {
        "layers.0.weight": [64, 6],
        "layers.0.bias": [64],
        "layers.1.weight": [10, 64],
        "layers.1.bias": [10],
    }
    assert "embedding.weight" in call("show", "lstm").stdout
    assert "conv1.weight" in call("show", "cnn").stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["dpsgd"], "differentially private SGD"),
        (["DSGD"], "step-then-mix"),
        (["fedagv"], "there is nothing called 'fedagv'; did you mean fedavg?"),
        (["mlp", "--shape", "a,b"], "--shape must be whole numbers"),
        (["cnn", "--shape", "7"], "needs images"),
        (["ditto", "--shape", "3"], "--shape is for models"),
        (["./absent.py:Mine"], "is not a file"),
    ],
)
def test_show_refuses_with_a_sentence(words, sentence):
    refuse(sentence, "show", *words)


# -- run and resume ----------------------------------------------------------------------------------------------------


def test_run_names_the_device_first_and_leaves_a_run_folder(experiment):
    outcome = call("run", experiment, "--device", "cpu", "--seed", "4")
    assert outcome.exit_code == 0, outcome.output
    assert outcome.stdout.startswith("device: cpu (")
    assert outcome.stdout.count("round 3 of 3") == 1
    folder = Path("runs/digits-ditto-seed4")
    assert (folder / "summary.json").is_file()
    assert (folder / "report.html").is_file()
    assert f"report: {folder}/report.html" in outcome.stdout
    assert "tie = 0.7" in (folder / "config.toml").read_text()  # [methods.ditto] holds for ditto wherever it runs
    again = call("run", folder / "config.toml", "--device", "cpu")
    assert "complete already" in again.stdout
    refuse("holds another experiment: run.rounds is 3 there and 4 here", "run", experiment, "--seed", 4, "--rounds", 4)


def test_json_is_all_there_is_on_standard_output(experiment):
    outcome = call(
        "run", experiment, "--device", "cpu", "--json", "--out", "here", "--set", "method.lr=0.4", "--rounds", 2
    )
    said = json.loads(outcome.stdout)
    assert outcome.stderr.startswith("device: cpu (")
    assert (said["method"], said["round"], said["metric"], said["folder"]) == ("ditto", 2, "accuracy", "here")
    assert said["mean"] == pytest.approx(np.mean(list(said["scores"].values())))
    assert list(said["scores"]) == [f"client-{i}" for i in range(5)]
    assert "lr = 0.4" in Path("here/config.toml").read_text()


def test_resume_completes_a_run_that_lost_its_end(experiment):
    assert call("run", experiment, "--device", "cpu", "--out", "whole").exit_code == 0
    shutil.copytree("whole", "cut")
    Path("cut/summary.json").unlink()
    outcome = call("resume", "cut", "--device", "cpu")
    assert outcome.exit_code == 0, outcome.output
    assert Path("cut/metrics.jsonl").read_bytes() == Path("whole/metrics.jsonl").read_bytes()
    assert Path("cut/summary.json").is_file()
    refuse("is not the folder of a run", "resume", ".")
    refuse("is not the folder of a run", "resume", "absent")


def test_a_resume_with_a_changed_config_is_refused(experiment):
    assert call("run", experiment, "--device", "cpu", "--out", "run").exit_code == 0
    Path("run/summary.json").unlink()
    config = Path("run/config.toml")
    whole = config.read_text()
    config.write_text(whole.replace('name = "linear"', 'name = "mlp"'))
    refuse("run", "resume", "run", "--device", "cpu")
    config.write_text(whole.replace("tie = 0.7", "tie = 0.9"))
    refuse("run", "resume", "run", "--device", "cpu")


@pytest.mark.soak
def test_ctrl_c_says_how_to_go_on_and_that_works(experiment):
    words = [sys.executable, "-m", "coterie", "run", str(experiment), "--out", "run", "--device", "cpu"]
    words += ["--set", "run.rounds=1500", "--set", "run.evaluate_every=50", "--set", "run.checkpoint_every=5"]
    plain = ENVIRONMENT | {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=plain)
    assert process.stdout is not None
    assert any("round 50 of 1500" in line for line in process.stdout)  # reads until it is there
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert said.startswith("stopped after round ")
    assert said.strip().endswith("; continue with: coterie resume run")
    assert int(said.split()[3].rstrip(";")) < 1500
    outcome = call("resume", "run", "--device", "cpu", "--json")
    assert json.loads(outcome.stdout)["round"] == 1500
    rounds = [json.loads(line)["round"] for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert rounds == list(range(50, 1501, 50))


# -- compare and report ------------------------------------------------------------------------------------------------


def test_compare_prints_leaderboard_verdict_and_report(compared):
    folder, outcome = compared
    lines = outcome.stdout.splitlines()
    assert lines[0].startswith("device: cpu (")
    text = " ".join(outcome.stdout.split())
    assert "local seed 0: round 3 of 3, score 0." in text
    assert "gain over mean worst beat bytes per method alone accuracy client alone client seconds" in text
    number, ending = r"\s+\d+\.\d %", r"\s+\d+\.\d\s*$"
    assert re.search(rf"^local\s+-{number * 2}\s+-\s+0 B{ending}", outcome.stdout, re.MULTILINE)
    gain = r"\s+[+-]\d+\.\d"
    assert re.search(rf"^ditto{gain}{number * 2}\s+\d/5\s+\d+\.\d kB{ending}", outcome.stdout, re.MULTILINE)
    assert "pooled is one model on all data: it needs them in one place" in text
    assert "ooperation" in text
    assert (folder / "report.html").is_file()
    assert lines[-1] == f"report: {folder / 'report.html'}"


def test_compare_as_json_has_one_row_per_method_and_every_clients_score(compared, experiment):
    folder, _ = compared
    outcome = call("compare", experiment, "--out", folder, "--device", "cpu", "--json")
    said = json.loads(outcome.stdout)
    assert {row["method"] for row in said["leaderboard"]} == {"local", "ditto", "pooled"}
    assert said["leaderboard"][-1]["method"] == "pooled"
    assert "complete already" in outcome.stderr
    for row in said["leaderboard"]:
        scores = list(said["scores"][row["method"]].values())
        assert row["mean"] == pytest.approx(np.mean(scores))
        assert row["worst"] == min(scores)
        better = sum(a > b for a, b in zip(scores, said["scores"]["local"].values(), strict=True))
        assert row["beat_alone"] == (None if row["method"] == "local" else better)


def test_the_command_it_names_repeats_the_comparison(compared):
    folder, _ = compared
    command = coterie.Comparison.read([folder]).command
    outcome = call(*shlex.split(command)[1:], "--out", "again", "--device", "cpu")
    assert outcome.exit_code == 0, outcome.output
    for label in ("local", "ditto", "pooled"):
        ours, theirs = (Path(where) / label / "seed-0" for where in ("again", folder))
        assert (ours / "metrics.jsonl").read_bytes() == (theirs / "metrics.jsonl").read_bytes()
        assert (ours / "config.toml").read_bytes() == (theirs / "config.toml").read_bytes()


def test_resume_completes_a_comparison(compared):
    folder, _ = compared
    shutil.copytree(folder, "copy")
    shutil.rmtree("copy/ditto")
    refuse("is not complete; continue it with `coterie resume copy`", "report", "copy")
    outcome = call("resume", "copy", "--device", "cpu")
    assert outcome.exit_code == 0, outcome.output
    assert "local seed 0: complete already" in outcome.stdout
    assert "ditto seed 0: round 3 of 3" in outcome.stdout


@pytest.mark.soak
def test_flags_make_a_first_experiment_without_a_file():
    words = ["--data", "planted-groups", "--model", "linear", "--methods", "local, fedavg", "--rounds", 2, "--seeds", 2]
    outcome = call("compare", *words, "--clients", 3, "--device", "cpu", "--json")
    said = json.loads(outcome.stdout)
    assert (said["folder"], said["leaderboard"][0]["clients"], said["leaderboard"][0]["seeds"]) == ("comparison", 3, 2)
    config = Path("comparison/comparison.toml").read_text()
    assert 'name = "natural"' in config
    other = call("compare", "--partition", "iid", *SMALL, "--methods", "local")
    assert other.exit_code == 2
    assert "holds another comparison" in other.stderr
    assert "--out" in other.stderr


def test_a_method_of_your_own_runs_beside_ours_and_is_shown():
    Path("mine.py").write_text(
        '"""FedAvg under another name, to be compared with it."""\n'
        "from coterie.methods.base import method\n"
        "from coterie.methods.fedavg import FedAvg\n"
        "from coterie.spec import param\n"
        "@method\n"
        "class Mine(FedAvg):\n"
        '    """Mine."""\n'
        '    extra: float = param(0.5, "changes nothing")\n'
    )
    outcome = call(
        "compare",
        *SMALL,
        "--seeds",
        1,
        "--methods",
        "fedavg,./mine.py:Mine",
        "--set",
        "methods.Mine.extra=0.7",
        "--json",
    )
    assert outcome.exit_code == 0, outcome.output
    said = json.loads(outcome.stdout)
    assert said["scores"]["Mine"] == said["scores"]["fedavg"]
    assert "extra = 0.7" in Path("comparison/Mine/seed-0/config.toml").read_text()
    assert "methods.Mine.extra=0.7" in said["command"]
    assert "changes nothing" in call("show", "./mine.py:Mine").stdout
    refuse("has no 'Mien'; did you mean Mine?", "compare", "--methods", "./mine.py:Mien")
    Path("broken.py").write_text("import absent_module")
    first, *trace = call("compare", "--methods", "./broken.py:Mine").stderr.splitlines()
    assert "./broken.py cannot be imported (No module named 'absent_module')" in first
    assert trace[-2:] == ["    import absent_module", "ModuleNotFoundError: No module named 'absent_module'"]


def test_report_of_runs_and_comparisons(compared, experiment):
    folder, _ = compared
    one = call("report", folder / "local" / "seed-0", folder / "ditto" / "seed-0", "--out", "both.html")
    assert one.exit_code == 0, one.output
    assert "report: both.html" in one.stdout
    assert "ditto" in Path("both.html").read_text()
    refuse("is not the folder of a run", "report", "absent")
    written = call("report", folder, "--format", "csv", "--out", "paper")
    assert written.exit_code == 0, written.output
    assert Path("paper/table.csv").read_text().startswith("method,role,mean,std,runs,rank,mark,gain,")
    assert Path("paper/results.csv").read_text().startswith("method,seed,split,client,round,metric,value")
    refuse("--format must be one of latex, markdown, csv", "report", folder, "--format", "word")
    assert call("run", experiment, "--set", "partition.seed=1", "--out", "other", "--device", "cpu").exit_code == 0
    refuse("has other clients than", "report", folder, "other")


def test_without_plotly_a_run_still_ends_well(experiment, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)  # what Python holds for a module that must not be found
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    outcome = call("run", experiment, "--device", "cpu", "--out", "run")
    assert outcome.exit_code == 0, outcome.output
    assert "pip install 'coterie[report]'" in " ".join(outcome.stdout.split())
    assert not Path("run/report.html").exists()
    refuse("pip install 'coterie[report]'", "report", "run")


# -- bad input ---------------------------------------------------------------------------------------------------------


def table(rows, header="who,a,b,y"):
    Path("data.csv").write_text("\n".join([header, *rows]) + "\n")
    return ["--data", "csv", "--set", "data.path=data.csv", "--set", "data.target=y", "--set", "data.client=who"]


GOOD = [f"{who},{i % 7},{i % 5},{i % 2}" for who in ("north", "south") for i in range(20)]


def test_a_csv_table_of_your_own_is_compared():
    words = [*table(GOOD), "--methods", "local,fedavg", "--rounds", 2, "--model", "linear", "--device", "cpu", "--json"]
    said = json.loads(call("compare", *words).stdout)
    assert list(said["scores"]["local"]) == ["north", "south"]


@pytest.mark.parametrize(
    ("rows", "extra", "sentence"),
    [
        (["north,,1,0", *GOOD], ["--set", "data.missing=refuse"], "has no value in column 'a', row 1"),
        (["north,inf,1,0", *GOOD], [], "has an infinite number in column 'a', row 1"),
        ([*GOOD, "west,1,1,1"], ["--set", "partition.at_least=1"], "client 'west'"),
        (GOOD, ["--set", "data.client=whom"], "has no column 'whom'; did you mean who?"),
        (GOOD, ["--set", "data.target=z"], "has no column 'z'"),
        ([], [], "data.csv has no rows"),
    ],
)
def test_a_bad_table_is_one_sentence(rows, extra, sentence):
    refuse(sentence, "compare", *table(rows), *extra, "--methods", "local", "--rounds", 1, "--device", "cpu")


def test_arrays_that_do_not_fit_are_one_sentence():
    x, y = np.ones((12, 3), np.float32), np.arange(12) % 2
    words = [
        "--data",
        "npz",
        "--partition",
        "iid",
        "--clients",
        2,
        "--model",
        "linear",
        "--methods",
        "local",
        "--rounds",
        1,
    ]
    words += ["--device", "cpu", "--set", "data.path=data.npz"]
    bad = x.copy()
    bad[5, 1] = np.nan
    np.savez("data.npz", x=bad, y=y)
    refuse("contain NaN or infinity", "compare", *words)
    np.savez("data.npz", x=x, y=y[:11])
    refuse("they must match", "compare", *words)
    np.savez("data.npz", x=x)
    refuse("holds no array 'y'", "compare", *words)
    Path("data.npz").write_bytes(b"not an archive")
    refuse("data.npz", "compare", *words)
    Path("data.npz").unlink()
    refuse("there is no file data.npz", "compare", *words)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "absent.toml"], "absent.toml cannot be read: No such file"),
        (["run", "."], "cannot be read: Is a directory"),
        (["compare", "--methods", "dpsgd"], "dpsgd is differentially private SGD"),
        (["compare", "--methods", "fedagv"], "there is no method called 'fedagv'; did you mean fedavg?"),
        (["compare", "--methods", ","], "methods is empty"),
        (["compare", "--methods", "local,local"], "methods names local twice"),
        (["compare", "--data", "digts"], "there is no dataset called 'digts'; did you mean digits?"),
        (["compare", "--model", "mpl"], "there is no model called 'mpl'; did you mean mlp?"),
        (["compare", "--partition", "classs"], "there is no partition called 'classs'; did you mean classes?"),
        (["compare", "--rounds", "0"], "run.rounds must be at least 1"),
        (["compare", "--seeds", "0"], "compare.seeds must be at least 1"),
        (["compare", "--clients", "0"], "partition.clients must be at least 1"),
        (["compare", "--participation", "0"], "world.participation must be greater than 0"),
        (["compare", "--dropout", "1.5"], "world.dropout must be at most 1"),
        (["compare", "--slow", "-1"], "world.slow must be at least 0"),
        (["compare", "--late", "0"], "world.late must be at least 1"),
        (["compare", "--set", "method.rl=0.1"], "method.rl is not for every method"),
        (["compare", "--set", "methods.ditto.ty=1"], "ditto: unknown key method.ty"),
        (["compare", "--set", "methods.ditto=1"], "write methods.NAME.KEY=VALUE"),
        (["compare", "--set", "rounds=1"], "write SECTION.KEY=VALUE"),
        (["compare", "--set", "rum.rounds=1"], "unknown section [rum]; did you mean run?"),
        (["compare", "--set", "run.round=1"], "unknown key run.round; did you mean rounds?"),
        (["compare", "--device", "tpu"], "device must be auto, cpu, cpu:N, gpu or gpu:N, not 'tpu'"),
        (["compare", "--data", "digits", "--set", "partition.classes=11"], "classes must be at most 10"),
        (["compare", "--data", "digits", "--clients", "1000"], "client"),
        (["compare", "--methods", "os:path"], "os:path is not a method, which is a class with @method and round()"),
        (["compare", "--methods", "coterie.models.mlp:Mlp"], "coterie.models.mlp:Mlp is not a method"),
        (
            ["compare", "--model", "coterie.methods.ditto:Ditto"],
            "is not a model, which is",
        ),
        (["compare", "--model", "lstm"], "model lstm needs texts"),
        (["compare", "--set", "model.personal=['fc9']"], "the model has no parameter called 'fc9'"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(words, sentence):
    refuse(sentence, *words, *([] if "--device" in words or words[0] == "run" else ["--device", "cpu"]))
    assert not Path("comparison").exists()


def test_an_unconnected_graph_is_refused_before_anything_runs():
    Path("graph.edgelist").write_text("0 1\n2 3\n4 3\n")
    words = ["--set", "graph.name=edges", "--set", "graph.path=graph.edgelist", "--methods"]
    refuse("needs a connected graph", "compare", *SMALL, *words, "gossip-sgd")
    assert not Path("comparison").exists()
    outcome = call("compare", *SMALL, *words, "local,gossip-sgd", "--seeds", 1, "--no-tune")
    assert "gossip-sgd has no result: " in outcome.stdout  # the others go on
    assert "needs a connected graph" in outcome.stdout


def test_the_version_is_that_of_the_package():
    outcome = call("--version")
    assert (outcome.exit_code, outcome.stdout.strip()) == (0, importlib.metadata.version("coterie"))


def test_an_unknown_option_or_command_is_status_2():
    assert call("compare", "--round", "3").exit_code == 2
    assert call("comprae").exit_code == 2
    assert call("compare", "--rounds", "many").exit_code == 2


# -- init and check ----------------------------------------------------------------------------------------------------


def test_init_writes_an_experiment_that_check_describes_and_nothing_is_trained():
    rows = ["site,age,word,died", *(f"{'ab'[i % 2]},{20 + i * 7 % 50},{'xy'[i % 3 == 0]},{i % 2}" for i in range(60))]
    Path("visits.csv").write_text("\n".join(rows))
    assert call("init", "visits.csv", "--target", "died", "--client", "site").exit_code == 0
    text = Path("experiment.toml").read_text()
    assert 'target = "died"' in text
    refuse("experiment.toml exists already", "init", "visits.csv", "--target", "died")
    words = ["--set", "compare.methods=['local', 'fedavg']", "--device", "cpu"]
    outcome = call("check", "experiment.toml", *words, "--json")
    assert outcome.exit_code == 0, outcome.output
    said = json.loads(outcome.stdout)
    assert said["data"]["rows"] == 60
    alone, hub = said["methods"]
    assert alone["sent"] == 0 < hub["sent"]
    assert {path.name for path in Path().iterdir()} == {"visits.csv", "experiment.toml"}
    refuse("Name it with --target COLUMN", "check", "visits.csv", "--device", "cpu")
    refuse("name the table's file", "compare", "--target", "died", "--device", "cpu")


def test_sweep_shows_its_candidates_before_it_trains(experiment):
    file = Path("swept.toml")
    text = "".join(line.strip() + "\n" for line in Path(experiment).read_text().splitlines())
    file.write_text(text + '[sweep]\nmethod.name = ["ditto", "fedavg"]\nmethod.lr = [0.1, 0.2]\nseed = [0, 1]\n')
    refuse("[sweep]: run it with `coterie sweep swept.toml`", "run", file)
    refuse("[sweep]: run it with `coterie sweep swept.toml`", "compare", file)
    refuse("unknown key method.lrr for ditto; did you mean lr?", "sweep", file, "--set", "sweep.method.lrr=[1.0]")
    refuse("there is no section [sweep]", "sweep", experiment)
    outcome = call("sweep", file, "--dry-run", "--device", "cpu")
    assert outcome.exit_code == 0, outcome.output
    assert re.search(r"^\s+4\s+fedavg\s+0.2\s+0 1\s*$", outcome.stdout, re.MULTILINE)
    assert "4 candidates, 8 runs, 2 programs to compile (4 runs together, 4 runs together)" in outcome.stdout
    assert sorted(path.name for path in Path().iterdir()) == ["swept.toml"]
