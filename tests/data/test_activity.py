"""Human activities: small recordings in both formats, windows and their summaries; with COTERIE_DATA the real data."""

import itertools
import os
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data import load
from coterie.data.activity import HumanActivity
from coterie.data.samples import MARKS
from coterie.data.signals import SUMMARIES, split_in_time, summaries, window_starts
from coterie.errors import CoterieError

real = [pytest.mark.data, pytest.mark.skipif(not os.environ.get("COTERIE_DATA"), reason="COTERIE_DATA is not set")]


def described(window: np.ndarray, rate: float = 50.0) -> dict[str, float]:
    """Describe one window, by name."""
    return dict(zip(SUMMARIES, summaries(window[None], rate)[0].tolist(), strict=True))


class TestSummaries:
    def test_a_sine_by_hand(self):
        """x swings with 2 Hz and amplitude 0.3 around 1 g: the variance is 0.045, and all of it in the second band."""
        t = np.arange(100) / 50
        wave = 0.3 * np.sin(2 * np.pi * 2 * t)
        summary = described(np.stack([1 + wave, np.zeros(100), -2 * wave], axis=1))
        assert summary["mean x"] == pytest.approx(1)
        assert summary["deviation x"] == pytest.approx(np.sqrt(0.045))
        assert summary["deviation y"] == 0
        assert summary["energy x"] == pytest.approx(1.045)
        assert summary["energy z"] == pytest.approx(0.18)
        assert summary["correlation xz"] == pytest.approx(-1)
        assert summary["correlation xy"] == 0
        assert summary["centroid x"] == pytest.approx(2)
        assert summary["centroid y"] == 0
        assert summary["band 1 x"] == pytest.approx(np.log(0.045 + 1e-6))
        assert summary["band 0 x"] == pytest.approx(np.log(1e-6))
        assert summary["band 3 y"] == pytest.approx(np.log(1e-6))
        assert summary["magnitude area"] == pytest.approx(3 * np.abs(wave).mean())
        assert summary["change x"] == pytest.approx(0)

    def test_a_staircase_by_hand(self):
        window = np.zeros((4, 3))
        window[:, 0] = [0, 1, 2, 5]
        window[:, 1] = [0, 0, 3, 3]
        summary = described(window)
        assert summary["change x"] == 3.0  # (2 + 5) / 2 - (0 + 1) / 2
        assert [summary[f"{name} x"] for name in ("minimum", "median", "maximum")] == [0, 1.5, 5]
        assert summary["lower quartile x"] == 0.75
        assert summary["upper quartile x"] == 2.75
        assert summary["maximum magnitude"] == pytest.approx(np.hypot(5, 3))
        assert summary["correlation xy"] == pytest.approx(np.corrcoef(window[:, 0], window[:, 1])[0, 1])

    @settings(max_examples=30, deadline=None)
    @given(st.integers(4, 41), st.integers(0, 2**32 - 1))
    def test_bands_add_up_to_the_variance(self, width, seed):
        """Parseval: no energy is lost between the bands, for even and odd widths."""
        window = np.random.default_rng(seed).standard_normal((width, 3))
        summary = described(window)
        total = sum(np.exp(summary[f"band {band} z"]) - 1e-6 for band in range(4))
        assert total == pytest.approx(window[:, 2].var())

    def test_a_window_does_not_depend_on_its_neighbours(self):
        windows = np.random.default_rng(0).standard_normal((5, 32, 3))
        assert summaries(windows, 50.0).shape == (5, len(SUMMARIES))
        np.testing.assert_allclose(summaries(windows, 50.0)[3], summaries(windows[3:4], 50.0)[0])


class TestWindows:
    def test_starts(self):
        start, segment = window_starts([(0, 9), (9, 12), (12, 16)], 4, 2)
        assert start.tolist() == [0, 2, 4, 12]
        assert segment.tolist() == [0, 0, 0, 2]

    def test_divided_in_time_by_hand(self):
        """Ten windows of 4 samples, one every 2, of one activity: 7 to train, 1 to validate, 2 to test.

        Windows 6 (12 to 16) and 7 (14 to 18) overlap the first of the next part and are left out. Of the second
        stratum, in segments of one window, none is.
        """
        start = np.array([*range(0, 20, 2), *range(30, 80, 10)])
        segment, stratum = np.array([0] * 10 + [1, 2, 3, 4, 5]), np.array([3] * 10 + [8] * 5)
        marks = split_in_time(start, segment, stratum, 4)
        assert marks[:10].tolist() == ["train"] * 6 + ["", ""] + ["test"] * 2
        assert marks[10:].tolist() == ["train"] * 3 + ["validation", "test"]

    @settings(max_examples=50, deadline=None)
    @given(
        st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(1, 9), st.integers(1, 9), st.integers(1, 3)
    )
    def test_no_sample_is_in_two_parts(self, lengths, width, step, strata):
        edges = np.cumsum([0, *lengths])
        start, segment = window_starts(list(itertools.pairwise(edges)), width, step)
        marks = split_in_time(start, segment, segment % strata, width)
        samples = {mark: {s for a in start[marks == mark] for s in range(a, a + width)} for mark in MARKS}
        for one, two in itertools.combinations(MARKS, 2):
            assert not samples[one] & samples[two]
        if step >= width:
            assert "" not in marks


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    return tmp_path


RECORDINGS = {
    "acc_exp01_user01.txt": np.arange(90).reshape(30, 3) / 10,
    "acc_exp02_user01.txt": np.arange(60).reshape(20, 3) / -10,
    "acc_exp03_user04.txt": np.ones((12, 3)),
}
LABELS = "1 1 5 3 12\n3 4 12 1 12\n1 1 7 13 30\n2 1 5 5 20\n"


def published(labels: str = LABELS) -> dict[str, str]:
    files = {name: "".join(" ".join(map(str, row)) + "\n" for row in rows) for name, rows in RECORDINGS.items()}
    return files | {"labels.txt": labels}


def write(folder, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content)


def write_packed(path) -> None:
    """Write the same segments as differences of whole tenths of g; the last one wraps around 16 bits and back."""
    stretches = [RECORDINGS["acc_exp01_user01.txt"][2:30], RECORDINGS["acc_exp02_user01.txt"][4:20], np.ones((12, 3))]
    tenths = np.round(np.concatenate(stretches).T * 10).astype(np.int64)
    delta = np.diff(tenths, axis=1, prepend=0)
    delta[:, -1] += 1 << 16
    segments = np.array([[1, 1, 5, 0, 10], [1, 1, 7, 10, 28], [2, 1, 5, 28, 44], [3, 4, 12, 44, 56]], np.int32)
    np.savez(path, signal_delta=delta.astype(np.int16), unit=np.full(3, 0.1), segments=segments)


class TestFiles:
    @pytest.mark.parametrize(
        "place", ["human-activity/RawData", "RawData", "human-activity/HAPT Data Set/RawData", "zip", "npz"]
    )
    def test_windows_by_hand(self, data, place):
        """Samples 3 to 12 of experiment 1 are 10: windows of 4 begin at its samples 3, 5, 7 and 9 (counted from 1)."""
        if place == "zip":
            with zipfile.ZipFile(data / "HAPT Data Set.zip", "w") as archive:
                for name, content in published().items():
                    archive.writestr(f"RawData/{name}", content)
        elif place == "npz":
            write_packed(data / "hapt_acc.npz")
        else:
            write(data / place, published())
        samples = HumanActivity(features="raw", split="partition", width=4, step=2).load()
        assert samples.x.shape == (4 + 8 + 7 + 5, 4, 3)
        assert samples.x.dtype == np.float32
        one = RECORDINGS["acc_exp01_user01.txt"]
        np.testing.assert_allclose(samples.x[0], one[2:6], atol=1e-6)
        np.testing.assert_allclose(samples.x[3], one[8:12], atol=1e-6)
        np.testing.assert_allclose(samples.x[4], one[12:16], atol=1e-6)
        np.testing.assert_allclose(samples.x[12], RECORDINGS["acc_exp02_user01.txt"][4:8], atol=1e-6)
        assert samples.y.tolist() == [4] * 4 + [6] * 8 + [4] * 7 + [11] * 5
        assert samples.owner.tolist() == ["subject-1"] * 19 + ["subject-4"] * 5
        assert samples.ready is None

    def test_parts_and_standardisation(self, data):
        write(data / "RawData", published())
        samples = HumanActivity(width=4, step=2).load()
        assert samples.x.shape[1] == len(SUMMARIES)
        train = samples.x[samples.ready == "train"].astype(np.float64)
        np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-5)
        deviation = train.std(axis=0)
        assert np.all((np.abs(deviation - 1) < 1e-5) | (deviation < 1e-6))
        # standing, person 1: 11 windows, so 8 to train (one overlaps), 1 to validate (it overlaps), 2 to test
        standing = samples.ready[(samples.y == 4) & (samples.owner == "subject-1")]
        assert np.unique(standing, return_counts=True)[1].tolist() == [2, 7]

    def test_absent(self, data):
        with pytest.raises(CoterieError) as caught:
            HumanActivity().load()
        assert "put HAPT Data Set.zip (or its folder RawData) from UCI's page" in str(caught.value)
        assert str(data / "human-activity") in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("files", "sentence"),
        [
            (published("1 1 5 3 12\n9 9 5 1 2\n"), r"there is no .*acc_exp09_user09\.txt, which labels\.txt names"),
            (published("1 1 5 3 31\n"), "activity 5 from 3 to 31 in row 1, but there are 12 activities and 30 samples"),
            (published("1 1 5 0 9\n"), "activity 5 from 0 to 9 in row 1"),
            (published("1 1 13 1 9\n"), "activity 13 from 1 to 9 in row 1"),
            (published("1 1 5 9 3\n"), "activity 5 from 9 to 3 in row 1"),
            (published("1 1 5 3\n"), "must hold 5 numbers in every line"),
            (published("1 1 5 3 4.5\n"), "must hold whole numbers"),
            (published("1 1 five 3 12\n"), r"labels\.txt cannot be read"),
            (published(""), r"labels\.txt cannot be read"),
            (published() | {"acc_exp01_user01.txt": "1 2\n3 4\n"}, "must hold 3 numbers in every line"),
            (published() | {"acc_exp01_user01.txt": "1 2 3\n4 5\n"}, "must hold 3 numbers in every line"),
        ],
    )
    def test_broken_files(self, data, files, sentence):
        write(data / "RawData", files)
        with pytest.raises(CoterieError, match=sentence) as caught:
            HumanActivity(width=4).load()
        assert "\n" not in str(caught.value)

    def test_broken_archive(self, data):
        (data / "HAPT Data Set.zip").write_bytes(b"PK")
        with pytest.raises(CoterieError, match=r"HAPT Data Set\.zip cannot be read"):
            HumanActivity().load()
        with zipfile.ZipFile(data / "HAPT Data Set.zip", "w") as archive:
            archive.writestr("README.txt", "")
        with pytest.raises(CoterieError, match=r"holds no RawData/labels\.txt"):
            HumanActivity().load()
        with zipfile.ZipFile(data / "HAPT Data Set.zip", "w") as archive:
            archive.writestr("RawData/labels.txt", LABELS)
        with pytest.raises(CoterieError, match=r"there is no .*acc_exp01_user01\.txt"):
            HumanActivity().load()

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ({"unit": None}, "holds no array unit"),
            ({"unit": np.ones(2)}, "do not fit together"),
            ({"segments": np.zeros((2, 4), np.int32)}, "do not fit together"),
            ({"signal_delta": np.zeros((3, 9))}, "do not fit together"),
            ({"segments": np.array([[1, 1, 1, 0, 10]])}, "activity 1 from 0 to 10 in row 1"),
        ],
    )
    def test_broken_arrays(self, data, change, sentence):
        arrays = {
            "signal_delta": np.zeros((3, 9), np.int16),
            "unit": np.ones(3),
            "segments": np.array([[1, 1, 1, 0, 9]]),
        }
        np.savez(data / "hapt_acc.npz", **{name: a for name, a in (arrays | change).items() if a is not None})
        with pytest.raises(CoterieError, match=sentence):
            HumanActivity(width=4).load()

    def test_windows_that_are_too_wide(self, data):
        write(data / "RawData", published())
        with pytest.raises(CoterieError, match="no activity lasts width = 19 samples; use a smaller width"):
            HumanActivity(width=19).load()


class TestReal:
    pytestmark = real

    def test_as_many_windows_as_published(self):
        """The published set has 7,767 windows for training and 3,162 for testing."""
        samples = HumanActivity(features="raw", split="partition").load()
        assert samples.x.shape == (7_767 + 3_162, 128, 3)
        assert len(np.unique(samples.owner)) == 30
        norm = np.linalg.norm(samples.x, axis=2).mean(axis=1)
        assert np.all((norm > 0.85) & (norm < 1.25))  # gravity, in g

    def test_people_are_clients(self):
        federation = load("human-activity")
        assert len(federation) == 30
        assert federation.sample_shape == (58,)
        total = federation.train.count.sum() + federation.validation.count.sum() + federation.test.count.sum()
        assert total == 10_521
