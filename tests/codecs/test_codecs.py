"""Messages of codecs: every vector is decoded bit for bit, its size is known in a program, bad bytes are refused."""

import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import registry
from coterie.codecs import QSGD, Fused, Half, Raw, TopK
from coterie.codecs.base import OVERHEAD
from coterie.codecs.bits import Reader
from coterie.codecs.indices import indices_bytes, pack_indices, unpack_indices
from coterie.codecs.places import pack_places, places_bytes, unpack_places
from coterie.errors import CoterieError
from support.codec_cases import CODECS, TYPES, compiled, keys, same_bits, vectors

INDICES = jax.jit(indices_bytes)
codecs = pytest.mark.parametrize("name", CODECS)
SINGLE, DOUBLE = TYPES
types = pytest.mark.parametrize(
    "dtype", [pytest.param(SINGLE, id="float32"), pytest.param(DOUBLE, id="float64", marks=pytest.mark.soak)]
)


def size_in_program(counts):
    """Return the size of indices as computed in a program; compiled once, for a table of 256."""
    padded = np.zeros(256, np.uint32)
    padded[: len(counts)] = counts
    return int(INDICES(padded, np.uint32(len(counts))))


def checksum(data, start=0):
    """Return the CRC-32 by its definition, bit by bit."""
    value = start ^ 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0xEDB88320 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def contents(codec, x):
    """Return the message without its checksum."""
    return codec.encode(np.asarray(x, np.float32))[:-4].hex(" ")


# -- round trips -------------------------------------------------------------------------------------------------------


def squeezed(name, x):
    """Return the reduced vector, and the sizes of it and of x as computed in a program."""
    with jax.enable_x64(x.dtype == np.float64):
        sent, *sizes = compiled(name)(jnp.asarray(x)[None], keys(1))
    assert sent.dtype == x.dtype
    assert all(size.dtype == jnp.uint32 for size in sizes)
    return np.asarray(sent[0]), *(size.item() for size in sizes)


def decoded(codec, x):
    """Check that a vector's message decodes to it, and return the length of the message."""
    message = codec.encode(x)
    assert same_bits(codec.decode(message, len(x), x.dtype), x)
    assert len(message) <= OVERHEAD + x.nbytes
    return len(message)


SLOW = ("fused", "fused-centres", "qsgd-2-bits")  # in `make soak`; the first has cases of its own below


@types
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.soak if name in SLOW else ()) for name in CODECS],
)
@settings(max_examples=20, deadline=None)
@given(st.data())
def test_every_vector_is_decoded_and_its_size_is_known(name, dtype, data):
    codec, x = CODECS[name], data.draw(vectors(dtype))
    sent, size_sent, size = squeezed(name, x)
    assert decoded(codec, sent) == size_sent
    assert decoded(codec, x) == size
    beyond = name.startswith("fused") and np.abs(x.astype(float)).max() > 1e300  # the fused operator sums in float64
    assert beyond or np.isfinite(sent).all() or not np.isfinite(x).all()


@pytest.mark.soak
@types
@codecs
def test_gradients_are_sent_in_fewer_bytes(name, dtype):
    x = np.cumsum(np.random.default_rng(0).standard_normal(1000)).astype(dtype)  # has runs after the fused operator
    sent, size, _ = squeezed(name, x)
    assert decoded(CODECS[name], sent) == size
    assert size == 5 + x.nbytes if name == "none" else size < 0.6 * x.nbytes


@types
@codecs
def test_zeros_cost_next_to_nothing(name, dtype):
    codec, x = CODECS[name], np.zeros(1000, dtype)
    sent, size, _ = squeezed(name, x)
    assert same_bits(sent, x)
    if name not in ("none", "float16"):
        scales = math.ceil(1000 / codec.bucket) if name.startswith("qsgd") else 0
        assert size <= OVERHEAD + 12 + scales * x.itemsize


@codecs
def test_a_vector_without_numbers(name):
    codec, x = CODECS[name], np.zeros(0, np.float32)
    assert same_bits(np.asarray(codec.reduce(jnp.zeros((2, 0)), keys(2))[0]), x)
    assert codec.size(jnp.zeros((2, 0))).tolist() == [5, 5] == [len(codec.encode(x))] * 2
    assert same_bits(codec.decode(codec.encode(x), 0, np.float32), x)


# -- bytes that are refused --------------------------------------------------------------------------------------------


def some_messages(codec, name):
    random = np.random.default_rng(1)
    for size in (1, 7, 60):
        steps = np.repeat(random.standard_normal(size).astype(np.float32), 4)[:size]
        for x in (steps, np.zeros(size, np.float32)):
            yield x, codec.encode(x)
    for size in (1, 7):
        sent, *_ = squeezed(name, random.standard_normal(size).astype(np.float32))
        yield sent, codec.encode(sent)


@codecs
def test_shorter_and_longer_messages_are_refused(name):
    codec = CODECS[name]
    for x, message in some_messages(codec, name):
        for cut in range(len(message)):
            with pytest.raises(CoterieError, match="truncated or changed on its way"):
                codec.decode(message[:cut], len(x), x.dtype)
        with pytest.raises(CoterieError, match=f"a message of {len(message) + 1} bytes in codec {codec.name} does not"):
            codec.decode(message + b"\0", len(x), x.dtype)


@codecs
def test_a_changed_byte_is_noticed_at_every_position(name):
    codec, random = CODECS[name], np.random.default_rng(2)
    for x, message in some_messages(codec, name):
        for place in range(len(message)):
            changed = bytearray(message)
            changed[place] ^= random.integers(1, 256)
            with pytest.raises(CoterieError, match="its checksum is wrong"):
                codec.decode(bytes(changed), len(x), x.dtype)


@codecs
@settings(deadline=None)
@given(st.data())
def test_several_changed_bytes_are_noticed(name, data):
    codec, x = CODECS[name], data.draw(vectors(np.float32))
    message = codec.encode(x)
    places = data.draw(st.dictionaries(st.integers(0, len(message) - 1), st.integers(1, 255), min_size=1, max_size=9))
    changed = bytes(byte ^ places.get(place, 0) for place, byte in enumerate(message))
    with pytest.raises(CoterieError):
        codec.decode(changed, len(x), x.dtype)


@codecs
@settings(deadline=None)
@given(st.data())
def test_bytes_with_a_right_checksum_that_no_codec_wrote_are_refused_or_read_to_the_end(name, data):
    # Anyone can compute the checksum: decoding must return an array of the right shape and type or raise our error.
    codec, count = CODECS[name], data.draw(st.sampled_from((1, 9, 300)))
    content = bytes([data.draw(st.integers(0, 7))]) + data.draw(st.binary(max_size=60))
    message = content + codec._checksum(content, count, np.dtype(np.float32)).to_bytes(4, "little")
    try:
        x = codec.decode(message, count, np.float32)
    except CoterieError:
        return
    assert x.shape == (count,)
    assert x.dtype == np.float32


def test_a_message_for_another_vector_or_with_other_settings_is_refused():
    x = np.zeros(100, np.float32)
    message = QSGD(bits=4, bucket=50).encode(x)
    assert same_bits(QSGD(bits=4, bucket=50, feedback=True).decode(message, 100, np.float32), x)
    for codec in (QSGD(bits=5, bucket=50), QSGD(bits=4, bucket=51), TopK(), Raw()):
        with pytest.raises(CoterieError, match="or sent with other settings"):
            codec.decode(message, 100, np.float32)
    for count, dtype in ((99, np.float32), (100, np.float64), (200, np.float32)):
        with pytest.raises(CoterieError):
            QSGD(bits=4, bucket=50).decode(message, count, dtype)


@pytest.mark.parametrize("x", [np.zeros((2, 3), np.float32), np.zeros(3, np.float16), np.zeros(3, np.int32)])
def test_only_vectors_of_real_numbers_are_encoded(x):
    with pytest.raises(CoterieError, match=r"a codec takes vectors of float32 or float64, not .* of shape"):
        Half().encode(x)


class WrongSize(TopK):
    def sizes(self, x):
        return [1 + size for size in super().sizes(x)]


def test_a_codec_whose_sizes_are_wrong_is_refused():
    with pytest.raises(CoterieError, match=r"the codec top-k wrote 8 bytes in layout 2, but its `sizes` says 9"):
        WrongSize().encode(np.array([0, 1, 0, 2, 0, 0], np.float32))


# -- the format, by hand -----------------------------------------------------------------------------------------------
# The lowest bit of a byte comes first. In the comments bits are in the order of the stream.


def test_numbers_in_full():
    message = Raw().encode(np.array([1.0, -2.0], np.float32))
    content = bytes([0]) + bytes.fromhex("0000803f 000000c0")
    assert message[:-4] == content
    # The checksum starts with what both ends know: name, settings, number and size of the numbers.
    assert message[-4:] == checksum(content, checksum(b"none () 2 4")).to_bytes(4, "little")


def test_half_precision():
    assert contents(Half(), [1.0, -2.0, 65504.0]) == "01 00 3c 00 c0 ff 7b"
    assert contents(Half(), [1.0, 65505.0]) == "00 00 00 80 3f 00 e1 7f 47"  # no float16: sent in full


def test_places_and_numbers_of_top_k():
    x = np.zeros(20)
    x[[2, 3, 11]] = 1.0, 1.1, -2.0
    # 3 places, gaps 3, 1, 8. Rice with b = floor(log2(20 / 3)) = 2: quotients 0, 0, 1 -> 1 1 01; remainders 2, 0, 3 ->
    # 01 00 11: a byte each. Gamma: 1, 0, 3 in unary -> 01 1 0001; 1 and 0 0 0: a byte each too, and preferred.
    assert contents(TopK(), x) == "01 03 ff 46 01 00 00 80 3f cd cc 8c 3f 00 00 00 c0"
    x[3] = 1.0  # now all numbers have 16 bits
    assert contents(TopK(), x) == "02 03 ff 46 01 80 3f 80 3f 00 c0"


def test_places_in_rice_code():
    places = np.arange(5, 65, 6)  # ten gaps of 6 among 66: b = floor(log2 6.6) = 2; quotient 1, rest 1 (of 6 - 1 = 5)
    # unary 01 ten times: 20 bits; rests 10 ten times: 20 bits. Gamma would take 30 and 20.
    assert pack_places(places, 66).hex(" ") == "0a 02 aa aa 0a 55 55 05"


def test_runs_and_codebooks_of_fused():
    x = [0.0] * 5 + [1.1] * 2 + [-3.0] + [0.0] * 2
    # Runs end at 4, 6, 7, 9: gaps 5, 2, 1, 2; gamma: 2, 1, 0, 1 in unary -> 001 01 1 01, rests 10 (of 5), 0, 0.
    places = "04 ff b4 01"
    # zero flags 1 0 0 1, then 1.1 and -3.
    assert contents(Fused(centres=0), x) == f"01 {places} 09 cd cc 8c 3f 00 00 40 c0"
    short = [0.0] * 5 + [1.5] * 2 + [-3.0] + [0.0] * 2
    assert contents(Fused(centres=0), short) == f"04 {places} 09 c0 3f 40 c0"
    # 16 runs of 20 zeros and 10 numbers among 240. Rice with b = floor(log2 15) = 3: quotients 2, 1 -> 001 01, rests
    # 3, 1 -> 110 100; gamma would take 72 bits of unary. Two distinct numbers: an index has one bit, 0 1 0 1 ...
    x = ([0.0] * 20 + [1.1] * 10) * 8
    places = "10 03 94 52 4a 29 a5 cb b2 2c cb b2 2c"
    assert contents(Fused(centres=3), x) == f"02 {places} 02 00 00 00 00 cd cc 8c 3f fe aa aa"
    short = ([0.0] * 20 + [1.5] * 10) * 8
    assert contents(Fused(centres=3), short) == f"05 {places} 02 00 00 c0 3f fe aa aa"
    # Numbers that change all the time: an index for each. Both occur 8 times: 1.1, which has no sign bit, is the first.
    assert contents(Fused(centres=3), [-3.0, 1.1] * 8) == "03 02 cd cc 8c 3f 00 00 40 c0 fe 55 55"
    assert contents(Fused(centres=3), [-3.0, 1.5] * 8) == "06 02 c0 3f 40 c0 fe 55 55"
    assert contents(Fused(centres=1), [-3.0, 1.5] * 8).startswith("04")  # too many distinct numbers


def test_frequent_indices_cost_few_bits():
    # Twelve times 0, then 1, 2, 3, 1. Rice with b = 0: twelve times 1, 01 001 0001 01, 23 bits; gamma takes 21 and 5.
    counts = np.array([12, 2, 1, 1])
    assert pack_indices(np.array([0] * 12 + [1, 2, 3, 1]), counts).hex(" ") == "00 ff 2f 51"
    # 32 times 0, and 1 to 15 once each: gamma takes 32 + 4 + 12 + 32 + 5 bits of unary and 38 more.
    counts = np.array([32] + [1] * 15)
    packed = pack_indices(np.repeat(np.arange(16), counts), counts)
    assert packed[0] == 255
    assert len(packed) == 1 + 11 + 5


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_indices_are_decoded(counts, random):
    counts = np.array(sorted(counts, reverse=True))
    indices = np.repeat(np.arange(len(counts)), counts)
    random.shuffle(indices)
    packed = pack_indices(indices, counts)
    assert len(packed) == indices_bytes(counts, len(counts)) == size_in_program(counts)
    reader = Reader(packed)
    np.testing.assert_array_equal(unpack_indices(reader, len(indices), len(counts)), indices)
    assert reader.left == 0


def test_levels_of_qsgd():
    # s = 7 levels of 4 bits; scales 7 and 0.5. Codes: level, and 8 for the sign.
    x = np.array([7.0, -3.0, 1.0, 2.0, 0.5, -0.5, 0.5, 0.5])
    assert contents(QSGD(bits=4, bucket=4), x) == "01 00 00 e0 40 00 00 00 3f b7 21 f7 77"
    # Two of 64 numbers: gaps 3, 9 in gamma 01 0001 and 1 100; signs 0 1; levels 7, 1 in gamma 001 1 and 11.
    x = np.zeros(64)
    x[[2, 11]] = 7.0, -1.0
    assert contents(QSGD(bits=4, bucket=64), x) == "02 00 00 e0 40 02 ff 22 03 02 0c 03"
    assert contents(QSGD(bits=2, bucket=64), np.sign(x)) == "02 00 00 80 3f 02 ff 22 03 02"


@settings(deadline=None)
@given(st.integers(1, 3000), st.data())
def test_places_are_decoded(size, data):
    chosen = np.array(data.draw(st.lists(st.integers(0, size - 1), unique=True).map(sorted)), np.int64)
    mask = np.zeros(size, bool)
    mask[chosen] = True
    packed = pack_places(chosen, size)
    assert len(packed) == places_bytes(mask)
    reader = Reader(packed)
    np.testing.assert_array_equal(unpack_places(reader, size), chosen)
    assert reader.left == 0


@pytest.mark.parametrize("share", [0.0001, 0.001, 0.01, 0.1, 0.4])
def test_places_at_random_cost_little_more_than_their_entropy(share):
    size, random = 200_000, np.random.default_rng(3)
    places = np.flatnonzero(random.random(size) < share)
    n = len(places)
    entropy = (math.lgamma(size + 1) - math.lgamma(n + 1) - math.lgamma(size - n + 1)) / math.log(2) / 8
    assert entropy < len(pack_places(places, size)) < 1.06 * entropy + 6


@pytest.mark.parametrize("entries", [1, 2, 16, 17, 256])
def test_sizes_of_very_long_vectors_do_not_overflow(entries):
    size = 2**27  # numbers in a program have 32 bits
    for share in (0.0, 0.5, 1.0):
        rare = int(share * size / entries)
        counts = np.array([size - (entries - 1) * rare] + [rare] * (entries - 1))
        assert size_in_program(counts) == indices_bytes(counts, len(counts))


def test_names_of_codecs():
    for row in registry.rows("codecs"):
        assert registry.load("codecs", row.name).name == row.name


@pytest.mark.soak
def test_the_page_on_codecs_runs():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "codecs.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(example, {})
    shown = re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)
    assert set(shown) >= {row.name for row in registry.rows("codecs")}
