"""Forest cover types: small files in both formats, by hand; with COTERIE_DATA also the real one."""

import gzip
import os

import numpy as np
import pytest

from coterie.data import load
from coterie.data.covertype import NUMERIC, ZONES, Covtype
from coterie.errors import CoterieError

real = [pytest.mark.data, pytest.mark.skipif(not os.environ.get("COTERIE_DATA"), reason="COTERIE_DATA is not set")]

NUMBERS = [
    [2596, 51, 3, 258, 0, 510, 221, 232, 148, 6279],
    [2804, 139, 9, 268, 65, 3180, 234, 238, 135, 6121],
    [3239, 360, 14, 0, -173, 0, 0, 223, 142, 1980],
]
AREA, SOIL, COVER = [0, 2, 0], [28, 11, 39], [5, 2, 7]


def line(row: int) -> str:
    area, soil = ["0"] * 4, ["0"] * 40
    area[AREA[row]] = soil[SOIL[row]] = "1"
    return ",".join([*map(str, NUMBERS[row]), *area, *soil, str(COVER[row])])


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Give the test an empty data folder and a mirror that does not exist, so that nothing is downloaded."""
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    monkeypatch.setenv("COTERIE_MIRROR", "http://127.0.0.1:9")
    return tmp_path


@pytest.fixture(params=["covtype/covtype.data.gz", "covtype.data", "covtype.npz"])
def table(request, data):
    """Write the three rows as published, packed or not, or as arrays."""
    path = data / request.param
    path.parent.mkdir(exist_ok=True)
    text = "".join(f"{line(row)}\n" for row in range(3)).encode()
    if path.suffix == ".npz":
        delta = np.diff(np.array(NUMBERS, np.int16).T, axis=1, prepend=np.int16(0))
        np.savez(path, numeric_delta=delta, wilderness=np.uint8(AREA), soil=np.uint8(SOIL), label=np.uint8(COVER))
    else:
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def test_hand_computed(table):
    samples = Covtype().load()
    assert samples.x.shape == (3, 54)
    assert samples.x.dtype == np.float32
    assert samples.x[0, 0] == pytest.approx((2596 - 2959.36) / 279.98)
    assert samples.x[2, 4] == pytest.approx((-173 - 46.42) / 58.30)
    assert samples.x[1, 9] == pytest.approx((6121 - 1980.29) / 1324.19)
    ones = [np.flatnonzero(row[10:]).tolist() for row in samples.x]
    assert ones == [[0, 4 + 28], [2, 4 + 11], [0, 4 + 39]]
    assert samples.x[:, 10:].sum() == 6
    assert samples.y.tolist() == [4, 1, 6]
    assert (samples.kind, samples.classes) == ("classification", 7)


def test_lodgepole_pine_or_not(table):
    samples = Covtype(binary=True).load()
    assert (samples.y.tolist(), samples.classes) == ([0, 1, 0], 2)


def test_owners(table):
    """Soil 29 lies in a subalpine zone (code 7745), soil 12 in a montane (4744), soil 40 in an alpine one (8776)."""
    soil = Covtype().load()
    assert soil.owner.tolist() == ["soil-29", "soil-12", "soil-40"]
    assert [soil.group[name] for name in soil.owner] == [7, 4, 8]
    area = Covtype(client="wilderness").load()
    assert (area.owner.tolist(), area.group) == (["Rawah", "Comanche Peak", "Rawah"], None)
    both = Covtype(client="wilderness-soil").load()
    assert both.owner.tolist() == ["Rawah/soil-29", "Comanche Peak/soil-12", "Rawah/soil-40"]
    assert [both.group[name] for name in both.owner] == [7, 4, 8]


def test_rows_are_drawn_by_the_seed(table):
    everything = Covtype().load()
    draws = [Covtype(rows=2, seed=seed).load() for seed in range(20)]
    for draw in draws:
        rows = [int(np.flatnonzero((everything.x == x).all(axis=1))[0]) for x in draw.x]
        assert rows == sorted(set(rows))
        assert draw.y.tolist() == everything.y[rows].tolist()
        assert draw.owner.tolist() == everything.owner[rows].tolist()
    assert len({tuple(draw.y.tolist()) for draw in draws}) == 3
    assert np.array_equal(draws[3].x, Covtype(rows=2, seed=3).load().x)
    with pytest.raises(CoterieError, match="rows must be at most 3, the number of rows, not 4"):
        Covtype(rows=4).load()


def test_absent(data):
    with pytest.raises(CoterieError) as caught:
        Covtype().load()
    assert f"put the file covtype.data.gz into {data / 'covtype'}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (line(0).replace("2596", "high"), "is not the table of cover types"),
        (line(0) + "\n" + line(1)[:-2], "is not the table of cover types"),
        (line(0) + ",1", "has 56 columns, not 55"),
        (line(0)[:-1] + "8", "has cover 8 in row 1, not 1 to 7"),
        (line(0) + "\n" + line(1).replace(",6121,0,0,1,0,", ",6121,0,1,1,0,"), "no single wilderness area in row 2"),
        (line(0).replace(",6279,1,0,0,0,0,", ",6279,1,0,0,0,1,"), "no single soil type in row 1"),
        ("", "is not the table of cover types"),
    ],
)
def test_broken_table(data, text, sentence):
    (data / "covtype.data").write_text(text)
    with pytest.raises(CoterieError, match=sentence) as caught:
        Covtype().load()
    assert "\n" not in str(caught.value)


def test_cut_archive(data):
    (data / "covtype.data.gz").write_bytes(gzip.compress(line(0).encode())[:-9])
    with pytest.raises(CoterieError, match="is not the table of cover types"):
        Covtype().load()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"soil": None}, "holds no array soil"),
        ({"soil": np.uint8([1, 2])}, "do not fit together"),
        ({"soil": np.array([1.0, 2.0, 3.0])}, "must hold whole numbers"),
        ({"soil": np.uint8([1, 40, 3])}, "has soil 40 in row 2, not 0 to 39"),
        ({"numeric_delta": np.zeros((3, 10), np.int16)}, "do not fit together"),
    ],
)
def test_broken_arrays(data, change, sentence):
    arrays = {"numeric_delta": np.zeros((10, 3), np.int16), "wilderness": np.uint8(AREA), "soil": np.uint8(SOIL)}
    arrays |= {"label": np.uint8(COVER)} | change
    np.savez(data / "covtype.npz", **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(CoterieError, match=sentence):
        Covtype().load()


def test_zones_of_all_soils():
    """The survey's codes of the 40 soil types (covtype.info); their first digit is the climatic zone."""
    codes = (
        "2702 2703 2704 2705 2706 2717 3501 3502 4201 4703 4704 4744 4758 5101 5151 6101 6102 6731 7101 7102 7103 "
        "7201 7202 7700 7701 7702 7709 7710 7745 7746 7755 7756 7757 7790 8703 8707 8708 8771 8772 8776"
    )
    assert tuple(int(code[0]) for code in codes.split()) == ZONES


class TestReal:
    pytestmark = real

    def test_counts_of_the_description(self):
        """The class sizes that covtype.info prints, and its means and deviations, rounded to two decimals."""
        samples = Covtype().load()
        assert np.bincount(samples.y).tolist() == [211840, 283301, 35754, 2747, 9493, 17367, 20510]
        assert samples.x.shape == (581_012, 54)
        numeric = samples.x[:, : len(NUMERIC)].astype(np.float64)
        assert np.abs(numeric.mean(axis=0)).max() < 0.001
        assert np.abs(numeric.std(axis=0) - 1).max() < 0.001
        assert np.unique(samples.owner, return_counts=True)[1].max() == 115_247

    def test_federations(self):
        federation = load("covtype", rows=20_000, at_least=100, binary=True, seed=1)
        assert 20 <= len(federation) < 40
        assert federation.groups is not None
        areas = load("covtype", rows=5_000, client="wilderness")
        assert set(areas.names) == {"Rawah", "Neota", "Comanche Peak", "Cache la Poudre"}
        assert len(load("covtype", "dirichlet", rows=5_000, clients=10)) == 10
