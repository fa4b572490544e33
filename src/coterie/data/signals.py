"""Windows of a signal: cut from a recording, split in time without overlap, and described by summaries."""

import itertools
from collections.abc import Sequence

import numpy as np

__all__ = ["SUMMARIES", "split_in_time", "summaries", "window_starts"]

AXES = ("x", "y", "z")
CURVES = (*AXES, "magnitude")
QUANTILES = {"minimum": 0.0, "lower quartile": 0.25, "median": 0.5, "upper quartile": 0.75, "maximum": 1.0}
BANDS = (0.0, 1.0, 3.0, 8.0, np.inf)  # edges in Hz: posture and its changes, steps, their harmonics, impacts
FLOOR = 1e-6  # g squared, about the noise of the sensor: added before a logarithm
SHARES = {"validation": 0.1, "test": 0.2}

SUMMARIES = (
    *(f"{what} {c}" for what in ("mean", "deviation", *QUANTILES) for c in CURVES),
    *(f"energy {c}" for c in AXES),
    *(f"change {c}" for c in AXES),
    *(f"correlation {c}" for c in ("xy", "xz", "yz")),
    "magnitude area",
    *(f"band {i} {c}" for i in range(len(BANDS) - 1) for c in CURVES),
    *(f"centroid {c}" for c in CURVES),
)


def window_starts(segments: Sequence[tuple[int, int]], width: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut segments `(start, stop)` into windows of `width` samples, one every `step`.

    Returns:
        the start of each window `[N]`, and the number of its segment `[N]`.
    """
    starts = [np.arange(start, stop - width + 1, step) for start, stop in segments]
    segment = np.repeat(np.arange(len(starts)), [len(s) for s in starts])
    return np.concatenate([*starts, np.empty(0, np.int64)]).astype(np.int64), segment


def split_in_time(start: np.ndarray, segment: np.ndarray, stratum: np.ndarray, width: int) -> np.ndarray:
    """Mark windows as train, validation and test so that no two parts share a sample of the recording.

    Args:
        start: the start of each window, in the order of time `[N]`.
        segment: the segment of the recording that it was cut from `[N]`.
        stratum: within each stratum the first 70 % of the windows are for training, then 10 % for validation, and
            the last 20 % for testing `[N]`.
        width: samples in a window.

    Returns:
        "train", "validation" or "test"; "" for a window that overlaps one of a later part and must be left out.
    """
    marks = np.full(len(start), "train", "<U10")
    for one in np.unique(stratum):
        rows = np.flatnonzero(stratum == one)
        end = len(rows)
        for mark in ("test", "validation"):  # from the end of the recording backwards
            first = end - int(np.floor(SHARES[mark] * len(rows) + 0.5))
            if first == end:
                continue
            marks[rows[first:end]] = np.where(marks[rows[first:end]] == "", "", mark)
            before, head = rows[:first], rows[first]
            marks[before[(segment[before] == segment[head]) & (start[before] > start[head] - width)]] = ""
            end = first
    return marks


def summaries(windows: np.ndarray, rate: float) -> np.ndarray:
    """Describe windows of acceleration: the numbers named in `SUMMARIES`.

    Args:
        windows: acceleration in g along three axes `[N, width, 3]`.
        rate: samples per second.

    Returns:
        `[N, 58]`. The curves are the three axes and the magnitude |a|. Of each curve: mean, standard deviation,
        minimum, quartiles, maximum; the logarithm of the energy in bands of 0 to 1, 1 to 3, 3 to 8 and more Hz (g
        squared; the four energies add up to the variance); and the centroid of the power spectrum in Hz (0 if nothing
        moves). Of each axis: the mean square ("energy"), and the mean of the second half minus that of the first
        ("change", which separates sitting down from standing up). Correlations of the axes (0 if one is constant),
        and the signal magnitude area, the mean of |x| + |y| + |z| around their means.
    """
    axes = np.asarray(windows, np.float64)
    width = axes.shape[1]
    curves = np.concatenate([axes, np.linalg.norm(axes, axis=2, keepdims=True)], axis=2)  # [N, width, 4]
    mean, deviation = curves.mean(axis=1), curves.std(axis=1)
    centred = curves - mean[:, None]
    quantiles = np.quantile(curves, list(QUANTILES.values()), axis=1)  # [5, N, 4]
    energy = np.mean(axes**2, axis=1)
    change = axes[:, width - width // 2 :].mean(axis=1) - axes[:, : width // 2].mean(axis=1)
    pairs = ((0, 1), (0, 2), (1, 2))
    covariance = np.stack([np.mean(centred[..., i] * centred[..., j], axis=1) for i, j in pairs], axis=1)
    scale = np.stack([deviation[:, i] * deviation[:, j] for i, j in pairs], axis=1)
    correlation = np.where(scale > FLOOR**2, covariance / np.maximum(scale, FLOOR**2), 0.0)
    area = np.abs(centred[..., : len(AXES)]).sum(axis=2).mean(axis=1, keepdims=True)

    frequency = np.fft.rfftfreq(width, 1 / rate)
    power = np.abs(np.fft.rfft(centred, axis=1)) ** 2 / width**2
    power[:, 1 : (width + 1) // 2] *= 2  # a frequency below half the rate also counts for its mirror image
    bands = [
        np.log(FLOOR + power[:, (frequency > low) & (frequency <= high)].sum(axis=1))
        for low, high in itertools.pairwise(BANDS)
    ]
    total = power.sum(axis=1)
    moment = np.einsum("f,nfc->nc", frequency, power)
    centroid = np.where(total > FLOOR**2, moment / np.maximum(total, FLOOR**2), 0.0)
    return np.concatenate([mean, deviation, *quantiles, energy, change, correlation, area, *bands, centroid], axis=1)
