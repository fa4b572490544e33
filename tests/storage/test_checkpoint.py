"""Checkpoints come back bit for bit, and damage to any byte of them is noticed."""

import json
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coterie.errors import CoterieError
from coterie.storage.checkpoint import load, pack, save, unpack
from coterie.storage.durable import durable_write
from coterie.storage.schema import kept_lines, whole

DTYPES = [bool, "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
any_array = st.sampled_from(DTYPES).flatmap(
    lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, min_side=0, max_side=4))
)


def same_bits(left, right):
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def names(folder):
    return sorted(file.name for file in (folder / "checkpoints").iterdir())


# -- what is saved comes back ----------------------------------------------------------------------------------------


@settings(deadline=None)
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
            CoterieError, match=r"every checkpoint in .* is corrupt .step-00000007: (digest differs|no digest)"
        ):
            load(tmp_path)
    path.write_bytes(whole)
    assert load(tmp_path)[0] == 7


@settings(deadline=None)
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
    reason = "digest differs" if size == -1 else "no digest"
    assert notes == [f"step-00000020 is corrupt ({reason}): continuing from step-00000010"]


def test_a_renamed_one_is_not_believed(tmp_path):
    path = save(tmp_path, 10, {"x": np.array(10)}, {})
    path.rename(path.with_name("step-00000030.safetensors"))
    with pytest.raises(CoterieError, match="step-00000030: the file was renamed"):
        load(tmp_path)


# -- other files ------------------------------------------------------------------------------------------------------


def test_durable_write_replaces_whole(tmp_path):
    durable_write(tmp_path / "a.json", b"old")
    durable_write(tmp_path / "a.json", b"ne", memoryview(b"w"))
    assert (tmp_path / "a.json").read_bytes() == b"new"
    with pytest.raises(TypeError):
        durable_write(tmp_path / "a.json", b"half", 3)
    assert (tmp_path / "a.json").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a.json"]
    with pytest.raises(CoterieError, match=r"cannot be written .No such file"):
        durable_write(tmp_path / "absent" / "a.json", b"")


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 9)), st.integers(0, 9), st.sampled_from([b"", b'{"round": 1', b'{"round": 0}', b"\xff\x00"])
)
def test_kept_lines_are_those_covered(rounds, number, torn):
    data = b"".join(json.dumps({"round": r}).encode() + b"\n" for r in rounds) + torn
    kept = kept_lines(data, "metrics.jsonl", lambda line: line["round"] <= number)
    assert [json.loads(line)["round"] for line in kept] == [r for r in rounds if r <= number]
    assert all(line.endswith(b"\n") for line in kept)


def test_kept_lines_tell_damage_from_a_torn_end():
    def kept(data):
        return kept_lines(data, "metrics.jsonl", lambda line: whole()(line["round"]) <= 2)

    assert kept(b"") == []
    assert kept(b'{"round": 1}\n\x00\x00\x00\n{"round": "a"}\n{"round": 3}\n') == [b'{"round": 1}\n']
    for damage in (b"nonsense", b'{"round": "a"}', b"[" * 100_000):
        with pytest.raises(CoterieError, match=r"line 2 of metrics\.jsonl is damaged"):
            kept(b'{"round": 1}\n' + damage + b'\n{"round": 2}\n')


# -- trees of arrays --------------------------------------------------------------------------------------------------


class Inner(NamedTuple):
    count: Any
    moments: Any
    nothing: Any = None


class State(NamedTuple):
    params: Any
    optimiser: Any


@settings(deadline=None)
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
