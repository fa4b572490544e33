"""Kept programs that are torn are replaced; one under a wrong name is refused in a sentence."""

import warnings

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from coterie.errors import CoterieError, CoterieWarning
from coterie.experiment import programs
from coterie.experiment.programs import fitting, repairing

SETTINGS = {
    "jax_compilation_cache_dir": None,
    "jax_persistent_cache_min_compile_time_secs": 0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder of programs, ours."""
    before = {name: jax.config.values[name] for name in SETTINGS}
    for name, value in SETTINGS.items():
        jax.config.update(name, str(tmp_path) if value is None else value)
    compilation_cache.reset_cache()
    monkeypatch.setattr(programs, "_our_folder", lambda: tmp_path)
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def triple(x):
    return 3 * x + 1


def halves(x, y):
    return x / 2, y / 2


def compiled(function, *arguments):
    jax.clear_caches()
    with repairing(), fitting():
        return jax.jit(function).lower(*arguments).compile()


def entry(folder, name):
    (file,) = folder.glob(f"jit_{name}-*-cache")
    return file


X = jnp.ones(7)


def test_a_torn_program_is_replaced_and_the_next_run_is_quiet(folder):
    compiled(triple, X)
    compiled(triple, jnp.ones(8))
    files = {file: file.read_bytes() for file in folder.glob("jit_triple-*-cache")}
    torn = min(files)
    for length in (0, 10, len(files[torn]) // 2):
        torn.write_bytes(files[torn][:length])
        with pytest.warns(CoterieWarning, match="was damaged: it was compiled again, and its file removed"):
            assert [compiled(triple, x)(x)[0] for x in (X, jnp.ones(8))] == [4, 4]
        assert not torn.exists()
        assert len(list(folder.glob("jit_triple-*-cache"))) == 1  # the whole one is still there
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for x in (X, jnp.ones(8)):
                compiled(triple, x)
        assert torn.exists()


def test_garbage_that_is_well_packed_is_removed_too(folder):
    import zlib

    compiled(triple, X)
    entry(folder, "triple").write_bytes(zlib.compress(b"\0\0\0\0 not a program"))
    with pytest.warns(CoterieWarning, match="was damaged"):
        assert compiled(triple, X)(X)[0] == 4
    assert not list(folder.glob("jit_triple-*-cache"))


def test_in_a_folder_of_the_users_nothing_is_removed(folder, monkeypatch):
    monkeypatch.setattr(programs, "_our_folder", lambda: folder / "another")
    compiled(triple, X)
    entry(folder, "triple").write_bytes(b"")
    with pytest.warns(CoterieWarning, match=r"remove jit_triple-\*-cache there"):
        compiled(triple, X)
    assert entry(folder, "triple").read_bytes() == b""


def test_other_warnings_pass():
    with pytest.warns(UserWarning, match="another"), repairing():
        warnings.warn("another", UserWarning, stacklevel=1)


def test_programs_that_were_swapped_are_refused(folder):
    compiled(triple, X)
    compiled(halves, X, X)
    entry(folder, "triple").write_bytes(entry(folder, "halves").read_bytes())
    with pytest.raises(CoterieError, match=r"is not the one that its name says .* remove that folder"):
        compiled(triple, X)(X)


def test_a_program_for_other_inputs_is_refused(folder):
    compiled(triple, X)
    swapped = entry(folder, "triple").read_bytes()
    entry(folder, "triple").unlink()
    compiled(triple, jnp.ones((2, 9)))
    entry(folder, "triple").write_bytes(swapped)
    with pytest.raises(CoterieError, match="is not the one that its name says"), fitting():
        compiled(triple, jnp.ones((2, 9)))(jnp.ones((2, 9)))
