"""The synthetic federations: their distributions, against theory."""

import numpy as np
import pytest
from scipy.stats import norm

from coterie.data import load
from coterie.data.synthetic import HierarchicalLinear, PlantedGroups
from coterie.errors import CoterieError


class TestHierarchicalLinear:
    def test_layout(self):
        federation = load("hierarchical-linear", clusters=3, clients_per_cluster=2, dimension=4)
        assert federation.names[2] == "cluster-1/client-0"
        assert federation.groups.tolist() == [0, 0, 1, 1, 2, 2]
        assert federation.train.x.shape == (6, 10, 4)
        assert federation.validation.count.tolist() == [10] * 6
        assert federation.test.count.tolist() == [50] * 6
        assert (federation.kind, federation.classes) == ("regression", 1)

    def test_without_noise_least_squares_finds_the_truth(self):
        spec = HierarchicalLinear(clusters=2, clients_per_cluster=3, dimension=4, noise=0, seed=5)
        federation = load(spec)
        for x, y, theta in zip(federation.train.x, federation.train.y, spec.truth().clients, strict=True):
            assert np.allclose(np.linalg.lstsq(x, y)[0], theta, atol=1e-4)

    def test_truth_of_a_seed(self):
        assert np.array_equal(HierarchicalLinear(seed=7).truth().clients, HierarchicalLinear().truth(7).clients)
        assert not np.array_equal(HierarchicalLinear().truth().clients, HierarchicalLinear().truth(7).clients)

    def test_load_seed_reaches_the_data(self):
        one, two = (load("hierarchical-linear", clusters=2, seed=s) for s in (0, 1))
        assert not np.array_equal(one.train.x, two.train.x)

    def test_variances(self):
        """Client minus cluster has variance `within`, cluster minus centre `between`."""
        spec = HierarchicalLinear(clusters=200, dimension=50, between=4.0, within=0.25)
        truth = spec.truth()
        inside = truth.clients.reshape(200, 20, 50) - truth.clusters[:, None]
        assert abs(inside.var() - 0.25) < 4 * 0.25 * np.sqrt(2 / inside.size)
        assert abs(truth.clusters.var() - 4) < 4 * 4 * np.sqrt(2 / truth.clusters.size)
        assert not truth.centre.any()

    def test_planted_coefficients(self):
        """Without variance within clusters, the clients of a cluster share their coefficients to the last bit."""
        truth = HierarchicalLinear(clusters=3, clients_per_cluster=4, within=0).truth()
        clients = truth.clients.reshape(3, 4, -1)
        assert np.array_equal(clients, np.repeat(truth.clusters[:, None], 4, axis=1))
        assert not np.array_equal(truth.clusters[0], truth.clusters[1])

    def test_logistic_targets_follow_their_law(self):
        """Of 40,000 samples, the number of ones is the sum of their probabilities, also where these are small."""
        spec = HierarchicalLinear(
            clusters=2, clients_per_cluster=1, dimension=3, within=0, train_size=20_000, logistic=True, seed=3
        )
        federation = load(spec)
        assert (federation.kind, federation.classes) == ("classification", 2)
        assert federation.groups.tolist() == [0, 1]
        score = np.einsum("knd,kd->kn", federation.train.x, spec.truth().clients)
        chance = 1 / (1 + np.exp(-score))
        for rows in (chance >= 0, chance < 0.2, chance > 0.7):
            spread = np.sqrt(np.sum(chance[rows] * (1 - chance[rows])))
            assert abs(federation.train.y[rows].sum() - chance[rows].sum()) < 4 * spread

    def test_error_of_training_alone_is_the_papers(self):
        """Minimum-norm least squares with m = 10 < d = 20: squared error (2 * 20) / 2 + 10 / 9 = 21.11 in the mean.

        The projection on the 10 seen directions leaves half of the coefficients' 40, and the noise adds the trace of
        an inverse Wishart matrix, 10 / (20 - 10 - 1). The mean norm is 4.487 (Lyu et al. 2022, Table 1: 4.50).
        """
        norms = []
        for seed in range(5):
            spec = HierarchicalLinear(seed=seed)
            federation = load(spec)
            estimates = np.einsum("kdm,km->kd", np.linalg.pinv(federation.train.x), federation.train.y)
            norms.append(np.linalg.norm(estimates - spec.truth().clients, axis=1))
        assert abs(np.mean(norms) - 4.487) < 0.12
        assert abs(np.mean(np.square(norms)) - (20 + 10 / 9)) < 1.1


class TestPlantedGroups:
    def test_layout(self):
        federation = load("planted-groups", groups=2, clients=6)
        assert federation.names == tuple(f"client-{i}" for i in range(6))
        assert federation.groups.tolist() == [0, 0, 0, 1, 1, 1]
        assert federation.train.count.tolist() == [20] * 6

    def test_groups_label_the_same_components_differently(self):
        """Far apart, a sample's nearest centre is its component, and group g's label is (component + g) mod classes."""
        spec = PlantedGroups(groups=3, clients=6, classes=3, dims=5, separation=50.0)
        federation = load(spec)
        first = {label: federation.train.x[0][federation.train.y[0] == label].mean(0) for label in range(3)}
        for group, x, y in zip(federation.groups, federation.train.x, federation.train.y, strict=True):
            component = np.argmin([np.linalg.norm(x - first[c], axis=1) for c in range(3)], axis=0)
            assert np.array_equal(y, (component + group) % 3)

    def test_best_possible_accuracy(self):
        """Two centres at distance separation * sqrt 2: the best rule is right with chance Phi(separation / sqrt 2)."""
        spec = PlantedGroups(groups=1, clients=1, classes=2, dims=3, separation=1.5, train_size=40_000)
        federation = load(spec)
        x, y = federation.train.x[0], federation.train.y[0]
        axis = x[y == 1].mean(0) - x[y == 0].mean(0)
        middle = (x[y == 1].mean(0) + x[y == 0].mean(0)) / 2
        accuracy = np.mean(((x - middle) @ axis > 0) == y)
        expected = norm.cdf(1.5 / np.sqrt(2))
        assert abs(accuracy - expected) < 4 * np.sqrt(expected * (1 - expected) / 40_000)

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"groups": 5, "classes": 4}, "groups must be at most 4, the number of classes"),
            ({"groups": 3, "clients": 2}, "groups must be at most 2, the number of clients"),
            ({"classes": 5, "dims": 4}, "classes must be at most 4, the number of inputs"),
        ],
    )
    def test_impossible_settings(self, options, sentence):
        with pytest.raises(CoterieError, match=sentence):
            PlantedGroups(**options)
