"""Checkpoints and durable files: bit-exact, and whole after bit flips, full disks and SIGKILL at any moment."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coterie.checkpoint import cut_lines, durable_write, load, pack, save, storage_errors, unpack
from coterie.errors import CoterieError, StorageError

DTYPES = [bool, "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
any_array = st.sampled_from(DTYPES).flatmap(
    lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, min_side=0, max_side=4))
)


def same_bits(left, right):
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def names(folder):
    return sorted(file.name for file in (folder / "checkpoints").iterdir())


# -- what is saved comes back ----------------------------------------------------------------------------------------


@given(
    st.dictionaries(st.text(), any_array, max_size=4),
    st.dictionaries(st.text(), st.text(), max_size=3),
    st.integers(0, 10**9),
)
def test_round_trip_is_bit_exact(tmp_path_factory, arrays, meta, step):
    arrays = {name: value for name, value in arrays.items() if name != "__metadata__"}  # safetensors' own word
    folder = tmp_path_factory.mktemp("run")
    path = save(folder, step, arrays, meta)
    assert path == folder / "checkpoints" / f"step-{step:08d}.safetensors"
    found_step, found, found_meta, notes = load(folder)
    assert (found_step, found_meta, notes) == (step, meta, [])
    assert found.keys() == arrays.keys()
    assert all(same_bits(found[name], arrays[name]) for name in arrays)


def test_other_layouts_and_dtypes(tmp_path):
    across = np.arange(6.0).reshape(2, 3).T  # not in C order
    half = np.array([1.5, -0.0, np.nan, np.inf], ml_dtypes.bfloat16)
    save(tmp_path, 1, {"across": across, "half": half}, {})
    _, found, _, _ = load(tmp_path)
    np.testing.assert_array_equal(found["across"], [[0, 3], [1, 4], [2, 5]])
    assert same_bits(found["half"], half)
    with pytest.raises(CoterieError, match="text has dtype <U1, which a checkpoint cannot hold"):
        save(tmp_path, 2, {"text": np.array(["a"])}, {})


def test_nothing_there(tmp_path):
    assert load(tmp_path) is None
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-00000003.safetensors.tmp").write_bytes(b"torn")
    assert load(tmp_path) is None


def test_the_last_two_are_kept(tmp_path):
    for step in (5, 10, 15):
        save(tmp_path, step, {"x": np.array(step)}, {})
    (tmp_path / "checkpoints" / "step-00000020.safetensors.tmp").write_bytes(b"left by a kill")
    assert names(tmp_path)[:2] == ["step-00000010.safetensors", "step-00000015.safetensors"]
    save(tmp_path, 20, {"x": np.array(20)}, {})
    assert names(tmp_path) == ["step-00000015.safetensors", "step-00000020.safetensors"]
    save(tmp_path, 18, {"x": np.array(18)}, {})  # step 20 was found corrupt and the run went back
    assert names(tmp_path) == ["step-00000015.safetensors", "step-00000018.safetensors"]
    assert load(tmp_path)[1]["x"] == 18


# -- damage ------------------------------------------------------------------------------------------------------------


def small_checkpoint(folder):
    arrays = {"['w']": np.arange(5, dtype=np.float32), ".count": np.array(3), "mask": np.array([True, False])}
    return save(folder, 7, arrays, {"round": "7", "text": "0" * 64})


def test_every_flipped_bit_is_noticed(tmp_path):
    path = small_checkpoint(tmp_path)
    whole = path.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(
            CoterieError, match="every checkpoint in .* is corrupt .step-00000007: (digest differs|no digest)"
        ):
            load(tmp_path)
    path.write_bytes(whole)
    assert load(tmp_path)[0] == 7


@given(st.data())
def test_any_damage_is_noticed(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("run")
    path = small_checkpoint(folder)
    whole = path.read_bytes()
    start = data.draw(st.integers(0, len(whole) - 1))
    piece = data.draw(st.binary(max_size=20))
    damaged = whole[:start] + piece + whole[start + data.draw(st.integers(0, 20)) :]
    path.write_bytes(damaged)
    if damaged == whole:
        assert load(folder)[0] == 7
    else:
        with pytest.raises(CoterieError, match="corrupt"):
            load(folder)


@pytest.mark.parametrize("size", [0, 4, 8, 100, -1])
def test_a_torn_one_is_skipped_with_a_note(tmp_path, size):
    save(tmp_path, 10, {"x": np.array(10)}, {"round": "10"})
    newest = save(tmp_path, 20, {"x": np.array(20)}, {})
    newest.write_bytes(newest.read_bytes()[:size])
    step, arrays, meta, notes = load(tmp_path)
    assert (step, arrays["x"], meta) == (10, 10, {"round": "10"})
    reason = "digest differs" if size in (-1,) else "no digest"
    assert notes == [f"step-00000020 is corrupt ({reason}): continuing from step-00000010"]


def test_a_renamed_one_is_not_believed(tmp_path):
    path = save(tmp_path, 10, {"x": np.array(10)}, {})
    path.rename(path.with_name("step-00000030.safetensors"))
    with pytest.raises(CoterieError, match="step-00000030: the file was renamed"):
        load(tmp_path)


# -- full disks and kills, in real processes ---------------------------------------------------------------------------


def child(script, *arguments):
    """Start a Python process with a script that has `save`, `load`, `np`, `os`, `Path` and its arguments as `args`."""
    head = "import os, resource, signal, sys\nimport numpy as np\nfrom pathlib import Path\n"
    head += "import coterie.checkpoint as checkpoint\nfrom coterie.checkpoint import load, save\nargs = sys.argv[1:]\n"
    command = [sys.executable, "-W", "error", "-c", head + textwrap.dedent(script), *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def test_a_full_disk_stops_cleanly_and_loses_nothing(tmp_path):
    script = """
        from coterie.errors import StorageError
        folder = Path(args[0])
        save(folder, 1, {"x": np.ones(100)}, {})
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            save(folder, 2, {"x": np.ones(100_000)}, {})
        except StorageError as error:
            print(error)
    """
    process = child(script, tmp_path)
    out, errors = process.communicate()
    path = tmp_path / "checkpoints" / "step-00000002.safetensors"
    assert errors == ""
    assert out.startswith(f"a file is too large while writing {path}; ")
    assert f"`coterie resume {tmp_path}` continues" in out
    assert names(tmp_path) == ["step-00000001.safetensors"]  # no .tmp is left to fill the disk
    step, arrays, _, notes = load(tmp_path)
    assert (step, arrays["x"].tolist(), notes) == (1, [1.0] * 100, [])


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_a_device_without_space_gives_one_sentence(tmp_path):
    with (
        pytest.raises(StorageError, match=f"the disk is full while writing {tmp_path}; .*coterie resume {tmp_path}"),
        storage_errors(tmp_path),
        open("/dev/full", "wb", buffering=0) as stream,
    ):
        stream.write(b"x")
    with pytest.raises(CoterieError, match="cannot be written .Not a directory"):
        durable_write(tmp_path / "file" / "inside", b"") if (tmp_path / "file").write_bytes(b"") == 0 else None


# Where a process may die while it saves: the call, and how many times it was reached before.
MOMENTS = [
    ("open", 0),
    ("write", 0),
    ("fsync", 0),
    ("replace", 0),
    ("fsync", 1),
    ("unlink", 0),
    ("unlink", 1),
    ("end", 0),
]


@pytest.mark.parametrize(("call", "count"), MOMENTS)
def test_killed_at_each_step_of_saving(tmp_path, call, count):
    for step in (1, 2, 3):
        save(tmp_path, step, {"x": np.full(1000, step)}, {})
    (tmp_path / "checkpoints" / "step-00000000.safetensors.tmp").write_bytes(b"left by an earlier kill")
    script = """
        import builtins, pathlib
        folder, call, count = Path(args[0]), args[1], int(args[2])

        def dies(real):
            left = [count]
            def wrapped(*given, **named):
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return real(*given, **named)
            return wrapped

        class Torn:
            def __init__(self, stream):
                self.stream = stream
            def __enter__(self):
                return self
            def __exit__(self, *error):
                self.stream.close()
            def write(self, data):
                self.stream.write(bytes(data)[: len(data) // 2])
                self.stream.flush()
                os.kill(os.getpid(), signal.SIGKILL)

        if call == "open":
            builtins.open = dies(open)
        elif call == "write":
            real_open = open
            builtins.open = lambda *given: Torn(real_open(*given))
        elif call == "unlink":
            pathlib.Path.unlink = dies(pathlib.Path.unlink)
        elif call != "end":
            setattr(os, call, dies(getattr(os, call)))
        save(folder, 4, {"x": np.full(1000, 4)}, {})
        os.kill(os.getpid(), signal.SIGKILL)
    """
    process = child(script, tmp_path, call, count)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (-signal.SIGKILL, "")
    step, arrays, _, notes = load(tmp_path)
    renamed = (call, count) not in MOMENTS[:4]
    assert step == (4 if renamed else 3)
    assert (arrays["x"] == step).all()
    assert notes == []
    save(tmp_path, 5, {"x": np.array(5)}, {})
    assert names(tmp_path) == [f"step-{step:08d}.safetensors", "step-00000005.safetensors"]


def test_killed_at_random_moments(tmp_path):
    script = """
        folder = Path(args[0])
        found = load(folder)
        step = found[0] if found else 0
        while True:
            step += 1
            save(folder, step, {"x": np.full(50_000, step)}, {"step": str(step)})
            print(step, flush=True)
    """
    moments, saved = random.Random(0), 0
    for _ in range(8):
        process = child(script, tmp_path)
        assert int(process.stdout.readline()) == saved + 1
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=moments.uniform(0, 0.05))
        process.kill()
        out, errors = process.communicate()
        assert errors == ""
        printed = [saved + 1, *map(int, out.split())][-1]
        saved, arrays, meta, notes = load(tmp_path)
        assert saved in (printed, printed + 1)
        assert (arrays["x"] == saved).all()
        assert (meta, notes) == ({"step": str(saved)}, [])


# -- other files ---------------------------------------------------------------------------------------------------------


def test_durable_write_replaces_whole(tmp_path):
    durable_write(tmp_path / "a.json", b"old")
    durable_write(tmp_path / "a.json", b"ne", memoryview(b"w"))
    assert (tmp_path / "a.json").read_bytes() == b"new"
    with pytest.raises(TypeError):
        durable_write(tmp_path / "a.json", b"half", 3)
    assert (tmp_path / "a.json").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a.json"]
    with pytest.raises(CoterieError, match="cannot be written .No such file"):
        durable_write(tmp_path / "absent" / "a.json", b"")


@given(
    st.lists(st.integers(0, 9)), st.integers(0, 9), st.sampled_from([b"", b'{"round": 1', b'{"round": 0}', b"\xff\x00"])
)
def test_cut_lines_keeps_what_was_covered(tmp_path_factory, rounds, number, torn):
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    path.write_bytes(b"".join(json.dumps({"round": r}).encode() + b"\n" for r in rounds) + torn)
    cut_lines(path, lambda line: line["round"] <= number)
    assert [json.loads(line)["round"] for line in path.read_text().splitlines()] == [r for r in rounds if r <= number]
    assert path.read_bytes() == b"" or path.read_bytes().endswith(b"\n")


def test_cut_lines_tells_damage_from_a_torn_end(tmp_path):
    path = tmp_path / "metrics.jsonl"
    cut_lines(path, lambda line: True)
    assert not path.exists()
    path.write_bytes(b'{"round": 1}\n\x00\x00\x00\n7\n{"round": 3}\n')
    cut_lines(path, lambda line: line["round"] <= 2)  # all after round 1 is cut, whatever it is
    assert path.read_bytes() == b'{"round": 1}\n'
    path.write_bytes(b'{"round": 1}\nnonsense\n{"round": 2}\n')
    with pytest.raises(CoterieError, match=r"line 2 of .*metrics\.jsonl is damaged"):
        cut_lines(path, lambda line: line["round"] <= 2)


# -- trees of arrays -----------------------------------------------------------------------------------------------------


class Inner(NamedTuple):
    count: Any
    moments: Any
    nothing: Any = None


class State(NamedTuple):
    params: Any
    optimiser: Any


@given(st.lists(any_array, min_size=3, max_size=3))
def test_a_tree_round_trips_bit_exactly(tmp_path_factory, arrays):
    tree = State({"layer.weight": arrays[0], "b": (arrays[1], None)}, [Inner(np.int32(4), arrays[2])])
    folder = tmp_path_factory.mktemp("run")
    save(folder, 1, pack(tree), {})
    found = unpack(load(folder)[1], tree)
    assert jax.tree.structure(found) == jax.tree.structure(tree)
    assert all(same_bits(a, b) for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(tree), strict=True))


def test_jax_arrays_and_their_names(tmp_path):
    key = jax.random.key_data(jax.random.key(3))
    tree = State({"w": jnp.arange(3, dtype=jnp.bfloat16)}, (Inner(jnp.int32(2), key), jnp.array([True])))
    packed = pack(tree)
    assert list(packed) == [".params['w']", ".optimiser[0].count", ".optimiser[0].moments", ".optimiser[1]"]
    save(tmp_path, 1, packed, {})
    shapes = jax.eval_shape(lambda: tree)
    for like in (tree, shapes):
        found = unpack(load(tmp_path)[1], like)
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(found))
        assert all(same_bits(np.asarray(a), packed[n]) for n, a in zip(packed, jax.tree.leaves(found), strict=True))
    assert same_bits(np.asarray(unpack(pack(jnp.ones(2)), jnp.ones(2))), np.ones(2, np.float32))  # a lone leaf
    with jax.enable_x64(True):
        wide = {"x": jnp.full(2, 0.1)}
        assert unpack(pack(wide), wide)["x"].dtype == jnp.float64


@pytest.mark.parametrize(
    ("like", "words"),
    [
        ({"a": np.zeros((2, 3), np.float32)}, r"\['b'\] is int64\[\] in it and absent here"),
        (
            {"a": np.zeros((2, 3), np.float32), "b": np.array(1), "c": np.array(1)},
            r"\['c'\] is absent in it and int64\[\]",
        ),
        (
            {"a": np.zeros((3, 2), np.float32), "b": np.array(1)},
            r"\['a'\] is float32\[2, 3\] in it and float32\[3, 2\]",
        ),
        (
            {"a": np.zeros((2, 3), np.float16), "b": np.array(1)},
            r"float32\[2, 3\] in it and float16\[2, 3\] here; resume",
        ),
    ],
)
def test_a_tree_of_another_shape_is_refused(like, words):
    arrays = pack({"a": np.zeros((2, 3), np.float32), "b": np.array(1)})
    with pytest.raises(CoterieError, match=words):
        unpack(arrays, like)
