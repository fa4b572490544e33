"""SCooL's defaults on data on which no setting of it was chosen, beside other personal methods.

    COTERIE_DATA=... python benchmarks/scool_unseen.py            # an hour on two cores
    COTERIE_DATA=... python benchmarks/scool_unseen.py --data spoken-speakers --seeds 1

What a user gets: `coterie.compare` with its defaults, which tunes every method, training alone too, on validation
samples with the same budget. Every seed is another division of the samples and another start; test accuracy counts.
An mlp, 40 rounds. Run once, with the settings as they were; the table is in docs/methods/learned-graphs.md.

The data, in files that `coterie.load("npz", ...)` reads: recordings of spoken digits as log-mel pictures (Jackson et
al. 2018, `fsdd_logmel.npz.xz`), characters of eight alphabets by twenty people each (Lake et al. 2015,
`omniglot_small.npz.xz`), digits by the people of twelve sites (Caldas et al. 2018, `femnist_digits_12clients.npz.xz`).
"""

import argparse
import io
import lzma
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import common
import numpy as np
from scool_images import differences

import coterie as ct
from coterie.data.clients import Federation

METHODS = ["local", "fedavg-finetuned", "ditto", "fomo", "fedrep", "pfedgraph", "scool-attention", "scool-sbm"]


def arrays(name: str) -> dict[str, np.ndarray]:
    """Read a packed file of arrays."""
    with lzma.open(Path(os.environ["COTERIE_DATA"]) / name) as packed:
        return dict(np.load(io.BytesIO(packed.read()), allow_pickle=False))


def of(
    partition: str, x: np.ndarray, y: np.ndarray, seed: int, client: Any = None, group: Any = None, **options: Any
) -> Federation:
    """Write the arrays to a file, as a user would, and load it."""
    roles = {name: values for name, values in (("client", client), ("group", group)) if values is not None}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        np.savez(path, x=x, y=y, **roles)
        return ct.load("npz", partition, path=path, seed=seed, **options)


def spoken(partition: str, seed: int, **options: Any) -> Federation:
    """Return spoken digits, dealt out by digit to 40 clients."""
    data = arrays("fsdd_logmel.npz.xz")
    return of(partition, data["x"], data["digit"], seed, clients=40, **options)


def speakers(seed: int, **options: Any) -> Federation:
    """Return spoken digits of 30 clients; the recordings of a speaker are five clients, a hidden group."""
    data = arrays("fsdd_logmel.npz.xz")
    speaker = data["speaker"].astype(int)
    return of("natural", data["x"], data["digit"], seed, 5 * speaker + data["index"] % 5, speaker, **options)


def alphabets(seed: int, **options: Any) -> Federation:
    """Return characters at 40 clients; four people's characters of an alphabet are a client, an alphabet is a group."""
    data = arrays("omniglot_small.npz.xz")
    images = np.unpackbits(data["bits"], axis=1)[:, : 105 * 105].reshape(-1, 21, 5, 21, 5).mean((2, 4))
    alphabet, drawer = data["alphabet"].astype(int), data["drawer"].astype(int)
    grey = np.round(255 * images).astype(np.uint8)
    return of("natural", grey, data["label"], seed, 5 * alphabet + (drawer - 1) // 4, alphabet, **options)


def sites(seed: int, **options: Any) -> Federation:
    """Return handwritten digits of twelve sites."""
    data = arrays("femnist_digits_12clients.npz.xz")
    return of("natural", data["x"], data["y"], seed, data["client"], **options)


DATA = {
    "spoken-classes": lambda seed, **options: spoken("classes", seed, classes=2, **options),
    "spoken-groups": lambda seed, **options: spoken("groups", seed, groups=5, **options),
    "spoken-speakers": speakers,
    "alphabets": alphabets,
    "sites": sites,
}


def main() -> None:
    """Compare on every data set with every seed, and write a result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=DATA, nargs="*", default=list(DATA))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--methods", nargs="*", default=METHODS)
    asked, started = parser.parse_args(), time.perf_counter()
    found: dict[str, Any] = {}
    for data in asked.data:
        rows: dict[str, list[dict[str, Any]]] = {method: [] for method in asked.methods}
        verdicts: list[str] = []
        for seed in range(asked.seeds):
            federation = DATA[data](seed)
            comparison = ct.compare(
                federation, asked.methods, splits=1, seed=seed, rounds=asked.rounds, model="mlp", device="cpu"
            )
            for method in asked.methods:
                score = round(100 * float(comparison.scores(method).mean()), 3)
                chosen = comparison.tuning[method][0]["chosen"] if method in comparison.tuning else {}
                rows[method].append({"test": score, "chosen": chosen})
                print(f"{time.perf_counter() - started:.0f} s: {data} {seed}: {method}: {rows[method][-1]}", flush=True)
            verdicts.append(comparison.verdict())
        found[data] = {
            "clients": len(federation),
            "training_samples": int(np.median(federation.train.count)),
            "mean": {method: round(float(np.mean([run["test"] for run in runs])), 2) for method, runs in rows.items()},
            "lead": differences(rows),
            "verdicts": verdicts,
            "runs": rows,
        }
        print(data, found[data]["mean"], flush=True)
    common.publish("scool-unseen", "cpu", {"rounds": asked.rounds, "data": found})


if __name__ == "__main__":
    main()
