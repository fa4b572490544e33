"""What a client tells of its training data so that alike clients are found: small summaries, and nothing else leaves.

Everything here is written for one client and sees one client's samples; `similarity.py` asks every client and makes a
network of the answers. What all clients must agree on beforehand (random directions, the scale of the inputs) is drawn
from a seed or is an average of one number a client, and comes in as an argument. No JAX here.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from coterie.data.clients import Federation

__all__ = [
    "Axes",
    "Own",
    "Waves",
    "covariance",
    "draw_axes",
    "draw_waves",
    "embedding",
    "label_columns",
    "own_scale",
    "own_training_data",
]

PAIRED = 100  # samples of which a client takes all pairs for its scale: 4,950 distances, whatever it holds
ROWS = 8192  # samples embedded at a time, so that a client with millions needs no more memory than one with thousands


class Own(NamedTuple):
    """One client's training samples, as its summaries read them."""

    inputs: np.ndarray  # [n, d] float32, flattened; of a text the share of each character
    targets: np.ndarray | None  # labels [n], or numbers [n, outputs]; None where they are not to be looked at


def own_training_data(federation: Federation, targets: bool = True) -> Iterator[Own]:
    """Go through the clients and hand out what each one's summaries are computed from: its own training samples."""
    held = federation.train
    depth = len(federation.sample_shape)
    shape = (-1,) + (1,) * (depth - 1) if depth > 1 else (-1,)
    mean, std = (np.asarray(value, np.float32).reshape(shape) for value in (federation.mean, federation.std))
    for x, y, count in zip(held.x, held.y, held.count, strict=True):
        x, y = np.asarray(x[:count]), np.asarray(y[:count])
        if federation.kind == "next-character":  # what follows a character is in the inputs, too: they are the text
            yield Own(_shares(x.reshape(count, -1), federation.classes), None)
            continue
        if x.dtype == np.uint8:  # as the model reads it: see Task.prepare
            x = (x.astype(np.float32) / 255 - mean) / std
        known = (y.astype(np.float32).reshape(count, -1) if federation.kind == "regression" else y) if targets else None
        yield Own(x.reshape(count, -1).astype(np.float32), known)


def _shares(characters: np.ndarray, alphabet: int) -> np.ndarray:
    """Return how often each character occurs in each text: `[n, alphabet]`, rows that sum to one."""
    cells = characters + alphabet * np.arange(len(characters))[:, None]
    counts = np.bincount(cells.ravel(), minlength=len(characters) * alphabet).reshape(len(characters), alphabet)
    return (counts / characters.shape[1]).astype(np.float32)


def own_scale(values: np.ndarray) -> np.float32:
    """Return the median distance between two different samples of a client; 0 says that it has no two.

    It is the client's part of the median heuristic: the mean over clients is the width of the common kernel. Of many
    samples it takes 100, evenly spaced.
    """
    rows = np.unique(np.linspace(0, len(values) - 1, min(len(values), PAIRED)).round().astype(int))
    taken = np.asarray(values)[rows].astype(np.float64)
    taken -= taken.mean(0)  # distances do not change, and lose no digits to what all samples have in common
    inner = taken @ taken.T
    length = np.diag(inner)
    square = (length[:, None] + length - 2 * inner)[np.triu_indices(len(rows), 1)]
    square = square[square > 1e-12 * length.max(initial=0.0)]  # rounding makes a little of two equal samples
    return np.float32(np.sqrt(np.median(square)) if square.size else 0.0)


# -- data space: the mean of random Fourier features ----------------------------------------------------------------


class Waves(NamedTuple):
    """Random Fourier features: the directions in which samples are read as phases, drawn from a seed by everybody."""

    inputs: np.ndarray  # [d, D/2]
    targets: np.ndarray | None  # [outputs, D/2] directions, or [classes, D/2] a phase for each label


def draw_waves(
    seed: int, features: int, inputs: int, scale: float, *, labels: int = 0, outputs: int = 0, target_scale: float = 1.0
) -> Waves:
    """Draw the features of a product kernel: Gaussian in the inputs, equal-or-not in labels, Gaussian in numbers.

    The directions of a Gaussian kernel of width `scale` are normal with deviation 1 / scale (Rahimi and Recht 2007). A
    label turns the phase by an angle of its own, uniform on the circle, since the mean of cos(angle_a - angle_b) is 1
    for a = b and 0 else: the kernel of "the same label", at no more features.
    """
    random = np.random.default_rng([seed, 0])
    half = features // 2
    directions = random.standard_normal((inputs, half)) / scale
    phases = random.uniform(0, 2 * np.pi, (labels, half)) if labels else None
    if outputs:
        phases = random.standard_normal((outputs, half)) / target_scale
    return Waves(directions.astype(np.float32), None if phases is None else phases.astype(np.float32))


def embedding(own: Own, waves: Waves) -> np.ndarray:
    """Return the mean over a client's samples of cos and sin of their phases, `[D]` float32.

    The distance of two such means is the maximum mean discrepancy of the two clients, up to O(1 / sqrt(D)).
    """
    half = waves.inputs.shape[1]
    total = np.zeros(2 * half)
    for first in range(0, len(own.inputs), ROWS):
        rows = slice(first, first + ROWS)
        phase = own.inputs[rows] @ waves.inputs
        if waves.targets is not None and own.targets is not None:
            labels = own.targets.ndim == 1
            phase += waves.targets[own.targets[rows]] if labels else own.targets[rows] @ waves.targets
        total[:half] += np.cos(phase).sum(0, dtype=np.float64)
        total[half:] += np.sin(phase).sum(0, dtype=np.float64)
    return (total / (len(own.inputs) * np.sqrt(half))).astype(np.float32)


# -- feature space: the covariance of what is known of a sample ------------------------------------------------------


class Axes(NamedTuple):
    """The coordinates of a covariance: inputs, on a few common random axes where there are many, and targets."""

    inputs: np.ndarray  # [d, p]
    targets: float  # what the target columns are divided by


def draw_axes(seed: int, components: int, inputs: int, scale: float, target_scale: float = 1.0) -> Axes:
    """Draw random orthonormal axes, which keep distances on average; no more inputs than axes are kept as they are."""
    if inputs <= components:
        return Axes(np.eye(inputs, dtype=np.float32) / np.float32(scale), target_scale)
    directions, _ = np.linalg.qr(np.random.default_rng([seed, 1]).standard_normal((inputs, components)))
    return Axes((directions * (np.sqrt(inputs / components) / scale)).astype(np.float32), target_scale)


def label_columns(labels: np.ndarray, classes: int) -> np.ndarray:
    """Return one column a class; two different labels are at distance 1, as two inputs at their median distance are."""
    return np.eye(classes)[labels] / np.sqrt(2)


def covariance(own: Own, axes: Axes, classes: int) -> np.ndarray:
    """Return the upper triangle of a client's covariance, row by row, `[p (p + 1) / 2]` float32; of one sample, zero.

    With the targets among the coordinates it also holds how inputs and targets hang together, which is what a linear
    model learns.
    """
    columns: list[Any] = [(own.inputs @ axes.inputs).astype(np.float64)]
    if own.targets is not None:
        labels = own.targets.ndim == 1
        columns.append(label_columns(own.targets, classes) if labels else own.targets / axes.targets)
    values = np.concatenate(columns, 1)
    values -= values.mean(0)
    found = values.T @ values / len(values)
    return found[np.triu_indices(len(found))].astype(np.float32)
