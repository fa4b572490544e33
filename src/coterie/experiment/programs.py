"""The folder of compiled programs that JAX keeps for the next run, and what to do when a file in it is damaged.

A process that is killed while JAX writes a program leaves a torn file. JAX warns of it at every run, compiles the
program again and leaves the file as it is; here it is removed, so that the next run writes it anew.
"""

import contextlib
import importlib
import os
import re
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from coterie.errors import CoterieError, CoterieWarning
from coterie.storage.memory import giving_back

__all__ = ["fitting", "keep_programs", "repairing"]

SHORTEST = 0.3  # seconds of compilation from which on a program is worth a file
UNREADABLE = re.compile(r"Error reading persistent compilation cache entry for '([\w<>.-]+)'")
ZSTANDARD = b"\x28\xb5\x2f\xfd"  # how a file begins that was compressed by zstandard, which JAX uses if it is installed


def keep_programs() -> None:
    """Turn on JAX's persistent compilation cache, unless the user has set one up or switched it off."""
    import jax
    import jaxlib.version

    # Older versions print two long lines of alarm about every program that they read back on a CPU.
    quiet = jaxlib.version.__version_info__ >= (0, 10, 2)
    if quiet and _folder() is None and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(_our_folder()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", SHORTEST)


@contextlib.contextmanager
def repairing() -> Iterator[None]:
    """Compile inside: a kept program that JAX cannot read is removed, and one sentence says so."""
    with warnings.catch_warnings(record=True) as caught, giving_back():
        warnings.simplefilter("always")
        yield
    for warning in caught:
        damaged = UNREADABLE.match(str(warning.message))
        if damaged:
            warnings.warn(_remove(damaged[1]), CoterieWarning, stacklevel=3)
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


@contextlib.contextmanager
def fitting() -> Iterator[None]:
    """Load or call a compiled program inside: a kept one that has other inputs or outputs is refused in a sentence."""
    import jax

    try:
        yield
    except (AssertionError, ValueError, jax.errors.JaxRuntimeError) as error:
        folder, why = _folder(), str(error).strip().partition("\n")[0][:200]
        if folder is None or (isinstance(error, jax.errors.JaxRuntimeError) and "INVALID_ARGUMENT" not in why):
            raise
        raise CoterieError(
            f"a compiled program in {folder} is not the one that its name says ({why}); remove that folder, and what "
            "is needed is compiled again"
        ) from error


def _our_folder() -> Path:
    return Path(platformdirs.user_cache_dir("coterie")) / "programs"


def _folder() -> Path | None:
    import jax

    folder = jax.config.values["jax_compilation_cache_dir"]
    return None if folder is None else Path(folder)


def _remove(program: str) -> str:
    """Remove the damaged files of a program from our own folder; return what to say about it."""
    folder = _folder()
    if folder is None or folder != _our_folder():
        return f"a compiled program in {folder} is damaged and was compiled again; remove {program}-*-cache there"
    files = [file for file in folder.iterdir() if re.fullmatch(re.escape(program) + "-[0-9a-f]{64}-cache", file.name)]
    for file in [file for file in files if not _is_whole(file)] or files:  # whole, yet unreadable: any of them
        with contextlib.suppress(OSError):  # another process was faster, or may write here and this one may not
            file.unlink()
    return f"a compiled program in {folder} was damaged: it was compiled again, and its file removed"


def _is_whole(file: Path) -> bool:
    try:
        data = file.read_bytes()
        if data[:4] == ZSTANDARD:
            zstandard = importlib.import_module("zstandard")
            zstandard.ZstdDecompressor().decompress(data)
        else:
            zlib.decompress(data)
    except ImportError:
        return True
    except Exception:  # each library has errors of its own; all mean the same
        return False
    return True
