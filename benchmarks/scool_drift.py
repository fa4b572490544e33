"""How far the members of a group drift apart with SCooL's two M-steps: the figure in docs/methods/learned-graphs.md.

    python benchmarks/scool_drift.py            # a minute on two cores

`digit-scanners` with 25 sites and five makes, as in scool_m_steps.py. After every round: the mean distance of
a client's model from the mean of its group's models, and the mean accuracy on validation samples, over three seeds.
Edges are dropped after round 10; a client keeps five of the others.
"""

from pathlib import Path
from typing import Any

import common
import jax
import numpy as np
from scool_m_steps import DATA, same_shapes

from coterie.data.clients import Federation
from coterie.experiment.device import choose_device
from coterie.experiment.engine import Engine
from coterie.experiment.training import Training
from coterie.learning.task import Task
from coterie.methods.scool_sbm import ScoolSBM
from coterie.models.mlp import Mlp

ROUNDS, SEEDS = 40, 3
STEPS = {
    "first-order": ScoolSBM(lr=0.1, epochs=2, m_step="first-order", temperature=0.5),
    "mix": ScoolSBM(lr=0.1, epochs=2, m_step="mix"),
}
FIGURE = Path(__file__).parents[1] / "docs" / "images" / "scool-drift.svg"
COLOURS = {"first-order": "#c44e52", "mix": "#2f6db5"}


def curves(engine: Engine, federation: Federation, method: ScoolSBM, seed: int) -> tuple[list[float], list[float]]:
    """Return the distance to the group's mean and the accuracy on validation samples after every round."""
    distances: list[float] = []
    scores: list[float] = []

    def measure(training: Training, state: Any, number: int, block: Any) -> None:
        models = training.method.models(state).params
        flat = np.concatenate([np.asarray(a).reshape(engine.size, -1) for a in jax.tree.leaves(models)], 1)
        groups = np.asarray(federation.groups)
        means = np.stack([flat[groups == group].mean(0) for group in range(groups.max() + 1)])
        distances.append(float(np.linalg.norm(flat - means[groups], axis=1).mean()))
        scores.append(100 * float(training.evaluate(state, number)["validation_score"].mean()))

    common.trained(engine, method, ROUNDS, seed, every=1, after=measure)
    return distances, scores


def panel(left: int, title: str, lines: dict[str, list[float]]) -> str:
    """Draw one panel of the figure: a line for each M-step over the rounds."""
    low, high = min(map(min, lines.values())), max(map(max, lines.values()))

    def place(number: int, value: float) -> str:
        return f"{left + 40 + 250 * number / ROUNDS:.1f},{200 - 150 * (value - low) / (high - low):.1f}"

    parts = [f'<text x="{left + 165}" y="24" text-anchor="middle" font-weight="bold">{title}</text>']
    for value in (low, (low + high) / 2, high):
        y = 200 - 150 * (value - low) / (high - low)
        parts.append(f'<line x1="{left + 40}" x2="{left + 290}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left + 34}" y="{y + 4:.1f}" text-anchor="end">{value:.1f}</text>')
    for number in range(0, ROUNDS + 1, 10):
        x = left + 40 + 250 * number / ROUNDS
        parts.append(f'<text x="{x:.1f}" y="218" text-anchor="middle">{number}</text>')
    for name, values in lines.items():
        points = " ".join(place(number, value) for number, value in enumerate(values, 1))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"/>')
    return "\n".join(parts)


def draw(distance: dict[str, list[float]], accuracy: dict[str, list[float]]) -> str:
    """Return the figure as SVG."""
    legend = "".join(
        f'<line x1="{210 + 150 * i}" x2="{235 + 150 * i}" y1="238" y2="238" stroke="{COLOURS[name]}" stroke-width="2"/>'
        f'<text x="{241 + 150 * i}" y="242">m_step = {name}</text>'
        for i, name in enumerate(distance)
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 252" font-family="sans-serif" font-size="12">\n'
        '<rect width="640" height="252" fill="white"/>\n'
        f"{panel(0, 'Distance to the mean of the group', distance)}\n"
        f"{panel(320, 'Validation accuracy in per cent', accuracy)}\n{legend}\n</svg>\n"
    )


def main() -> None:
    """Train with both M-steps, write the numbers and the figure."""
    device = choose_device("cpu")
    federations = same_shapes([DATA["scanners"](seed) for seed in range(SEEDS)])
    task = Task.of(federations[0], Mlp(hidden=(32,)))
    engines: list[Engine] = []
    for federation in federations:
        engines.append(Engine(task, federation, device, like=engines[0] if engines else None))
    distance, accuracy = {}, {}
    for name, method in STEPS.items():
        runs = [curves(engine, federations[seed], method, seed) for seed, engine in enumerate(engines)]
        distance[name], accuracy[name] = (
            [round(float(v), 3) for v in np.mean(part, 0)] for part in zip(*runs, strict=True)
        )
    FIGURE.write_text(draw(distance, accuracy))
    common.publish("scool-drift", device.label, {"distance": distance, "accuracy": accuracy})


if __name__ == "__main__":
    main()
