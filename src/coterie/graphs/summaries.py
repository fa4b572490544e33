"""Small summaries of a client's training data, from which similar clients are found; nothing else leaves a client.

Everything here is written for one client and sees one client's samples; `similarity.py` collects the summaries of all
and builds a network. What clients must agree on (random directions, the scale of the inputs) is drawn from a seed or is
an average of one number per client, and is passed as an argument. No JAX here.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from coterie.data.clients import Federation

__all__ = [
    "Axes",
    "ClientSamples",
    "FourierFeatures",
    "covariance",
    "draw_axes",
    "draw_features",
    "embedding",
    "label_columns",
    "median_distance",
    "training_samples",
]

PAIRED = 100  # a client takes all pairs of this many samples for its median distance: 4,950 distances
ROWS = 8192  # samples embedded at a time, which bounds memory


class ClientSamples(NamedTuple):
    """One client's training samples, in the form that summaries are computed from."""

    inputs: np.ndarray  # [n, d] float32, flattened; for a text the share of each character
    targets: np.ndarray | None  # labels [n], or numbers [n, outputs]; None where they are not used


def training_samples(federation: Federation, targets: bool = True) -> Iterator[ClientSamples]:
    """Yield the training samples of each client."""
    depth = len(federation.sample_shape)
    shape = (-1,) + (1,) * (depth - 1) if depth > 1 else (-1,)
    mean, std = (np.asarray(value, np.float32).reshape(shape) for value in (federation.mean, federation.std))
    for client in range(len(federation)):
        x, y = (np.asarray(values) for values in federation.train.rows(client))
        count = len(x)
        if federation.kind == "next-character":  # the inputs are the text, so they contain the targets
            yield ClientSamples(_shares(x.reshape(count, -1), federation.classes), None)
            continue
        if x.dtype == np.uint8:  # as the model reads it: see Task.prepare
            x = (x.astype(np.float32) / 255 - mean) / std
        known = (y.astype(np.float32).reshape(count, -1) if federation.kind == "regression" else y) if targets else None
        yield ClientSamples(x.reshape(count, -1).astype(np.float32), known)


def _shares(characters: np.ndarray, alphabet: int) -> np.ndarray:
    """Return how often each character occurs in each text: `[n, alphabet]`, rows that sum to one."""
    cells = characters + alphabet * np.arange(len(characters))[:, None]
    counts = np.bincount(cells.ravel(), minlength=len(characters) * alphabet).reshape(len(characters), alphabet)
    return (counts / characters.shape[1]).astype(np.float32)


def median_distance(values: np.ndarray) -> np.float32:
    """Return the median distance between two different samples of a client; 0 if no two differ.

    It is the client's part of the median heuristic: the mean over clients is the width of the common kernel. Of many
    samples it uses 100, evenly spaced.
    """
    rows = np.unique(np.linspace(0, len(values) - 1, min(len(values), PAIRED)).round().astype(int))
    chosen = np.asarray(values)[rows].astype(np.float64)
    chosen -= chosen.mean(0)  # distances stay the same, and lose no digits to a large common mean
    inner = chosen @ chosen.T
    length = np.diag(inner)
    square = (length[:, None] + length - 2 * inner)[np.triu_indices(len(rows), 1)]
    square = square[square > 1e-12 * length.max(initial=0.0)]  # rounding: two equal samples have a tiny distance
    return np.float32(np.sqrt(np.median(square)) if square.size else 0.0)


# -- data space: the mean of random Fourier features ----------------------------------------------------------------


class FourierFeatures(NamedTuple):
    """Random Fourier features: the directions that turn samples into phases, drawn from a seed that clients share."""

    inputs: np.ndarray  # [d, D/2]
    targets: np.ndarray | None  # [outputs, D/2] directions, or [classes, D/2], one phase per label


def draw_features(
    seed: int, features: int, inputs: int, scale: float, *, labels: int = 0, outputs: int = 0, target_scale: float = 1.0
) -> FourierFeatures:
    """Draw the features of a product kernel: Gaussian in the inputs, equality of labels, Gaussian in numeric targets.

    The directions of a Gaussian kernel of width `scale` are normal with deviation 1 / scale (Rahimi and Recht 2007).
    Each label shifts the phase by its own random angle, uniform on the circle: the mean of cos(angle_a - angle_b) is 1
    for a = b and 0 otherwise, which is the kernel of "the same label" without more features.
    """
    random = np.random.default_rng([seed, 0])
    half = features // 2
    directions = random.standard_normal((inputs, half)) / scale
    phases = random.uniform(0, 2 * np.pi, (labels, half)) if labels else None
    if outputs:
        phases = random.standard_normal((outputs, half)) / target_scale
    return FourierFeatures(directions.astype(np.float32), None if phases is None else phases.astype(np.float32))


def embedding(own: ClientSamples, features: FourierFeatures) -> np.ndarray:
    """Return the mean over a client's samples of cos and sin of their phases, `[D]` float32.

    The distance of two such means is the maximum mean discrepancy of the two clients, up to O(1 / sqrt(D)).
    """
    half = features.inputs.shape[1]
    total = np.zeros(2 * half)
    for first in range(0, len(own.inputs), ROWS):
        rows = slice(first, first + ROWS)
        phase = own.inputs[rows] @ features.inputs
        if features.targets is not None and own.targets is not None:
            labels = own.targets.ndim == 1
            phase += features.targets[own.targets[rows]] if labels else own.targets[rows] @ features.targets
        total[:half] += np.cos(phase).sum(0, dtype=np.float64)
        total[half:] += np.sin(phase).sum(0, dtype=np.float64)
    return (total / (len(own.inputs) * np.sqrt(half))).astype(np.float32)


# -- feature space: the covariance of inputs and targets -------------------------------------------------------------


class Axes(NamedTuple):
    """The coordinates of a covariance: inputs, on a few common random axes where there are many, and targets."""

    inputs: np.ndarray  # [d, p]
    targets: float  # what the target columns are divided by


def draw_axes(seed: int, components: int, inputs: int, scale: float, target_scale: float = 1.0) -> Axes:
    """Draw random orthonormal axes, which keep distances on average; few inputs are not projected."""
    if inputs <= components:
        return Axes(np.eye(inputs, dtype=np.float32) / np.float32(scale), target_scale)
    directions, _ = np.linalg.qr(np.random.default_rng([seed, 1]).standard_normal((inputs, components)))
    return Axes((directions * (np.sqrt(inputs / components) / scale)).astype(np.float32), target_scale)


def label_columns(labels: np.ndarray, classes: int) -> np.ndarray:
    """Return one column per class; two different labels are at distance 1, as two inputs at their median distance."""
    return np.eye(classes)[labels] / np.sqrt(2)


def covariance(own: ClientSamples, axes: Axes, classes: int) -> np.ndarray:
    """Return the upper triangle of a client's covariance, row by row, `[p (p + 1) / 2]` float32; zero for one sample.

    With the targets among the coordinates it includes the covariance of inputs and targets, which is what a linear
    model learns.
    """
    columns: list[Any] = [(own.inputs @ axes.inputs).astype(np.float64)]
    if own.targets is not None:
        labels = own.targets.ndim == 1
        columns.append(label_columns(own.targets, classes) if labels else own.targets / axes.targets)
    values = np.concatenate(columns, 1)
    values -= values.mean(0)
    matrix = values.T @ values / len(values)
    return matrix[np.triu_indices(len(matrix))].astype(np.float32)
