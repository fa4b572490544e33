"""Train on a data set that PFLlib has made: `python pfllib_data.py PFLlib/dataset/MNIST`.

PFLlib keeps each client's samples as a pickled dict in train/N.npz and test/N.npz. Pickles run code when they are read,
so open only files that you have made yourself.
"""

import sys
from pathlib import Path

import numpy as np

import coterie as ct
from coterie.extend import Federation


def read(folder: Path, part: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return every client's samples of one part, in the order of their numbers."""
    samples = {}
    for file in sorted((folder / part).glob("*.npz"), key=lambda file: int(file.stem)):
        stored = np.load(file, allow_pickle=True)["data"].tolist()
        samples[file.stem] = (np.asarray(stored["x"], np.float32), np.asarray(stored["y"], np.int32))
    return samples


def federation(folder: str | Path) -> Federation:
    """Return PFLlib's clients with its own division into training and test samples."""
    return ct.federation(read(Path(folder), "train"), test=read(Path(folder), "test"), validation=0.0)


if __name__ == "__main__":
    settings = {"model": "cnn", "rounds": 50, "evaluate_every": 1, "tune": False}
    methods = [ct.methods.Local(lr=0.005), ct.methods.FedAvg(lr=0.005), ct.methods.Ditto(lr=0.005)]
    comparison = ct.compare(federation(sys.argv[1]), methods, **settings)
    print(comparison.to_frame()[["mean", "std_over_runs"]])
    print(comparison.as_pfllib())
