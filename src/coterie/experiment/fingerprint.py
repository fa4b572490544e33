"""A fingerprint of the clients' data, so that a run is not continued with other data. No JAX here.

It is made of a digest for each client. Several processes that share a run each read and digest the samples of their own
clients only, and exchange one number: the sum of their digests. A sum needs no order, and no list of all clients; each
digest holds the name of its client, and what all clients have in common holds the names in order.
"""

import hashlib

import numpy as np

from coterie.data.clients import PARTS, Federation

__all__ = ["digest_of_common", "earlier_fingerprint", "fingerprint", "is_earlier", "joined", "sum_of_digests"]

FORM = "clients-"  # of versions that digest client by client; earlier ones wrote bare digits
DIGITS, MODULUS = 16, 1 << 256


def fingerprint(federation: Federation) -> str:
    """Return a digest of all clients' names and data."""
    return joined(digest_of_common(federation), [sum_of_digests(federation, range(len(federation)))])


def joined(common: str, sums: list[int]) -> str:
    """Return the fingerprint: from what all clients have in common, and sums of digests that cover each client once."""
    return FORM + hashlib.sha256(f"{common} {sum(sums) % MODULUS:064x}".encode()).hexdigest()[:DIGITS]


def digest_of_common(federation: Federation) -> str:
    """Return a digest of what is known without reading samples: names, sizes, types, the unit of targets."""
    scale = [float(value) for value in (*federation.mean, *federation.std)]
    digest = hashlib.sha256(repr((federation.names, federation.kind, federation.classes, scale)).encode())
    digest.update(repr(_unit(federation)).encode())
    for part in PARTS:
        split = getattr(federation, part)
        digest.update(np.asarray(split.count, np.int64).data)
        x, y, _ = split.stacks[0][0]
        digest.update(f"{x.dtype.str}{x.shape[2:]}{y.dtype.str}{y.shape[2:]}".encode())
    return digest.hexdigest()


def _unit(federation: Federation) -> tuple:
    """Return what the values of prepared columns and targets mean."""
    if federation.preparation is None:
        return (federation.target_mean,)
    return federation.class_names, federation.target_mean, federation.target_std, federation.preparation.features


def sum_of_digests(federation: Federation, clients: range) -> int:
    """Return the sum of the digests of some clients' names and samples, for which only theirs are read."""
    digests = {client: hashlib.sha256(repr(federation.names[client]).encode()) for client in clients}
    for part in PARTS:
        for stack, places in getattr(federation, part).stacks:
            x, y, count = (np.asarray(array) for array in stack)  # plain arrays are quicker to slice than mapped ones
            for row, client in enumerate(places.tolist()):
                if client in digests:
                    for array in (x[row, : count[row]], y[row, : count[row]]):
                        digests[client].update(np.ascontiguousarray(array).data if array.size else b"")
    return sum(int.from_bytes(digest.digest()) for digest in digests.values()) % MODULUS


def is_earlier(digest: str) -> bool:
    """Whether a fingerprint is of a version that made one digest of all arrays at once."""
    return not digest.startswith(FORM)


def earlier_fingerprint(federation: Federation) -> str:
    """Return the fingerprint that earlier versions wrote: their runs can still be continued."""
    scale = [float(value) for value in (*federation.mean, *federation.std)]
    digest = hashlib.sha256(repr((federation.names, federation.kind, federation.classes, scale)).encode())
    if federation.preparation is not None or federation.target_mean:
        unit = _unit(federation)
        digest.update(repr(unit if len(unit) > 1 else unit[0]).encode())
    for array in (*federation.train.arrays, *federation.validation.arrays, *federation.test.arrays):
        ordered = np.ascontiguousarray(array)
        digest.update(f"{ordered.dtype.str}{ordered.shape}".encode())
        digest.update(ordered.data if ordered.size else b"")
    return digest.hexdigest()[:DIGITS]
