"""The pages in a real browser: a phone sees the answer, paper cuts nothing, curves grow."""

import numpy as np
import pytest

from coterie.pages import live as live_pages
from coterie.pages import plotly_javascript, write_report
from coterie.pages.live import serve
from coterie.pages.page import render
from support.answer_cases import make_answer
from support.report_cases import make_clients, make_comparison

pytest_plugins = ["support.browser"]

PHONE, PAPER = {"width": 390, "height": 844}, {"width": 688, "height": 1000}  # A4 less its margins
RUN = "<img src=x onerror='window.ran = true'><script>window.ran = true</script>"
OVER_THE_EDGE = """() => [...document.querySelectorAll("main *:not(svg *)")]
    .filter((e) => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1 && e.checkVisibility())
    .map((e) => e.tagName + "." + e.className)"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write_report(make_answer(known=True), tmp_path_factory.mktemp("report") / "report.html").as_uri()


def test_every_figure_is_drawn_in_light_and_dark(page, report):
    page.goto(report)
    drawn = "() => [...document.querySelectorAll('.plot')].map((e) => [e.id, e.querySelectorAll('svg').length > 0])"
    figures = dict(page.evaluate(drawn))
    assert figures == dict.fromkeys(figures, True)
    assert {"score-curve", "loss-curve", "weights-plot", "client-plot", "bytes-plot", "partition-plot"} == set(figures)
    background = "() => getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.click("#theme")
    assert page.evaluate(background) != light
    page.click("#leaderboard-table thead th:nth-child(3) button")
    means = page.locator("#leaderboard-table tbody td:nth-child(3)").all_inner_texts()
    numbers = [float(text.split("\n")[-1].removesuffix(" %")) for text in means]
    assert numbers == sorted(numbers, reverse=True)


def test_groups_of_very_many_clients_have_sharp_edges(page, tmp_path):
    """A large heat map is an image, whose style Plotly writes in a way that the page's policy refuses."""
    page.goto(write_report(make_comparison(make_clients(250), seeds=1), tmp_path / "report.html").as_uri())
    image = page.locator("#weights-plot .hm image")
    assert image.evaluate("(e) => getComputedStyle(e).imageRendering") == "pixelated"
    page.hover("#weights-plot .nsewdrag")
    bold = page.locator("#weights-plot .hovertext tspan[style]").first
    assert bold.evaluate("(e) => getComputedStyle(e).fontWeight") == "700"


def test_a_phone_sees_the_answer_without_scrolling_sideways(page, report):
    page.set_viewport_size(PHONE)
    page.goto(report)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    hidden = "() => [...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth + 1).length"
    assert page.evaluate(hidden) == 0
    name, gain = (page.locator(f"#leaderboard-table tbody tr:first-child {cell}") for cell in ("th", "td >> nth=0"))
    assert gain.bounding_box()["x"] + gain.bounding_box()["width"] <= PHONE["width"]
    assert abs(gain.bounding_box()["y"] - name.bounding_box()["y"]) < 5  # in one line
    assert "points" in gain.get_attribute("data-label")


def test_paper_cuts_nothing(page, report):
    page.set_viewport_size(PAPER)
    page.emulate_media(media="print", color_scheme="dark")
    page.goto(report)
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(OVER_THE_EDGE) == []
    assert not page.locator("nav").is_visible()
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_curves_grow_while_it_trains_and_the_page_becomes_the_report(page, monkeypatch):
    monkeypatch.setattr(live_pages, "PAUSE", 0.02)
    answer = make_answer()
    roles = {method: answer.role(method) for method in answer.results} | {RUN: "cooperates"}
    final = render(answer, plotly_javascript())
    points = "() => document.querySelectorAll('#score-curve .scatterlayer .point').length"
    with serve(roles, len(roles)) as live:
        page.goto(live.url)
        page.locator("#runs li").nth(8).wait_for()
        counts = []
        for row in answer.results["local"][0].rows:
            live.update("local", 0, "round", row["round"], 20, {k: np.asarray(v) for k, v in row.items()})
            page.locator("#runs .where", has_text=f"round {row['round']} of 20").wait_for()
            counts.append(page.evaluate(points))
        assert counts == [1, 2, 3, 4]
        live.update("local", 0, "end", 20, 20, answer.results["local"][0].final)
        page.locator("#status", has_text="Training: 1 of 9 runs").wait_for()
        assert page.evaluate("window.ran") is None
        live.finish(final)
        page.wait_for_selector(".tiles")
        assert page.title() == "coterie: Does cooperation help these 12 clients?"
