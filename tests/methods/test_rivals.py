"""FedFomo, cross-gradient aggregation, Dada, L2C and pFedGraph, each against its formulas written once more in NumPy.

The model is a point theta and client i's loss 1/2 |theta - target_i|^2, so that one full gradient step with rate lr
moves it to theta - lr (theta - target_i), and every round can be redone on paper.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from scipy.special import softmax

from coterie import registry
from coterie.data.clients import Federation, Split, stack
from coterie.graphs.graph import Graph
from coterie.learning.task import Task, Variables
from coterie.methods.pfedgraph import cosine, cosine_slope
from coterie.methods.shared.neighbours import clearly_worse, makes_more_mistakes, mean_loss
from coterie.peers.base import Arrivals
from coterie.peers.local import LocalPeers, Plan
from coterie.peers.tables import make_tables

RIVALS = ["fomo", "cga", "dada", "meta-l2c", "pfedgraph"]
SAMPLE = ["fomo", "pfedgraph", *(pytest.param(name, marks=pytest.mark.soak) for name in ("cga", "dada", "meta-l2c"))]


class Point(eqx.Module):
    """Outputs a point, whatever goes in."""

    shared: jax.Array

    def __call__(self, x):
        return self.shared


class Pair(eqx.Module):
    """Outputs the sum of a point that is shared and one that is not."""

    shared: jax.Array
    own: jax.Array

    def __call__(self, x):
        return self.shared + self.own


def federation(train, validation=None, counts=None):
    """Make clients whose every training (validation) sample is their target."""
    train = np.asarray(train, float)
    ones = np.ones(len(train), int)

    def part(targets, counts):
        return stack([(np.zeros((n, 1)), np.repeat(t[None], n, 0)) for t, n in zip(targets, counts, strict=True)])

    held_out = train if validation is None else np.asarray(validation, float)
    splits = (part(train, ones if counts is None else counts), part(held_out, ones), part(train, ones))
    names = tuple(f"client-{i}" for i in range(len(train)))
    return Federation(names, *splits, kind="regression", classes=train.shape[1])


class Play:
    """A method on points that start where one says; after `round` its models, weights and losses can be looked at."""

    def __init__(self, name, data, start, own=None, graph=None, arrivals=None, mode="exact", **settings):
        self.method = registry.load("methods", name)(**({"lr": 0.5, "batch_size": 0} | settings))
        graph = Graph.complete(len(data)) if graph is None else graph
        zero = jnp.zeros(data.classes)
        module, personal = (Point(zero), ()) if own is None else (Pair(zero, zero), ("own",))
        self.task = Task.of(data, module, personal=personal, dtype=jnp.float64)
        tables = make_tables(graph, 0.25 * graph.present, dtype=np.float64)
        self.tables, self.data = jax.tree.map(jnp.asarray, (tables, data.arrays()))
        self.arrivals, self.mode, self.count = arrivals, mode, 0
        state = self.method.init(self.task, self._peers(), self.data, jax.random.key(0))
        start = jnp.array(np.broadcast_to(np.asarray(start, float), (len(data), data.classes)))
        params = Point(start) if own is None else Pair(start, jnp.array(np.asarray(own, float)))
        self.state = state._replace(variables=Variables(params))
        self._advance = jax.jit(self._one_round)

    def _peers(self):
        return LocalPeers(self.tables, Plan(self.mode), self.arrivals)

    def _one_round(self, state, key):
        peers = self._peers()
        state, info = self.method.round(self.task, state, peers, self.data, key)
        return state, info, peers.traffic()

    def round(self, times=1):
        for _ in range(times):
            self.count += 1
            self.state, info, self.traffic = self._advance(self.state, jax.random.key(self.count))
            self.weights, self.loss = np.asarray(info.weights), np.asarray(info.loss)
        return np.asarray(self.method.models(self.state).params.shared)


@pytest.fixture(autouse=True)
def _wide():
    with jax.enable_x64(True):
        yield


def half_square(theta, target):
    return 0.5 * ((theta - target) ** 2).sum(-1)


def as_matrix(weights):
    """Turn weights over the slots of a complete graph into a matrix with an empty diagonal."""
    return np.array([np.insert(row, i, 0.0) for i, row in enumerate(weights)])


TRAIN = np.array([[2.0, 0.0], [1.0, 1.0], [-1.0, 0.5]])
VALIDATION = np.array([[1.8, 0.2], [1.5, 0.5], [-1.0, 1.0]])
START = np.array([[0.0, 0.1], [0.5, 0.0], [-0.2, 0.3]])


# -- FedFomo ------------------------------------------------------------------------------------------------------


def test_fomo_by_hand():
    # Both start at 0 and go half the way, to 1 and 2. Client 0 (validation target 2, loss 2 at the start) scores
    # itself (2 - 1/2) / 1 and its neighbour (2 - 0) / 2: weights 3/5 and 2/5. Client 1 (target 4, loss 8) scores
    # itself (8 - 2) / 2 and its neighbour (8 - 9/2) / 1: weights 6/13 and 7/13.
    game = Play("fomo", federation([[2.0], [4.0]]), 0.0)
    np.testing.assert_allclose(game.round(), [[0.6 * 1 + 0.4 * 2], [6 / 13 * 2 + 7 / 13 * 1]], rtol=1e-12)
    np.testing.assert_allclose(game.weights, [[0.4], [7 / 13]], rtol=1e-12)


def fomo_round(theta, train, validation, lr, own=0.0):
    """Compute eq. 5 and 6 for all clients; `own` are personal points, which a client adds to every candidate."""
    trained = theta - lr * (theta + own - train)
    own_trained = own - lr * (theta + own - train) if np.ndim(own) else 0.0
    after = np.empty_like(theta)
    for i in range(len(theta)):
        shift = own_trained[i] if np.ndim(own) else 0.0
        base = half_square(theta[i] + (own[i] if np.ndim(own) else 0.0), validation[i])
        gains = [(base - half_square(t + shift, validation[i])) / np.linalg.norm(t - theta[i]) for t in trained]
        weights = np.maximum(gains, 0)
        after[i] = weights @ trained / weights.sum()
    return after, own_trained


def test_fomo_round_in_numpy():
    game = Play("fomo", federation(TRAIN, VALIDATION), START, lr=0.3)
    after, _ = fomo_round(START, TRAIN, VALIDATION, 0.3)
    np.testing.assert_allclose(game.round(), after, rtol=1e-12)
    assert game.weights[2].sum() == 0  # both others lead client 2 away from its validation target
    assert game.weights[0].sum() > 0
    np.testing.assert_allclose(game.round(), fomo_round(after, TRAIN, VALIDATION, 0.3)[0], rtol=1e-12)


def test_fomo_evaluates_models_with_the_clients_own_layers():
    own = np.array([[0.5, 0.0], [-0.5, 0.2], [0.1, -0.3]])
    game = Play("fomo", federation(TRAIN, VALIDATION), START, own, lr=0.3)
    shared, personal = fomo_round(START, TRAIN, VALIDATION, 0.3, own)
    np.testing.assert_allclose(game.round(), shared, rtol=1e-12)
    np.testing.assert_allclose(game.state.variables.params.own, personal, rtol=1e-12)


def test_fomo_keeps_what_it_trained_when_nothing_helps():
    # Client 1's training target lies away from its validation target, and so does client 0's model.
    game = Play("fomo", federation([[1.0], [1.0]], [[1.0], [-3.0]]), 0.0)
    np.testing.assert_allclose(game.round(), [[0.5], [0.5]], rtol=1e-12)
    np.testing.assert_array_equal(game.weights[1], [0])


# -- cross-gradient aggregation -----------------------------------------------------------------------------------


def test_cga_by_hand():
    # At the origin the gradients are (-1, 0) and (1, -1), whose product is negative. Client 0: u = 1/2 and the
    # direction (-1/2, -1/2); client 1: u = 1 and (0, -1). Both are orthogonal to the gradient in conflict.
    game = Play("cga", federation([[1.0, 0.0], [-1.0, 1.0]]), 0.0)
    np.testing.assert_allclose(game.round(), [[0.25, 0.25], [0.0, 0.5]], atol=1e-12)
    np.testing.assert_allclose(game.weights, [[0.5 / 1.5], [1 / 2]], rtol=1e-9)


def cga_direction(i, theta, train, own=0.0):
    """Solve the program with SciPy: all clients' gradients at theta_i, client i's own apart."""
    slopes = theta[i] + own - train
    G, g = np.delete(slopes, i, 0), slopes[i]
    return g + G.T @ scipy.optimize.nnls(G.T, -g)[0]


def test_cga_with_momentum_in_numpy():
    random = np.random.default_rng(3)
    train, theta = random.normal(size=(4, 6)), random.normal(size=(4, 6))
    game = Play("cga", federation(train), theta, lr=0.1, momentum=0.8)
    mixing, velocity = np.full((4, 4), 0.25), np.zeros_like(theta)
    for _ in range(3):
        directions = np.array([cga_direction(i, theta, train) for i in range(4)])
        velocity = 0.8 * velocity - 0.1 * directions
        theta = mixing @ theta + velocity
        np.testing.assert_allclose(game.round(), theta, atol=1e-9)
    assert (game.weights > 0).any()


def test_cga_asks_neighbours_to_use_their_own_layers():
    own = np.array([[0.5, 0.0], [-0.5, 0.2], [0.1, -0.3]])
    game = Play("cga", federation(TRAIN), START, own, lr=0.1)
    directions = np.array([cga_direction(i, START, TRAIN, own=own) for i in range(3)])
    mixing = np.full((3, 3), 0.25) + 0.25 * np.eye(3)
    np.testing.assert_allclose(game.round(), mixing @ START - 0.1 * directions, atol=1e-9)
    np.testing.assert_allclose(game.state.variables.params.own, own - 0.1 * (START + own - TRAIN), rtol=1e-12)


# -- Dada ---------------------------------------------------------------------------------------------------------


def test_dada_graph_by_hand():
    # Two clients at distance 2 from each other, both at their targets: nothing pulls but the tie 1/2, which moves
    # each by lr/2 of the gap: to 1/2 and 3/2. The edge costs a = 1/4 (1)^2, and w solves 2 lambda w^2 + a w = 2.
    game = Play("dada", federation([[0.0], [2.0]]), [[0.0], [2.0]], tie=0.5, spread=0.4375, graph_steps=1)
    np.testing.assert_allclose(game.round(), [[0.5], [1.5]], rtol=1e-12)
    w = np.roots([2 * 0.4375, 0.25, -2]).max()
    np.testing.assert_allclose(game.state.weights, [[w], [w]], rtol=1e-12)


def dada_costs(points, risks, tie):
    gaps = ((points[:, None] - points[None]) ** 2).sum(-1)
    return risks[:, None] + risks[None] + tie / 2 * gaps


def dada_objective(w, costs, strength, spread):
    upper = np.triu_indices(len(w), 1)
    return (w * costs)[upper].sum() + strength * (spread * (w[upper] ** 2).sum() - np.log(w.sum(1)).sum())


SETTINGS = {"tie": 0.6, "graph_strength": 0.7, "spread": 0.3}


def test_dada_graph_meets_the_conditions_of_optimality():
    random = np.random.default_rng(5)
    train = 2 * random.normal(size=(5, 3))
    game = Play("dada", federation(train), train, **SETTINGS, graph_steps=4000)
    costs = dada_costs(game.round(), np.zeros(5), 0.6)  # they start at their targets: no loss
    w = as_matrix(game.state.weights)
    np.testing.assert_array_equal(w, w.T)
    inverse = 1 / w.sum(1)
    slope = (costs + 0.7 * (2 * 0.3 * w - inverse[:, None] - inverse))[np.triu_indices(5, 1)]
    used = w[np.triu_indices(5, 1)] > 1e-6
    assert 0 < used.sum() < 10  # the problem is convex: zero slope where an edge is used, none downhill elsewhere
    np.testing.assert_allclose(slope[used], 0, atol=1e-6)
    assert (slope[~used] > 0).all()


@pytest.mark.soak
def test_dada_never_increases_what_the_graph_minimises():
    random = np.random.default_rng(6)
    train, start = random.normal(size=(4, 2)), random.normal(size=(4, 2))
    heights = []
    for steps in range(1, 6):
        game = Play("dada", federation(train), start, **SETTINGS, graph_steps=steps)
        costs = dada_costs(game.round(), game.loss, 0.6)
        heights.append(dada_objective(as_matrix(game.state.weights), costs, 0.7, 0.3))
    heights.insert(0, dada_objective(1 - np.eye(4), costs, 0.7, 0.3))
    assert (np.diff(heights) < 0).all()


@pytest.mark.parametrize("own", [None, np.array([[0.5, 0.0], [-0.5, 0.2], [0.1, -0.3]])])
def test_dada_model_step_in_numpy(own):
    counts = np.array([2, 4, 1])
    game = Play("dada", federation(TRAIN, counts=counts), START, own, lr=0.1, **SETTINGS)
    layer = 0.0 if own is None else own
    centre = np.array([np.delete(START, i, 0).mean(0) for i in range(3)])  # all edges weigh the same at first
    rate = 0.6 / (counts / 4)[:, None]
    slope = START + layer - TRAIN
    np.testing.assert_allclose(game.round(), START - 0.1 * (slope + rate * (START - centre)), rtol=1e-12)
    np.testing.assert_allclose(game.weights, 0.5, rtol=1e-12)
    if own is not None:
        np.testing.assert_allclose(game.state.variables.params.own, own - 0.1 * slope, rtol=1e-12)


# -- L2C ----------------------------------------------------------------------------------------------------------


def l2c_theta(i, theta, trained, logits, mixes):
    weights = softmax(logits[i])
    return weights @ trained if mixes == "models" else theta[i] + weights @ (trained - theta)


@pytest.mark.parametrize("mixes", ["updates", "models"])
def test_l2c_follows_finite_differences_of_the_validation_loss(mixes):
    theta, logits = START.copy(), np.zeros((3, 3))
    game = Play("meta-l2c", federation(TRAIN, VALIDATION), theta, lr=0.3, weight_lr=0.2, mixes=mixes)
    first, second = np.zeros((3, 3)), np.zeros((3, 3))  # Adam's moments
    for step in range(1, 4):
        trained, gradient, after = theta - 0.3 * (theta - TRAIN), np.zeros((3, 3)), np.empty_like(theta)
        for i in range(3):
            after[i] = l2c_theta(i, theta, trained, logits, mixes)
            for j in range(3):
                nudge = np.zeros((3, 3))
                nudge[i, j] = 1e-5
                ends = [l2c_theta(i, theta, trained, logits + sign * nudge, mixes) for sign in (1, -1)]
                up, down = (half_square(end, VALIDATION[i]) for end in ends)
                gradient[i, j] = (up - down) / 2e-5
        np.testing.assert_allclose(game.round(), after, rtol=1e-6)
        np.testing.assert_allclose(as_matrix(game.weights), softmax(logits, 1) * (1 - np.eye(3)), rtol=1e-5)
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        logits = logits - 0.2 * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        theta = after
    assert np.ptp(game.weights) > 0.1


def test_l2c_by_hand():
    # Updates 1 and 2 from 0, equal weights: both land on 3/2. Client 0 wants 1, its gradient is 1/2 and the larger
    # update is the worse: its logit falls by the whole first step of Adam, one's own rises. Client 1 wants 2.
    game = Play("meta-l2c", federation([[2.0], [4.0]], [[1.0], [2.0]]), 0.0, weight_lr=0.1)
    np.testing.assert_allclose(game.round(), [[1.5], [1.5]], rtol=1e-12)
    np.testing.assert_allclose(game.state.logits, [[-0.1, 0.1], [-0.1, 0.1]], rtol=1e-6)  # the client itself is last


# -- pFedGraph ----------------------------------------------------------------------------------------------------


def test_pfedgraph_by_hand():
    # From the origin towards orthogonal targets: cosine 0, shares 1/2. The projection of (1/2 + 1/1.6, 1/2) takes
    # 5/16 off both: weights 13/16 and 3/16.
    game = Play("pfedgraph", federation([[2.0, 0.0], [0.0, 4.0]]), 0.0, tie=0.0)
    np.testing.assert_allclose(game.round(), [[13 / 16, 3 / 8], [3 / 16, 13 / 8]], rtol=1e-12)
    np.testing.assert_allclose(game.weights, [[3 / 16], [3 / 16]], rtol=1e-12)


def test_pfedgraph_snaps_and_counts_samples():
    # Nearly parallel displacements count as parallel, so that only the shares of data, 1/4 and 3/4, remain.
    game = Play("pfedgraph", federation([[2.0, 0.0], [4.0, 0.2]], counts=[1, 3]), 0.0, tie=0.0)
    game.round()
    np.testing.assert_allclose(game.weights, [[3 / 4], [1 / 4]], rtol=1e-12)
    game = Play("pfedgraph", federation([[2.0, 0.0], [4.0, 0.2]], counts=[1, 3]), 0.0, tie=0.0, snap=1.0)
    game.round()
    assert game.weights[0, 0] < 3 / 4


@pytest.mark.parametrize("tie", [0.0, 0.7])
def test_pfedgraph_round_in_numpy(tie):
    counts = np.array([2, 4, 1])
    data = federation(TRAIN, counts=counts)
    game = Play("pfedgraph", data, START, lr=0.1, tie=tie, alpha=0.6, epochs=2)
    trained = START.copy()
    for _ in range(2):  # loss - tie cos(theta, START), by finite differences
        slopes = np.zeros_like(trained)
        for i in range(3):
            slopes[i] = scipy.optimize.approx_fprime(
                trained[i],
                lambda t, i=i: (
                    half_square(t, TRAIN[i]) - tie * t @ START[i] / np.linalg.norm(t) / np.linalg.norm(START[i])
                ),
                1e-7,
            )
        trained -= 0.1 * slopes
    moved = trained / np.linalg.norm(trained, axis=1, keepdims=True)  # all displacements are from the origin
    cosines = moved @ moved.T
    cosines[cosines > 0.9] = 1
    weights = []
    for row in cosines:
        total = {"type": "eq", "fun": lambda x: x.sum() - 1}
        solution = scipy.optimize.minimize(
            lambda x, row=row: 0.6 * ((x - counts / 7) ** 2).sum() - row @ x,
            np.full(3, 1 / 3),
            bounds=[(0, None)] * 3,
            constraints=[total],
            options={"ftol": 1e-15},
        )
        weights.append(solution.x)
    np.testing.assert_allclose(game.round(), np.array(weights) @ trained, atol=1e-5)
    assert game.weights[0].max() > 0


def test_cosine_and_its_slope():
    a, b = {"u": jnp.array([1.0, 2.0]), "v": jnp.array(3.0)}, {"u": jnp.array([0.0, -1.0]), "v": jnp.array(2.0)}
    np.testing.assert_allclose(cosine(a, b), 4 / np.sqrt(14 * 5), rtol=1e-12)
    expected = jax.grad(lambda a: (a["u"] @ b["u"] + a["v"] * 2) / jnp.sqrt((a["u"] @ a["u"] + a["v"] ** 2) * 5))(a)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-12), cosine_slope(a, b), expected)
    nothing = jax.tree.map(jnp.zeros_like, a)
    assert cosine(nothing, b) == 0
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(cosine_slope(nothing, b)))


# -- what holds for all of them -----------------------------------------------------------------------------------


def lost(clients, exchanges=64):
    edges = np.zeros((exchanges, clients, clients - 1), bool)
    return Arrivals(edges, *[np.ones((exchanges, clients), bool)] * 2)


@pytest.mark.parametrize("name", RIVALS)
def test_without_neighbours_a_client_trains_alone(name):
    game = Play(name, federation(TRAIN, VALIDATION), START, lr=0.1, arrivals=jax.tree.map(jnp.asarray, lost(3)))
    np.testing.assert_allclose(game.round(), START - 0.1 * (START - TRAIN), rtol=1e-9)


@pytest.mark.parametrize("mode", [pytest.param("exact", marks=pytest.mark.soak), "fast"])
@pytest.mark.parametrize("name", SAMPLE)
def test_a_neighbour_that_is_not_a_number_has_no_weight(name, mode):
    start, own = START.copy(), np.ones((3, 2))
    start[2] = own[2] = np.nan
    game = Play(name, federation(TRAIN, VALIDATION), start, own, lr=0.1, mode=mode)
    pair = Play(name, federation(TRAIN[:2], VALIDATION[:2]), start[:2], own[:2], lr=0.1, mode=mode)
    points, alone = game.round(), pair.round()
    assert np.isnan(points[2]).all()
    assert np.isfinite(points[:2]).all()
    np.testing.assert_array_equal(game.weights[:2, 1], 0)
    if name in ("fomo", "cga", "pfedgraph"):  # the others had given it weight before, which now goes to themselves
        np.testing.assert_allclose(points[:2], alone, rtol=1e-12)
    assert np.isfinite(game.round(3)[:2]).all()


@pytest.mark.parametrize("name", SAMPLE)
def test_personal_layers_are_not_sent(name):
    def sent(own):
        game = Play(name, federation(TRAIN, VALIDATION), START, own)
        game.round()
        return int(game.traffic.heard_bytes.sum() + game.traffic.told_bytes.sum())

    assert sent(np.ones((3, 2))) == sent(None) > 0


def test_mean_loss_takes_every_sample_once_and_can_be_differentiated():
    random = np.random.default_rng(8)
    targets, count = random.normal(size=(1, 150, 2)), 131
    split = stack([(np.zeros((150, 1)), targets[0])])
    task = Task(Point(jnp.zeros(2)), "regression", dtype=jnp.float64)
    data = jax.tree.map(lambda a: jnp.asarray(a[0]), split)._replace(count=jnp.asarray(count))
    theta = jnp.array([0.3, -0.2])
    measured = jax.jit(jax.value_and_grad(lambda t, data: mean_loss(task, Variables(Point(t)), data)))
    loss, slope = measured(theta, data)
    np.testing.assert_allclose(loss, half_square(np.asarray(theta), targets[0, :count]).mean(), rtol=1e-12)
    np.testing.assert_allclose(slope, np.asarray(theta) - targets[0, :count].mean(0), rtol=1e-12)
    empty = data._replace(count=jnp.asarray(0))
    assert measured(theta, empty)[0] == 0


def test_a_model_is_clearly_worse_by_the_standard_error_of_paired_losses():
    """Against NumPy: the mean of the gaps, sample by sample, and its standard error; padding does not count."""
    task, losses = _table_task()
    random = np.random.default_rng(3)
    mine, other = random.normal(size=(2, 300)).astype(np.float32)
    for count in (5, 7, 130, 300):  # less than a batch, and more
        for shift in (-0.5, 0.0, 0.1, 0.3):
            gaps = (mine + np.float32(shift) - other)[:count].astype(np.float64)
            expected = gaps.mean() > gaps.std(ddof=1) / np.sqrt(count)
            assert bool(losses(task, mine + np.float32(shift), other, count)) == expected, (count, shift)
    for few in range(5):
        assert not losses(task, mine + 9, other, few)
    for broken in (np.nan, np.inf):
        mine[4] = broken
        assert losses(task, mine, other, 7)
        assert not losses(task, other, mine, 7)  # a broken model is not preferred
        assert not losses(task, mine, mine, 7)
        assert not losses(task, mine, other, 3)  # it is not among the client's samples


def test_a_model_makes_more_mistakes_by_mcnemars_statistic():
    """More samples that only it gets wrong, by more than the square root of those on which the two differ."""

    class Answers:
        kind, dtype = "classification", jnp.float32

        def apply(self, variables, x):
            return jnp.stack([1 - variables.params[x], variables.params[x]], -1), None

    def more(mine, other, count):
        data = Split(jnp.arange(300), jnp.ones(300, jnp.int32), jnp.int32(count))
        models = (Variables(jnp.asarray(right, jnp.float32)) for right in (mine, other))
        return bool(makes_more_mistakes(Answers(), *models, data))

    for count in (5, 20, 130, 300):
        for mine, other in ((0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (1, 2), (5, 0)):
            right = np.ones((2, 300))
            right[0, :mine] = right[1, mine : mine + other] = 0
            right[:, count:] = [[0], [1]]  # not among the client's samples
            wrong = (right[1] - right[0])[:count]
            clear = wrong.sum() > 0 and wrong.sum() ** 2 > np.abs(wrong).sum()
            assert more(*right, count) == clear, (count, mine, other)
            error = wrong.std(ddof=1) / np.sqrt(count)
            if abs(wrong.mean() - error) > 1e-12:  # equal for a single mistake
                assert clear == (wrong.mean() > error)
    assert not more(np.zeros(300), np.ones(300), 4)


def _table_task():
    """Return a task whose losses are its parameters, one for each sample, and a function that compares two of them."""

    class Table:
        kind, dtype = "regression", jnp.float32

        def apply(self, variables, x):
            return variables.params[x], None

        def losses(self, outputs, targets):
            return outputs

    def compare(task, mine, other, count):
        data = Split(jnp.arange(300), jnp.zeros(300), jnp.int32(count))
        return clearly_worse(task, Variables(jnp.asarray(mine)), Variables(jnp.asarray(other)), data)

    return Table(), compare
