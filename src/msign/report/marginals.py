"""Marginals in units of the field: averages over cells, and single cells, beside the prior."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from msign.inference import Posterior
from msign.noise import as_array
from msign.priors import Prior
from msign.report.style import ACCENT, INK, SOFT, legend, new_figure, plain

BINS = 50
TAILS = 3.5  # standard deviations of the prior that a picture of it shows
PRIOR_DRAWS = 400  # to know roughly how spread cells are under the prior
LEAST_RATIO = 1e-6  # of standard deviations: a cell that is known exactly is known well


class Functional(NamedTuple):
    """A number that a field has: a weighted sum of its cells.

    Attributes:
        name: What it is.
        about: Why it is shown.
        weights: Shaped as a field.
    """

    name: str
    about: str
    weights: np.ndarray

    def of(self, fields: np.ndarray) -> np.ndarray:
        """Its values for fields `(n, *field_shape)`."""
        return fields.reshape(len(fields), -1) @ self.weights.reshape(-1)


class Exact(NamedTuple):
    """A density that is known: values and the density of each."""

    values: np.ndarray
    density: np.ndarray


def functionals(
    posterior: Posterior, fields: np.ndarray, means: list[np.ndarray]
) -> list[Functional]:
    """What is worth looking at: what data say most about, averages, and two cells.

    `means` are those of the modes.
    """
    prior, known = posterior.prior, posterior.known
    shape = prior.lattice.field_shape
    found = []
    if known.weights.size:
        name = "t, a weighted average of the field"
        found.append(Functional(name, "its exact posterior is known", known.weights))
    elif posterior.basis is not None and posterior.basis.shape[1]:
        found.append(_informed(prior, posterior.basis[:, 0]))
    even = np.full(shape, 1 / np.prod(shape))
    found.append(Functional("average over all cells", "the field as one number", even))
    most, least = telling_cells(prior, fields)
    found.append(_cell(most, shape, "the cell that data say most about"))
    if len(means) > 1:
        apart = np.ptp(np.stack(means), axis=0) / np.maximum(fields.std(0), 1e-300)
        differ = int(apart.argmax())
        if differ != most:
            return [*found, _cell(differ, shape, "the cell in which modes differ most")]
        found[-1] = _cell(most, shape, "the cell that data say most about; modes differ most there")
    return [*found, _cell(least, shape, "the cell that data say least about")]


def telling_cells(prior: Prior, fields: np.ndarray) -> tuple[int, int]:
    """The cells that data say most and least about, as places in a flattened field.

    How much that is, is the divergence of two Gaussians, with the moments of samples `(n,
    *field_shape)` and of the prior: a cell may be shifted, narrower, or wider where modes differ.
    """
    noise = np.random.default_rng(0).standard_normal((PRIOR_DRAWS, prior.lattice.dim))
    drawn = np.asarray(prior.unwhiten(as_array(noise)))
    wide = np.maximum(drawn.std(0), np.finfo(float).tiny)
    centre = np.broadcast_to(np.asarray(prior.mean), fields.shape[1:])
    ratio = np.square(np.maximum(fields.std(0) / wide, LEAST_RATIO))
    shift = np.square((fields.mean(0) - centre) / wide)
    told = ratio + shift - 1 - np.log(ratio)
    return int(told.argmax()), int(told.argmin())


def _informed(prior: Prior, direction: np.ndarray) -> Functional:
    """The average along the leading direction of whitened space, with weights of sum one."""
    centre = jnp.broadcast_to(prior.mean, prior.lattice.field_shape)
    _, pull = jax.vjp(prior.whiten, centre)
    weights = np.asarray(pull(jnp.asarray(direction, centre.dtype))[0], np.float64)
    weights = weights / np.abs(weights).sum()
    weights = weights * np.sign(weights.reshape(-1)[np.abs(weights).argmax()])
    return Functional("weighted average", "what data say most about", weights)


def _cell(index: int, shape: tuple[int, ...], about: str) -> Functional:
    where = tuple(int(i) for i in np.unravel_index(index, shape))
    weights = np.zeros(shape)
    weights[where] = 1.0
    return Functional(f"x at cell {', '.join(map(str, where))}", about, weights)


def prior_moments(prior: Prior, weights: np.ndarray) -> tuple[float, float]:
    """Exact mean and standard deviation of a weighted sum of cells under the prior."""
    origin = jnp.zeros(prior.lattice.dim)
    centre, pull = jax.vjp(prior.unwhiten, origin)
    slope = np.asarray(pull(jnp.asarray(weights, centre.dtype))[0], np.float64)
    return float(np.sum(np.asarray(centre, np.float64) * weights)), float(np.linalg.norm(slope))


def marginal_figure(
    functional: Functional,
    prior: Prior,
    fields: np.ndarray,
    exact: Exact | None = None,
    truth: np.ndarray | None = None,
) -> Figure:
    """Histogram of samples, the whole prior, and what is known."""
    figure = new_figure(height=2.7)
    axes = figure.subplots()
    t = functional.of(fields)
    mean, std = prior_moments(prior, functional.weights)
    low, high = min(mean - TAILS * std, t.min()), max(mean + TAILS * std, t.max())
    axes.hist(t, BINS, density=True, color=ACCENT, alpha=0.35, lw=0, label="samples")
    grid = np.linspace(low, high, 400)
    density = np.exp(-0.5 * ((grid - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))
    axes.plot(grid, density, color=SOFT, lw=1.5, ls="--", label="prior")
    if exact is not None:
        axes.plot(exact.values, exact.density, color=INK, lw=1.1, label="exact posterior")
    if truth is not None:
        value = float(functional.of(truth[None])[0])
        axes.axvline(value, color=INK, ls=":", lw=1.3, label="truth")
    axes.set_xlim(low, high)
    axes.set_ylim(bottom=0)
    plain(axes, functional.name, "density")
    legend(figure, axes)
    return figure
