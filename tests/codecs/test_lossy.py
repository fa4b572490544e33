"""The lossy part of codecs against independent computations, alone and in a batch, compiled or not."""

import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.cli.catalogue import _kinds
from coterie.codecs import QSGD, Fused, Half, TopK, base
from coterie.codecs.numbers import fit_short, shortened
from coterie.errors import CoterieError
from coterie.numerics.prox import fused
from support.codec_cases import CODECS, TYPES, keys, numbers, same_bits, vectors

codecs = pytest.mark.parametrize("name", CODECS)
SINGLE, DOUBLE = TYPES
types = pytest.mark.parametrize(
    "dtype", [pytest.param(SINGLE, id="float32"), pytest.param(DOUBLE, id="float64", marks=pytest.mark.soak)]
)


# Compiled once, for all vectors.
FIVE_OF_TWELVE = jax.jit(TopK(fraction=0.4, short=False).reduce)
FOUR_BITS = jax.jit(QSGD(bits=4, bucket=8).reduce)
HALF = jax.jit(Half().reduce)


def gradients(rows, size, dtype):
    random = np.random.default_rng(0)
    walk = np.cumsum(random.standard_normal((rows, size)), axis=1) * np.logspace(-3, 3, rows)[:, None]
    return jnp.asarray(walk * (random.random((rows, size)) < 0.7), dtype)


# -- results do not depend on where clients live -----------------------------------------------------------------------


@types
@pytest.mark.parametrize(
    "name",
    ["float16", *(pytest.param(name, marks=pytest.mark.soak) for name in ("qsgd", "top-k-short", "fused-centres"))],
)
def test_a_row_is_the_same_alone_in_a_batch_compiled_or_not(name, dtype, monkeypatch):
    codec = CODECS[name]
    with jax.enable_x64(dtype == np.float64):
        x, everyone = gradients(3, 300, dtype), keys(3)
        sent = np.asarray(codec.reduce(x, everyone))
        assert same_bits(np.asarray(jax.jit(codec.reduce)(x, everyone)), sent)
        alone = jax.jit(lambda row, key: codec.reduce(row[None], key[None])[0])
        assert same_bits(np.stack([alone(*each) for each in zip(x, everyone, strict=True)]), sent)
        monkeypatch.setattr(base, "ELEMENTS", 300)  # one row at a time, as for a large model
        assert same_bits(np.asarray(jax.jit(codec.reduce)(x, everyone)), sent)
        assert np.asarray(jax.jit(codec.size)(sent)).tolist() == [len(codec.encode(row)) for row in sent]


@pytest.mark.soak
@types
@pytest.mark.parametrize("codec", [QSGD(feedback=True), TopK(fraction=0.1)], ids=lambda c: c.name)
def test_error_feedback_is_the_same_when_products_come_in(codec, dtype):
    # A compiler fuses a product with the sum that follows, which changes the last bit, unless it is prevented.
    def program(a, b, memory, keys):
        return codec.squeeze(a * b, memory, keys)

    with jax.enable_x64(dtype == np.float64):
        a, b, memory, everyone = *(gradients(3, 400, dtype) for _ in range(2)), gradients(3, 400, dtype) / 3, keys(3)
        expected = codec.squeeze(jax.jit(jnp.multiply)(a, b), memory, everyone)
        together = jax.jit(program)(a, b, memory, everyone)
        alone_too = jax.jit(program)
        alone = [alone_too(*(v[i : i + 1] for v in (a, b, memory, everyone))) for i in range(3)]
        for i in range(2):
            assert same_bits(np.asarray(together[i]), np.asarray(expected[i]))
            assert same_bits(np.concatenate([each[i] for each in alone]), np.asarray(expected[i]))


# -- error feedback ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "codec",
    [
        TopK(fraction=0.1),
        TopK(fraction=0.1, short=False),
        QSGD(bits=2, feedback=True),
        Fused(gamma=2.0, centres=4, feedback=True),
    ],
    ids=str,
)
def test_error_feedback_keeps_the_sum(codec):
    x = jnp.asarray(np.random.default_rng(1).integers(-50, 50, (20, 3, 60)), jnp.float32)
    memory, total = codec.memory(3, 60, jnp.float32), np.zeros((3, 60))
    assert memory.shape == (3, 60)
    assert not memory.any()
    squeeze = jax.jit(codec.squeeze)
    for t in range(20):
        sent, memory = squeeze(x[t], memory, keys(3, t))
        total += np.asarray(sent, np.float64)
        assert np.abs(sent - x[t]).max() > 1  # so that there is an error to feed back
    exact = 0 if codec == TopK(fraction=0.1, short=False) else 2e-3  # whole numbers are added and moved, never rounded
    np.testing.assert_allclose(total + np.asarray(memory), x.sum(0), rtol=0, atol=exact)


@codecs
def test_without_error_feedback_the_memory_is_empty(name):
    codec = CODECS[name]
    assert codec.feedback == name.startswith("top-k")
    assert codec.memory(3, 60, jnp.float32).shape == (3, 60 if codec.feedback else 0)


def test_without_error_feedback_the_memory_is_returned():
    x, memory = gradients(3, 60, np.float32), Half().memory(3, 60, jnp.float32)
    sent, after = Half().squeeze(x, memory, keys(3))
    assert after is memory
    assert same_bits(np.asarray(sent), np.asarray(HALF(x, keys(3))))


# -- each codec --------------------------------------------------------------------------------------------------------


@types
@settings(deadline=None, max_examples=50)
@given(st.data())
def test_top_k_keeps_the_first_of_the_largest(dtype, data):
    few = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5]) | numbers(dtype, anything=False)
    x = np.array(data.draw(st.lists(few, min_size=12, max_size=12)), dtype)
    expected = np.zeros_like(x)
    chosen = np.argsort(-np.abs(x), kind="stable")[:5]
    expected[chosen] = np.where(x[chosen] == 0, 0, x[chosen])  # a negative zero is a zero
    with jax.enable_x64(dtype == np.float64):
        assert same_bits(np.asarray(FIVE_OF_TWELVE(jnp.asarray(x)[None], keys(1))[0]), expected)


def test_top_k_sends_at_least_one_and_at_most_all():
    assert [TopK(fraction=0.01).kept(size) for size in (1, 7, 100, 149, 151)] == [1, 1, 1, 1, 2]
    assert TopK(fraction=1.0).kept(3) == 3
    x = jnp.array([[1.0, -0.0, 3.0]])
    assert same_bits(np.asarray(TopK(fraction=1.0).reduce(x, keys(1))), np.asarray(x))


@pytest.mark.soak
def test_qsgd_is_right_on_average():
    x = np.array([0.9, -0.35, 0.02, 0.0, -1.0, 1e-3, 250.0, -33.3, 117.0, 90.0, 0.5], np.float32)
    codec, times = QSGD(bits=3, bucket=6), 20_000
    sent = np.asarray(codec.reduce(jnp.broadcast_to(x, (times, len(x))), keys(times)), np.float64)
    step = np.repeat([1.0 / 3, 250.0 / 3], 6)[: len(x)]
    lower = np.floor(np.abs(x) / step)
    levels = np.abs(sent) / step
    assert (
        np.minimum(np.abs(levels - lower), np.abs(levels - lower - 1)) < 1e-6
    ).all()  # one of the two nearest levels
    assert ((sent == 0) | (np.sign(sent) == np.sign(x))).all()
    chance = np.abs(x) / step - lower
    deviation = step * np.sqrt(chance * (1 - chance) / times)
    assert (np.abs(sent.mean(0) - x) < 5 * deviation + 1e-5 * step).all()
    np.testing.assert_allclose(sent.std(0), step * np.sqrt(chance * (1 - chance)), atol=0.05 * step.max(), rtol=0.1)


@types
@settings(deadline=None, max_examples=30)
@given(st.data())
def test_qsgd_stays_within_one_level(dtype, data):
    x = np.resize(data.draw(vectors(dtype, anything=False)), 40)
    with jax.enable_x64(dtype == np.float64):
        sent = np.asarray(FOUR_BITS(jnp.asarray(x)[None], keys(1))[0])
    largest = np.repeat(np.abs(x).reshape(5, 8).max(1), 8)
    tiny = largest < 14 * np.finfo(dtype).tiny  # sent as zeros: their levels would be denormal
    assert (sent[tiny] == 0).all()
    assert (np.abs(sent / 2 - x / 2) <= largest / 7 / 2 * (1 + 1e-5))[~tiny].all()
    assert (np.abs(sent) <= largest).all()
    top = np.abs(x) == largest
    assert same_bits(sent[top & ~tiny], x[top & ~tiny])


@types
@settings(deadline=None, max_examples=60)
@given(st.data())
def test_half_precision_is_numpys(dtype, data):
    x = np.resize(data.draw(vectors(dtype)), 30)
    expected = np.clip(x, -65504, 65504).astype(np.float16).astype(dtype)
    with jax.enable_x64(dtype == np.float64):
        sent = np.asarray(HALF(jnp.asarray(x)[None], keys(1))[0])
    finite = np.isfinite(x)
    assert same_bits(sent[~finite][~np.isnan(x[~finite])], x[~finite][~np.isnan(x[~finite])])
    assert np.isnan(sent[np.isnan(x)]).all()
    if dtype == np.float32:
        assert same_bits(sent[finite], expected[finite])
    else:  # the compiler may go through float32, and round twice
        assert same_bits(sent[finite], sent[finite].astype(np.float16).astype(dtype))
        error = np.abs(sent - np.clip(x, -65504, 65504))
        assert (error <= np.maximum(np.abs(x) * 2.0**-11, 2.0**-25) * (1 + 1e-6))[finite].all()


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_numbers_of_16_bits_are_bfloat16(data):
    x = np.resize(data.draw(vectors(np.float32)), 30)
    expected = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    largest = float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
    expected = np.where(np.isfinite(x), np.clip(expected, -largest, largest), x)
    sent = np.asarray(shortened(jnp.asarray(x)))
    known = ~np.isnan(x)
    assert same_bits(sent[known], expected[known])
    assert np.isnan(sent[~known]).all()
    assert fit_short(sent[np.isfinite(x)].view(np.uint32)).all()


@pytest.mark.usefixtures("x64")
@settings(deadline=None, max_examples=60)
@given(st.data())
def test_numbers_of_64_bits_are_shortened_too(data):
    x = np.resize(data.draw(vectors(np.float64, anything=False)), 30)
    sent = np.asarray(shortened(jnp.asarray(x)))
    assert fit_short(sent.view(np.uint64)).all()
    inside = (np.abs(x) <= 3.38e38) & (np.abs(x) >= np.finfo(np.float32).tiny)
    assert (np.abs(sent - x) <= np.abs(x) * 2.0**-8 * 1.000001)[inside].all()
    assert (np.abs(sent[np.abs(x) > 3.4e38]) == float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)).all()
    assert (sent[np.abs(x) < np.finfo(np.float32).tiny / 2] == 0).all()


# -- fused -------------------------------------------------------------------------------------------------------------


def test_fused_by_hand():
    # The proximal operator of |q_1 - q_2| + ... + |q_5| at (3, 1, -2, 0.5, 4) is (2, 1, 0, 0.5, 2) for gamma 1.
    x = jnp.array([[3.0, 1.0, -2.0, 0.5, 4.0], [0.4, -0.3, 0.2, 0.0, 0.0]])
    sent = Fused(gamma=1.0, absolute=True, centres=0).reduce(x, keys(2))
    np.testing.assert_allclose(sent, [[2.0, 1.0, 0.0, 0.5, 2.0], [0.0] * 5], atol=1e-7)
    assert Fused(gamma=0.0, centres=0, short=False).reduce(x, keys(2)).tolist() == x.tolist()
    # Relative: the mean absolute value of the first row is 2.1; a factor on x is a factor on what is sent.
    relative = Fused(gamma=1 / 2.1, centres=0, short=False).reduce(x, keys(2))
    np.testing.assert_allclose(relative[0], [2.0, 1.0, 0.0, 0.5, 2.0], atol=1e-6)
    np.testing.assert_allclose(Fused(gamma=0.5).reduce(1024 * x, keys(2)), 1024 * Fused(gamma=0.5).reduce(x, keys(2)))


@types
@pytest.mark.parametrize("size", [1, 129, 20_000])
def test_fused_relative_to_the_mean_absolute_value(dtype, size):
    with jax.enable_x64(dtype == np.float64):
        x = gradients(3, size, dtype)
        sent = np.asarray(Fused(gamma=0.7, centres=0, short=False).reduce(x, keys(3)))
    gamma = 0.7 * np.abs(np.asarray(x, np.float64)).mean(1)
    expected = fused(np.asarray(x), gamma)
    scale = np.abs(expected).max(1, initial=1e-9)[:, None]
    np.testing.assert_allclose(sent / scale, expected / scale, atol=1e-5 if dtype == np.float32 else 1e-12)


def test_a_mean_of_huge_numbers_does_not_overflow():
    x = jnp.full((1, 1000), 3e38, jnp.float32)
    assert np.isfinite(Fused(gamma=0.01).reduce(x, keys(1))).all()


def test_gamma_goes_down():
    codec = Fused(gamma=0.6, settle=20.0, centres=0)
    assert [codec.at_round(t).gamma for t in (1, 21, 41)] == pytest.approx([0.6, 0.3, 0.2])
    assert Fused(gamma=0.6, settle=0.0).at_round(41).gamma == 0.6
    assert Fused(gamma=0.0).at_round(41) == Fused(gamma=0.0)
    assert QSGD().at_round(3) == QSGD()
    x = gradients(2, 50, np.float32)
    program = jax.jit(lambda codec, t, x: codec.at_round(t).reduce(x, keys(2)))
    for t in (1, 21):
        expected = Fused(gamma=0.6 / (1 + (t - 1) / 20), settle=0.0, centres=0).reduce(x, keys(2))
        np.testing.assert_allclose(program(codec, t, x), expected, rtol=2e-2)  # numbers have 16 bits
    program(Fused(gamma=0.1, settle=3.0, centres=0), 2, x)
    assert program._cache_size() == 1  # another gamma compiles nothing


@types
def test_centres_are_the_number_of_distinct_numbers(dtype):
    with jax.enable_x64(dtype == np.float64):
        x = gradients(3, 500, dtype)
        sent = np.asarray(Fused(gamma=0.1, centres=5).reduce(x, keys(3)))
        plain = np.asarray(Fused(gamma=0.1, centres=0).reduce(x, keys(3)))
    assert [len(np.unique(row)) for row in sent] == [5, 5, 5]
    assert min(len(np.unique(row)) for row in plain) > 20
    for row in sent:
        assert len(Fused(centres=5).encode(row)) < 0.8 * len(Fused(centres=0).encode(row))


def test_without_numba_the_error_names_the_extra(monkeypatch):
    for module in [name for name in sys.modules if name.startswith(("numba", "coterie.numerics.kernels."))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(CoterieError, match=r"pip install 'coterie\[numba\]'"):
        Fused().reduce(jnp.ones((1, 5)), keys(1))
    x = Fused(gamma=0.0, centres=0).reduce(jnp.ones((1, 5)), keys(1))[0]  # no proximal operator, nothing to compile
    message = Fused().encode(np.asarray(x))
    assert Fused().decode(message, 5, np.float32).tolist() == [1.0] * 5  # a receiver does not need Numba


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: QSGD(bits=1), "bits must be at least 2, not 1"),
        (lambda: QSGD(bits=9), "bits must be at most 8, not 9"),
        (lambda: QSGD(bucket=0), "bucket must be at least 1, not 0"),
        (lambda: TopK(fraction=0.0), "fraction must be greater than 0, not 0"),
        (lambda: TopK(fraction=1.5), "fraction must be at most 1, not 1.5"),
        (lambda: Fused(gamma=-1.0), "gamma must be at least 0, not -1"),
        (lambda: Fused(centres=-1), "centres must be at least 0, not -1"),
        (lambda: Fused(centres=257), "centres must be at most 256, not 257"),
    ],
)
def test_settings_out_of_range(make, sentence):
    with pytest.raises(CoterieError, match=f"^{sentence}$"):
        make()


def test_a_codec_class_is_recognised():
    assert _kinds("coterie.codecs.half:Half") == ["codecs"]
