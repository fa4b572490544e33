"""What Orbax says of a full disk is an error of the system, and nothing else is printed."""

import errno
import logging
import subprocess
import sys

import numpy as np
import pytest

from coterie.storage.durable import StorageError, storage_errors
from coterie.storage.orbax import errors_of_the_system

pytest.importorskip("orbax.checkpoint")

SAVE = """
import resource, sys
from pathlib import Path
import numpy as np
from coterie.storage.durable import storage_errors
from coterie.storage.orbax import errors_of_the_system, orbax

arrays = {str(number): np.random.default_rng(number).normal(size=100_000) for number in range(8)}
orbax()
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    with storage_errors(Path("run")), errors_of_the_system(Path("run/arrays")):
        orbax().PyTreeCheckpointer().save(Path("run/arrays").absolute(), arrays)
except Exception as error:
    print(error)
"""


def test_a_checkpoint_that_does_not_fit_is_one_sentence(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SAVE], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.startswith("a file is too large while writing run/arrays; what was saved before is whole")
    assert (done.returncode, done.stderr) == (0, "")


def test_errors_keep_their_kind(tmp_path):
    level, hook = logging.getLogger("absl").level, sys.unraisablehook
    with errors_of_the_system(tmp_path):
        np.zeros(1)
    assert (logging.getLogger("absl").level, sys.unraisablehook) == (level, hook)
    try:
        full = ValueError("RESOURCE_EXHAUSTED: Failed to write 41987 bytes [os_error_code='28']")
        with (
            pytest.raises(StorageError, match="the disk is full"),
            storage_errors(tmp_path),
            errors_of_the_system(tmp_path),
        ):
            raise full
        with pytest.raises(PermissionError), errors_of_the_system(tmp_path):
            raise PermissionError(errno.EACCES, "no")
        with pytest.raises(ValueError, match="something else"), errors_of_the_system(tmp_path):
            raise ValueError("something else")
    finally:
        sys.unraisablehook = hook
