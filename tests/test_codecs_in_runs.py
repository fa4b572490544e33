"""Any method with any codec: the same bits and bytes in one process and in two, also when messages get lost."""

import pytest

from coterie import registry
from coterie.contract import CHECKS, Case
from coterie.peers.split import Partner

# One row for each way a verb treats a message: a change since the hub's mean, mirrors of neighbours, questions and
# their mirrors, mass that is pushed, mirrors at a hub where few meet.
ROWS = [
    ("fedavg", {"participation": 0.6}, "top-k", {"fraction": 0.3}),
    ("gossip-sgd", {}, "qsgd", {"bits": 3}),
    ("fomo", {}, "float16", {}),
    ("sgp", {"pushes": 2}, "qsgd", {"bits": 4, "bucket": 8}),
    ("async-l2gd", {"iterations": 3}, "fused", {"gamma": 0.5}),
]
MIRRORED = ("gossip-sgd", "fomo")  # nothing of them may get lost


@pytest.fixture(scope="module")
def partner():
    partner = Partner()
    yield partner
    partner.close()


@pytest.fixture(scope="module", params=ROWS, ids=lambda row: f"{row[0]}-{row[2]}")
def case(request, partner):
    method, settings, codec, chosen = request.param
    return Case(method, partner, codec=registry.load("codecs", codec)(**chosen), **settings)


@pytest.mark.parametrize("check", ["lives_anywhere", "repeats_loss", "ledger_is_right", "resumes", "compiles_once"])
def test_a_codec_keeps_the_contract(case, check):
    CHECKS[check](case)
