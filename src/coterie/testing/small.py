"""The small federation on which methods are checked."""

import numpy as np

from coterie.data.clients import Federation, stack

__all__ = ["small_federation"]


def small_federation(clients: int, validation: bool = True, size: int = 0) -> Federation:
    """Make clients of unequal sizes (or of `size` samples) with three classes in six dimensions."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(3, 6))
    parts: dict[str, list] = {"train": [], "validation": [], "test": []}
    for i in range(clients):
        for part, count in (("train", size or 5 + 3 * i), ("validation", 3 if validation else 0), ("test", 4)):
            y = random.integers(0, 3, count)
            x = centres[y] + 0.3 * i + random.normal(size=(count, 6))
            parts[part].append((x.astype(np.float32), y.astype(np.int32)))
    names = tuple(f"client-{i}" for i in range(clients))
    train, held_out, test = (stack(parts[part]) for part in ("train", "validation", "test"))
    groups = np.arange(clients) % 3  # known clusters whose clients live in both processes
    return Federation(names, train, held_out, test, kind="classification", classes=3, groups=groups)
