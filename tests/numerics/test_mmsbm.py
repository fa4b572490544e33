"""The mixed-membership block model against enumeration, SciPy and finite differences."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special, stats

from coterie.errors import CoterieError
from coterie.numerics.blocks import mmsbm, sbm
from coterie.numerics.blocks.mmsbm import MMSBM
from support.block_cases import planted, random_evidence, simplex

infer = jax.jit(mmsbm.infer_mm, static_argnames=("blocks", "sweeps", "learn_affinity", "learn_alpha", "begin"))
elbo = jax.jit(mmsbm.elbo_mm)


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def random_model(seed, clients=3, blocks=2, share=1.0):
    random = np.random.default_rng(seed)
    ell, known = random_evidence(random, clients, share)
    pairs = sbm.observed(ell, known)
    model = MMSBM(
        pairs * random.random((clients, clients)),
        pairs[..., None] * simplex(random, clients, clients, blocks),
        pairs[..., None] * simplex(random, clients, clients, blocks),
        jnp.asarray(random.uniform(0.3, 3, (clients, blocks))),
        jnp.asarray(random.uniform(0.05, 0.95, (blocks, blocks))),
        jnp.asarray(random.uniform(0.5, 2, blocks)),
    )
    return model, ell, known


def pair_list(ell, known):
    return [(i, j) for i, j in np.argwhere(np.asarray(known)) if i != j and np.isfinite(ell[i, j])]


def enumerated_elbo(model, ell, known):
    """Return E_q[log p - log q]: all roles and links of all pairs, with SciPy's Dirichlet."""
    w, F, R, gamma, B, alpha = (np.asarray(a) for a in model)
    expected = special.digamma(gamma) - special.digamma(gamma.sum(1, keepdims=True))
    total = 0.0
    for i, j in pair_list(ell, known):
        for g, h, y in itertools.product(range(len(alpha)), range(len(alpha)), (0, 1)):
            q = F[i, j, g] * R[i, j, h] * (w[i, j] if y else 1 - w[i, j])
            log_p = y * ell[i, j] + np.log(B[g, h] if y else 1 - B[g, h]) + expected[i, g] + expected[j, h]
            total += q * (log_p - np.log(q))
    for row, mean in zip(gamma, expected, strict=True):
        prior = special.gammaln(alpha.sum()) - special.gammaln(alpha).sum() + ((alpha - 1) * mean).sum()
        total += prior + stats.dirichlet(row).entropy()
    return float(total)


def log_evidence(model, ell, known):
    """Return log P(D), a sum over all roles of their probability (Polya's urn: pi integrated out) times likelihood."""
    pairs, B, alpha = pair_list(ell, known), np.asarray(model.affinity), np.asarray(model.alpha)
    blocks, terms = len(alpha), []
    for roles in itertools.product(range(blocks), repeat=2 * len(pairs)):
        counts, fit = np.zeros((ell.shape[0], blocks)), 0.0
        for (i, j), g, h in zip(pairs, roles[::2], roles[1::2], strict=True):
            counts[i, g] += 1
            counts[j, h] += 1
            fit += np.log(B[g, h] * np.exp(ell[i, j]) + 1 - B[g, h])
        urn = special.gammaln(alpha.sum()) - special.gammaln(alpha.sum() + counts.sum(1))
        urn = urn + (special.gammaln(alpha + counts) - special.gammaln(alpha)).sum(1)
        terms.append(fit + urn.sum())
    return special.logsumexp(terms)


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_elbo_equals_its_enumeration(share):
    for seed in range(3):
        model, ell, known = random_model(seed, blocks=3, share=share)
        np.testing.assert_allclose(elbo(model, ell, known), enumerated_elbo(model, ell, known), atol=1e-12)


def test_elbo_is_below_the_log_evidence():
    for seed in range(2):
        model, ell, known = random_model(seed)
        known = known.at[0, 2].set(False)
        evidence = log_evidence(model, ell, known)
        for other in range(10):
            q = random_model(50 + other)[0]._replace(affinity=model.affinity, alpha=model.alpha)
            pairs = sbm.observed(ell, known)
            q = q._replace(sender=q.sender * pairs[..., None], receiver=q.receiver * pairs[..., None])
            assert elbo(q, ell, known) <= evidence
        fixed = {"learn_affinity": False, "learn_alpha": False, "begin": "dirichlet"}
        fitted = infer(ell, known, 2, jax.random.key(0), 30, prior=model.affinity, alpha=model.alpha, **fixed)
        assert evidence - 3 < elbo(fitted, ell, known) <= evidence


def updates(model, ell, known, temperature, pseudo_counts):
    """Yield the model after each update of a sweep."""
    yield (model := mmsbm.update_weights_mm(model, ell, known, temperature))
    yield (model := mmsbm.update_sender(model, ell, known))
    yield (model := mmsbm.update_receiver(model, ell, known))
    yield (model := mmsbm.update_gamma_mm(model))
    yield (model := mmsbm.update_affinity_mm(model, pseudo_counts))
    yield mmsbm.update_alpha(model)


@jax.jit
@functools.partial(jax.vmap, in_axes=(0, 0, 0, None, None))
def climb(model, ell, known, temperature, pseudo_counts):
    def sweep(model, _):
        models = [model, *updates(model, ell, known, temperature, pseudo_counts)]
        stacked = jax.tree.map(lambda *a: jnp.stack(a), *models)
        bound = jax.vmap(lambda m: mmsbm.elbo_mm(m, ell, known, temperature, pseudo_counts))
        return models[-1], jnp.diff(bound(stacked))

    return jax.lax.scan(sweep, model, length=12)


@pytest.mark.parametrize(("temperature", "pseudo_counts", "share"), [(1.0, 0.0, 1.0), (2.0, 20.0, 0.6)])
def test_no_update_decreases_the_elbo(temperature, pseudo_counts, share):
    """With learned alpha, without and with the prior of B."""
    cases = [random_model(seed, clients=6, blocks=3, share=share) for seed in range(20)]
    model, added = climb(*jax.tree.map(lambda *a: jnp.stack(a), *cases), temperature, pseudo_counts)
    assert added.min() > -1e-11
    assert added.max(axis=(0, 1)).min() > 1e-3  # each of the six increased it
    assert (model.alpha > 0).all()


def maximised(objective, size):
    """Return SciPy's maximiser over all reals, started at zero."""
    slope = jax.jit(jax.value_and_grad(lambda x: -objective(x)))
    return jnp.asarray(optimize.minimize(slope, np.zeros(size), jac=True, method="BFGS", options={"gtol": 1e-9}).x)


@pytest.mark.soak
def test_each_update_is_the_maximiser_that_scipy_finds():
    model, ell, known = random_model(4, blocks=3, share=0.8)
    pairs = np.asarray(sbm.observed(ell, known))
    count = pairs.sum()

    def roles(x):
        return jnp.zeros((3, 3, 3)).at[pairs].set(jax.nn.softmax(jnp.pad(x.reshape(count, 2), ((0, 0), (0, 1)))))

    changes = {
        "weights": (lambda x: jnp.zeros((3, 3)).at[pairs].set(jax.nn.sigmoid(x)), count),
        "sender": (roles, 2 * count),
        "receiver": (roles, 2 * count),
        "gamma": (lambda x: jnp.exp(x.reshape(3, 3)), 9),
        "affinity": (lambda x: jax.nn.sigmoid(x.reshape(3, 3)), 9),
        "alpha": (jnp.exp, 3),
    }
    old = model
    for (name, (change, size)), new in zip(changes.items(), updates(model, ell, known, 2.0, 5.0), strict=True):

        def objective(x, name=name, change=change, old=old):
            return mmsbm.elbo_mm(old._replace(**{name: change(x)}), ell, known, 2.0, 5.0)

        best = change(maximised(objective, size))
        np.testing.assert_allclose(getattr(new, name), best, rtol=1e-5, atol=1e-6, err_msg=name)
        old = new


def printed_alpha_gradient(gamma, alpha):
    """(21), (48), (77) as printed, with K sum_g psi(alpha_g) in place of K psi(alpha_g)."""
    digamma, clients = jax.scipy.special.digamma, gamma.shape[0]
    expected = (digamma(gamma) - digamma(gamma.sum(1, keepdims=True))).sum(0)
    return expected - clients * digamma(alpha).sum() + clients * digamma(alpha.sum())


def test_gradient_of_alpha():
    """By hand, against finite differences, and not as printed in (21), (48) and (77)."""
    gamma, alpha = jnp.array([[1.5, 1.5]]), jnp.ones(2)
    np.testing.assert_allclose(mmsbm.alpha_gradient(gamma, alpha), 0.11370564, atol=1e-8)
    np.testing.assert_allclose(printed_alpha_gradient(gamma, alpha), 0.69092130, atol=1e-8)
    model, ell, known = random_model(2, blocks=3)

    def bound(alpha):
        return float(elbo(model._replace(alpha=alpha), ell, known))

    differences = [(bound(model.alpha + 1e-5 * e) - bound(model.alpha - 1e-5 * e)) / 2e-5 for e in jnp.eye(3)]
    np.testing.assert_allclose(mmsbm.alpha_gradient(model.gamma, model.alpha), differences, atol=1e-8)
    assert np.abs(printed_alpha_gradient(model.gamma, model.alpha) - np.array(differences)).max() > 0.03


@pytest.mark.parametrize("true", [(1.0, 1.0, 1.0), (4.0, 1.0, 0.8), (30.0, 60.0, 10.0)])
def test_alpha_is_recovered_from_sharp_mixtures(true):
    """A large gamma is a known pi, and alpha is then the maximum likelihood estimate of a Dirichlet."""
    draws = np.random.default_rng(0).dirichlet(true, 4000)
    model = random_model(0, blocks=3)[0]._replace(gamma=jnp.asarray(1e6 * draws), alpha=jnp.ones(3))
    fitted = jax.jit(lambda m: mmsbm.update_alpha(m, newton_steps=15))(model)
    np.testing.assert_allclose(mmsbm.alpha_gradient(fitted.gamma, fitted.alpha) / 4000, 0, atol=1e-8)
    np.testing.assert_allclose(fitted.alpha, true, rtol=0.15)


def test_a_single_block_has_nothing_to_learn():
    losses, known, *_ = planted(2, 3)
    fitted = infer(1 - losses, known, 1, jax.random.key(0))
    assert all(np.isfinite(leaf).all() for leaf in fitted)
    np.testing.assert_allclose(fitted.alpha, 1, atol=1e-6)
    np.testing.assert_allclose(fitted.sender[..., 0], 1 - np.eye(6))


@pytest.mark.soak
def test_groups_are_found_and_small_alpha_makes_clients_pure():
    losses, known, same, different = planted()
    fitted = infer(1 - losses, known, 4, jax.random.key(0))
    labels = np.asarray(fitted.gamma.argmax(1)).reshape(4, 5)
    assert (labels == labels[:, :1]).all()
    assert len(np.unique(labels)) == 4
    assert fitted.weights[same].min() > 0.9
    assert fitted.weights[different].max() < 0.03
    assert fitted.alpha.max() < 0.2
    np.testing.assert_allclose(fitted.sender.sum(-1), 1 - np.eye(20), atol=1e-12)


@pytest.mark.soak
def test_a_client_may_belong_to_two_groups():
    """Client 0 fits two groups of five equally, and has both roles; in `sbm` it would be in one block."""
    group = np.array([0] * 6 + [1] * 5)
    same = group[:, None] == group
    same[0, :] = same[:, 0] = True
    ell, known = jnp.asarray(np.where(same, 3.0, -3.0)), jnp.ones((11, 11), bool)
    fitted = infer(ell, known, 2, jax.random.key(0), 60)
    assert fitted.weights[0, 1:].min() > 0.95
    assert fitted.weights[1:6, 6:].max() < 0.05
    shares = fitted.gamma / fitted.gamma.sum(1, keepdims=True)
    np.testing.assert_allclose(shares[0], 0.5, atol=0.05)
    assert shares[1:].max(1).min() > 0.95


@pytest.mark.soak
def test_unobserved_pairs_do_not_matter():
    _, ell, known = random_model(3, clients=6, share=0.5)
    for value in (jnp.nan, jnp.inf, -jnp.inf, 1e6):
        filled = jnp.where(sbm.observed(ell, known), ell, value)
        one, other = infer(ell, known, 2, jax.random.key(1)), infer(filled, known, 2, jax.random.key(1))
        jax.tree.map(np.testing.assert_array_equal, one, other)
        assert all(np.isfinite(leaf).all() for leaf in one)
    np.testing.assert_array_equal(one.weights[~sbm.observed(ell, known)], 0)


@pytest.mark.soak
def test_permuting_clients_and_blocks_permutes_the_result():
    model, ell, known = random_model(5, clients=5, blocks=3, share=0.8)
    order, names = np.random.default_rng(0).permutation(5), np.array([2, 0, 1])
    both, named = np.ix_(order, order), np.ix_(names, names)
    moved = MMSBM(
        model.weights[both],
        model.sender[both][..., names],
        model.receiver[both][..., names],
        model.gamma[order][:, names],
        model.affinity[named],
        model.alpha[names],
    )
    sweep = jax.jit(mmsbm.sweep_mm)
    plain, after = sweep(model, ell, known), sweep(moved, ell[both], known[both])
    np.testing.assert_allclose(after.weights, plain.weights[both], atol=1e-12)
    np.testing.assert_allclose(after.gamma, plain.gamma[order][:, names], atol=1e-12)
    np.testing.assert_allclose(after.alpha, plain.alpha[names], atol=1e-10)


@pytest.mark.soak
def test_float32_survives_extreme_losses_and_keeps_its_type():
    losses, known, _, different = planted()
    huge = jnp.where(jnp.asarray(different), 1e6, losses).astype(jnp.float32)
    fitted = infer(sbm.centre(huge, known, "own", margin=0.5), known, 4, jax.random.key(0))
    assert all(np.isfinite(leaf).all() and leaf.dtype == jnp.float32 for leaf in fitted)
    assert np.asarray(fitted.weights)[different].max() == 0


def test_bad_input_is_one_sentence():
    ell, known, key = jnp.zeros((4, 4)), jnp.ones((4, 4), bool), jax.random.key(0)
    with pytest.raises(CoterieError, match="blocks must be between 1"):
        mmsbm.infer_mm(ell, known, 5, key)
    with pytest.raises(CoterieError, match="temperature must be greater than 0"):
        mmsbm.infer_mm(ell, known, 2, key, temperature=-1.0)
