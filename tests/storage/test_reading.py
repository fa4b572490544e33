"""The readers of files from anybody: checks and their sentences, arrays that lie about themselves, torn records."""

import io
import json
import zipfile
from typing import Literal, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import CoterieError
from coterie.storage.arrays import Array, npz_bytes, read_npz
from coterie.storage.blocks import append_to, read_blocks, whole_blocks
from coterie.storage.owned import inside
from coterie.storage.schema import (
    checked,
    each,
    mapping,
    maybe,
    number,
    numbers,
    plain,
    record,
    table,
    text,
    whole,
    word,
)


class Point(NamedTuple):
    """A record for the test."""

    x: float
    kind: Literal["a", "b"]
    tags: tuple[str, ...] = ()
    note: str | None = None


FIELDS = table({"n": whole(1, 9)}, {"list": each(text, 2), "words": mapping(word("a")), "maybe": maybe(number(0, 1))})


@pytest.mark.parametrize(
    ("check", "value", "sentence"),
    [
        (FIELDS, {"n": "a"}, "f: \"n\" must be a whole number, not 'a'"),
        (FIELDS, {"n": True}, 'f: "n" must be a whole number, not True'),
        (FIELDS, {"n": 10**30}, 'f: "n" must be at most 9, not 1000000000000000000000000000000'),
        (FIELDS, {"n": 1, "list": ["a", 2]}, 'f: "list.2" must be text, not 2'),
        (FIELDS, {"n": 1, "list": []}, 'f: "list" must have 2 entries, not 0'),
        (FIELDS, {"n": 1, "words": {"k": "z"}}, "f: \"words.k\" must be a, not 'z'"),
        (FIELDS, {"n": 1, "maybe": float("nan")}, 'f: "maybe" must be a finite number, not nan'),
        (FIELDS, {"n": 1, "maybe": 2}, 'f: "maybe" must be between 0 and 1, not 2'),
        (FIELDS, {"n": 1, "new": 1}, 'f: "new" is not known; it may be of a newer version of coterie'),
        (FIELDS, {}, 'f: "n" is missing'),
        (FIELDS, [], "f must be a table, not a list"),
        (numbers(2), [1, float("inf")], "f must be finite numbers"),
        (numbers(2), [1, "a"], "f: \"2\" must be a finite number, not 'a'"),
        (record(Point), {"x": 1, "kind": "c"}, "f: \"kind\" must be a or b, not 'c'"),
        (record(Point), {"kind": "a"}, 'f: "x" is missing'),
        (record(Point), {"x": 1, "kind": "a", "tags": [1]}, 'f: "tags.1" must be text, not 1'),
        (text, "\x1b[2J" * 99, None),
        (whole(), "\x1b" * 99, "f must be a whole number, not '" + r"\x1b" * 19 + r"\x1..."),
    ],
)
def test_one_sentence_with_file_and_field(check, value, sentence):
    if sentence is None:
        assert checked(check, value, "f") == value
        return
    with pytest.raises(CoterieError) as caught:
        checked(check, value, "f")
    assert str(caught.value) == sentence


def test_what_fits_comes_back():
    value = {"n": 1, "list": ["a", "b"], "words": {}, "maybe": None}
    assert checked(FIELDS, value, "f") == value
    assert checked(record(Point), {"x": 1, "kind": "a", "note": None}, "f")["x"] == 1
    deep = json.loads("[" * 8 + "]" * 8)
    assert plain(deep) == deep
    with pytest.raises(CoterieError, match="nested too deeply"):
        checked(plain, [deep], "f")


EXPECTED = {"a": Array("iu", ("rows", 2), below="rows"), "b": Array("f", ("rows",))}


def test_arrays_come_back_and_must_agree():
    arrays = {"a": np.array([[0, 1], [1, 0]]), "b": np.asfortranarray([0.5, 1.0])}
    back = read_npz(npz_bytes(arrays), "f", EXPECTED, EXPECTED, {})
    assert all(np.array_equal(back[name], arrays[name]) and back[name].flags.writeable for name in arrays)
    for change, sentence in [
        ({"a": arrays["a"] + 1}, "f: a names number 2, where there are 2 rows"),
        ({"b": np.ones(3)}, "f: b has 3 rows where 2 are expected"),
        ({"b": np.array([1.0, np.nan])}, "f: b has a value that is not a finite number"),
        ({"b": np.ones((2, 1))}, "f: b must have 1 axes, not 2"),
        ({"b": np.ones(2, int)}, "f: b must be numbers, not int64"),
        ({"c": np.ones(2)}, "f has an array 'c', which does not belong there"),
    ]:
        with pytest.raises(CoterieError) as caught:
            read_npz(npz_bytes(arrays | change), "f", EXPECTED, EXPECTED, {})
        assert str(caught.value) == sentence


def header(shape, dtype="<i8"):
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


@pytest.mark.parametrize("shape", [(10**15,), (10**30,), (-1,), (1 << 40, 1 << 40)])
def test_a_header_that_lies_allocates_nothing(shape):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.npy", header(shape))
    with pytest.raises(CoterieError, match="f cannot be read"):
        read_npz(buffer.getvalue(), "f", {"a": Array("iu", ("rows",) * len(shape))}, (), {})


def test_what_unpacks_into_too_much_is_refused_before():
    bomb = npz_bytes({"b": np.zeros(1 << 20)})
    assert len(bomb) < 20_000
    with pytest.raises(CoterieError, match=r"f would take 0\.0 GB of memory"):
        read_npz(bomb, "f", EXPECTED, (), {}, most=1 << 20)


@given(st.lists(st.binary(max_size=20), max_size=5), st.integers(0, 200))
def test_records_come_back_up_to_where_the_file_is_torn(contents, cut):
    records = [append_to(number, content) for number, content in enumerate(contents)]
    data = b"".join(records)
    assert read_blocks(data, "f") == list(enumerate(contents))
    torn = data[: max(0, len(data) - cut)]
    kept = [content for _, content, _ in whole_blocks(torn)]
    assert kept == contents[: len(kept)]
    assert len(b"".join(records[: len(kept) + 1])) > len(torn) or len(kept) == len(contents)


@given(st.data())
def test_damage_to_any_byte_of_a_record_is_noticed(data):
    whole_file = append_to(3, b"some content") + append_to(7, b"more")
    place = data.draw(st.integers(0, len(whole_file) - 1))
    damaged = bytearray(whole_file)
    damaged[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CoterieError, match=r"f cannot be read .record \d is damaged"):
        read_blocks(bytes(damaged), "f")


def test_a_link_that_stays_inside_is_followed(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert inside(tmp_path, "b", "c") == tmp_path / "b" / "c"
    (tmp_path / "a" / "out").symlink_to("../..")
    with pytest.raises(CoterieError, match="is a link to a place outside"):
        inside(tmp_path, "b", "out", "c")
