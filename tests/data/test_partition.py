"""Partitions of samples among clients. In these pools a sample's value identifies it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data.clients import Federation
from coterie.data.partition import Classes, Groups, Iid, Natural, Quantity, _hands
from coterie.data.samples import Samples
from coterie.errors import CoterieError


def pool(per_class: int = 40, classes: int = 10, test_per_class: int = 0, **more: object) -> Samples:
    """Make a pool whose sample i has input [i, label]; test sample i has input [-1 - i, label]."""
    y = np.tile(np.arange(classes, dtype=np.int32), per_class)
    x = np.stack([np.arange(len(y)), y], 1).astype(np.float32)
    test = None
    if test_per_class:
        test_y = np.tile(np.arange(classes, dtype=np.int32), test_per_class)
        test = (np.stack([-1 - np.arange(len(test_y)), test_y], 1).astype(np.float32), test_y)
    return Samples(x=x, y=y, kind="classification", classes=classes, test=test, **more)  # type: ignore[arg-type]


def ids(federation: Federation, part: str, client: int) -> list[int]:
    split = getattr(federation, part)
    return split.x[client, : split.count[client], 0].astype(int).tolist()


def all_ids(federation: Federation, parts: tuple[str, ...] = ("train", "validation", "test")) -> list[int]:
    return [i for client in range(len(federation)) for part in parts for i in ids(federation, part, client)]


def classes_of(federation: Federation) -> list[set[int]]:
    return [set(np.flatnonzero(row).tolist()) for row in federation.label_counts()]


def same(a: Federation, b: Federation) -> bool:
    parts = ("train", "validation", "test")
    return all(np.array_equal(u, v) for p in parts for u, v in zip(getattr(a, p), getattr(b, p), strict=True))


OWNED = {"owner": np.repeat(np.arange(20), 20)}
ALL = [Iid(), Classes(classes=3), Groups(groups=5), Quantity(), Quantity(law="power-law"), Natural()]


@pytest.mark.parametrize("partition", ALL, ids=lambda p: type(p).__name__)
class TestEvery:
    def test_no_sample_is_used_twice_and_labels_stay_with_their_inputs(self, partition):
        federation = partition(pool(**OWNED), 20, seed=3)
        numbers = all_ids(federation)
        assert len(numbers) == len(set(numbers)) == 400
        for split in (federation.train, federation.validation, federation.test):
            for x, y, n in zip(*split, strict=True):
                assert np.array_equal(x[:n, 1], y[:n])

    def test_same_seed_same_federation_and_another_seed_another(self, partition):
        first, again, other = (partition(pool(**OWNED), 20, seed=s) for s in (3, 3, 4))
        assert same(first, again)
        assert not same(first, other)

    def test_every_client_has_a_training_and_a_test_sample(self, partition):
        federation = partition(pool(**OWNED), 20, seed=0)
        assert federation.train.count.min() >= 1
        assert federation.test.count.min() >= 1


class TestIid:
    def test_deals_equally(self):
        federation = Iid()(pool(), 16, seed=0)  # 400 / 16 = 25 each: 5 test, 0.1 * 25 + 0.5 rounded down = 3 validation
        assert federation.train.count.tolist() == [17] * 16
        assert federation.validation.count.tolist() == [3] * 16
        assert federation.test.count.tolist() == [5] * 16
        assert federation.names[:2] == ("client-0", "client-1")

    def test_deals_the_official_test_pool_too(self):
        federation = Iid(validation=0)(pool(test_per_class=5), 10, seed=0)
        assert federation.train.count.tolist() == [40] * 10
        assert sorted(all_ids(federation, ("test",))) == sorted(-1 - i for i in range(50))
        assert federation.test.count.tolist() == [5] * 10

    def test_works_for_regression(self):
        x = np.arange(50, dtype=np.float32)[:, None]
        federation = Iid()(Samples(x=x, y=x[:, 0] / 2, kind="regression", classes=1), 5, seed=0)
        assert sorted(all_ids(federation)) == list(range(50))

    def test_too_many_clients_are_refused_by_name(self):
        with pytest.raises(CoterieError, match="client 'client-0' would have 1 sample and needs at least two"):
            Iid()(pool(per_class=1), 10, seed=0)

    def test_caps(self):
        federation = Iid(samples=10, test_samples=2)(pool(), 10, seed=0)  # 10 for training, of which 0.1 / 0.8 are 1
        assert federation.train.count.tolist() == [9] * 10
        assert federation.validation.count.tolist() == [1] * 10
        assert federation.test.count.tolist() == [2] * 10

    @pytest.mark.parametrize("clients", [0, -1, 2.5, True])
    def test_wrong_number_of_clients(self, clients):
        with pytest.raises(CoterieError, match="clients must be an integer of at least 1"):
            Iid()(pool(), clients, seed=0)

    def test_wrong_seed(self):
        with pytest.raises(CoterieError, match="seed must be an integer of at least 0"):
            Iid()(pool(), 4, seed=-1)


class TestClasses:
    def test_paper_setting(self):
        """Li et al. 2024 on CIFAR-10: 100 clients, 200 shards, 2 shards each; rows of 5 clients match all classes."""
        federation = Classes(classes=2, validation=0)(pool(per_class=500, test_per_class=20), 100, seed=10)
        assert federation.train.count.tolist() == [50] * 100
        assert all(sorted(row[row > 0]) == [25, 25] for row in federation.label_counts())
        hands = classes_of(federation)
        for row in range(20):
            assert sorted(c for hand in hands[5 * row : 5 * row + 5] for c in hand) == list(range(10))
        assert len({tuple(sorted(hand)) for hand in hands}) > 5  # the matching differs from row to row

    def test_official_test_set_is_every_test_sample_of_the_clients_classes(self):
        source = pool(test_per_class=4)
        federation = Classes(classes=3)(source, 20, seed=0)
        for client, hand in enumerate(classes_of(federation)):
            assert sorted(ids(federation, "test", client)) == sorted(-1 - i for i in range(40) if i % 10 in hand)

    def test_own_test_set_when_asked(self):
        federation = Classes(classes=2, test_from="own")(pool(test_per_class=4), 20, seed=0)
        assert all(i >= 0 for i in all_ids(federation))

    def test_cap_is_balanced_over_the_classes(self):
        source = pool(per_class=100, test_per_class=10)
        federation = Classes(classes=2, samples=20, validation=0, test_samples=6)(source, 10, seed=0)
        assert all(sorted(row[row > 0]) == [10, 10] for row in federation.label_counts())
        assert federation.test.count.tolist() == [6] * 10
        for y, hand in zip(federation.test.y, classes_of(federation), strict=True):
            assert [int(np.sum(y[:6] == c)) for c in sorted(hand)] == [3, 3]

    def test_splits_are_stratified(self):
        federation = Classes(classes=2)(pool(per_class=50), 10, seed=1)  # 25 of each of two classes
        for part, expected in (("test", [5, 5]), ("train", [17, 18])):
            for y, n in zip(getattr(federation, part).y, getattr(federation, part).count, strict=True):
                assert sorted(np.unique(y[:n], return_counts=True)[1].tolist()) == expected

    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def test_hands_are_fair_and_have_no_class_twice(self, data):
        labels = np.arange(data.draw(st.integers(1, 12), label="classes")) * 3  # labels need not be 0, 1, 2
        size = data.draw(st.integers(1, len(labels)), label="classes per client")
        clients = data.draw(st.integers(1, 40), label="clients")
        hands = _hands(clients, size, labels, np.random.default_rng(data.draw(st.integers(0, 99))))
        assert all(len(set(hand)) == size for hand in hands)
        loads = [sum(label in hand for hand in hands) for label in labels]
        assert max(loads) - min(loads) <= 1

    def test_more_classes_than_exist(self):
        with pytest.raises(CoterieError, match="classes must be at most 10"):
            Classes(classes=11)(pool(), 20, seed=0)

    def test_a_class_with_fewer_samples_than_clients(self):
        with pytest.raises(
            CoterieError, match=r"class \d has 2 samples for 4 clients, so client 'client-\d+' would have none"
        ):
            Classes(classes=2)(pool(per_class=2), 20, seed=0)

    def test_needs_labels(self):
        source = Samples(x=np.zeros((9, 2), np.float32), y=np.zeros(9, np.float32), kind="regression", classes=1)
        with pytest.raises(
            CoterieError, match="partition classes divides by class labels, but these data are for regression"
        ):
            Classes()(source, 3, seed=0)

    def test_official_without_a_test_pool(self):
        with pytest.raises(CoterieError, match="test_from is official but these data have no test pool"):
            Classes(test_from="official")(pool(), 20, seed=0)


class TestGroups:
    def test_paper_setting(self):
        """Li et al. 2024, "non-IID SBM": 5 groups of 20 clients with the class pairs (0, 1), (2, 3), ..."""
        federation = Groups(groups=5)(pool(per_class=200, test_per_class=3), 100, seed=0)
        assert federation.groups.tolist() == [i // 20 for i in range(100)]
        assert classes_of(federation) == [{2 * (i // 20), 2 * (i // 20) + 1} for i in range(100)]
        assert federation.test.count.tolist() == [6] * 100

    def test_uneven_numbers(self):
        federation = Groups(groups=3)(pool(), 7, seed=0)
        assert federation.groups.tolist() == [0, 0, 0, 1, 1, 2, 2]
        assert classes_of(federation) == [{0, 1, 2, 3}] * 3 + [{4, 5, 6}] * 2 + [{7, 8, 9}] * 2

    @pytest.mark.parametrize(
        ("groups", "clients", "reason"), [(11, 20, "the classes"), (5, 4, "the number of clients")]
    )
    def test_too_many_groups(self, groups, clients, reason):
        with pytest.raises(CoterieError, match=f"groups must be at most {min(10, clients)}, {reason}"):
            Groups(groups=groups)(pool(), clients, seed=0)


class TestQuantity:
    def test_no_skew_is_equal(self):
        federation = Quantity(skew=0, validation=0)(pool(test_per_class=2), 10, seed=0)
        assert federation.train.count.tolist() == [40] * 10
        assert federation.test.count.tolist() == [2] * 10

    def test_power_law_sizes(self):
        """Above the floor of 5: 400 - 3 * 5 = 385 divided as 1 : 1/2 : 1/3, that is 210, 105, 70."""
        federation = Quantity(law="power-law", validation=0, test_samples=1)(pool(test_per_class=2), 3, seed=0)
        assert sorted(federation.train.count.tolist()) == [75, 110, 215]

    def test_log_normal_law(self):
        """The logarithm of the part above the floor has standard deviation `skew`."""
        source = Samples(
            x=np.zeros((400_000, 1), np.float32), y=np.zeros(400_000, np.float32), kind="regression", classes=1
        )
        federation = Quantity(skew=0.5, validation=0, test=0.001)(source, 1000, seed=0)
        part = np.log(federation.train.count + federation.test.count - 5.0)
        assert abs(part.std() - 0.5) < 4 * 0.5 / np.sqrt(2000)  # the standard error of a standard deviation

    def test_too_many_clients(self):
        with pytest.raises(CoterieError, match="81 clients with at_least 5 samples need 405, but there are 400"):
            Quantity()(pool(), 81, seed=0)


class TestNatural:
    def test_by_owner_in_order_of_appearance(self):
        owner = np.array(["zoe", "ann", "zoe", "ann", "bob", "bob", "zoe", "ann", "bob", "zoe"])
        federation = Natural(validation=0)(pool(per_class=1, owner=owner), None, seed=0)
        assert federation.names == ("zoe", "ann", "bob")
        for client, name in enumerate(federation.names):
            mine = ids(federation, "train", client) + ids(federation, "test", client)
            assert sorted(mine) == np.flatnonzero(owner == name).tolist()

    def test_small_owners_are_left_out_and_reported(self):
        owner = np.repeat(["a", "b", "c"], [3, 5, 2])
        federation = Natural(at_least=3)(pool(per_class=1, owner=owner), None, seed=0)
        assert federation.names == ("a", "b")
        assert "1 with fewer than 3 samples left out" in federation.about

    def test_a_client_with_one_sample_is_refused(self):
        with pytest.raises(CoterieError, match="client 'b' would have 1 sample"):
            Natural(at_least=1)(pool(per_class=1, owner=np.repeat(["a", "b"], [9, 1])), None, seed=0)

    def test_no_owner_is_large_enough(self):
        with pytest.raises(CoterieError, match="no owner has at_least 99 samples; the largest has 20"):
            Natural(at_least=99)(pool(**OWNED), None, seed=0)

    def test_number_of_clients_is_a_limit(self):
        federation = Natural()(pool(**OWNED), 7, seed=0)
        assert len(federation) == 7
        assert [int(name) for name in federation.names] == sorted(int(name) for name in federation.names)
        assert len(Natural()(pool(**OWNED), 99, seed=0)) == 20

    def test_ready_made_splits_are_kept(self):
        owner = np.repeat(["a", "b"], 5)
        ready = np.array(["train", "train", "validation", "test", "test"] * 2)
        federation = Natural()(pool(per_class=1, owner=owner, ready=ready), None, seed=0)
        for client in range(2):
            base = 5 * client
            assert ids(federation, "train", client) == [base, base + 1]
            assert ids(federation, "validation", client) == [base + 2]
            assert ids(federation, "test", client) == [base + 3, base + 4]

    def test_validation_comes_from_training_when_the_marks_have_none(self):
        owner = np.repeat(["a", "b"], 200)
        ready = np.tile(np.repeat(["train", "test"], 100), 2)
        federation = Natural(validation=0.25)(pool(owner=owner, ready=ready), None, seed=0)
        assert federation.train.count.tolist() == [75, 75]
        assert sorted(ids(federation, "train", 0) + ids(federation, "validation", 0)) == list(range(100))
        assert ids(federation, "test", 0) == list(range(100, 200))

    def test_marks_without_a_test_sample(self):
        ready = np.array(["train", "test"] * 4 + ["train", "train"])
        with pytest.raises(CoterieError, match="client 'b' has 2 samples but none is marked test"):
            Natural()(pool(per_class=1, owner=np.repeat(["a", "b"], [8, 2]), ready=ready), None, seed=0)

    def test_official_test_samples_go_to_their_owners(self):
        source = pool(
            per_class=2,
            test_per_class=1,
            owner=np.repeat(["b", "a"], 10),
            test_owner=np.array(["a"] * 3 + ["b"] * 4 + ["c"] * 3),
        )
        federation = Natural(validation=0)(source, None, seed=0)
        assert federation.names == ("b", "a")
        assert sorted(ids(federation, "test", 0)) == [-7, -6, -5, -4]
        assert sorted(ids(federation, "test", 1)) == [-3, -2, -1]
        assert federation.train.count.tolist() == [10, 10]

    def test_groups_follow_the_owners(self):
        source = pool(**OWNED, group={str(i): i % 3 for i in range(20)})
        federation = Natural()(source, 6, seed=1)
        assert federation.groups.tolist() == [int(name) % 3 for name in federation.names]

    def test_needs_owners(self):
        with pytest.raises(CoterieError, match="partition natural needs data that say whose sample it is"):
            Natural()(pool(), None, seed=0)

    def test_text_is_split_in_its_order(self):
        x = np.arange(20, dtype=np.int32).repeat(2).reshape(20, 2)
        source = Samples(x=x, y=x, kind="next-character", classes=20, owner=np.repeat(["a", "b"], 10))
        federation = Natural()(source, None, seed=5)
        assert ids(federation, "train", 1) == list(range(10, 17))
        assert ids(federation, "validation", 1) == [17]
        assert ids(federation, "test", 1) == [18, 19]


class TestSplits:
    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.integers(0, 3), min_size=2, max_size=60),
        st.floats(0, 0.5),
        st.floats(0.01, 0.49),
        st.integers(0, 99),
    )
    def test_shares_are_rounded_and_every_class_gets_its_part(self, labels, validation, test, seed):
        y = np.array(labels, np.int32)
        x = np.stack([np.arange(len(y)), y], 1).astype(np.float32)
        source = Samples(x=x, y=y, kind="classification", classes=4, owner=np.zeros(len(y), int))
        federation = Natural(validation=validation, test=test)(source, None, seed)
        tests = int(federation.test.count[0])
        assert tests == min(max(1, int(len(y) * test + 0.5)), len(y) - 1)
        assert federation.train.count[0] >= 1
        assert sorted(all_ids(federation)) == list(range(len(y)))
        for label in range(4):
            share = np.sum(y == label) * tests / len(y)
            assert np.floor(share) <= np.sum(federation.test.y[0, :tests] == label) <= np.ceil(share)

    def test_nothing_left_to_train_on(self):
        with pytest.raises(CoterieError, match=r"validation and test must leave something to train on, but 0.5 \+ 0.5"):
            Iid(validation=0.5, test=0.5)

    @pytest.mark.parametrize("field", [{"validation": -0.1}, {"test": 0.0}, {"samples": 0}, {"test_samples": 0}])
    def test_ranges(self, field):
        with pytest.raises(CoterieError, match=f"{next(iter(field))} must be"):
            Iid(**field)
