"""Proximal operators against cases by hand, optimality conditions, CVXPY, and the papers' own algorithms."""

import sys
import warnings
from fractions import Fraction

import cvxpy
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from coterie.errors import CoterieError
from coterie.numerics import host, prox
from coterie.numerics.prox import dual_ball, fused, fused_in_program, norm_prox
from support.fused_rivals import differences, fused_admm, fused_admm_as_printed, fused_kkt, transposed

NORMS = [1, 2, "inf"]
DUAL = {1: "inf", 2: 2, "inf": 1}
CONVEX = {1: cvxpy.norm1, 2: cvxpy.norm2, "inf": cvxpy.norm_inf}
norms = pytest.mark.parametrize("p", NORMS)
floats = st.floats(-100, 100, allow_subnormal=False)
vectors = st.lists(floats, min_size=1, max_size=40).map(np.array)
weights = st.floats(0, 50, allow_subnormal=False)


# -- norms -------------------------------------------------------------------------------------------------------------


def test_norms_by_hand():
    a, t = np.array([3, -1, 0.5, 2]), 1.2
    np.testing.assert_allclose(norm_prox(a, t, 1), [1.8, 0, 0, 0.8], atol=1e-15)
    # |a|_2^2 = 14.25, and a is shortened by 1.2.
    np.testing.assert_allclose(norm_prox(a, t, 2), a * (1 - 1.2 / np.sqrt(14.25)), atol=1e-15)
    np.testing.assert_allclose(norm_prox(a, t, 2), [2.04634, -0.68211, 0.34106, 1.36422], atol=5e-6)
    # 3 and 2 are cut off at 1.9: they lose 1.1 and 0.1, which is 1.2.
    np.testing.assert_allclose(norm_prox(a, t, "inf"), [1.9, -1, 0.5, 1.9], atol=1e-15)
    np.testing.assert_allclose(dual_ball(a, t, 1), [1.2, -1, 0.5, 1.2], atol=1e-15)
    np.testing.assert_allclose(dual_ball(a, t, "inf"), [1.1, 0, 0, 0.1], atol=1e-15)


@norms
def test_norms_agree_with_cvxpy(p):
    random = np.random.default_rng(0)
    for t in (0.1, 0.7, 2.0, 9.0):
        a, x = random.normal(size=5), cvxpy.Variable(5)
        near = cvxpy.sum_squares(x - a) / 2
        accurately(cvxpy.Problem(cvxpy.Minimize(t * CONVEX[p](x) + near)))
        np.testing.assert_allclose(norm_prox(a, t, p), x.value, atol=1e-8)
        accurately(cvxpy.Problem(cvxpy.Minimize(near), [CONVEX[DUAL[p]](x) <= t]))
        np.testing.assert_allclose(dual_ball(a, t, p), x.value, atol=1e-8)


def accurately(problem):
    """Solve as accurately as the solver can; it warns that the requested accuracy was not reached."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        problem.solve("CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)


@norms
@settings(max_examples=50, deadline=None)
@given(a=vectors, t=weights)
def test_norms_meet_their_conditions(p, a, t):
    inside, rest = norm_prox(a, t, p), dual_ball(a, t, p)
    size = 1 + np.abs(a).sum()
    np.testing.assert_allclose(inside + rest, a, atol=1e-13 * size)  # Moreau
    order, dual = (np.inf if q == "inf" else q for q in (p, DUAL[p]))
    assert np.linalg.norm(rest, dual) <= t + 1e-13 * size
    # The rest is t times a subgradient of the norm: <rest, x> = t |x|_p.
    np.testing.assert_allclose(rest @ inside, t * np.linalg.norm(inside, order), atol=1e-12 * size**2)
    if np.linalg.norm(a, dual) <= t * (1 - 1e-12):
        assert not inside.any()


@norms
def test_norms_along_any_axis_with_a_weight_for_each(p):
    random = np.random.default_rng(1)
    a, t = random.normal(size=(4, 5, 3)), np.array([0.0, 0.5, 20.0])
    for operator in (norm_prox, dual_ball):
        whole = operator(a, t, p, axis=1)
        for k in range(3):
            np.testing.assert_allclose(whole[:, :, k], operator(a[:, :, k], t[k], p), atol=1e-15)
        edges = operator(a[0], t.reshape(1, 3), p, axis=0)  # [personal parameters, edges], as in Zhao et al.
        np.testing.assert_allclose(edges, whole[0], atol=1e-15)


@norms
def test_norms_in_a_program_are_those_of_numpy(p, x64):
    random = np.random.default_rng(2)
    a, t = random.normal(size=(6, 7)), random.uniform(0, 2, (6, 1))
    for operator in (norm_prox, dual_ball):
        inside = jax.jit(lambda a, t, operator=operator: operator(a, t, p, xp=jnp))(a, t)
        np.testing.assert_allclose(inside, operator(a, t, p), atol=1e-14)
    assert norm_prox(jnp.ones(3, jnp.float32), 0.5, p, xp=jnp).dtype == jnp.float32


@norms
def test_norms_of_zero_and_their_slopes(p):
    for a in (np.zeros(3), np.zeros((2, 0)), np.array([1.0, -2.0, 0.5])):
        np.testing.assert_array_equal(norm_prox(a, 0, p), a)
        np.testing.assert_array_equal(norm_prox(a, 1e9, p), 0 * a)
        np.testing.assert_array_equal(dual_ball(a, 0, p), 0 * a)
        np.testing.assert_array_equal(dual_ball(a, 1e9, p), a)
    for operator in (norm_prox, dual_ball):
        slope = jax.jit(jax.grad(lambda a, t, operator=operator: operator(a, t, p, xp=jnp).sum(), (0, 1)))
        for a in (jnp.zeros(3), jnp.array([1.0, -2.0, 0.5])):
            for t in (0.0, 1.0):
                assert all(np.isfinite(part).all() for part in slope(a, t))


def test_norms_refuse_invalid_arguments():
    a = np.ones((2, 3))
    with pytest.raises(CoterieError, match='p must be 1, 2 or "inf", not 3'):
        norm_prox(a, 1, 3)
    with pytest.raises(CoterieError, match="t must be at least 0"):
        norm_prox(a, -1, 2)
    with pytest.raises(CoterieError, match="radius must be at least 0"):
        dual_ball(a, np.nan, 2)
    with pytest.raises(CoterieError, match=r"t has shape \(3,\), but must broadcast against \(2, 3\)"):
        norm_prox(a, np.ones(3), 2)
    with pytest.raises(CoterieError, match="axis must be one of the 2 axes of the array, not 2"):
        dual_ball(a, 1, 1, axis=2)


# -- the fused operator ------------------------------------------------------------------------------------------------


def test_fused_by_hand():
    g = np.array([3, 1, -2, 0.5, 4])
    np.testing.assert_array_equal(fused(g, 1), [2, 1, 0, 0.5, 2])
    np.testing.assert_array_equal(fused(g, 0.25), [2.75, 1, -1.5, 0.5, 3.5])
    np.testing.assert_array_equal(fused(g, 0), g)
    np.testing.assert_array_equal(fused([0.4, -0.3, 0.2], 0.4), [0, 0, 0])
    np.testing.assert_allclose(fused([0.4, -0.3, 0.2], 0.39), [0.01, 0, 0], atol=1e-15)
    np.testing.assert_array_equal(fused([3.0], 1), [2])  # |q_1| alone: moved by gamma towards zero
    np.testing.assert_array_equal(fused([-3.0, 1.0], 10), [0, 0])
    np.testing.assert_array_equal(differences(np.array([-1.0, -1, 1, 1])), [0, -2, 0, 1])  # the example of Zhao et al.


def test_fused_of_a_constant_loses_gamma_at_its_end_only():
    # All 1000 elements share the one jump to q_{d+1} = 0.
    np.testing.assert_allclose(fused(np.full(1000, 3.0), 500), np.full(1000, 2.5), atol=1e-13)


def exact(g, gamma):
    """Return the same operator in rational numbers, by its dual: the shortest path in a tube around the sums of g.

    The path starts at 0, is within gamma of the sums and ends anywhere; q is its slope. From a corner the range of
    slopes that stay in the tube narrows with every element, until it is empty: there is the next corner.
    """
    sums = [Fraction(0)]
    for value in g:
        sums.append(sums[-1] + Fraction(float(value)))
    gamma, d = Fraction(float(gamma)), len(g)
    q, place, height = [], 0, Fraction(0)
    while place < d:
        low, high, at_low, at_high = None, None, None, None
        for k in range(place + 1, d + 1):
            down, up = (sums[k] - gamma - height) / (k - place), (sums[k] + gamma - height) / (k - place)
            if low is not None and up < low:
                corner = (at_low, low)
                break
            if high is not None and down > high:
                corner = (at_high, high)
                break
            if low is None or down >= low:
                low, at_low = down, k
            if high is None or up <= high:
                high, at_high = up, k
        else:  # the end is free: as flat as the gates allow
            corner = (d, Fraction(0)) if low <= 0 <= high else ((at_low, low) if low > 0 else (at_high, high))
        q += [corner[1]] * (corner[0] - place)
        height += corner[1] * (corner[0] - place)
        place = corner[0]
    return q


@settings(max_examples=150, deadline=None)
@given(vectors, st.floats(1e-3, 50))
def test_fused_is_the_solution_in_rational_numbers(g, gamma):
    q, truth = fused(g, gamma), exact(g, gamma)
    np.testing.assert_allclose(q, [float(value) for value in truth], rtol=0, atol=1e-13 * (1 + np.abs(g).max()))


@settings(max_examples=100, deadline=None)
@given(vectors, weights)
def test_fused_meets_its_conditions(g, gamma):
    q = fused(g, gamma)
    size = 1 + np.abs(g).max()
    assert fused_kkt(g, q, gamma) < 1e-14 * len(g) * size
    assert np.abs(g - q).max() <= 2 * gamma + 1e-14 * size
    reach = np.abs(np.cumsum(g)).max()
    if reach < gamma * (1 - 1e-12):
        assert not q.any()
    if reach > gamma + 1e-12 * len(g) * size:
        assert q.any()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(floats, floats), min_size=1, max_size=40).map(np.array), weights)
def test_fused_is_nonexpansive(pair, gamma):
    apart = np.linalg.norm(fused(pair[:, 0], gamma) - fused(pair[:, 1], gamma))
    assert apart <= np.linalg.norm(pair[:, 0] - pair[:, 1]) + 1e-11


@pytest.mark.parametrize("d", [1, 2, 17, 200])
def test_fused_agrees_with_cvxpy(d):
    random = np.random.default_rng(d)
    for gamma in (0.1, 1.0):
        g, q = random.normal(size=d), cvxpy.Variable(d)
        jumps = cvxpy.abs(q[-1]) + (cvxpy.norm1(q[:-1] - q[1:]) if d > 1 else 0)
        cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(q - g) / 2 + gamma * jumps)).solve(solver="CLARABEL")
        np.testing.assert_allclose(fused(g, gamma), q.value, atol=1e-5)
        assert fused_kkt(g, fused(g, gamma), gamma) < 1e-12


def test_fused_of_many_elements():
    random = np.random.default_rng(3)
    walk = np.cumsum(random.normal(size=100_000)) * 0.01 + random.normal(size=100_000)
    for gamma in (1e-3, 0.3, 30.0, 3000.0):
        q = fused(walk, gamma)
        # Every element is rounded once, and the sums of the check add up these errors.
        assert fused_kkt(walk, q, gamma) < len(q) * np.finfo(float).eps * np.abs(q).max()
    # Elements that are tiny relative to those before them keep their digits: the sums are accurate enough.
    steep = np.concatenate([np.full(50, 1e9), random.normal(size=50) * 1e-3])
    np.testing.assert_allclose(fused(steep, 1e-4), [float(x) for x in exact(steep, 1e-4)], rtol=1e-12, atol=1e-18)


def test_corrected_admm_agrees_and_the_printed_one_diverges():
    random = np.random.default_rng(4)
    for gamma in (0.1, 0.5):
        g, x, eta = random.normal(size=30), random.normal(size=30), 0.1
        q = fused(g, gamma)
        result, _ = fused_admm(g, gamma, rho=5.0, iterations=500, x=x, eta=eta)
        np.testing.assert_allclose(result, q, atol=1e-12)
        with np.errstate(over="ignore", invalid="ignore"):
            printed = fused_admm_as_printed(g, gamma, 5.0, 2000, x, eta)
        assert not np.abs(printed - q).max() < 1e2  # or not a number
    dense = np.eye(6) - np.eye(6, k=1)
    v = random.normal(size=6)
    np.testing.assert_allclose(transposed(v), dense.T @ v, atol=1e-15)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_does_not_depend_on_the_others(dtype, monkeypatch):
    random = np.random.default_rng(5)
    g, gamma = random.normal(size=(37, 2000)).astype(dtype), random.uniform(0, 3, 37)
    gamma[3] = 0
    whole = fused(g, gamma)
    assert whole.dtype == dtype
    for row in range(37):
        assert fused(g[row], gamma[row]).tobytes() == whole[row].tobytes()
    for cores in (1, 5):
        monkeypatch.setattr(host, "cores", lambda cores=cores: cores)
        assert fused(g, gamma).tobytes() == whole.tobytes()
    np.testing.assert_array_equal(fused(np.asfortranarray(g), gamma), whole)
    np.testing.assert_array_equal(fused(g, 0.5), fused(g, np.full(37, 0.5)))


def test_float32_is_computed_in_float64():
    g = np.random.default_rng(6).normal(size=20_000).astype(np.float32)
    for gamma in (0.01, 1.0, 100.0):
        np.testing.assert_array_equal(fused(g, gamma), fused(g.astype(np.float64), gamma).astype(np.float32))


def test_fused_of_nothing():
    assert fused(np.zeros(0), 1).shape == (0,)
    assert fused(np.zeros((0, 4)), np.zeros(0)).shape == (0, 4)
    assert fused_kkt(np.zeros((3, 0)), np.zeros((3, 0)), 1) == 0


def test_kkt_by_hand():
    g = np.array([3, 1, -2, 0.5, 4])
    q = fused(g, 1)
    assert fused_kkt(g, q, 1) == 0
    assert fused_kkt(g, g, 1) == 1  # g itself violates the condition at its jumps
    np.testing.assert_allclose(fused_kkt(g, q + 0.125 * np.eye(5)[4], 1), 0.125)
    np.testing.assert_allclose(fused_kkt(np.stack([g, g]), np.stack([q, g]), [1, 0.5]), 0.5)


@pytest.mark.parametrize(
    ("g", "gamma", "message"),
    [
        ([1.0, 2.0], -1, "gamma must be at least 0"),
        ([1.0, 2.0], np.nan, "gamma must be at least 0"),
        ([1.0, 2.0], np.inf, "gamma must be at least 0, and finite"),
        ([1.0, np.nan], 1, "g must be finite"),
        ([[1.0, 1.0], [1.0, np.inf]], [1, 0], "g must be finite"),
        ([1e308, 1e308], 1, r"g must be finite, but has elements \(or sums\)"),
        ([[[1.0]]], 1, r"g has shape \(1, 1, 1\), but must be \[d\]"),
        (3.0, 1, r"g has shape \(\), but must be \[d\]"),
        ([[1.0], [2.0]], [1, 2, 3], r"gamma has shape \(3,\), but must be one number"),
    ],
)
def test_fused_refuses_invalid_arguments(g, gamma, message):
    with pytest.raises(CoterieError, match=message):
        fused(g, gamma)


def test_without_numba_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    for call in (lambda: fused([1.0], 1), lambda: jax.jit(fused_in_program)(jnp.ones((1, 2)), jnp.ones(1))):
        with pytest.raises(CoterieError, match=r"the fused operator needs Numba: pip install 'coterie\[numba\]'"):
            call()


# -- inside a program --------------------------------------------------------------------------------------------------


def case(clients, d, dtype=np.float32):
    random = np.random.default_rng(7)
    return random.normal(size=(clients, d)).astype(dtype), random.uniform(0, 2, clients).astype(dtype)


@pytest.fixture
def calls(monkeypatch):
    """Return the shapes of the arrays in all calls to the host."""
    seen = []
    work = prox._fused
    monkeypatch.setattr(prox, "_fused", lambda g, *rest: (seen.append(g.shape), work(g, *rest))[1])
    return seen


def test_one_call_for_all_clients(calls):
    g, gamma = case(5, 300)
    expected = fused(g, gamma)
    calls.clear()
    np.testing.assert_array_equal(jax.jit(fused_in_program)(g, gamma), expected)
    assert calls == [(5, 300)]
    calls.clear()
    np.testing.assert_array_equal(jax.jit(jax.vmap(fused_in_program))(g, gamma), expected)
    assert calls == [(5, 300)]
    both = jax.jit(jax.vmap(fused_in_program, (None, 0)))(g, np.stack([gamma, 2 * gamma]))
    np.testing.assert_array_equal(both, [expected, fused(g, 2 * gamma)])
    one = jax.jit(fused_in_program)(g, 0.5)
    np.testing.assert_array_equal(one, fused(g, np.full(5, 0.5)))


def test_inside_loops():
    g, gamma = case(3, 50)

    @jax.jit
    def thrice(g, gamma):
        scanned, _ = jax.lax.scan(lambda g, _: (fused_in_program(g, gamma), None), g, length=3)
        return scanned, jax.lax.fori_loop(0, 3, lambda _, g: fused_in_program(g, gamma), g)

    expected = fused(fused(fused(g, gamma), gamma), gamma)
    for result in thrice(g, gamma):
        np.testing.assert_array_equal(result, expected)


def test_in_double_precision(x64):
    g, gamma = case(3, 50, np.float64)
    result = jax.jit(fused_in_program)(g, gamma)
    assert result.dtype == np.float64
    np.testing.assert_array_equal(result, fused(g, gamma))


@pytest.mark.parametrize("split", [PartitionSpec(), PartitionSpec("clients")], ids=["whole", "split"])
def test_programs_that_two_devices_share(device, split):
    """A callback that waits for a thread of the devices' own pool hangs here, in about half of the runs."""
    mesh = Mesh(np.array(device.devices), ("clients",))
    assert mesh.size == 2
    g, gamma = case(8, 20_000)
    expected = fused(fused(fused(g, gamma), gamma), gamma)
    placed = jax.device_put((g, gamma), NamedSharding(mesh, split))

    @jax.jit
    def thrice(g, gamma):
        def step(_, carry):
            g, total = carry
            return fused_in_program(g, gamma), total + g.sum()  # a sum: devices wait for one another

        return jax.lax.fori_loop(0, 3, step, (g, 0.0))

    rows = PartitionSpec("clients")
    each = jax.jit(jax.shard_map(fused_in_program, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False))
    for _ in range(5):
        np.testing.assert_array_equal(thrice(*placed)[0], expected)
        np.testing.assert_array_equal(each(*placed), fused(g, gamma))


def test_each_device_calls_for_its_own_clients(device, calls):
    mesh = Mesh(np.array(device.devices), ("clients",))
    g, gamma = case(6, 40)
    rows = PartitionSpec("clients")
    each = jax.jit(jax.shard_map(fused_in_program, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False))
    found = np.asarray(each(g, gamma))  # both devices have called before anybody else does
    assert calls == [(3, 40), (3, 40)]
    np.testing.assert_array_equal(found, fused(g, gamma))


def test_invalid_values_in_a_program_give_nan():
    g, gamma = case(5, 30)
    g[0, 7], g[1, 3], gamma[2], gamma[3] = np.nan, np.inf, -1, np.inf
    result = np.asarray(jax.jit(fused_in_program)(g, gamma))
    assert np.isnan(result[:4]).all()
    np.testing.assert_array_equal(result[4], fused(g[4], gamma[4]))


def test_the_branch_for_gpus(monkeypatch):
    """On a GPU the arrays are copied to the host; that branch is pure Python and is called directly here."""
    taken = {}
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *a, cpu, default: taken.setdefault("run", default)(*a))
    g, gamma = case(4, 60)
    np.testing.assert_array_equal(fused_in_program(jnp.asarray(g), jnp.asarray(gamma)), fused(g, gamma))
    assert taken
