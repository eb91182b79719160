import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from helpers import seeded
from msign.problems.fem import EllipticSolver
from msign.problems.fem.dissection import plan_factorisation
from problems.fem import fem_reference as reference

RNG_SEED = seeded(7)


def random_weights(size: int, m: int = 4) -> np.ndarray:
    rng = np.random.default_rng(RNG_SEED)
    return rng.normal(size=(m, size, size)) * (rng.random((m, size, size)) < 0.2)


def random_load(size: int) -> np.ndarray:
    return np.random.default_rng(RNG_SEED + 1).normal(size=(size + 1, size + 1)) / size**2


def rough_fields(size: int, n: int = 3, scale: float = 2.0) -> np.ndarray:
    return scale * np.random.default_rng(RNG_SEED + 2).normal(size=(n, size, size))


def relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max() / np.abs(b).max())


def make(size: int, **options: int) -> EllipticSolver:
    return EllipticSolver(size, random_load(size), random_weights(size), **options)


@pytest.mark.parametrize("size", [2, 3, 5, 7, 16, 17, 22, 30, 32, 50, 64, 66])
def test_agrees_with_sparse_lu(size):
    x = np.concatenate([rough_fields(size), [reference.smooth_field(size)], rough_fields(size)[:1]])
    solver = make(size)
    u, observed = solver.solve(x), solver.observe(x)
    for k in range(len(x)):
        expected = reference.solve(x[k], random_load(size))
        assert relative(u[k], expected) < 1e-10
        assert relative(observed[k], reference.observe(expected, random_weights(size))) < 1e-10


@pytest.mark.parametrize("size", [128, 256])
def test_agrees_with_sparse_lu_on_large_lattices(size):
    x = rough_fields(size, n=1)[0]
    assert relative(make(size).solve(x), reference.solve(x, random_load(size))) < 1e-10


@pytest.mark.parametrize("size", [16, 64])
@pytest.mark.parametrize("kind", ["smooth", "rough"])
def test_agrees_with_scikit_fem(size, kind):
    skfem = pytest.importorskip("skfem")
    x = reference.smooth_field(size) if kind == "smooth" else rough_fields(size, n=1)[0]
    line = np.linspace(0, 1, size + 1)
    mesh = skfem.MeshQuad.init_tensor(line, line)
    basis = skfem.Basis(mesh, skfem.ElementQuad1())
    centres = mesh.p[:, mesh.t].mean(axis=1)
    cell = np.floor(centres * size).astype(int)

    @skfem.BilinearForm
    def form(u, v, w):
        return w["k"] * (u.grad[0] * v.grad[0] + u.grad[1] * v.grad[1])

    coefficient = np.exp(x)[cell[0], cell[1]][:, None] * np.ones(basis.dx.shape)
    matrix = form.assemble(basis, k=coefficient)
    node = np.rint(mesh.p * size).astype(int)
    load = random_load(size)
    u = skfem.solve(
        *skfem.condense(matrix, load[node[0], node[1]], D=basis.get_dofs().flatten()),
    )
    assert relative(make(size).solve(x)[node[0], node[1]], u) < 1e-10


def test_second_order_convergence():
    """u = sin(pi s1) sin(2 pi s2) with e^x = 1, so f = 5 pi^2 u."""

    def exact(s1, s2):
        return np.sin(np.pi * s1) * np.sin(2 * np.pi * s2)

    errors = []
    for size in (16, 32, 64, 128):
        solver = EllipticSolver(
            size, lambda a, b: 5 * np.pi**2 * exact(a, b), np.zeros((0, size, size))
        )
        s = np.arange(size + 1) / size
        u = solver.solve(np.zeros((size, size)))
        errors.append(np.abs(u - exact(s[:, None], s[None, :])).max())
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert np.all(np.abs(orders - 2) < 0.05)


def test_second_order_convergence_with_a_varying_coefficient():
    """e^x = 1 + s1 at the cell centres, u = s1 (1 - s1) sin(pi s2)."""

    def f(s1, s2):
        profile, slope = s1 * (1 - s1), 1 - 2 * s1
        along = (1 + s1) * (-2 - np.pi**2 * profile) + slope
        return -along * np.sin(np.pi * s2)

    errors = []
    for size in (16, 32, 64):
        solver = EllipticSolver(size, f, np.zeros((0, size, size)))
        s = np.arange(size + 1) / size
        x = np.log(1 + (s[:-1, None] + s[1:, None]) / 2) * np.ones(size)
        u = s[:, None] * (1 - s[:, None]) * np.sin(np.pi * s[None, :])
        errors.append(np.abs(solver.solve(x) - u).max())
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert np.all(np.abs(orders - 2) < 0.1)


def test_mirror_symmetry():
    size = 64
    weights = np.abs(random_weights(size))
    weights = weights + weights[:, :, ::-1]
    solver = EllipticSolver(size, reference.four_wells, weights)
    x = rough_fields(size, n=6)
    assert relative(solver.observe(x[:, :, ::-1]), solver.observe(x)) < 1e-12
    gradient = solver.vjp(x, np.ones((6, 4)))
    assert relative(solver.vjp(x[:, :, ::-1], np.ones((6, 4)))[:, :, ::-1], gradient) < 1e-10


@pytest.mark.parametrize("pattern", ["random", "island", "stripes", "checkerboard"])
def test_extreme_coefficients_are_finite_and_accurate(pattern):
    """From e^-15 to e^15, against elimination in 60 decimal digits."""
    size = 8
    i, j = np.indices((size, size))
    x = {
        "random": np.random.default_rng(seeded(1)).choice([-15.0, 15.0], (size, size)),
        "island": np.where((abs(i - 3.5) < 2) & (abs(j - 3.5) < 2), 15.0, -15.0),
        "stripes": np.where(i % 2, 15.0, -15.0),
        "checkerboard": np.where((i + j) % 2, 15.0, -15.0),
    }[pattern]
    nodal_load = np.ones((size + 1, size + 1)) / size**2
    u = EllipticSolver(size, nodal_load, random_weights(size)).solve(x)

    expected = reference.solve_in_many_digits(x, nodal_load)
    inside = reference.interior(size)
    assert np.abs(u.flat[inside] / expected - 1).max() < 1e-12


@pytest.mark.parametrize("scale", [15.0, 100.0])
def test_extreme_coefficients_at_full_size(scale):
    size = 64
    rng = np.random.default_rng(seeded(3))
    x = np.concatenate(
        [
            rng.choice([-scale, scale], (3, size, size)),
            rng.uniform(-scale, scale, (3, size, size)),
            np.full((1, size, size), scale),
            np.full((1, size, size), -scale),
        ]
    )
    observed, gradient = make(size).observe_and_vjp(x, np.ones((8, 4)))
    assert np.isfinite(observed).all()
    assert np.isfinite(gradient).all()


def test_numbers_do_not_depend_on_threads_or_batch():
    size = 24
    x = rough_fields(size, n=83)
    cotangent = np.random.default_rng(seeded(0)).normal(size=(83, 4))
    one, three = make(size, threads=1), make(size, threads=3)
    for a, b in zip(
        one.observe_and_vjp(x, cotangent), three.observe_and_vjp(x, cotangent), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(one.solve(x), three.solve(x))
    np.testing.assert_array_equal(one.observe(x[::-1])[::-1], three.observe(x))
    np.testing.assert_array_equal(one.observe(x[5]), three.observe(x)[5])
    np.testing.assert_array_equal(one.solve(x[5]), three.solve(x)[5])


def test_memory_keeps_no_trace_of_extreme_fields():
    """Padded places of the factor are never written again: they have to stay as they were."""
    ordinary = rough_fields(22, n=8)
    used, fresh = make(22, threads=1), make(22, threads=1)
    assert np.isfinite(used.observe(299 * np.sign(ordinary))).all()
    np.testing.assert_array_equal(used.observe(ordinary), fresh.observe(ordinary))


@pytest.mark.parametrize("size", [9, 16, 34])
def test_nothing_is_read_of_an_update_before_it_is_written(size):
    """Whether leaves are straight-line code (16), dense fronts (9), or both share memory (34)."""
    x = rough_fields(size, n=5)
    clean, spoilt = make(size, threads=1), make(size, threads=1)
    space = spoilt._new_workspace()
    space.factor[:, plan_factorisation(size)[1] :] = np.nan
    spoilt._idle.append(space)
    expected = clean.observe_and_vjp(x, lambda observed, rows: observed)
    found = spoilt.observe_and_vjp(x, lambda observed, rows: observed)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


def test_calls_from_several_threads_do_not_mix():
    size = 16
    solver, x = make(size), rough_fields(size, n=60)
    expected = solver.observe(x)
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(lambda _: solver.observe(x), range(20)):
            np.testing.assert_array_equal(result, expected)


def test_a_pickled_solver_gives_the_same_numbers():
    solver, x = make(16), rough_fields(16)
    before = solver.observe(x), np.asarray(solver.jax_observe(x))
    copy = pickle.loads(pickle.dumps(solver))
    np.testing.assert_array_equal(copy.observe(x), before[0])
    np.testing.assert_array_equal(copy.jax_observe(x), before[1])


def test_load_as_function_and_as_array_agree():
    size = 20
    s = np.arange(size + 1) / size
    nodal = reference.four_wells(*np.meshgrid(s, s, indexing="ij")) / size**2
    x = rough_fields(size, n=2)
    a, b = (EllipticSolver(size, f, random_weights(size)) for f in (reference.four_wells, nodal))
    assert relative(a.solve(x), b.solve(x)) < 1e-12


def test_single_precision_empty_and_single_fields():
    size = 16
    solver = make(size)
    x = rough_fields(size, n=2).astype(np.float32)
    np.testing.assert_array_equal(solver.observe(x), solver.observe(x.astype(float)))
    assert solver.solve(x).dtype == np.float64
    assert solver.solve(x[0]).shape == (size + 1, size + 1)
    assert solver.observe(x[0]).shape == (4,)
    assert solver.vjp(x[0], np.ones(4)).shape == (size, size)
    assert solver.observe(x[:0]).shape == (0, 4)
    assert solver.solve(x[:0]).shape == (0, size + 1, size + 1)


def test_wrong_input_is_refused():
    size = 16
    solver = make(size)
    x = rough_fields(size, n=5)
    with pytest.raises(ValueError, match=r"x must have shape"):
        solver.observe(np.zeros((5, size, size + 1)))
    with pytest.raises(ValueError, match=r"x must hold real numbers"):
        solver.observe(x + 1j)
    for value, message in ((np.nan, "NaN"), (np.inf, "too large"), (-1e3, "too large")):
        bad = x.copy()
        bad[3, 2, 1] = value
        for call in (solver.solve, solver.observe, lambda x: solver.vjp(x, np.ones((5, 4)))):
            with pytest.raises(ValueError, match=rf"x has .*{message}.* in field 3"):
                call(bad)
    with pytest.raises(ValueError, match="cotangent must have shape"):
        solver.vjp(x, np.ones((5, 3)))
    with pytest.raises(ValueError, match="cotangent must return shape"):
        solver.observe_and_vjp(x, lambda observed, rows: observed[:, :3])
    with pytest.raises(ValueError, match="size"):
        EllipticSolver(1, np.ones((2, 2)), np.ones((1, 1, 1)))
    with pytest.raises(ValueError, match="load must have shape"):
        EllipticSolver(size, np.ones((size, size)), random_weights(size))
    with pytest.raises(ValueError, match="observations must have shape"):
        EllipticSolver(size, random_load(size), np.ones((size, size)))
    with pytest.raises(ValueError, match="observations must be finite"):
        EllipticSolver(size, random_load(size), np.full((1, size, size), np.nan))
