"""Configurations that nobody should write: each is answered with a sentence that names the field, and nothing runs."""

from collections.abc import Callable

import numpy as np
import pytest

import coterie as ct
from coterie.errors import CoterieError, printable, shown
from coterie.experiment import memory
from coterie.spec import param, spec
from coterie.storage.toml import read_toml
from support.attacks import Attack, call, refuse

DIGITS = {400: "9" * 400, 5000: "9" * 5000}
DEEP = "[" * 5000 + "]" * 5000
DEEP_TABLES = "{a=" * 5000 + "1" + "}" * 5000


def toml(text: str) -> Callable:
    """Write an experiment of two tiny clients, with these lines in it."""
    sections = {"data": 'name="planted-groups"\nclients=2\ngroups=1', "method": 'name="local"', "run": "rounds=1"}
    for line in text.splitlines():
        section, _, rest = line.partition(": ")
        old = sections.get(section, "")
        kept = [entry for entry in old.splitlines() if entry.partition("=")[0] != rest.partition("=")[0]]
        sections[section] = "\n".join([*kept, rest])
    written = "".join(f"[{section}]\n{lines}\n" for section, lines in sections.items())
    return lambda folder: (folder / "e.toml").write_text(written)


def nothing(folder) -> None:
    """Make no file."""


RUN, COMPARE = ("run", "e.toml", "--out", "r"), ("compare", "e.toml", "--out", "c")
NAME = "is not a name; a class of your own is named FILE.py:CLASS"
ATTACKS = [
    Attack("nested arrays", toml(f"data: x={DEEP}"), RUN, "e.toml is not valid TOML: it is nested more than 10 levels"),
    Attack("nested tables", toml(f"data: x={DEEP_TABLES}"), RUN, "it is nested more than 10 levels deep"),
    Attack("nested keys", toml(f"data: {'a.' * 500}a=1"), RUN, "it is nested more than 10 levels deep"),
    Attack("integer of 5000 digits", toml(f"run: rounds={DIGITS[5000]}"), RUN, "it has an integer of too many digits"),
    Attack("lr of 400 digits", toml(f"method: lr={DIGITS[400]}"), RUN, "method.lr must be a number of at most 308"),
    Attack("rounds of -400 digits", toml(f"run: rounds=-{DIGITS[400]}"), RUN, "run.rounds must be at least 1, not -99"),
    Attack("steps 2**70", toml(f"method: steps={2**70}"), RUN, "method.steps must be at most 1,000,000,000, not 1180"),
    Attack("epochs 2**70", toml(f"method: epochs={2**70}"), RUN, "method.epochs must be at most 100,000"),
    Attack("seed 2**100", toml(f"run: seed={2**100}"), RUN, "run.seed must be at most 4,294,967,295, not 12676506"),
    Attack("seed 2**32", toml(f"run: seed={2**32}"), RUN, "run.seed must be at most 4,294,967,295, not 4,294,967,296"),
    Attack("graph seed", toml(f"graph: seed={2**32}"), RUN, "graph.seed must be at most 4,294,967,295"),
    Attack("partition seed", toml(f"partition: seed={2**32}"), RUN, "partition.seed must be at most 4,294,967,295"),
    Attack("data seed", toml(f"data: seed={2**32}"), RUN, "data.seed must be at most 4,294,967,295"),
    Attack("seeds beyond", toml(f"run: seed={2**32 - 2}\ncompare: seeds=5"), COMPARE, "run.seed + seeds must stay"),
    Attack("clients 10**12", toml(f"partition: clients={10**12}"), RUN, "partition.clients must be at most 10,000,000"),
    Attack("clients 10**30", toml(f"partition: clients={10**30}"), RUN, "partition.clients must be at most 10,000,000"),
    Attack("data clients 10**30", toml(f"data: clients={10**30}"), RUN, "data.clients must be at most 2,147,483,647"),
    Attack("layers 2**31 - 1", toml(f'model: name="lstm"\nmodel: layers={2**31 - 1}'), RUN, "must be at most 100"),
    Attack("crop 2**31 - 1", toml(f"augment: crop={2**31 - 1}"), RUN, "augment.crop must be at most 1,000"),
    Attack("hidden 10**12", toml(f"model: hidden=[{10**12}]"), RUN, "model.hidden must be at most 2,147,483,647"),
    Attack("hidden 2**31 - 1", toml(f"model: hidden=[{2**31 - 1}]"), RUN, "lower the sizes in [model]"),
    Attack("members 10**9", toml(f"model: members={10**9}"), RUN, "model.members must be at most 1,000"),
    Attack("seeds 10**9", toml(f"compare: seeds={10**9}"), COMPARE, "compare.seeds must be at most 10,000"),
    Attack("splits 10**9", toml(f"compare: splits={10**9}"), COMPARE, "compare.splits must be at most 10,000"),
    *(
        Attack(f"{section}.name = {value}", toml(f"{section}: name={value}"), command, f"{section}.name must be text")
        for section in ("data", "partition", "model", "method", "graph", "codec")
        for value in ("5", "[]", "{}", "true")
        for command in ((RUN, COMPARE) if section == "data" else (RUN,))
    ),
    Attack("methods.local.name 5", toml("methods.local: name=5"), COMPARE, "method.name must be text, not 5"),
    Attack("methods.local.name []", toml("methods.local: name=[]"), COMPARE, "method.name must be text, not []"),
    Attack("name ':'", toml('data: name=":"'), RUN, f"':' {NAME}"),
    Attack("name '..:x'", toml('data: name="..:x"'), RUN, f"'..:x' {NAME}"),
    Attack("name '.foo:x'", toml('data: name=".foo:x"'), RUN, f"'.foo:x' {NAME}"),
    Attack("name 'a:'", toml('method: name="a:"'), RUN, f"'a:' {NAME}"),
    Attack("name with NUL", toml(r'data: name="a\u0000b.py:X"'), RUN, r"is not a file; a method of your own"),
    Attack("name of 5000", toml(f'data: name="{"a" * 5000}.py:X"'), RUN, "is not a file; a method of your own"),
    Attack("path with NUL", toml(r'data: path="a\u0000.csv"' + '\ndata: name="csv"\ndata: target="y"'), RUN, "data."),
    Attack("--set nested", toml(""), (*RUN, "--set", f"method.lr={DEEP}"), "it is nested more than 10 levels deep"),
    Attack("--set digits", toml(""), (*RUN, "--set", f"run.rounds={DIGITS[5000]}"), "an integer of too many digits"),
    Attack("--rounds 10**20", toml(""), (*RUN, "--rounds", str(10**20)), "run.rounds must be at most 2,147,483,647"),
    Attack("--out of 300", toml(""), ("run", "e.toml", "--out", "x" * 300), "is too long a name; choose a shorter one"),
    Attack("--out not UTF-8", toml(""), ("run", "e.toml", "--out", "a\udcff"), r"--out 'a\udcff' is not UTF-8"),
    Attack("experiment of 5000", nothing, ("run", "x" * 5000), "File name too long"),
    Attack("path not UTF-8", nothing, ("compare", "a\udcff.csv", "--target", "y"), "data.path must be text in UTF-8"),
    Attack("path of nobody", nothing, ("compare", "~nosuchuser/x.csv", "--target", "y"), "path: "),
    Attack("path of 5000", nothing, ("compare", "x" * 5000 + ".csv", "--target", "y"), "File name too long"),
    Attack("--shape huge", nothing, ("show", "mlp", "--shape", "9" * 20), "whose product is at most 2,147,483,647"),
    Attack("ESC in a name", toml(r'method: name="a\u001b[2J"'), RUN, r"there is no method called 'a\x1b[2J'"),
]  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_it_is_refused(attack, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuse(attack, tmp_path)


def test_a_byte_order_mark_is_left_out(tmp_path):
    file = tmp_path / "e.toml"
    file.write_bytes(b"\xef\xbb\xbf[run]\nrounds = 3\n")
    assert read_toml(file) == {"run": {"rounds": 3}}


OWN_FILES = {
    "raises.py": ("1 / 0", "raises.py cannot be imported (ZeroDivisionError: division by zero)", "1 / 0"),
    "quits.py": ("raise SystemExit(7)", "quits.py cannot be imported (SystemExit: 7)", "raise SystemExit(7)"),
    "exits.py": ("import sys\nsys.exit()", "exits.py cannot be imported (SystemExit: )", "sys.exit()"),
    "imports.py": ("import nowhere_to_be_found", "(No module named 'nowhere_to_be_found')", "import nowhere"),
    "fails.py": (
        "from coterie.extend import method\nfrom coterie.methods import Local\n\n@method\nclass X(Local):\n"
        "    def check(self, task, federation):\n        raise KeyError('here')",
        "fails.py stopped with KeyError: 'here'",
        "raise KeyError('here')",
    ),
}


@pytest.mark.parametrize("name", OWN_FILES)
def test_a_file_of_the_users_own_that_fails_is_named_and_shows_its_traceback(name, tmp_path, monkeypatch):
    text, sentence, line = OWN_FILES[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(text)
    toml(f'method: name="{name}:X"')(tmp_path)
    outcome = call(*RUN)
    assert outcome.exit_code == 2, outcome.output
    first, *trace = outcome.stderr.splitlines()
    assert first.startswith("coterie: ")
    assert sentence in first
    assert trace[0].startswith("Traceback")
    assert name in trace[1]
    assert any(line in entry for entry in trace)
    assert "src/coterie" not in "\n".join(trace)  # only the user's own lines
    assert not (tmp_path / "r").exists()


def test_models_that_cannot_fit_are_refused_with_their_size(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 2**20)
    with pytest.raises(CoterieError, match=r"3 models of 100,000,000 parameters need at least 2\.4 GB, and 1\.0 MB"):
        memory.check_fit(10**8, 3, "float32")
    memory.check_fit(10_000, 3, "float32")
    assert memory.parameters_of(lambda key: ct.models.Linear().build((10**9,), 10, key)) == 10**10 + 10


def test_values_in_sentences_are_short_and_printable():
    assert shown("a\x1b[2Jb") == r"'a\x1b[2Jb'"
    assert len(shown("x" * 10**6)) < 100
    assert shown(10**5000) == "a value of type int that is too long to be shown"
    assert printable("東京\x1b]0;x\x07\u202e") == "東京\\x1b]0;x\\x07\\u202e"
    assert printable("a\nb", keep="\n") == "a\nb"


def test_the_limits_of_a_field_hold_for_every_item_of_a_list():
    @spec
    class Sizes:
        sizes: tuple[int, ...] = param((1,), "sizes", at_least=1)

    with pytest.raises(CoterieError, match="sizes must be at least 1, not 0"):
        Sizes(sizes=(3, 0))


def test_a_client_cannot_be_called_as_the_hub_is():
    rows = (np.zeros((8, 2)), np.arange(8) % 2)
    with pytest.raises(CoterieError, match="a client is called 'hub'"):
        ct.federation({"hub": rows, "b": rows})
