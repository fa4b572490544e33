"""The top of the report and the tables of methods: their numbers, and that nothing is claimed that is not known."""

import re
from html import unescape

import numpy as np
import pytest

from coterie.comparison.verdict import Verdict
from coterie.pages.answer import fedavg_bytes, gain_tile, partner_tile, partners, price_tile
from coterie.pages.forest import _ticks
from coterie.pages.html import Html, h, join
from coterie.pages.page import render
from support.answer_cases import SITES, make_answer
from support.report_cases import EVIL, Page, make_clients, make_comparison, make_result


@pytest.fixture(scope="module")
def answer():
    return make_answer()


@pytest.fixture(scope="module")
def text(answer):
    return render(answer, "")


def words(markup):
    """What a reader sees."""
    return unescape(re.sub("<[^>]*>", "", markup)).replace("\u00a0", " ")


def section(text, name):
    return re.search(f'<section id="{name}">(.*?)</section>', text, re.S).group(1)


def test_three_tiles_say_gain_partners_and_price(answer, text):
    tiles = [words(tile) for tile in re.findall('<div class="tile">(.*?)</div>', text, re.S)]
    assert [re.match("Gain|With whom|Price", tile).group() for tile in tiles] == ["Gain", "With whom", "Price"]
    judged = answer.judgement()
    assert f"{100 * judged.interval.mean:+.1f} points" in tiles[0]
    assert judged.method in tiles[0]
    low, high = (f"{100 * end:+.1f}".replace("-", "−") for end in (judged.interval.low, judged.interval.high))
    assert f"95 % interval {low} to {high}" in tiles[0]
    assert "3 groups" in tiles[1]
    for group in (SITES[:4], SITES[4:8], SITES[8:]):
        assert f"{', '.join(group[:3])} and {group[3]}" in tiles[1]
    best = answer.best()
    size = {"network-lasso": 2200, "scool-sbm": 3100}[best]  # bytes of a message; FedAvg's has 1,000
    assert f"{40 * size / 1000:.1f} kB per client" in tiles[2] or f"{40 * size / 1000:.0f} kB per client" in tiles[2]
    assert f"{size / 1000:.1f} × FedAvg" in tiles[2]


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ("helps", ("+5.0 points", "gain")),
        ("hurts", ("+5.0 points", "loss")),
        ("cannot-tell", ("+5.0 points", "")),
        ("nobody-beats-guessing", ("nothing shown", "")),
    ],
)
def test_the_gain_tile_follows_the_verdict(answer, monkeypatch, outcome, expected):
    from coterie.comparison.verdict import Interval

    judged = Verdict(outcome, "A sentence.", "ditto", Interval(0.05, 0.01, 0.03, 0.07), rows_needed=1200)
    monkeypatch.setattr(type(answer), "judgement", lambda self: judged)
    tile = gain_tile(answer)
    assert (tile.answer, tile.tone) == expected
    assert "+3.0 to +7.0" in tile.detail
    assert ("1,200 more test rows" in tile.detail) == (outcome != "nobody-beats-guessing")


def test_the_forest_has_every_method_its_interval_and_the_line_of_no_gain(answer, text):
    lanes = re.findall(r'<li class="(gain|loss|open)">(.*?)</li>', section(text, "gains"), re.S)
    board = [row for row in answer.leaderboard() if row["mean_gain"] is not None]
    assert len(lanes) == len(board) == 7
    zero = float(re.search(r"--zero:([\d.]+)%", text).group(1))
    for number, ((tone, lane), row) in enumerate(zip(lanes, board, strict=True), 1):
        assert words(lane).startswith(row["method"])
        assert tone == ("gain" if row["low"] > 0 else "loss" if row["high"] < 0 else "open")
        bar, dot = (rf"li:nth-child\({number}\) .{part}" for part in ("bar", "point"))
        style = rf"{bar}{{left:([\d.]+)%;width:([\d.]+)%}}\n.forest {dot}{{left:([\d.]+)%}}"
        left, width, point = map(float, re.search(style, text).groups())
        assert (row["mean_gain"] > 0) == (point > zero)
        assert left - 0.01 <= point <= left + width + 0.01
        assert f"{100 * row['mean_gain']:+.1f}".replace("-", "−") in words(lane)
    assert "one model on all data" in words(section(text, "gains"))
    assert "commonest class" in words(section(text, "gains"))


@pytest.mark.parametrize(("low", "high"), [(-0.02, 0.11), (-3.0, 0.001), (0.0, 1e-6), (-250.0, 40.0)])
def test_ticks_are_round_and_zero_is_one_of_them(low, high):
    ticks = _ticks(low, high)
    assert 3 <= len(ticks) <= 8
    assert min(abs(tick) for tick in ticks) == 0
    assert low <= ticks[0] < ticks[-1] <= high
    steps = np.diff(ticks)
    np.testing.assert_allclose(steps, steps[0])
    assert re.fullmatch("[125]0*", f"{steps[0] / 10 ** np.floor(np.log10(steps[0])):.0f}")


def test_the_table_of_partners_names_them_with_weight_gain_and_bytes(answer, text):
    head, *rows = Page(text).table["partners-table"]
    assert head == ["client", "group", "learns from", "weight", "gain, points", "bytes"]
    learned = partners(answer)
    gain = answer.gains(learned["method"])
    by_name = {row[0]: row for row in rows}
    assert set(by_name) == set(SITES)
    for i, name in enumerate(SITES):
        row = by_name[name]
        assert set(re.findall("[A-Z][a-z]+", row[2])) <= set(SITES[i // 4 * 4 : i // 4 * 4 + 4]) - {name}
        assert row[3] == "60 %"  # as `block_graph` makes it
        assert row[5] == {"network-lasso": "88.0 kB", "scool-sbm": "124 kB"}[learned["method"]]  # 20 rounds up and down
        assert row[4].startswith(f"{100 * gain[i]:+.1f}".replace("-", "−"))


def test_structure_is_right_or_wrong_only_where_groups_are_known():
    for known in (False, True):
        answer = make_answer(known=known)
        for result in answer.results["scool-sbm"]:
            for row in result.rows:  # as runs write it, also from equal label sets
                row |= {"graph_l1": 0.1, "graph_auroc": 0.9, "graph_ari": 0.8}
        text = render(answer, "")
        assert ("Do the right clients find each other?" in text) == known
        assert bool(Page(text).data["quality"]) == known


def test_classes_have_their_names_everywhere(text):
    page = Page(text)
    assert page.data["partition"]["classes"] == ["no", "yes"]
    labels = {client["labels"] for client in page.data["clients"].values()}
    assert all(re.fullmatch(r"(no|yes) \(\d+\)(, (no|yes) \(\d+\))?", each) for each in labels)
    plain = Page(render(make_answer(plain=True), ""))
    assert plain.data["partition"]["classes"] == ["0", "1"]


def test_a_failed_method_is_a_row_that_says_why(text):
    rows = Page(text).table["leaderboard-table"]
    assert rows[-1][0] == "fedprox"
    assert rows[-1][1] == "No result: training diverged in round 3; try a smaller method.lr"
    assert len(rows) == 1 + 8 + 1


def test_all_scores_are_means_over_clients_and_runs(answer, text):
    head, *rows = Page(text).table["scores-table"]
    assert head == ["method", "accuracy", "AUROC"]
    for row in rows:
        runs = answer.results[row[0].split()[0]]
        assert row[1] == f"{100 * np.mean([run.final['test_score'] for run in runs]):.1f} %"
        assert float(row[2]) == pytest.approx(np.mean([run.scores["auroc"] for run in runs]), abs=1e-4)


def test_the_table_of_tuning_counts_what_the_splits_chose(text):
    head, *rows = Page(text).table["tuning-table"]
    assert head == ["method", "chose", "was given", "candidates", "validation loss", "seconds"]
    by_name = {row[0]: row[1:] for row in rows}
    chose = "lr 0.1 (2 of 3 splits); lr 0.02 (1 of 3 splits)"
    assert by_name["local"] == [chose, "lr 0.02, 0.1, 2", "3", f"{(0.4 + 0.4 + 0.5) / 3:.4g}", "4.5"]
    assert by_name["ditto"][1] == "lr 0.02, 0.1, 2; tie 0.1, 1"
    assert by_name["guess"] == ["not tuned: it has nothing to tune, or its settings were given"]


def test_what_went_in_lists_every_column_and_warns(text):
    inside = section(text, "intake")
    rows = Page(text).table["intake-table"][1:]
    assert [row[0] for row in rows] == ["age", "ward", "admitted", "patient", "country"]
    assert rows[0][1:4] == ["number", "2", "3 %"]
    assert rows[2][3] == "< 1 %"
    assert rows[3][1] == "left out: an identifier"
    assert "3 of 5 columns became 8 inputs; numbers are scaled" in words(inside)
    assert "discharge_code alone predicts died" in words(inside)
    assert "Classification, 2 classes: no 1,203, yes 292 (target died)." in words(inside)


def test_what_went_in_of_arrays():
    clients = make_clients(6) | {"sample_shape": [8, 8], "class_names": ["ant", "bee", "cow", "dog"]}
    inside = words(section(render(make_comparison(clients), ""), "intake"))
    counts = np.sum(clients["label_counts"], axis=0)
    assert f"ant ({counts[0]}), bee ({counts[1]}), cow ({counts[2]}) and dog ({counts[3]})" in inside
    assert "A sample is an array of 8 × 8 numbers." in inside


def test_the_price_without_fedavg_is_that_of_its_frames(tmp_path):
    """Ten rounds of one model of 10 numbers up and down, each in a frame with a header of 48 bytes."""
    from safetensors.numpy import save_file

    clients = make_clients(3)
    result = make_result(clients, "ditto", size=500, rounds=(5, 10))
    result.folder = tmp_path
    (tmp_path / "models").mkdir()
    weights = {"weight": np.zeros((2, 4), np.float32), "bias": np.zeros(2, np.float32)}
    save_file(weights | {"statistics.mean": np.zeros(7, np.float32)}, tmp_path / "models/00000-client-0.safetensors")
    comparison = make_comparison(clients, ("local",))
    comparison.results = {"ditto": [result], **comparison.results}
    assert fedavg_bytes(comparison) == (2 * (48 + 4 * 10) * 10, None)
    assert f"{2 * 500 * 10 / (2 * 88 * 10):.1f} × FedAvg" in price_tile(comparison).detail


@pytest.mark.parametrize(
    ("methods", "said"),
    [(("local", "fedavg"), "everyone"), (("local", "gossip-sgd"), "given neighbours"), (("local", "pooled"), "nobody")],
)
def test_without_a_learned_graph_nothing_is_said_to_be_learned(methods, said):
    comparison = make_comparison(methods=methods)
    assert partner_tile(comparison, partners(comparison)).answer == said


def test_text_becomes_markup_only_as_html():
    assert h("p", EVIL) == "<p>&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;</p>"
    assert h("p", h("b", "a & b"), ["c", None, 3], class_='"x"') == '<p class="&quot;x&quot;"><b>a &amp; b</b>c3</p>'
    assert join(Html("<br>"), "<br>") == "<br>&lt;br&gt;"
    assert h("input", checked=True, disabled=False, data_value=0) == '<input checked data-value="0">'


def test_names_of_clients_classes_columns_and_methods_cannot_break_out():
    names = [f"{EVIL} {i}" for i in range(12)]
    answer = make_answer(names=names, class_names=(EVIL, "yes"))
    answer.clients["intake"] = {
        "task": EVIL, "inputs": 1, "warnings": [EVIL], "statistics": EVIL,
        "columns": [{"name": EVIL, "kind": EVIL, "missing": 0.5, "becomes": ["a"], "note": EVIL}],
    }  # fmt: skip
    answer.failures = {EVIL: EVIL}
    page = Page(render(answer, ""))
    assert len(page.scripts) == 4
    assert page.data["partition"]["classes"] == [EVIL, "yes"]
    assert page.table["partners-table"][1][0].startswith(EVIL)
    assert page.table["intake-table"][1][0] == EVIL
