"""Methods for known clusters and their rivals on least squares: against direct solves, enumeration and closed forms."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from coterie.data import federation as make_federation
from coterie.data.clients import Federation, Split
from coterie.errors import CoterieError
from coterie.graphs.graph import Graph
from coterie.learning.task import Task, Variables
from coterie.methods import L2GD, AsyncAL2SGDPlus, AsyncL2GD, PFedMe
from coterie.models.mlp import Mlp
from coterie.numerics.cluster_odds import best_tau
from coterie.peers.local import LocalPeers, Plan
from coterie.peers.tables import make_tables
from support.cases import Weights, own, regression, run, training, weights_of

pytestmark = pytest.mark.usefixtures("x64")

LABEL = np.array([0, 1, 0, 2, 1, 0])
MORE = functools.partial(pytest.param, marks=pytest.mark.soak)  # cases that only `make soak` runs
SIZES = [5, 7, 4, 6, 9, 8]


@pytest.fixture(scope="module")
def federation():
    """Six clients in clusters of three, two and one, with three features."""
    made = regression(SIZES, seed=4)
    return Federation(*(getattr(made, f) for f in ("names", "train", "validation", "test", "kind", "classes")), LABEL)


def quadratics(federation, loss="mean"):
    """Each client's Hessian and linear term: f_i = theta' H_i theta / 2 - b_i' theta + ..."""
    pairs = [own(federation, k) for k in range(len(federation))]
    factor = [1 if loss == "sum" else 1 / len(x) for x, _ in pairs]
    H = np.stack([f * x.T @ x for f, (x, _) in zip(factor, pairs, strict=True)])
    return H, np.stack([f * x.T @ y for f, (x, y) in zip(factor, pairs, strict=True)])


def solve(H, b, label, tie, cluster_tie):
    """The minimiser of the hierarchical model (2.3) in theta, w and wbar, as one system of linear equations."""
    K, d = b.shape
    G = label.max() + 1
    n = K + G + 1
    ties = np.zeros((n, n))  # the quadratic form of the ties: a graph Laplacian
    edges = [(k, K + j, tie) for k, j in enumerate(label)] + [(K + j, K + G, cluster_tie) for j in range(G)]
    for u, v, strength in edges:
        ties[[u, v], [u, v]] += strength
        ties[[u, v], [v, u]] -= strength
    matrix = np.kron(ties, np.eye(d))
    for k in range(K):
        matrix[k * d : (k + 1) * d, k * d : (k + 1) * d] += H[k]
    right = np.concatenate([b.ravel(), np.zeros((G + 1) * d)])
    return np.linalg.solve(matrix, right).reshape(n, d)[:K]


def slope_of(H, b, label, tie, cluster_tie, theta):
    """grad F of (2.1), and the clusters' means and everybody's for each client."""
    size = np.bincount(label)
    a = cluster_tie / (cluster_tie + tie * size)
    near = np.stack([theta[label == j].mean(0) for j in range(len(size))])
    far = (a * size) @ near / (a @ size)
    pulls = a[label][:, None] * (theta - far) + (1 - a[label])[:, None] * (theta - near[label])
    return np.einsum("kde,ke->kd", H, theta) - b + tie * pulls


# -- the exact minimiser ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings", [MORE({}), {"loss": "sum", "tie": 2.0, "p_within": (0.2, 0.4, 0.0)}, MORE({"batch_size": 1})]
)
def test_al2sgd_plus_reaches_the_exact_minimiser(federation, device, settings):
    """To 1e-10, with the default and other probabilities, and with minibatches of one sample."""
    method = AsyncAL2SGDPlus(cluster_tie=0.5, iterations=100, **settings)
    H, b = quadratics(federation, method.loss)
    expected = solve(H, b, LABEL, method.tie, 0.5)
    assert np.abs(slope_of(H, b, LABEL, method.tie, 0.5, expected)).max() < 1e-12
    _, models = run(training(federation, method, device), 400 if method.batch_size else 100)
    np.testing.assert_allclose(models, expected, atol=1e-10)


def test_on_paper(device):
    """X = 1, unit variances, y = (1, 2), (5, 8) in two clusters: theta = (1.875, 2.375, 5.125, 6.625)."""
    x, y = np.ones((4, 1, 1)), np.array([[1.0], [2.0], [5.0], [8.0]])
    split = Split(x, y, np.ones(4, np.int32))
    four = Federation(tuple("abcd"), split, split, split, kind="regression", classes=1, groups=np.array([0, 0, 1, 1]))
    _, models = run(training(four, AsyncAL2SGDPlus(iterations=100), device), 40)
    np.testing.assert_allclose(models[:, 0], [1.875, 2.375, 5.125, 6.625], atol=1e-10)


@pytest.mark.soak
def test_without_acceleration_and_without_known_clusters(federation, device):
    """L2SGD+ on one cluster: the minimiser of sum f_i + gamma/2 sum |theta_i - mean|^2."""
    H, b = quadratics(federation)
    alone = Federation(federation.names, *federation.arrays()[:3], kind="regression", classes=1)
    expected = solve(H, b, np.zeros(6, int), 1.0, 1.0)
    method = AsyncAL2SGDPlus(acceleration=0.0, iterations=100)
    _, models = run(training(alone, method, device), 200)
    np.testing.assert_allclose(models, expected, atol=1e-10)


# -- the neighbourhood of the minimiser ---------------------------------------------------------------------------


@pytest.mark.soak
def test_async_l2gd_stays_in_the_neighbourhood_of_theorem_3_5(federation, device):
    """E |theta - minimiser|^2 <= 2 eta sigma^2 / mu, and a tenth of the step size makes it about a tenth."""
    H, b = quadratics(federation)
    expected = solve(H, b, LABEL, 1.0, 1.0)
    mu = np.linalg.eigvalsh(H)[:, 0].min()
    method = AsyncL2GD(iterations=20)
    start, _ = training(federation, method, device).init()
    (p, q, tau, a), largest = map(np.asarray, start.odds), float(start.lr[0])
    np.testing.assert_allclose(tau, best_tau(p, q), rtol=1e-12)
    # sigma^2 = E |g|^2 at the minimiser: three outcomes for each client.
    near = np.stack([expected[j == LABEL].mean(0) for j in LABEL])
    far = a @ expected / a.sum()
    own_part = np.einsum("kde,ke->kd", H, expected) - b
    met = (a[:, None] * (expected - far) + (tau * (1 - a))[:, None] * (expected - near)) / p[:, None]
    alone = ((1 - tau) * (1 - a))[:, None] * (expected - near) / np.where(q > 0, (1 - p) * q, 1)[:, None]
    local = own_part / ((1 - p) * (1 - q))[:, None]
    weighed = ((p, met), ((1 - p) * q, alone), ((1 - p) * (1 - q), local))
    sigma = sum((chance[:, None] * part**2).sum() for chance, part in weighed)
    squared = []
    for lr in (largest, largest / 10):
        started = training(federation, AsyncL2GD(iterations=20, lr=lr), device)
        state, _ = run(started, 200)
        distances = []
        for block in range(60):
            state, models = run(started, 10, state, 201 + 10 * block)
            distances.append(((models - expected) ** 2).sum())
        assert np.mean(distances) <= 2 * lr * sigma / mu
        squared.append(np.mean(distances))
    assert 5 < squared[0] / squared[1] < 20


# -- one iteration, for every random choice -----------------------------------------------------------------------


class Bench:
    """A method's single iteration, with the random choices made by the test."""

    def __init__(self, federation, method):
        self.method, self.task = method, Task.of(federation, Weights(jnp.zeros((1, 3))), dtype=jnp.float64)
        self.clients = jax.tree.map(jnp.asarray, federation.arrays())
        graph = Graph.empty(len(federation))
        self.tables = jax.tree.map(jnp.asarray, make_tables(graph, np.zeros((len(federation), 0)), dtype=np.float64))
        self.state = jax.jit(lambda key: method.init(self.task, self.peers(), self.clients, key))(jax.random.key(0))
        self._step = jax.jit(
            lambda state, everyone, cluster: method.iterate(
                self.task, state, self.peers(), self.clients, jax.random.key(1), everyone, cluster
            )
        )

    def peers(self):
        return LocalPeers(self.tables, Plan("fast"))

    def expectation(self, state, read):
        """The mean of `read(new state)` over all outcomes of the random choices."""
        p, q = float(state.odds.between[0]), [float(state.odds.within[k]) for k in (0, 1, 3)]  # one of each cluster
        total = p * read(self._step(state, True, jnp.zeros(6, bool)))
        for within in itertools.product((False, True), repeat=3):
            chance = (1 - p) * np.prod([a if drawn else 1 - a for a, drawn in zip(q, within, strict=True)])
            if chance:
                total = total + chance * read(self._step(state, False, jnp.asarray(within)[LABEL]))
        return total


SETTINGS = {"p_between": 0.3, "p_within": 0.4, "lr": 0.01, "tie": 0.7, "cluster_tie": 1.3}


def test_an_iteration_of_async_l2gd_follows_the_gradient_on_average(federation):
    bench = Bench(federation, AsyncL2GD(**SETTINGS))
    theta = np.random.default_rng(0).normal(size=(6, 3))
    state = bench.state._replace(variables=Variables(Weights(jnp.asarray(theta)[:, None])))
    after = bench.expectation(state, lambda s: weights_of(s.variables))
    expected = slope_of(*quadratics(federation), LABEL, 0.7, 1.3, theta)
    np.testing.assert_allclose((theta - after) / 0.01, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.soak
def test_an_iteration_of_al2sgd_plus_follows_the_gradient_on_average(federation):
    """From a point that is neither the anchor nor the start of the momentum."""
    bench = Bench(federation, AsyncAL2SGDPlus(**SETTINGS))
    random = np.random.default_rng(1)
    x, y, z = random.normal(size=(3, 6, 3))
    # The anchor is what a refresh makes of y = x: its gradient and means are the method's own.
    state = bench.state._replace(y=Variables(Weights(jnp.asarray(x)[:, None])))
    state = bench.method.renew(bench.task, state, bench.peers(), bench.clients)
    place = {"y": Variables(Weights(jnp.asarray(y)[:, None])), "z": Weights(jnp.asarray(z)[:, None])}
    state = state._replace(**place)
    a1, a2 = float(state.pace.a1[0]), float(state.pace.a2[0])
    assert 0 < a1 <= 0.5
    assert 0 < a2 <= 0.5
    theta = a1 * z + a2 * x + (1 - a1 - a2) * y
    after = bench.expectation(state, lambda s: weights_of(s.y))
    expected = slope_of(*quadratics(federation), LABEL, 0.7, 1.3, theta)
    np.testing.assert_allclose((theta - after) / 0.01, expected, rtol=1e-10, atol=1e-11)


# -- automatic settings -------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize("loss", [MORE("mean"), "sum"])
def test_auto_follows_the_corollaries_with_measured_constants(federation, device, loss):
    H, _ = quadratics(federation, loss)
    values = np.linalg.eigvalsh(H)
    L, mu, tie, lam = values.max(), values.min(), 0.7, 1.3
    size = np.array([3, 2, 1])[LABEL]
    a = lam / (lam + tie * size)
    near = np.where(size > 1, (1 - a) * tie, 0)
    far = (a * tie).max()
    V = 2 * far + L + max(0, near.max() - far)
    p = 2 * far / V
    q = np.maximum(near - far, 0) / (V - 2 * far)
    settings = {"loss": loss, "tie": tie, "cluster_tie": lam}
    state, _ = training(federation, AsyncL2GD(**settings), device).init()
    np.testing.assert_allclose(state.odds.between, p, rtol=1e-9)
    np.testing.assert_allclose(state.odds.within, q, rtol=1e-9)
    np.testing.assert_allclose(state.odds.to_all, a, rtol=1e-12)
    np.testing.assert_allclose(state.lr, 1 / (2 * V), rtol=1e-9)
    state, _ = training(federation, AsyncL2GD(p_within=0.2, tau=0.9, **settings), device).init()  # not the best ones
    meeting = near * (2 * 0.9**2 / p + 0.1**2 / ((1 - p) * 0.2))
    largest = max(2 * far / p, meeting.max(), L / ((1 - p) * 0.8))
    np.testing.assert_allclose(state.lr, 1 / (2 * largest), rtol=1e-9)
    state, _ = training(federation, AsyncAL2SGDPlus(**settings), device).init()
    largest = max(L + tie, V)
    lr, rho, a2 = 1 / (4 * largest), p * (1 - p), V / (2 * largest)
    a1 = min(0.5, np.sqrt(lr * max(mu, L / 1000) * max(0.5, a2 / rho)))
    np.testing.assert_allclose(state.pace.lr, lr, rtol=1e-9)
    np.testing.assert_allclose(state.pace.refresh, rho, rtol=1e-9)
    np.testing.assert_allclose(state.pace.a1, a1, rtol=1e-6)
    state, _ = training(federation, L2GD(loss=loss, tie=tie), device).init()
    np.testing.assert_allclose(state.p, tie / (tie + L), rtol=1e-9)
    np.testing.assert_allclose(state.lr, 1 / (2 * (L + tie)), rtol=1e-9)


# -- l2gd and pfedme ----------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_l2gd_redone_in_numpy_and_its_mean_is_the_minimiser(federation, device):
    """Its steps are linear in theta and unbiased, so the mean of its stationary distribution is the minimiser."""
    H, b = quadratics(federation)
    method = L2GD(lr=0.02, tie=0.8, p=0.3, iterations=1)
    started = training(federation, method, device)
    state, _ = started.init()
    theta, exchanges = np.zeros((6, 3)), 0
    for number in range(1, 13):
        state, models = run(started, 1, state, number)
        communicated, exchanges = int(state.meetings[0]) > exchanges, int(state.meetings[0])
        if communicated:
            theta = theta - 0.02 * 0.8 / 0.3 * (theta - theta.mean(0))
        else:
            theta = theta - 0.02 / 0.7 * (np.einsum("kde,ke->kd", H, theta) - b)
        np.testing.assert_allclose(models, theta, rtol=1e-12, atol=1e-14)
    assert 0 < exchanges < 12
    expected = solve(H, b, np.zeros(6, int), 0.8, 1.0)
    started = training(federation, L2GD(lr=0.02, tie=0.8, p=0.3, iterations=50), device)
    state, _ = run(started, 60)
    total = np.zeros((6, 3))
    for block in range(150):
        state, models = run(started, 2, state, 61 + 2 * block)
        total += models / 150
    assert np.abs(total - expected).max() < 0.02 < np.abs(expected - expected.mean(0)).max()


def test_pfedme_on_quadratics(device):
    """f_k = a_k (theta - c_k)^2 / 2 has theta_k(w) = (a_k c_k + lambda w) / (a_k + lambda), so a copy moves by
    -eta kappa_k (w - c_k) with kappa_k = lambda a_k / (a_k + lambda). Two such steps, beta = 1/2, three rounds."""
    a, c = np.array([1.0, 2.0, 0.5]), np.array([1.0, -1.0, 4.0])
    x, y = np.sqrt(a)[:, None, None], (np.sqrt(a) * c)[:, None]
    split = Split(x, y, np.ones(3, np.int32))
    three = Federation(tuple("abc"), split, split, split, kind="regression", classes=1)
    tie, eta, beta = 2.0, 0.3, 0.5
    method = PFedMe(tie=tie, shared_step=eta * tie, beta=beta, inner_rounds=2, lr=0.25, steps=200, batch_size=0)
    state, models = run(training(three, method, device), 3)
    kappa, w = tie * a / (a + tie), 0.0
    for _ in range(3):
        before_last = c + (1 - eta * kappa) * (w - c)
        theta = (a * c + tie * before_last) / (a + tie)
        w = (1 - beta) * w + beta * np.mean(c + (1 - eta * kappa) ** 2 * (w - c))
    np.testing.assert_allclose(np.asarray(state.shared.w)[:, 0, 0], w, rtol=1e-12)
    np.testing.assert_allclose(models[:, 0], theta, rtol=1e-12)


# -- what is sent -------------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_the_ledger_charges_exchanges_and_nothing_else(federation, device):
    """Each exchange is a message up and one down. An MLP 3-4-1 has 16 shared parameters and a personal layer of 5;
    float64, 48 bytes of header, a label of 4."""
    for personal, sent in (((), 21), (("layers.1",), 16)):
        method = AsyncL2GD(p_between=0.2, p_within=0.3, lr=0.01, iterations=7)
        started = training(federation, method, device, model=Mlp(hidden=(4,)), personal=personal)
        state, opening = started.init()
        # The start: sizes of clusters (weight and label up, weight down), and four constants.
        assert (opening.traffic.up_bytes[0] == (48 + 8 + 4) + (48 + 4 * 8)).all()
        _, block = started.advance(state, 1, 9)
        between, within = block.counts["rounds_between"], block.counts["rounds_within"]
        assert between[0] > 0
        assert len({tuple(within[j == LABEL]) for j in range(3)}) == 3
        assert (within[LABEL == 2] == 0).all()  # a cluster of one has no exchanges
        traffic = block.traffic
        assert (traffic.up_messages.sum(0) == between + within).all()
        assert (traffic.down_messages.sum(0) == between + within).all()
        up, down = 48 + 8 * sent + 4, 48 + 8 * sent
        assert (traffic.up_bytes.sum(0) == between * (up + 16) + within * (up + 8)).all()
        assert (traffic.down_bytes.sum(0) == between * (down + 8 * sent + 16) + within * (down + 8)).all()


@pytest.mark.parametrize("method", [MORE(L2GD), MORE(AsyncL2GD), MORE(AsyncAL2SGDPlus), PFedMe])
def test_personal_layers_are_not_tied(federation, device, method):
    """Tied very strongly, shared layers of a cluster agree and personal ones do not."""
    settings = {"tie": 50.0, "iterations": 200} if method is not PFedMe else {"tie": 50.0, "lr": 0.01}
    settings |= {} if method in (L2GD, PFedMe) else {"cluster_tie": 50.0}
    started = training(federation, method(**settings), device, model=Mlp(hidden=(4,)), personal=("layers.1",))
    state, _ = started.advance(started.init()[0], 1, 5)
    first, last = started.method.models(state).params.layers
    assert np.ptp(first.weight, axis=0).max() < 0.2 * np.ptp(last.bias, axis=0).max()


# -- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"p_between": 1.0}, "p_between must be less than 1, not 1"),
        ({"p_between": -0.1}, "p_between must be at least 0, not -0.1"),
        ({"p_between": 0.0}, "p_between must be above 0, or clusters that are tied"),
        ({"p_within": 1.0}, "p_within must be at least 0 and less than 1, not 1"),
        ({"p_within": (0.1, -0.2)}, "p_within must be at least 0 and less than 1, not -0.2"),
        ({"p_within": "often"}, "p_within must be"),
        ({"tau": 1.5}, "tau must be at most 1"),
        ({"lr": 0.0}, "lr must be greater than 0"),
        ({"tie": -1.0}, "tie must be greater than 0"),
    ],
)
def test_settings_out_of_range(settings, reason):
    for method in (AsyncL2GD, AsyncAL2SGDPlus):
        with pytest.raises(CoterieError, match=reason):
            method(**settings)


def test_more_settings_out_of_range():
    with pytest.raises(CoterieError, match="p must be less than 1"):
        L2GD(p=1.0)
    with pytest.raises(CoterieError, match="refresh must be at most 1"):
        AsyncAL2SGDPlus(refresh=2.0)
    with pytest.raises(CoterieError, match="shared_step must be less than 2"):
        PFedMe(shared_step=2.0)


def test_a_list_of_probabilities_must_fit_the_clusters(federation, device):
    with pytest.raises(CoterieError, match="p_within has 2 entries but the data have 3 clusters"):
        training(federation, AsyncL2GD(p_within=(0.1, 0.2)), device).init()


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ([0, 2, 2], "group 1 has no client; number the groups without gaps"),
        ([0, 1], "groups has 2 entries but there are 3 clients"),
        ([0, -1, 1], "groups must be whole numbers from 0 on"),
        ([[1, 0], [1, 1], [0, 1]], r"groups must give one number per client, not shape \(3, 2\)"),
    ],
)
def test_groups_that_are_not_clusters(groups, reason):
    made = regression([2, 2, 2])
    with pytest.raises(CoterieError, match=reason):
        Federation(made.names, *made.arrays()[:3], kind="regression", classes=1, groups=np.array(groups))


def test_groups_reach_the_program_and_a_part_of_a_federation_keeps_their_number(federation):
    assert federation.arrays().groups.astype(int).tolist() == np.eye(3, dtype=int)[LABEL].tolist()
    part = federation.select([3, 1])
    assert part.arrays().groups.astype(int).tolist() == [[0, 0, 1], [0, 1, 0]]
    assert part.select([1]).arrays().groups.shape == (1, 3)
    assert regression([2, 2]).arrays().groups.tolist() == [[True], [True]]
    pairs = [(np.ones((9, 2)), np.ones(9))] * 3
    assert make_federation(pairs, groups=["south", "north", "south"]).groups.tolist() == [1, 0, 1]


@pytest.mark.soak
@pytest.mark.parametrize("method", [L2GD(), MORE(AsyncAL2SGDPlus(batch_size=2))])
def test_measured_constants_do_not_depend_on_the_devices(federation, device, method):
    """The clients are split over two devices, as on every CPU with several cores."""
    model, rates = Mlp(hidden=(8,)), []
    for plan in (Plan("fast"), Plan("fast", 0, Mesh(np.array(device.devices), ("clients",)))):
        state, _ = training(federation, method, device, model=model, plan=plan).init()
        rates.append(state.lr if isinstance(method, L2GD) else state.pace.lr)
    np.testing.assert_allclose(rates[0], rates[1], rtol=1e-9)
