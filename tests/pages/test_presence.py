"""The report of a run in which clients were away: the numbers of the page are those of the schedule."""

import re

import numpy as np

from coterie.peers.world import Schedule, World
from support.report_cases import Page, make_clients, make_comparison, write_and_read

WORLD = {"participation": 0.5, "dropout": 0.2, "slow": 0.25, "late": 2}


def test_the_page_says_who_took_part(tmp_path):
    clients = make_clients(12)
    comparison = make_comparison(clients, methods=("local", "fedavg", "pooled"), seeds=1)
    for (result,) in comparison.results.values():
        result.config["world"] = WORLD
    (fedavg,) = comparison.results["fedavg"]
    fedavg.ledger.blocks[0] |= {"up_messages": np.ones((20, 12), int), "hub_lost": np.eye(20, 12, dtype=int)}
    text = write_and_read(comparison, tmp_path)
    part = text[text.index('id="presence"') : text.index("</section>", text.index('id="presence"'))]
    presence = Schedule(World(**WORLD), 0, 12).presence(1, 20)
    there = presence.part.sum(1)
    assert f"{there.min()} to {there.max()} of 12 clients took part in a round, {there.mean():.3g} on average" in part
    methods, listed = Page(part).tables
    assert methods[1:] == [["local", "0", "0"], ["fedavg", "240", "12"]]  # pooled has no clients in its rounds
    columns = np.array([row[1:] for row in listed[1:]], int).T
    assert [row[0] for row in listed[1:]] == clients["names"]
    assert (columns == [presence.part.sum(0), presence.mute.sum(0), presence.late.sum(0)]).all()
    heights = dict.fromkeys(("there", "late", "mute"), 0.0)
    for tag, attributes in Page(part).elements:
        if tag == "rect":
            heights[attributes["class"]] += float(attributes["height"])
    everybody = sum(heights.values()) / 60 * 12  # a full bar is 60 high
    np.testing.assert_allclose([everybody, heights["mute"] / 5], [presence.part.sum(), presence.mute.sum()], atol=0.2)


def test_without_a_world_there_is_no_such_section(tmp_path):
    assert not re.search('id="presence"', write_and_read(make_comparison(seeds=1), tmp_path))
