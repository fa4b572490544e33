"""Commands that are pasted do what they say, whatever the folders are called."""

import shutil
import subprocess
from pathlib import Path

import pytest

from coterie.storage.commands import command, is_command

SHELL = shutil.which("bash")
NAMES = [
    "plain",
    "a b",
    "x$(touch owned)",
    "`touch owned`",
    "it's",
    "a;b|c&d",
    "\x1b[2J",
    "tab\there",
    "caf\udce9",
    "東京",
]


@pytest.mark.skipif(SHELL is None, reason="needs bash")
def test_a_shell_reads_back_every_word(tmp_path):
    text = command("resume", *map(Path, NAMES), Path("-rf"))
    words = subprocess.run(
        [SHELL, "-c", f"coterie() {{ printf '%s\\0' \"$@\"; }}; {text}"], cwd=tmp_path, capture_output=True, check=True
    ).stdout.split(b"\0")
    assert words == [b"resume", *(name.encode(errors="surrogateescape") for name in NAMES), b"./-rf", b""]
    assert text.isprintable()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", NAMES[:6] + NAMES[-1:])
def test_our_own_commands_are_known(name):
    assert is_command(command("compare", "--data", name))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rm -rf ~",
        "coterie run x; rm -rf ~",
        "coterie run $(rm -rf ~)",
        "coterie run x\nrm -rf ~",
        "coterie run > ~/.bashrc",
        "coterie run \x1b[2J",
        "coterie 'open",
        "coterie  run x",
        "python -m coterie run x",
    ],
)
def test_anything_else_is_not(text):
    assert not is_command(text)
