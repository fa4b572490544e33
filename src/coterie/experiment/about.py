"""What a run writes down about its clients: names, sizes and labels. No JAX here."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.data.clients import Federation

__all__ = ["about_clients", "joined_digest"]


def about_clients(federation: Federation) -> dict[str, Any]:
    """Return names, sizes, labels and groups of the clients, as plain values."""
    parts = {part: getattr(federation, part) for part in ("train", "validation", "test")}
    return {
        "names": list(federation.names),
        "kind": federation.kind,
        "classes": federation.classes,
        "about": federation.about,
        "groups": None if federation.groups is None else np.asarray(federation.groups).tolist(),
        "planted": federation.planted,
        "sizes": {part: np.asarray(split.count).tolist() for part, split in parts.items()},
        "label_counts": federation.label_counts().tolist() if len(federation) <= 5000 else [],
        "class_names": list(federation.class_names),
        "sample_shape": list(federation.sample_shape),
        "mean": [float(value) for value in federation.mean],
        "std": [float(value) for value in federation.std],
        "target_mean": federation.target_mean,
        "target_std": federation.target_std,
        "dtype": federation.dtype.name,
    }


def joined_digest(digests: Sequence[str]) -> str:
    """Return a digest of the fingerprints of several clients' data."""
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:16]
