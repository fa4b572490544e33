"""Which clients share a bucket, and the same samples whatever the buckets are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie as ct
from coterie.data import buckets
from coterie.data.buckets import FREE, MOST, ROWS, Buckets, Split, group_by_size, padded_bytes
from coterie.data.clients import PARTS, Federation
from coterie.errors import CoterieError
from coterie.experiment.fingerprint import fingerprint

sizes = st.lists(st.one_of(st.integers(1, 20), st.integers(1, 200_000)), min_size=1, max_size=60)


@given(sizes, st.integers(1, 4000))
@settings(max_examples=60, deadline=None)
def test_every_client_is_in_one_bucket_and_padding_is_bounded(train, row_bytes):
    counts = np.array([train, [n // 8 for n in train], [1 + n // 4 for n in train]])
    each = [row_bytes] * 3
    places = group_by_size(counts, each)
    assert sorted(np.concatenate(places)) == list(range(len(train)))
    assert len(places) <= MOST
    least = np.minimum(ROWS, counts.max(1))[:, None]
    floor = int(np.maximum(counts, least).sum()) * row_bytes  # nothing can be less than its least rows
    assert padded_bytes(counts, each, places) <= max(2 * floor, FREE)


def test_like_clients_are_one_stack():
    counts = np.full((3, 5000), 100)
    assert len(group_by_size(counts, [4000] * 3)) == 1
    assert len(group_by_size(np.array([[1, 900], [0, 90], [1, 200]]), [100] * 3)) == 1  # little to save


def test_roles_of_a_play_are_not_padded_to_the_longest():
    """A padded text is a row of steps of a recurrent network, so texts are divided long before memory is short."""
    roles = np.repeat([f"role-{i}" for i in range(20)], [100] + [5] * 19)
    texts = np.random.default_rng(0).integers(0, 80, (len(roles), 200)).astype(np.int32)
    federation = ct.load(ct.pool(texts, texts, owner=roles, kind="next-character"), "natural")
    rows = sum(part.x.shape[0] * part.x.shape[1] for part, _ in federation.train.stacks)
    assert isinstance(federation.train, Buckets)
    assert rows <= 2 * federation.train.count.sum() < 20 * federation.train.count.max()
    for i in range(20):
        kept = federation.train.rows(i)[0]
        assert np.array_equal(kept, texts[roles == f"role-{i}"][: len(kept)])


def many_small_and_one_large():
    """1,000 clients of 10 rows and one of 100,000, with ten inputs."""
    owner = np.concatenate([np.repeat([f"site-{i}" for i in range(1000)], 10), np.repeat("large", 100_000)])
    random = np.random.default_rng(0)
    x = random.normal(size=(len(owner), 10)).astype(np.float32)
    return ct.load(ct.pool(x, (x[:, 0] > 0).astype(int), owner=owner), "natural")


@pytest.fixture(scope="module")
def unequal():
    return many_small_and_one_large()


def test_one_large_client_does_not_pad_the_others(unequal):
    assert isinstance(unequal.train, Buckets)
    stored = sum(array.nbytes for part in PARTS for array in getattr(unequal, part).arrays)
    assert stored < 20e6  # 1,001 clients of 100,000 rows would be 4.4 GB
    x, y = unequal.train.rows(unequal.names.index("large"))
    assert len(x) == len(y) == unequal.train.count[unequal.names.index("large")] == 70_000
    assert unequal.label_counts().sum() == unequal.train.count.sum()


def test_other_buckets_hold_the_same_samples(unequal):
    some = unequal.select([3, 1000, 5, 4])
    (one,), _ = zip(*some.in_buckets([np.arange(4)]).train.stacks, strict=True)
    assert isinstance(one, Split)
    assert one.x.shape[1] == 70_000
    back = some.in_buckets([np.array([0, 2]), np.array([1]), np.array([3])])
    for client in range(4):
        for mine, other in zip(back.train.rows(client), some.train.rows(client), strict=True):
            np.testing.assert_array_equal(mine, other)
    assert fingerprint(some) == fingerprint(unequal.select([3, 1000, 5, 4]))
    assert isinstance(unequal.select([3, 4]).train, Split)
    with pytest.raises(CoterieError, match="use rows"):
        _ = unequal.train.x


def test_errors_name_the_client_of_a_bucket(unequal):
    some = unequal.select([3, 1000, 5])
    some.train.parts[0].x[1, 0, 0] = np.nan  # the second of the small ones
    with pytest.raises(CoterieError, match="train inputs of client 'site-5' contain NaN"):
        Federation(some.names, some.train, some.validation, some.test, "classification", 2)


def test_what_cannot_fit_is_refused_before_it_is_copied(monkeypatch):
    monkeypatch.setattr(buckets, "available", lambda: 5_000_000)
    with pytest.raises(CoterieError) as refused:
        many_small_and_one_large()
    sentence = str(refused.value)
    # 1,000 clients of three parts of 64 rows and 100,000 rows, of 44 bytes each
    assert "need 12.8 MB of memory and 5.0 MB are free; the largest client, 'large', has 100,000 samples" in sentence
    assert "lower partition.samples" in sentence
