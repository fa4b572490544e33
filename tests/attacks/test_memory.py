"""Attacks on the memory: more clients than samples, and clients of very unequal size."""

import resource
import subprocess
import sys

import numpy as np
import pytest
from tests.support.attacks import Attack, refuse

DIGITS = 'format = 1\n[data]\nname = "digits"\n[partition]\nname = "{}"\nclients = {}\n'
VISITS = """
format = 1
[data]
name = "table"
path = "visits.csv"
target = "y"
client = "site"
[method]
name = "{}"
[run]
rounds = 3
"""


def clients(partition, count):
    return lambda folder: (folder / "e.toml").write_text(DIGITS.format(partition, count))


def drawn(data, **sizes):
    settings = "".join(f"{name} = {size}\n" for name, size in sizes.items())
    return lambda folder: (folder / "e.toml").write_text(f'[data]\nname = "{data}"\n{settings}')


MOST = 2**31 - 1
RUN = ("run", "e.toml", "--out", "out")
TABLE = [
    Attack("a million million clients", clients("iid", 10**12), RUN, "partition.clients must be at most 10,000,000"),
    Attack("more clients than samples", clients("iid", 10**7), RUN, "clients is 10,000,000 but there are 1,797"),
    Attack("unequal shares of nothing", clients("dirichlet", 10**7), RUN, "samples to divide; use fewer clients"),
    Attack("classes for ten million", clients("classes", 10**7), RUN, "samples to divide; use fewer clients"),
    Attack("quantities of nothing", clients("quantity", 10**7), RUN, "samples to divide; use fewer clients"),
    Attack("planted clients", drawn("planted-groups", clients=MOST), RUN, "lower the sizes in [data]"),
    Attack("samples of each", drawn("planted-groups", train_size=MOST), RUN, "lower the sizes in [data]"),
    Attack("coefficients", drawn("hierarchical-linear", dimension=MOST), RUN, "lower the sizes in [data]"),
    Attack("clusters", drawn("hierarchical-linear", clusters=MOST), RUN, "lower the sizes in [data]"),
    Attack("sites", drawn("digit-scanners", sites=MOST), RUN, "data.sites must be at most 898"),
]


@pytest.mark.parametrize("attack", TABLE, ids=str)
def test_refused(attack, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuse(attack, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("method", ["fedavg", "local", "gossip-sgd", "ditto", "local-exact", "pooled"])
def test_one_large_client_among_many_small_ones_trains_in_a_gigabyte(method, tmp_path):
    random = np.random.default_rng(0)
    owner = [f"site-{i}" for i in range(1000) for _ in range(10)] + ["large"] * 100_000
    x = random.normal(size=(len(owner), 10)).round(4)
    rows = [",".join(map(str, (name, *row, int(row[0] > 0)))) for name, row in zip(owner, x.tolist(), strict=True)]
    head = ",".join(["site", *(f"x{i}" for i in range(10)), "y"])
    (tmp_path / "visits.csv").write_text("\n".join([head, *rows]))
    (tmp_path / "e.toml").write_text(VISITS.format(method))
    subprocess.run([sys.executable, "-m", "coterie", *RUN], cwd=tmp_path, check=True)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 1_000_000  # kilobytes
