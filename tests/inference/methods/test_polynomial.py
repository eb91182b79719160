"""The emulator: exact where the forward map is a polynomial, flat where it is not."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from helpers import seeded
from msign.bijections.polynomials import Terms
from msign.inference.methods.polynomial import fit_polynomial

pytestmark = pytest.mark.usefixtures("quick_compilation")


def rng(seed):
    return np.random.default_rng(seeded(seed))


def cubic_map(s):
    """Two residuals, cubic in three variables."""
    a, b, c = s.T
    return np.stack([1 + a - 2 * b * c + 0.3 * a**3, b**2 - a * b * c + 0.5 * c - 2], 1)


def test_polynomial_map_is_emulated_exactly():
    """Up to single precision and a ridge, of variables of very different spread."""
    drawn = rng(0).normal(size=(450, 3)) * [1, 0.01, 5] + [0, 3, -1]
    s, fresh = drawn[:400], drawn[400:]
    emulator = fit_polynomial(s, cubic_map(s))
    residual = jax.vmap(emulator.features)(jnp.asarray(fresh))
    scale = np.abs(cubic_map(s)).max()
    np.testing.assert_allclose(residual, cubic_map(fresh), rtol=0, atol=1e-4 * scale)
    value, score = jax.vmap(emulator.log_likelihood)(jnp.asarray(fresh))
    np.testing.assert_allclose(value, -0.5 * (np.asarray(residual) ** 2).sum(1), rtol=1e-12)
    by_autodiff = jax.vmap(jax.grad(lambda s: emulator.log_likelihood(s)[0]))(jnp.asarray(fresh))
    np.testing.assert_allclose(score, by_autodiff, rtol=1e-9)


def test_what_is_not_emulated_widens_the_noise():
    """Residual s + e, e normal of variance 3 from other directions: the marginal has 1 + 3."""
    n, draw = 20_000, rng(1).normal
    s = draw(size=(n, 1))
    emulator = fit_polynomial(s, s + np.sqrt(3) * draw(size=(n, 1)))
    value, _ = jax.vmap(emulator.log_likelihood)(jnp.asarray([[0.0], [1.0], [2.0]]))
    # The latest 10,000 fields tell residuals at 2 up to a few hundredths: 2 * 0.03 / 4 each.
    np.testing.assert_allclose(value - value[0], [0, -0.5 / 4, -2 / 4], atol=0.06)


def test_error_is_not_hidden_by_fitting_as_many_terms_as_fields():
    """Pure noise of variance one: what few fields seem to explain is put back."""
    variances = []
    for seed in range(40):
        s, residual = rng(seed).normal(size=(60, 2)), rng(100 + seed).normal(size=(60, 1))
        emulator = fit_polynomial(s, residual)
        # A constant residual r has the emulated log-likelihood -r^2 / (2 (1 + variance)).
        rest = np.asarray(jax.vmap(emulator.features)(jnp.asarray(s)))
        design = Terms.of(2, 12, 20).design((s - s.mean(0)) / s.std(0))
        fitted = design @ np.linalg.lstsq(design, residual, rcond=None)[0]
        variances.append(float((fitted**2).sum() / (rest**2).sum()) - 1)
    # Each is a mean of some 50 squares: its standard deviation is sqrt(2 / 50).
    assert np.mean(variances) == pytest.approx(1.0, abs=5 * np.sqrt(2 / 50 / 40))


@pytest.mark.parametrize("rank, fields", [(1, 20), (3, 100), (16, 4000), (64, 4000), (64, 30_000)])
def test_terms_are_as_many_as_the_fields_can_tell(rank, fields):
    cubic, most = 12, fields // 3
    terms = Terms.of(rank, cubic, most)
    assert len(terms) <= max(most, rank + 1)
    full = 1 + rank + rank * (rank + 1) // 2
    if most >= full + cubic**3:
        assert len(terms) > full
    design = terms.design(rng(2).normal(size=(5, rank)))
    assert design.shape == (5, len(terms))
    assert len(np.unique(design, axis=1).T) == len(terms)


def test_fields_far_from_all_others_do_not_end_a_fit():
    """Their cubes are a million times those of the others: single precision sees little else."""
    normal = rng(11).normal
    s = np.concatenate([normal(size=(1500, 16)), 200 * normal(size=(12, 16))])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)
        fitted = fit_polynomial(s, s[:, :2] + 1.0, cubic=12)
    near = jnp.asarray(normal(size=16))
    np.testing.assert_allclose(
        fitted.features(near), np.asarray(near)[:2] + 1.0, atol=0.5 * np.abs(near).max()
    )
