"""A digest of the code of this package: processes of one run must have the same, whatever its version says."""

import hashlib
from pathlib import Path

__all__ = ["code_digest"]


def code_digest() -> str:
    """Return a digest of the names and contents of all our modules."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for file in sorted(root.rglob("*.py"), key=lambda file: file.relative_to(root).as_posix()):
        data = file.read_bytes()
        digest.update(f"{file.relative_to(root).as_posix()} {len(data)} ".encode())
        digest.update(data)
    return digest.hexdigest()[:16]
