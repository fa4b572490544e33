"""The block model against enumeration, SciPy, closed forms and cases by hand; and the printed updates, which fail."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special, stats

from coterie.errors import CoterieError
from coterie.numerics.blocks import sbm
from coterie.numerics.blocks.sbm import SBM
from support.block_cases import IN, OUT, logit, planted, random_evidence, sigmoid, simplex

# One program for all tests of a size.
infer = jax.jit(sbm.infer, static_argnames=("blocks", "sweeps", "how", "learn_affinity", "begin"))
start = jax.jit(sbm.start, static_argnames=("blocks", "how"))
elbo = jax.jit(sbm.elbo)
parallel = jax.jit(sbm.update_memberships)
centre = jax.jit(sbm.centre, static_argnames="rule")
update_gamma = jax.jit(sbm.update_gamma)


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def random_model(seed, clients=5, blocks=2, share=1.0):
    """Return a model with random parameters, random evidence, and which pairs are known."""
    random = np.random.default_rng(seed)
    ell, known = random_evidence(random, clients, share)
    weights = sbm.observed(ell, known) * random.random((clients, clients))
    affinity = jnp.asarray(random.uniform(0.05, 0.95, (blocks, blocks)))
    gamma, alpha = jnp.asarray(random.uniform(0.3, 3, (clients, blocks))), jnp.asarray(random.uniform(0.5, 2, blocks))
    return SBM(jnp.asarray(weights), simplex(random, clients, blocks), gamma, affinity, alpha), ell, known


def pair_list(ell, known):
    return [(i, j) for i, j in np.argwhere(np.asarray(known)) if i != j and np.isfinite(ell[i, j])]


def enumerated_links(model, ell, known):
    """Return E_q[log p(Y | z)] by enumerating z."""
    Omega, B, w = (np.asarray(a) for a in (model.memberships, model.affinity, model.weights))
    total = 0.0
    for z in itertools.product(range(Omega.shape[1]), repeat=Omega.shape[0]):
        chance = np.prod([Omega[i, g] for i, g in enumerate(z)])
        for i, j in pair_list(ell, known):
            p = B[z[i], z[j]]
            total += chance * (w[i, j] * np.log(p) + (1 - w[i, j]) * np.log1p(-p))
    return total


def enumerated_elbo(model, ell, known):
    """Return E_q[log p(D, Y, z, pi) - log q], with SciPy's distributions."""
    w, Omega, gamma, _, alpha = (np.asarray(a) for a in model)
    total = enumerated_links(model, ell, known)
    for i, j in pair_list(ell, known):
        total += w[i, j] * ell[i, j] + stats.bernoulli(w[i, j]).entropy()
    for row, omega in zip(gamma, Omega, strict=True):
        expected = special.digamma(row) - special.digamma(row.sum())
        prior = special.gammaln(alpha.sum()) - special.gammaln(alpha).sum() + ((alpha - 1) * expected).sum()
        total += (omega * expected).sum() + stats.entropy(omega) + prior + stats.dirichlet(row).entropy()
    return float(total)


def exact_posterior(model, ell, known):
    """Return the log evidence and P(Y_ij = 1 | D), by enumerating z and Y."""
    pairs, B, alpha = pair_list(ell, known), np.asarray(model.affinity), np.asarray(model.alpha)
    links = np.array(list(itertools.product((0, 1), repeat=len(pairs))))
    fit = links @ np.array([ell[i, j] for i, j in pairs])
    log_joint = []
    for z in itertools.product(range(len(alpha)), repeat=ell.shape[0]):
        p = np.array([B[z[i], z[j]] for i, j in pairs])
        log_z = np.log(alpha[list(z)] / alpha.sum()).sum()  # one z per pi: the mixture integrates to its mean
        log_joint.append(log_z + fit + links @ np.log(p) + (1 - links) @ np.log1p(-p))
    log_joint = special.logsumexp(log_joint, axis=0)
    evidence = special.logsumexp(log_joint)
    return evidence, np.exp(log_joint - evidence) @ links


def test_two_clients_by_hand():
    ell, known = jnp.array([[7.0, -1], [-0.5, 7]]), jnp.ones((2, 2), bool)
    Omega, B = jnp.array([[0.9, 0.1], [0.2, 0.8]]), jnp.array([[0.8, 0.2], [0.2, 0.8]])
    model = sbm.update_weights(SBM(jnp.zeros((2, 2)), Omega, Omega, B, jnp.ones(2)), ell, known)
    np.testing.assert_allclose(model.weights, [[0, 0.1590355945], [0.2376836040, 0]], atol=1e-10)
    model = sbm.update_gamma(model)
    np.testing.assert_array_equal(model.gamma, Omega + 1)
    moved = sbm.update_memberships(model, ell, known, "sequential")
    np.testing.assert_allclose(moved.memberships[0], [0.85613206, 0.14386794], atol=1e-8)
    learned = sbm.update_affinity(model, ell, known, pseudo_counts=0.0)
    np.testing.assert_allclose(learned.affinity, [[0.1983596, 0.16116122], [0.23555798, 0.1983596]], atol=1e-7)


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_elbo_equals_its_enumeration(share):
    for seed in range(3):
        model, ell, known = random_model(seed, clients=4, share=share)
        np.testing.assert_allclose(elbo(model, ell, known), enumerated_elbo(model, ell, known), atol=1e-12)


def test_printed_self_pairs_are_not_the_expectation():
    """(39) takes sum_gh Omega_ig Omega_ih log B_gh for the self pair; z_i is one-hot, so it is sum_g."""
    model, _, _ = random_model(1, clients=4)
    Omega, on = model.memberships, jnp.log(model.affinity)
    printed = jnp.einsum("ig,gh,ih->", Omega, on, Omega)
    exact = sum(
        np.prod([Omega[i, g] for i, g in enumerate(z)]) * sum(on[g, g] for g in z)
        for z in itertools.product(range(2), repeat=4)
    )
    np.testing.assert_allclose(exact, (Omega * jnp.diagonal(on)).sum(), atol=1e-12)
    assert abs(printed - exact) > 0.05


@pytest.mark.soak
@pytest.mark.parametrize(("clients", "share"), [(4, 1.0), (4, 0.7), (5, 0.4)])
def test_elbo_is_below_the_log_evidence(clients, share):
    for seed in range(3):
        model, ell, known = random_model(seed, clients, share=share)
        evidence, _ = exact_posterior(model, ell, known)
        for other in range(10):  # for any q
            q = random_model(100 + other, clients, share=share)[0]
            q = q._replace(weights=q.weights * known, affinity=model.affinity, alpha=model.alpha)
            assert elbo(q, ell, known) <= evidence
        for seed in range(2):
            fixed = {"prior": model.affinity, "alpha": model.alpha, "learn_affinity": False, "begin": "dirichlet"}
            fitted = infer(ell, known, 2, jax.random.key(seed), 30, **fixed)
            assert elbo(fitted, ell, known) <= evidence


@pytest.mark.soak
def test_weights_are_near_the_exact_posterior():
    """Five clients in two groups with clear evidence: all graphs over 12 pairs and all 2^5 blockings enumerated."""
    group = np.array([0, 0, 0, 1, 1])
    same = group[:, None] == group
    ell = jnp.asarray(np.where(same, 1.5, -2.5) + np.random.default_rng(0).normal(0, 0.3, (5, 5)))
    known = jnp.asarray(np.triu(np.ones((5, 5), bool), 1)).at[1, 0].set(True).at[4, 0].set(True)
    fitted = infer(ell, known, 2, jax.random.key(0), 30, learn_affinity=False)
    evidence, marginals = exact_posterior(fitted, ell, known)
    w = [fitted.weights[i, j] for i, j in pair_list(ell, known)]
    np.testing.assert_allclose(w, marginals, atol=0.05)
    gap = evidence - elbo(fitted, ell, known)
    assert 0 <= gap < 2 * np.log(2) + 5 * 0.1  # q has one of two equivalent labellings, and factorises pi and z


def maximised(objective, size):
    """Return SciPy's maximiser over all reals, started at zero."""
    slope = jax.jit(jax.value_and_grad(lambda x: -objective(x)))
    return jnp.asarray(optimize.minimize(slope, np.zeros(size), jac=True, method="BFGS", options={"gtol": 1e-9}).x)


@pytest.mark.parametrize("temperature", [pytest.param(1.0, marks=pytest.mark.soak), 2.0])
def test_each_update_is_the_maximiser_that_scipy_finds(temperature):
    model, ell, known = random_model(3, clients=4, blocks=3, share=0.8)
    pairs = np.asarray(sbm.observed(ell, known))

    def with_weights(x):
        return model._replace(weights=jnp.zeros((4, 4)).at[pairs].set(jax.nn.sigmoid(x)))

    def with_gamma(x):
        return model._replace(gamma=jnp.exp(x.reshape(4, 3)))

    def with_row(x):
        return model._replace(memberships=model.memberships.at[0].set(jax.nn.softmax(jnp.append(x, 0.0))))

    def with_affinity(x):
        return model._replace(affinity=jax.nn.sigmoid(x.reshape(3, 3)))

    def best(changed, size, pseudo_counts=0.0):
        return changed(maximised(lambda x: elbo(changed(x), ell, known, temperature, pseudo_counts), size))

    weights = sbm.update_weights(model, ell, known, temperature).weights
    np.testing.assert_allclose(weights, best(with_weights, pairs.sum()).weights, atol=1e-7)
    np.testing.assert_allclose(sbm.update_gamma(model).gamma, best(with_gamma, 12).gamma, atol=1e-6)
    memberships = sbm.update_memberships(model, ell, known, "sequential").memberships
    np.testing.assert_allclose(memberships[0], best(with_row, 2).memberships[0], atol=1e-7)
    for counts in (0.0, 20.0):
        affinity = sbm.update_affinity(model, ell, known, counts).affinity
        np.testing.assert_allclose(affinity, best(with_affinity, 9, counts).affinity, atol=1e-6)


@functools.cache
def climb(update_memberships):
    """Return a program that computes the gain in ELBO of each update, from many starts `[starts, sweeps, 4]`."""

    def run(model, ell, known, temperature, measured_at, pseudo_counts):
        def bound(model):
            return elbo(model, ell, known, measured_at, pseudo_counts)

        def sweep(model, _):
            one = sbm.update_weights(model, ell, known, temperature)
            two = update_memberships(one, ell, known)
            three = sbm.update_gamma(two)
            four = sbm.update_affinity(three, ell, known, pseudo_counts)
            steps = jax.tree.map(lambda *a: jnp.stack(a), model, one, two, three, four)
            return four, jnp.diff(jax.vmap(bound)(steps))

        return jax.lax.scan(sweep, model, length=12)[1]

    return jax.jit(jax.vmap(run, (0, 0, 0, None, None, None)))


def increments(update_memberships, temperature=1.0, pseudo_counts=0.0, share=1.0, measured_at=None):
    cases = [random_model(seed, clients=8, blocks=3, share=share) for seed in range(40)]
    stacked = jax.tree.map(lambda *a: jnp.stack(a), *cases)
    measured_at = temperature if measured_at is None else measured_at
    return np.asarray(climb(update_memberships)(*stacked, temperature, measured_at, pseudo_counts))


UPDATES = {how: functools.partial(sbm.update_memberships, how=how) for how in ("sequential", "parallel")}


@pytest.mark.parametrize("how", UPDATES)
@pytest.mark.parametrize(("pseudo_counts", "share"), [(0.0, 1.0), (20.0, 0.6)])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_no_update_decreases_the_elbo(how, temperature, pseudo_counts, share):
    added = increments(UPDATES[how], temperature, pseudo_counts, share)
    assert added.min() > -1e-11
    assert added.max() > 1  # it did move


def test_tempered_weights_may_decrease_the_plain_elbo():
    added = increments(UPDATES["parallel"], temperature=2.0, measured_at=1.0)
    assert added[..., 0].min() < -1e-2


def membership_logits(model, pairs):
    """Return the right-hand side of (18) for all clients at once, over the given pairs."""
    w, gaps, Omega = model.weights, pairs - model.weights, model.memberships
    on, off = jnp.log(model.affinity), jnp.log1p(-model.affinity)
    out = w @ Omega @ on.T + w.T @ Omega @ on + gaps @ Omega @ off.T + gaps.T @ Omega @ off
    return out + jax.scipy.special.digamma(model.gamma) - jax.scipy.special.digamma(model.gamma.sum(1, keepdims=True))


def printed_memberships(model, ell, known):
    """Update by (16) and (18) as printed: with self pairs, in the links and in the sum."""
    Omega = model.memberships
    own = jnp.einsum("ig,gh,ih->i", Omega, logit_of(model.affinity), Omega) + jnp.diagonal(ell)
    printed = model._replace(weights=model.weights + jnp.diag(jax.nn.sigmoid(own)))
    pairs = jnp.ones(ell.shape)

    def visit(i, Omega):
        row = membership_logits(printed._replace(memberships=Omega), pairs)[i]
        return Omega.at[i].set(jax.nn.softmax(row))

    return model._replace(memberships=jax.lax.fori_loop(0, ell.shape[0], visit, Omega))


def logit_of(B):
    return jnp.log(B) - jnp.log1p(-B)


def jacobi_memberships(model, ell, known, damping=0.0):
    """Update by (18) for all clients in parallel (Algorithm 1)."""
    logits = membership_logits(model, sbm.observed(ell, known).astype(ell.dtype))
    mixed = damping * jnp.log(model.memberships) + (1 - damping) * logits
    return model._replace(memberships=jax.nn.softmax(mixed))


@pytest.mark.parametrize("wrong", [printed_memberships, jacobi_memberships])
def test_printed_updates_decrease_the_elbo(wrong):
    """With self pairs, and in parallel without damping."""
    added = increments(wrong, pseudo_counts=1e6)  # with these B stays fixed; its updates would reduce the effect
    assert added[..., 1].min() < -1e-3
    assert np.delete(added, 1, axis=2).min() > -1e-8  # the other updates are not to blame


@pytest.mark.soak
def test_parallel_update_is_the_damped_formula_where_that_ascends_and_shorter_where_it_does_not():
    losses, known, *_ = planted()
    model = start(1 - losses, known, 4, jax.random.key(0))
    damped = jacobi_memberships(model, 1 - losses, known, damping=0.5).memberships
    np.testing.assert_allclose(parallel(model, 1 - losses, known).memberships, damped, atol=1e-12)
    # Blocks that link to the other block only: updating all clients at once swaps them forever.
    ell, known = jnp.full((12, 12), 3.0), jnp.ones((12, 12), bool)
    Omega = jnp.tile(jnp.array([0.6, 0.4]), (12, 1))
    B = jnp.array([[0.01, 0.99], [0.99, 0.01]])
    model = sbm.update_weights(SBM(jnp.zeros((12, 12)), Omega, Omega + 1, B, jnp.ones(2)), ell, known)
    before = elbo(model, ell, known)
    assert elbo(jacobi_memberships(model, ell, known, damping=0.5), ell, known) < before - 1
    assert elbo(parallel(model, ell, known), ell, known) > before
    direction = jacobi_memberships(model, ell, known, damping=0.5).memberships - Omega
    tried = [
        elbo(model._replace(memberships=Omega + step * direction), ell, known) for step in (*0.5 ** np.arange(7), 0)
    ]
    assert 0 < np.argmax(tried) < 7
    np.testing.assert_allclose(elbo(parallel(model, ell, known), ell, known), max(tried), atol=1e-10)


@pytest.mark.soak
def test_blocks_that_help_the_other_one_are_found_by_a_prior_that_expects_them():
    """Two blocks of ten; evidence +1 for the other block's clients and -1 for the own one's, with noise."""
    block = np.arange(20) % 2
    across = block[:, None] != block
    pairs = ~np.eye(20, dtype=bool)
    for seed in range(3):
        noise = 0.5 * np.random.default_rng(seed).standard_normal((20, 20))
        ell = jnp.asarray(np.where(across, 1.0, -1.0) + noise)
        arguments = (ell, jnp.ones((20, 20), bool), 5, jax.random.key(seed))
        found = infer(*arguments, prior=(0.2, 0.8))
        weights = np.asarray(found.weights)
        assert weights[pairs & across].min() > 0.8
        assert weights[pairs & ~across].max() < 0.2
        members = np.asarray(found.memberships).argmax(1)
        assert (members[:, None] == members)[across].sum() == 0  # no block has clients of both


@pytest.mark.soak
def test_measured_table_of_weights():
    """4 groups of 5. With every client in its block the fixed points are those of a scalar equation."""
    losses, known, same, different = planted()

    def program(blocks, sweeps, **options):
        def once(key, baseline, pseudo_counts):
            return sbm.infer(baseline - losses, known, blocks, key, sweeps, pseudo_counts=pseudo_counts, **options)

        run = jax.jit(jax.vmap(once, (0, None, None)))

        def means(baseline, pseudo_counts=20.0):
            weights = np.asarray(run(jax.random.split(jax.random.key(0), 8), baseline, pseudo_counts).weights)
            return weights[:, same].mean(), weights[:, different].mean()

        return means

    fixed = program(4, 10, learn_affinity=False)
    for baseline, measured in ((0.0, (0.743, 0.012)), (1.0, (0.887, 0.032))):
        fitted = fixed(baseline)
        exact = sigmoid(baseline - IN + logit(0.8)), sigmoid(baseline - OUT + logit(0.2))
        np.testing.assert_allclose(fitted, exact, atol=1e-3)
        np.testing.assert_allclose(fitted, measured, atol=5e-3)

    two_blocks = program(2, 10, learn_affinity=False, begin="dirichlet", how="sequential")(0.0)
    np.testing.assert_allclose(two_blocks, (0.60, 0.072), atol=0.1)
    assert two_blocks[0] < 0.74
    assert two_blocks[1] > 0.04  # two blocks cannot separate four groups

    learned = program(4, 30)
    assert max(learned(0.0, 0.0)) < 1e-2  # no baseline: collapse
    np.testing.assert_allclose(learned(1.0, 0.0), (1, 0), atol=1e-3)
    random_start = program(4, 30, begin="dirichlet", how="sequential")(1.0, 0.0)
    assert 0.4 < random_start[0] < 0.95  # some starts merge two groups
    assert random_start[1] < 0.01

    def fixed_point(evidence, prior, pairs):  # B = (pairs w + 20 prior) / (pairs + 20), w = sigmoid(evidence + logit B)
        def residual(w):
            return sigmoid(evidence + logit((pairs * w + 20 * prior) / (pairs + 20))) - w

        return optimize.brentq(residual, 1e-6, 1 - 1e-6)

    regularised = learned(1.0)
    exact = fixed_point(1 - IN, 0.8, 5 * 4), fixed_point(1 - OUT, 0.2, 5 * 5)
    np.testing.assert_allclose(regularised, exact, atol=1e-3)
    np.testing.assert_allclose(regularised, (0.925, 0.014), atol=5e-3)


def test_affinity_collapses_without_a_baseline():
    """B <- mean of sigmoid(ELL + logit B) with ELL < 0 shrinks in every sweep, until it is clipped."""
    losses, known, *_ = planted()
    model = start(-losses, known, 4, jax.random.key(0))
    step = jax.jit(lambda model: sbm.sweep(model, -losses, known, pseudo_counts=0.0))
    largest = [0.8]
    for _ in range(60):
        model = step(model)
        largest.append(float(model.affinity.max()))
    assert all(b < a or b == pytest.approx(1e-4) for a, b in itertools.pairwise(largest))
    assert largest[-1] == pytest.approx(1e-4)
    assert model.weights.max() < 1e-3


def test_elbo_grows_with_the_scale_of_alpha():
    """Without pairs only pi and z remain; the scale of alpha is not identifiable, and the ELBO tends to 0."""
    ell, none = jnp.zeros((6, 6)), jnp.zeros((6, 6), bool)
    values = []
    for scale in (1.0, 3.0, 10.0, 100.0, 1e5):
        model = start(ell, none, 3, jax.random.key(0), how="dirichlet", alpha=scale)
        model = update_gamma(model._replace(memberships=jnp.full((6, 3), 1 / 3)))
        values.append(float(elbo(model, ell, none)))
    assert all(a < b < 0 for a, b in itertools.pairwise(values))
    assert values[-1] > -1e-3


def test_baselines_by_hand():
    losses = jnp.array([[0.1, 2, 3], [1, 0.2, 5], [4, 6, 0.3]])
    known = jnp.ones((3, 3), bool).at[1, 2].set(False)
    by_classes = centre(losses, known, "classes", jnp.log(jnp.array([2.0, 4, 8])))
    np.testing.assert_allclose(by_classes[2], [np.log(2) - 4, np.log(4) - 6, np.log(8) - 0.3])
    by_median = centre(losses, known, "median")  # of columns (1, 4), (2, 6), (3): the diagonal and [1, 2] not
    np.testing.assert_allclose(by_median, [[2.4, 2, 0], [1.5, 3.8, -np.inf], [-1.5, -2, 2.7]])
    by_owner = centre(losses, known, "own", margin=0.5)
    np.testing.assert_allclose(by_owner, [[0.5, -1.3, -2.2], [-0.4, 0.5, -np.inf], [-3.4, -5.3, 0.5]])
    given_owner = centre(losses, known, "own", margin=0.5, own_loss=jnp.array([1.1, 1.2, 1.3]))
    np.testing.assert_allclose(given_owner[0], by_owner[0] + 1)


def test_a_loss_that_is_not_finite_is_unknown():
    losses, known, *_ = planted()
    losses = losses + jnp.asarray(np.random.default_rng(0).normal(0, 0.1, losses.shape))
    broken = losses.at[3].set(jnp.nan).at[7, 2].set(jnp.inf).at[2, 7].set(-jnp.inf)
    fewer = known.at[3].set(False).at[7, 2].set(False).at[2, 7].set(False)
    key = jax.random.key(0)
    for rule in ("median", "own"):
        fitted = infer(centre(broken, known, rule, margin=1.0), known, 4, key)
        expected = infer(centre(losses, fewer, rule, margin=1.0), fewer, 4, key)
        if rule == "own":  # client 3's own loss, the baseline of its column, is missing
            fewer = fewer.at[:, 3].set(False)
            expected = infer(centre(losses, fewer, rule, margin=1.0), fewer, 4, key)
            np.testing.assert_array_equal(fitted.weights[:, 3], 0)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), fitted, expected)
        np.testing.assert_array_equal(fitted.weights[3], 0)
        assert all(np.isfinite(leaf).all() for leaf in fitted)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([np.nan, np.inf, -np.inf, 0.0, 1e6, -1e300]))
def test_unobserved_pairs_do_not_matter(seed, value):
    with jax.enable_x64(True):
        model, ell, known = random_model(seed, clients=6, share=0.5)
        filled = jnp.where(sbm.observed(ell, known), ell, value)
        one, other = sweep_twice(model, ell, known), sweep_twice(model, filled, known)
        jax.tree.map(np.testing.assert_array_equal, one, other)
        assert elbo(one, ell, known) == elbo(one, filled, known)


@jax.jit
def sweep_twice(model, ell, known):
    return sbm.sweep(sbm.sweep(model, ell, known), ell, known, how="sequential")


@pytest.mark.soak
def test_two_sets_without_common_pairs_are_independent():
    """Each set is updated as if alone, but B is pooled over both."""
    (one, ell_one, known_one), (two, ell_two, known_two) = (random_model(s, clients=4, share=0.8) for s in (1, 2))
    two = two._replace(affinity=one.affinity, alpha=one.alpha)

    def join(a, b, fill):
        return jnp.full((8, 8), fill).at[:4, :4].set(a).at[4:, 4:].set(b)

    rows = {name: jnp.concatenate([getattr(one, name), getattr(two, name)]) for name in ("memberships", "gamma")}
    both = one._replace(weights=join(one.weights, two.weights, 0.0), **rows)
    ell, known = join(ell_one, ell_two, 50.0), join(known_one, known_two, False)
    parts = [(one, ell_one, known_one), (two, ell_two, known_two)]
    np.testing.assert_allclose(elbo(both, ell, known), sum(elbo(*part) for part in parts), atol=1e-12)
    for update in (
        sbm.update_weights,
        functools.partial(sbm.update_memberships, how="sequential"),
        lambda model, *_: sbm.update_gamma(model),
    ):
        whole, (left, right) = update(both, ell, known), [update(*part) for part in parts]
        np.testing.assert_allclose(whole.weights, join(left.weights, right.weights, 0.0), atol=1e-14)
        for name in rows:
            expected = np.concatenate([getattr(left, name), getattr(right, name)])
            np.testing.assert_allclose(getattr(whole, name), expected, atol=1e-14)
    # B is a ratio of sums: the mean of the ratios of both sets, weighted by their pairs.
    counts = [m.memberships.T @ sbm.observed(e, k) @ m.memberships for m, e, k in parts]
    shares = [sbm.update_affinity(*part, pseudo_counts=0.0).affinity for part in parts]
    pooled = sum(c * b for c, b in zip(counts, shares, strict=True)) / sum(counts)
    np.testing.assert_allclose(sbm.update_affinity(both, ell, known, pseudo_counts=0.0).affinity, pooled, atol=1e-12)


def test_blocks_without_pairs_keep_their_affinity():
    model, ell, _ = random_model(0)
    none = jnp.zeros(ell.shape, bool)
    np.testing.assert_array_equal(sbm.update_affinity(model, ell, none, pseudo_counts=0.0).affinity, model.affinity)
    affinity = sbm.update_affinity(model, ell, none, pseudo_counts=5.0, prior=(0.7, 0.1)).affinity
    np.testing.assert_allclose(affinity, [[0.7, 0.1], [0.1, 0.7]])


def test_permuting_clients_and_blocks_permutes_the_result():
    model, ell, known = random_model(5, clients=7, blocks=3, share=0.8)
    order, names = np.random.default_rng(0).permutation(7), np.array([2, 0, 1])
    both, named = np.ix_(order, order), np.ix_(names, names)
    rows = model.memberships[order][:, names], model.gamma[order][:, names]
    moved = SBM(model.weights[both], *rows, model.affinity[named], model.alpha[names])
    sweep = jax.jit(sbm.sweep)
    plain, after = sweep(model, ell, known), sweep(moved, ell[both], known[both])
    np.testing.assert_allclose(after.weights, plain.weights[both], atol=1e-12)
    np.testing.assert_allclose(after.memberships, plain.memberships[order][:, names], atol=1e-12)
    np.testing.assert_allclose(after.affinity, plain.affinity[named], atol=1e-12)


@pytest.mark.parametrize(
    ("groups", "size", "blocks"),
    [(4, 5, 9), (1, 6, 3), *(pytest.param(*case, marks=pytest.mark.soak) for case in ((4, 5, 4), (6, 2, 6)))],
)
def test_kmeans_start_finds_the_groups_and_their_number(groups, size, blocks):
    losses, known, *_ = planted(groups, size)
    noisy = losses + jnp.asarray(np.random.default_rng(1).normal(0, 0.2, losses.shape))
    model = start(1 - noisy, known, blocks, jax.random.key(0))
    labels = np.asarray(model.memberships.argmax(1)).reshape(groups, size)
    assert (labels == labels[:, :1]).all()
    assert len(np.unique(labels)) == groups
    np.testing.assert_allclose(model.memberships.sum(1), 1)


def test_start_fills_unobserved_pairs():
    losses, known, *_ = planted()
    random = np.random.default_rng(2)
    known = known & jnp.asarray(random.random(known.shape) < 0.5)
    model = start(
        centre(jnp.where(known, losses, jnp.nan), known, "classes", jnp.ones(20)), known, 4, jax.random.key(0)
    )
    labels = np.asarray(model.memberships.argmax(1)).reshape(4, 5)
    assert (labels == labels[:, :1]).all()
    assert len(np.unique(labels)) == 4


def test_random_start():
    losses, known, *_ = planted()
    ell, key = 1 - losses, jax.random.key(3)
    random = start(ell, known, 4, key, how="dirichlet", alpha=2.0, affinity=(0.7, 0.1))
    np.testing.assert_allclose(random.memberships.sum(1), 1)
    assert np.std(random.memberships) > 0.1
    np.testing.assert_allclose(random.gamma, random.memberships + 2, rtol=1e-14)
    np.testing.assert_array_equal(jnp.diagonal(random.affinity), 0.7)


def test_float32_survives_extreme_losses_and_keeps_its_type():
    losses, known, same, different = planted()
    for extreme in (1e6, 1e30):
        huge = jnp.where(jnp.asarray(different), extreme, losses).astype(jnp.float32)
        ell = centre(huge, known, "own", margin=0.5)
        model = infer(ell, known, 4, jax.random.key(0))
        assert all(np.isfinite(leaf).all() and leaf.dtype == jnp.float32 for leaf in model)
        assert np.asarray(model.weights)[same].min() > 0.8
        assert np.asarray(model.weights)[different].max() == 0
        bound = elbo(model, ell, known)
        assert np.isfinite(bound)
        assert bound.dtype == jnp.float32
        moved = jax.jit(sbm.update_memberships, static_argnames="how")(model, ell, known, how="sequential").memberships
        np.testing.assert_allclose(moved, model.memberships, atol=1e-3)
        assert moved.dtype == jnp.float32


def test_one_diverged_client_does_not_affect_the_others():
    losses, known, same, _ = planted()
    broken = losses.at[4].set(1e6).astype(jnp.float32)
    model = infer(centre(broken, known, "median"), known, 4, jax.random.key(0))
    assert all(np.isfinite(leaf).all() for leaf in model)
    others = np.arange(20) != 4
    assert np.asarray(model.weights)[4].max() < 1e-3
    assert np.asarray(model.weights)[same & others[:, None] & others].min() > 0.5


@pytest.mark.parametrize("clients", [1, 3])
def test_clients_without_evidence_stay_alone(clients):
    nothing = jnp.zeros((clients, clients), bool)
    losses = jnp.full((clients, clients), jnp.nan)
    model = infer(centre(losses, nothing, "median"), nothing, 1, jax.random.key(0))
    np.testing.assert_array_equal(model.weights, 0)
    assert all(np.isfinite(leaf).all() for leaf in model)


def test_a_new_temperature_does_not_recompile():
    losses, known, same, different = planted()
    traces = []

    @jax.jit
    def run(ell, known, key, temperature, damping, pseudo_counts):
        traces.append(1)
        return sbm.infer(ell, known, 4, key, 3, temperature, damping=damping, pseudo_counts=pseudo_counts).weights

    sharp = run(1 - losses, known, jax.random.key(0), 0.5, 0.5, 20.0)
    soft = run(1 - losses, known, jax.random.key(1), 5.0, 0.3, 10.0)
    assert len(traces) == 1
    assert sharp[same].mean() - sharp[different].mean() > soft[same].mean() - soft[different].mean() + 0.2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ell, known, key: sbm.infer(ell, known, 6, key), "blocks must be between 1 and the number of clients"),
        (lambda ell, known, key: sbm.start(ell, known, 0, key), "blocks must be between 1"),
        (lambda ell, known, key: sbm.infer(ell, known, 2, key, temperature=0.0), "temperature must be greater than 0"),
        (lambda ell, known, key: sbm.start(ell, known, 2, key, how="warmer"), "how must be one of kmeans"),
        (
            lambda ell, known, key: sbm.start(ell, known, 2, key, affinity=(1.0, 0.2)),
            "affinity must be above 0 and below 1",
        ),
        (lambda ell, known, key: sbm.infer(ell, known, 2, key, how="both"), "how must be one of sequential"),
        (lambda ell, known, key: centre(ell, known, "classes"), "log_classes is needed"),
        (lambda ell, known, key: centre(ell, known, "mean"), "rule must be one of classes"),
    ],
)
def test_bad_input_is_one_sentence(call, message):
    with pytest.raises(CoterieError, match=message):
        call(jnp.zeros((5, 5)), jnp.ones((5, 5), bool), jax.random.key(0))
