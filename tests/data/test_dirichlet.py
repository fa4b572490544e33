"""Partitions by random label shares: their distributions, and that every sample is used at most once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data import load
from coterie.data.clients import Federation
from coterie.data.dirichlet import Dirichlet, Dominant, InputClusters, Pachinko
from coterie.data.samples import Samples
from coterie.data.split import deal, share_out
from coterie.errors import CoterieError


def pool(per_class: int = 40, classes: int = 10, test_per_class: int = 0, coarse: int = 0) -> Samples:
    """Make a pool whose sample i has input [i, label]; class c is below coarse class c // `coarse`."""
    y = np.repeat(np.arange(classes, dtype=np.int32), per_class)
    test_y = np.repeat(np.arange(classes, dtype=np.int32), test_per_class)
    return Samples(
        x=np.stack([np.arange(len(y)), y], 1).astype(np.float32),
        y=y,
        kind="classification",
        classes=classes,
        test=(np.stack([-1 - np.arange(len(test_y)), test_y], 1).astype(np.float32), test_y)
        if test_per_class
        else None,
        coarse=y // coarse if coarse else None,
    )


def totals(federation: Federation, parts: tuple[str, ...] = ("train", "validation", "test")) -> np.ndarray:
    """Count each client's labels over the given parts: `[K, classes]`."""
    counts = np.zeros((len(federation), federation.classes), int)
    for part in parts:
        split = getattr(federation, part)
        for client, (y, n) in enumerate(zip(split.y, split.count, strict=True)):
            counts[client] += np.bincount(y[:n], minlength=federation.classes)
    return counts


def ids(federation: Federation) -> list[int]:
    splits = (federation.train, federation.validation, federation.test)
    return [int(i) for split in splits for x, n in zip(split.x, split.count, strict=True) for i in x[:n, 0]]


def coincidence(counts: np.ndarray) -> float:
    """Return the chance that two of the counted things are equal: an unbiased estimate of the sum of squared shares."""
    return float(np.sum(counts * (counts - 1)) / (counts.sum() * (counts.sum() - 1)))


@pytest.mark.parametrize("partition", [Dirichlet(), Pachinko(), Dominant()], ids=lambda p: type(p).__name__)
class TestEvery:
    def test_samples_are_dealt_once_and_keep_their_labels(self, partition):
        federation = partition(pool(coarse=2), 10, seed=0)
        numbers = ids(federation)
        assert len(numbers) == len(set(numbers))
        for split in (federation.train, federation.validation, federation.test):
            for x, y, n in zip(*split, strict=True):
                assert np.array_equal(x[:n, 1], y[:n])

    def test_same_seed_same_federation_and_another_seed_another(self, partition):
        first, again, other = (ids(partition(pool(coarse=2), 10, seed=s)) for s in (3, 3, 4))
        assert first == again
        assert first != other

    def test_the_official_test_pool_is_dealt_in_the_shares_of_training(self, partition):
        federation = partition(pool(test_per_class=40, coarse=2), 10, seed=1)
        trained, tested = totals(federation, ("train", "validation")), totals(federation, ("test",))
        expected = trained * 40 / np.maximum(trained.sum(0), 1)
        assert np.all(np.abs(tested - expected) <= 1)

    def test_needs_labels(self, partition):
        x = np.zeros((9, 2), np.float32)
        with pytest.raises(CoterieError, match=f"partition {type(partition).__name__.lower()} divides by class labels"):
            partition(Samples(x=x, y=x[:, 0], kind="regression", classes=1), 3, seed=0)


class TestDirichlet:
    @pytest.mark.parametrize("alpha", [0.1, 0.4, 3.0])
    def test_law(self, alpha):
        """For Dirichlet(alpha) over K clients the expected sum of squared shares is (alpha + 1) / (K alpha + 1)."""
        clients, classes, per_class = 8, 2000, 60
        y = np.repeat(np.arange(classes), per_class)
        counts = Dirichlet(alpha=alpha).draw(y, classes, clients, np.random.default_rng(0))
        assert counts.sum(0).tolist() == [per_class] * classes
        estimates = np.array([coincidence(column) for column in counts.T])
        assert abs(estimates.mean() - (alpha + 1) / (clients * alpha + 1)) < 4 * estimates.std() / np.sqrt(classes)

    def test_every_sample_is_used_and_no_client_is_nearly_empty(self):
        federation = Dirichlet(at_least=12)(pool(), 10, seed=0)
        counts = totals(federation)
        assert counts.sum() == 400
        assert counts.sum(1).min() >= 12

    def test_fraction_of_the_pool(self):
        federation = Dirichlet(fraction=0.25)(pool(), 5, seed=0)
        assert totals(federation).sum() == 100

    def test_impossible_minimum(self):
        with pytest.raises(CoterieError, match="no draw of 1000 gives every client at_least 5 samples"):
            Dirichlet()(pool(per_class=2), 10, seed=0)

    def test_alpha_must_be_positive(self):
        with pytest.raises(CoterieError, match="alpha must be greater than 0"):
            Dirichlet(alpha=0)


class TestInputClusters:
    def test_each_cluster_has_its_own_normalisation(self):
        """Pixels 0 and 255 give back a and b of (x / 255 - a) / b; a third pixel holds the label."""
        y = np.tile(np.arange(10, dtype=np.int32), 60)
        x = np.stack([np.zeros(600), np.full(600, 255), y], 1).astype(np.uint8).reshape(600, 1, 1, 3)
        source = Samples(x=x, y=y, kind="classification", classes=10, test=(x, y), mean=(0.3,), std=(0.2,))
        federation = InputClusters(clusters=3)(source, 9, seed=0)
        assert sorted(np.bincount(federation.groups).tolist()) == [3, 3, 3]
        assert federation.train.x.dtype == np.float32
        assert (federation.mean, federation.std) == ((0.0,), (1.0,))
        seen = {}
        for split in (federation.train, federation.validation, federation.test):
            for group, inputs, labels, n in zip(federation.groups, *split, strict=True):
                low, high, mark = inputs[:n, 0, 0].T.astype(float)
                b = 1 / (high - low)
                a = -low * b
                assert np.allclose(mark * b + a, labels[:n] / 255, atol=1e-5)
                pairs = {(round(u, 4), round(v, 4)) for u, v in zip(a, b, strict=True)}
                assert pairs <= seen.setdefault(int(group), pairs)
        assert len(set.union(*seen.values())) == 3
        assert all(0 <= a < 1 and 0.0999 <= b < 1 for a, b in set.union(*seen.values()))

    def test_inputs_that_are_floats_are_not_divided(self):
        source = pool()
        federation = InputClusters(clusters=1)(source, 4, seed=0)
        x, y, n = federation.train.x[0], federation.train.y[0], federation.train.count[0]
        slope, shift = np.polyfit(y[:n], x[:n, 1], 1)  # x = (label - a) / b
        assert slope > 1
        assert 0 <= -shift / slope < 1

    def test_too_many_clusters(self):
        with pytest.raises(CoterieError, match="clusters must be at most 2, the number of clients"):
            InputClusters(clusters=3)(pool(), 2, seed=0)


class TestPachinko:
    def test_law_of_the_first_client(self):
        """Before a class can run out, two samples agree in the coarse class with chance (a + 1) / (5 a + 1).

        Given that, they agree in the class (one of two) with chance (b + 1) / (2 b + 1).
        """
        alpha, beta = 0.5, 2.0
        partition = Pachinko(alpha=alpha, beta=beta, validation=0, test=0.5)
        source = pool(
            per_class=20, classes=10, coarse=2
        )  # 10 clients with 20 samples: the first empties no class early
        coarse, fine = [], []
        for seed in range(300):
            counts = totals(partition(source, 10, seed))[0]
            assert counts.sum() == 20
            fine.append(coincidence(counts))
            coarse.append(coincidence(counts.reshape(5, 2).sum(1)))
        top = (alpha + 1) / (5 * alpha + 1)
        assert abs(np.mean(coarse) - top) < 4 * np.std(coarse) / np.sqrt(300)
        assert abs(np.mean(fine) - top * (beta + 1) / (2 * beta + 1)) < 4 * np.std(fine) / np.sqrt(300)

    def test_everything_is_used_even_when_classes_run_out(self):
        counts = totals(Pachinko(alpha=0.01)(pool(coarse=2), 10, seed=0))
        assert counts.sum(1).tolist() == [40] * 10
        assert counts.sum(0).tolist() == [40] * 10

    def test_needs_coarse_labels(self):
        with pytest.raises(CoterieError, match="partition pachinko needs coarse labels"):
            Pachinko()(pool(), 10, seed=0)


class TestDominant:
    def test_the_rest_is_drawn_from_all_samples(self):
        """Share 0.6: of a client's samples 60 % have its label, and of the other 40 % a third again, in expectation."""
        partition = Dominant(share=0.6, samples=50, validation=0)
        counts = sum(totals(partition(pool(400, 3, test_per_class=3), 3, seed), ("train",)) for seed in range(60))
        others = counts[~np.eye(3, dtype=bool)] / (60 * 50)
        spread = np.sqrt(0.4 * (2 / 3) * (1 / 3) / (60 * 50))
        np.testing.assert_allclose(others, 0.4 / 3, atol=4.5 * spread)

    def test_paper_setting(self):
        """Lu et al. 2022 on MNIST: 10 learners, 128 samples, 95 % of them with the learner's own label."""
        partition = Dominant(samples=128, validation=0)
        counts = totals(partition(pool(per_class=1000, test_per_class=100), 10, seed=0), ("train",))
        assert counts.sum(1).tolist() == [128] * 10
        assert np.diag(counts).min() >= 121  # 0.95 * 128 = 121.6, and perhaps one of the other six
        assert np.diag(counts).max() <= 124

    def test_labels_repeat_after_the_last(self):
        counts = totals(Dominant(share=1)(pool(classes=3), 7, seed=0))
        assert counts.argmax(1).tolist() == [0, 1, 2, 0, 1, 2, 0]
        assert np.all((counts > 0).sum(1) == 1)

    def test_uses_what_the_rarest_label_allows(self):
        """Client i takes 19 of 20 from label i, so 1000 samples per label allow nearly 1000 per client."""
        counts = totals(Dominant()(pool(per_class=1000), 10, seed=0))
        assert np.all(counts.sum(0) <= 1000)
        assert counts.sum(1).min() == counts.sum(1).max() > 985


class TestPooled:
    def test_test_sets_come_from_both_pools(self):
        """30 / 10 / 60 % of all 600 samples, 100 of which were the official test pool."""
        federation = load(
            pool(50, test_per_class=10), Dirichlet(test_from="pooled", validation=0.1, test=0.6), clients=5
        )
        sizes = [sum(getattr(federation, part).count) for part in ("train", "validation", "test")]
        assert sum(sizes) == 600
        np.testing.assert_allclose(sizes, [180, 60, 360], atol=5)  # rounded for each client
        numbers = np.array(ids(federation))
        assert len(set(numbers.tolist())) == 600
        assert np.sum(numbers < 0) == 100

    def test_needs_a_test_pool(self):
        with pytest.raises(CoterieError, match="test_from is pooled but these data have no test pool"):
            load(pool(), Dirichlet(test_from="pooled"), clients=5)


class TestDealing:
    def test_shares_hand_computed(self):
        counts = np.array([[2, 0], [1, 1], [1, 3]])
        parts = share_out(counts, np.array([0] * 4 + [1] * 8), np.random.default_rng(0))
        assert [[int(np.sum(part < 4)), int(np.sum(part >= 4))] for part in parts] == [[2, 0], [1, 2], [1, 6]]
        assert sorted(np.concatenate(parts)) == list(range(12))

    def test_rounding_leaves_no_client_without_samples(self):
        parts = share_out(np.array([[99], [1]]), np.zeros(10, int), np.random.default_rng(0))
        assert [len(part) for part in parts] == [9, 1]

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=1, max_size=6), st.integers(0, 99))
    def test_deal_gives_exactly_what_is_asked(self, take, seed):
        counts = np.array(take)
        y = np.random.default_rng(seed).permutation(np.repeat(np.arange(3), counts.sum(0) + 2))
        parts = deal(counts, y, np.random.default_rng(seed))
        assert [np.bincount(y[part], minlength=3).tolist() for part in parts] == counts.tolist()
        together = np.concatenate(parts)
        assert len(set(together.tolist())) == len(together)
