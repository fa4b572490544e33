"""Frames: header and arrays are decoded exactly, and only whole frames of the expected layout are accepted."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from coterie.codecs.frame import HEADER, Header, decode, encode, frame_bytes, layout_digest

TYPES = ["float32", "float64", "float16", "int8", "int32", "int64", "uint8", "uint32", "bool", "<f4", ">f4", ">i8"]

headers = st.builds(
    Header,
    kind=st.integers(0, 2**16 - 1),
    run=st.integers(0, 2**64 - 1),
    round=st.integers(0, 2**32 - 1),
    exchange=st.integers(0, 2**32 - 1),
    sender=st.integers(0, 2**32 - 1),
    receiver=st.integers(0, 2**32 - 1),
)
messages = st.lists(
    st.sampled_from(TYPES).flatmap(
        lambda t: arrays(np.dtype(t), array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    ),
    max_size=4,
)


@given(headers, messages)
def test_header_and_arrays_are_decoded_exactly(header, values):
    frame = encode(header, values)
    opened = decode(frame, values)
    assert opened is not None
    assert opened[0] == header
    for before, after in zip(values, opened[1], strict=True):
        assert after.dtype == before.dtype
        assert after.shape == before.shape
        assert after.tobytes() == before.tobytes()  # NaN payloads and negative zeros too


@given(headers, messages)
def test_the_size_is_known_before_it_is_sent(header, values):
    assert len(encode(header, values)) == frame_bytes(values) == 48 + sum(a.nbytes for a in values)


@given(headers, messages, st.data())
def test_no_part_of_a_frame_is_a_frame(header, values, data):
    frame = encode(header, values)
    cut = data.draw(st.integers(0, len(frame) - 1))
    assert decode(frame[:cut], values) is None
    assert decode(frame + b"\0", values) is None


@given(headers, messages, messages)
def test_another_layout_is_refused(header, values, others):
    def layout(arrays):
        return [(a.dtype, a.shape) for a in arrays]

    if layout(values) != layout(others):
        assert layout_digest(values) != layout_digest(others)
        assert decode(encode(header, values), others) is None


def test_shapes_with_equally_many_bytes_are_told_apart():
    frame = encode(Header(0, 1, 2, 3, 4, 5), [np.zeros((2, 3), np.float32)])
    for other in (np.zeros((3, 2), np.float32), np.zeros(6, np.float32), np.zeros((2, 3), np.int32), np.zeros(3)):
        assert decode(frame, [other]) is None
    assert decode(frame, [np.zeros((2, 3), np.float32)]) is not None


@pytest.mark.parametrize("place", [0, 3, 4, 5, *range(32, 48)], ids=str)
def test_a_flipped_bit_in_magic_format_digest_or_size_is_noticed(place):
    values = [np.arange(3.0)]
    frame = bytearray(encode(Header(0, 1, 2, 3, 4, 5), values))
    frame[place] ^= 1
    assert decode(bytes(frame), values) is None


def test_the_bytes_by_hand():
    """Peers of another version rely on the layout: little-endian, in this order, without gaps."""
    frame = encode(Header(kind=1, run=2, round=3, exchange=4, sender=5, receiver=6), [np.array([1, -1], np.int16)])
    assert frame[:4] == b"cote"
    assert struct.unpack("<HHQIIII", frame[4:32]) == (1, 1, 2, 3, 4, 5, 6)
    assert frame[32:40] == layout_digest([np.zeros(2, np.int16)])
    assert struct.unpack("<Q", frame[40:48]) == (4,)
    assert frame[HEADER:] == b"\x01\x00\xff\xff"


def test_big_endian_values_are_sent_little_endian():
    frame = encode(Header(0, 0, 0, 0, 0, 0), [np.array([1], ">u4")])
    assert frame[HEADER:] == b"\x01\x00\x00\x00"
