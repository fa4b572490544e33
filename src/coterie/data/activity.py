"""Human activities from a phone's accelerometer, by person.

Thirty people of 19 to 48 years wore a phone on the waist and went twice through a protocol of six activities and the
six transitions between the still ones: Reyes-Ortiz, Oneto, Sama, Parra and Anguita, "Transition-aware human activity
recognition using smartphones", Neurocomputing 171, 2016; UCI Machine Learning Repository, "Smartphone-Based Recognition
of Human Activities and Postural Transitions", licence CC BY 4.0. We use the raw acceleration, not the published
features: those are made from the gyroscope as well and are divided by person.
"""

import io
import zipfile
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from coterie.data.download import locate, places
from coterie.data.formats import read_npz
from coterie.data.samples import Samples
from coterie.data.signals import split_in_time, summaries, window_starts
from coterie.data.unpack import BROKEN
from coterie.errors import CoterieError
from coterie.spec import param, spec

__all__ = ["HumanActivity"]

RATE = 50.0  # samples per second
ACTIVITIES = (
    "walking",
    "walking upstairs",
    "walking downstairs",
    "sitting",
    "standing",
    "lying",
    "stand to sit",
    "sit to stand",
    "sit to lie",
    "lie to sit",
    "stand to lie",
    "lie to stand",
)
PACKED = ("hapt_acc.npz.xz", "hapt_acc.npz")
ARCHIVES = (
    "HAPT Data Set.zip",
    "smartphone+based+recognition+of+human+activities+and+postural+transitions.zip",
)


class Recording(NamedTuple):
    """All labelled segments, one after the other.

    Attributes:
        signal: acceleration in g `[T, 3]`.
        segments: experiment, subject (from 1), activity (1 to 12), start and stop in the signal `[S, 5]`.
    """

    signal: np.ndarray
    segments: np.ndarray


@spec
class HumanActivity:
    """Twelve activities of 30 people from a phone's accelerometer (Reyes-Ortiz et al. 2016): 10,929 windows.

    Windows of 2.56 s overlap by half, as published. Overlapping windows must not be in both training and test, so with
    `split` "time" the windows of each person and activity are divided in the order of time: 70 % for training, 10 % for
    validation, the last 20 % for testing, without those that overlap a later part (10,521 are left; the shares of the
    partition are then not used). With "partition", the partition divides all windows, and they overlap.

    "summary" describes a window by 58 numbers (`coterie.data.signals.summaries`), standardised to mean 0 and deviation
    1 over the windows marked train (all windows with split "partition"); "raw" is the acceleration in g `[width, 3]`.
    Owners are the people ("subject-7").

    Read from the folder `RawData` of the published archive (`acc_expNN_userNN.txt`, `labels.txt`) or the archive
    itself, in the data folder or its sub-folder `human-activity`; or from `hapt_acc.npz.xz`: arrays `signal_delta
    [3, T]` (differences from one sample to the next), `unit [3]` and `segments [S, 5]` (`Recording`).
    """

    features: Literal["summary", "raw"] = param("summary", "58 numbers about a window, or its samples [width, 3]")
    split: Literal["time", "partition"] = param(
        "time",
        "time: the last windows of each activity are for testing, without overlap; partition: divides all windows",
    )
    width: int = param(128, "samples in a window, 50 per second", at_least=4)
    step: int = param(64, "samples from one window to the next", at_least=1)

    def load(self) -> Samples:
        """Read the recordings and cut them into windows."""
        signal, segments = _read()
        start, segment = window_starts([(a, b) for a, b in segments[:, 3:]], self.width, self.step)
        if len(start) == 0:
            raise CoterieError(f"no activity lasts width = {self.width} samples; use a smaller width")
        subject, activity = segments[segment, 1], segments[segment, 2]
        ready = None
        if self.split == "time":
            marks = split_in_time(start, segment, subject * (1 + len(ACTIVITIES)) + activity, self.width)
            kept = marks != ""
            start, subject, activity, ready = start[kept], subject[kept], activity[kept], marks[kept]
        x = signal[start[:, None] + np.arange(self.width)]
        if self.features == "summary":
            x = summaries(x, RATE)
            known = x if ready is None else x[ready == "train"]
            deviation = known.std(axis=0)
            x = (x - known.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
        names = np.array([f"subject-{number}" for number in range(1 + int(subject.max()))])
        return Samples(
            x=x.astype(np.float32),
            y=activity.astype(np.int32) - 1,
            kind="classification",
            classes=len(ACTIVITIES),
            owner=names[subject],
            ready=ready,
            about="human activities by person",
        )


def _read() -> Recording:
    packed = locate(PACKED, places("human-activity"))
    if packed is not None:
        return _packed(packed)
    folders = [place / name for place in places("human-activity") for name in ("RawData", "HAPT Data Set/RawData", "")]
    unpacked = next((one for one in folders if (one / "labels.txt").is_file()), None)
    if unpacked is not None:
        return _published(unpacked)
    archive = locate(ARCHIVES, places("human-activity"))
    if archive is None:
        raise CoterieError(
            f"the recordings are not here: put {ARCHIVES[0]} (or its folder RawData) from UCI's page 'Smartphone-Based "
            f"Recognition of Human Activities and Postural Transitions' into {places('human-activity')[0]}, or set "
            "COTERIE_DATA to the folder that holds it"
        )
    try:
        with zipfile.ZipFile(archive) as members:
            labels = next((name for name in members.namelist() if name.endswith("RawData/labels.txt")), None)
            if labels is None:
                raise CoterieError(f"{archive} holds no RawData/labels.txt; get the file again")
            return _published(zipfile.Path(members, labels.removesuffix("labels.txt")))
    except BROKEN as error:
        raise CoterieError(
            f"{archive} cannot be read ({str(error) or type(error).__name__}); get the file again"
        ) from error


def _packed(path: Path) -> Recording:
    arrays = read_npz(path)
    names = ("signal_delta", "unit", "segments")
    missing = [name for name in names if name not in arrays]
    if missing:
        raise CoterieError(f"{path} holds no array {missing[0]}; it needs {', '.join(names)}")
    delta, unit, segments = (arrays[name] for name in names)
    fits = delta.ndim == 2 and len(delta) == 3 and unit.shape == (3,) and segments.ndim == 2 and segments.shape[1] == 5
    if not fits or delta.dtype.kind not in "iu" or segments.dtype.kind not in "iu":
        raise CoterieError(f"the arrays of {path} do not fit together; get the file again")
    # The differences are stored in 16 bits and may have wrapped around; their sums wrap back.
    signal = np.cumsum(delta, axis=1, dtype=np.int32).astype(np.int16).T * unit.astype(np.float32)
    _check(segments, segments[:, 3], segments[:, 4], len(signal), f"segments of {path}")
    return Recording(signal, segments.astype(np.int64))


def _published(root: Any) -> Recording:
    """Read the published text files; `root` is a folder, or a folder inside an archive."""
    labels = _table(root / "labels.txt", 5)
    if np.any(labels != np.floor(labels)):
        raise CoterieError(f"{root / 'labels.txt'} must hold whole numbers; get the file again")
    labels = labels.astype(np.int64)
    labels = labels[np.lexsort((labels[:, 3], labels[:, 0]))]  # by experiment, then in the order of time
    parts, segments, length = [], [], 0
    recordings: dict[tuple[int, int], np.ndarray] = {}
    for experiment, subject, activity, first, last in labels.tolist():
        key = (experiment, subject)
        if key not in recordings:
            name = f"acc_exp{experiment:02d}_user{subject:02d}.txt"
            recordings[key] = _table(root / name, 3).astype(np.float32)
            mine = labels[(labels[:, 0] == experiment) & (labels[:, 1] == subject)]
            what = f"labels of {root / name}"
            # samples are counted from 1 in labels.txt, and the last one is included
            _check(mine, mine[:, 3] - 1, mine[:, 4], len(recordings[key]), what)
        parts.append(recordings[key][first - 1 : last])
        segments.append((experiment, subject, activity, length, length + len(parts[-1])))
        length += len(parts[-1])
    return Recording(np.concatenate(parts), np.array(segments))


def _table(file: Any, columns: int) -> np.ndarray:
    """Read numbers in columns that spaces separate."""
    import pandas as pd

    try:
        table = pd.read_csv(io.BytesIO(file.read_bytes()), sep=r"\s+", header=None, dtype=np.float64).to_numpy()
    except (FileNotFoundError, KeyError):
        raise CoterieError(f"there is no {file}, which labels.txt names; get the files again") from None
    except (*BROKEN, ValueError, UnicodeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise CoterieError(f"{file} cannot be read ({reason}); get the file again") from error
    if table.shape[1] != columns or not np.isfinite(table).all():
        raise CoterieError(f"{file} must hold {columns} numbers in every line; get the file again")
    return table


def _check(segments: np.ndarray, start: np.ndarray, stop: np.ndarray, length: int, what: str) -> None:
    """Refuse segments of an unknown activity, or outside of the signal."""
    known = (segments[:, 2] >= 1) & (segments[:, 2] <= len(ACTIVITIES)) & (segments[:, 1] >= 0)
    wrong = np.flatnonzero(~known | (start < 0) | (stop <= start) | (stop > length))
    if wrong.size:
        row = int(wrong[0])
        raise CoterieError(
            f"the {what} have activity {segments[row, 2]} from {segments[row, 3]} to {segments[row, 4]} in row "
            f"{row + 1}, but there are {len(ACTIVITIES)} activities and {length} samples; get the file again"
        )
