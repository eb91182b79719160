"""Metric Gaussian and geometric variational inference (MGVI, geoVI), by NIFTy.

Knollmüller and Enßlin 2019; Frank, Leike and Enßlin 2021. Both find one mean around which samples
are drawn: from the Gaussian whose precision is the metric there, prior plus Fisher information
(MGVI), or from one in coordinates in which that metric is closer to constant (geoVI). A few samples
around the mean, and a minimisation of their energy over it, take turns.

The steps are NIFTy's; the loop around them is ours, as `optimize_kl` would simulate all samples
once more for a message, and does not know of a budget. Needs `pip install 'msign[peers]'`.
"""

import contextlib
import dataclasses
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from msign import checks
from msign.noise import default_dtype, generator
from msign.problems import BudgetExceeded, InverseProblem, Simulator
from msign.problems.likelihoods import Gaussian, Poisson, StudentT
from msign.samplers.base import Drawn, Sampler, mark, require, require_derivative
from msign.samplers.laplace import Component, gauss_newton
from msign.samplers.nifty_places import LARGEST, PRODUCTS, Places
from msign.weights import ess_fraction, pareto_khat, weight_report

DELTA = 1e-4  # accuracy of minimisations, this and the next three as in NIFTy's introduction
LINEAR, CURVED, DESCENT = 100, 5, 35  # iterations: conjugate gradients, Newton of a sample, of a KL
FEW = 2  # of the first iterations, which have half of the pairs
EXACTLY = {"tol": 1e-8, "maxiter": 1000}  # conjugate gradients whose products cost nothing


class Found(NamedTuple):
    """What the minimisation left.

    Attributes:
        mean: Whitened coordinates `(d,)`.
        around: The samples that it was minimised with `(2 pairs, d)`.
        energies: Mean energy of the samples at the end of each iteration, in nats.
    """

    mean: np.ndarray
    around: np.ndarray
    energies: list[float]


@dataclasses.dataclass(frozen=True)
class _NIFTy(Sampler):
    """What both share.

    Attributes:
        iterations: Of drawing samples and minimising their energy, at most.
        pairs: Of samples in an iteration, mirror images of each other; half as many in the first
            two.
        training: Part of the budget for all iterations; the rest is for the samples at the end.
    """

    iterations: int = 6
    pairs: int = 4
    training: float = 0.5

    def __post_init__(self) -> None:
        checks.integer("iterations", self.iterations, 1)
        checks.integer("pairs", self.pairs, 1)
        if not 0 < self.training < 1:
            raise ValueError(f"training must be between 0 and 1, got {self.training}")

    @property
    @abstractmethod
    def name(self) -> str:
        """As people say it."""

    @property
    @abstractmethod
    def mode(self) -> str:
        """Of drawing samples, as NIFTy names it."""

    def check(self, problem: InverseProblem) -> None:
        try:
            import nifty.re  # noqa: F401
        except ImportError:
            raise ValueError(f"{self.name} needs NIFTy: pip install 'msign[peers]'") from None
        require_derivative(problem, self.name)
        known = (Gaussian, StudentT, Poisson)
        if not problem.has_observations or not isinstance(problem.family, known):
            kind = type(problem.family).__name__ if problem.has_observations else "log_likelihood"
            raise ValueError(
                "likelihood must be one that NIFTy has (Gaussian, StudentT or Poisson) for "
                f"{self.name}, got {kind}"
            )
        numbers = problem.layout.m * problem.dim
        if not problem.traceable and numbers > LARGEST:
            raise ValueError(
                f"forward must be JAX code for {self.name} where observations times cells are more "
                f"than {LARGEST}, got one in NumPy with {numbers}"
            )

    def draw(self, simulator: Simulator, scale: int, n: int, key: PRNGKeyArray) -> Drawn:
        least = int(np.ceil(self._least(simulator.problem) / self.training))
        require(simulator, least, f"an iteration of {self.name}")
        places = Places(simulator, scale, kept=2 * self.pairs + 4)
        with _as_nifty_has_it():
            run = _Run(self, places, key)
            found = run.minimised()
            trained = mark(simulator)
            u = run.sampled(found.mean, n)
            exact = run.gaussian(found.mean) if len(u) == n and self.mode == "linear" else None
        information = {
            "iterations": len(found.energies),
            "energies": found.energies,
            "pairs": len(found.around) // 2,
            "distinct": len(u) or len(found.around),
        }
        if not len(u):
            return Drawn(_cast(_repeated(found.around, n)), information)
        drawn = Drawn(_cast(_repeated(u, n)), information, trained=trained)
        return drawn if exact is None else self._weighted(drawn, exact, simulator, scale)

    def _weighted(
        self, drawn: Drawn, gaussian: Component, simulator: Simulator, scale: int
    ) -> Drawn:
        """With the density of a Gaussian, and weights if the budget has simulations for them."""
        drawn = drawn._replace(log_ratio=lambda u: gaussian.log_ratio(np.asarray(u, np.float64)))
        if simulator.left < len(drawn.u):
            return drawn
        found = simulator.evaluate(drawn.u, scale).log_likelihood
        log_weights = found - gaussian.log_ratio(drawn.u.astype(np.float64))
        drawn.information.update(
            ess_fraction=ess_fraction(log_weights), khat=pareto_khat(log_weights)
        )
        log_evidence = weight_report(log_weights).log_evidence
        return drawn._replace(log_weights=log_weights, log_evidence=log_evidence)

    def _least(self, problem: InverseProblem) -> int:
        """Simulations of the first iteration, if everything ends as soon as it can."""
        jacobian, pairs = problem.layout.m + 1, self._pairs(0)

        def systems(number: int) -> int:
            return min(jacobian, 2 * PRODUCTS * number) if problem.traceable else jacobian

        curved = 2 * (2 if problem.traceable else 3) + systems(1)  # two places, a Newton step
        of_samples = 2 * pairs * (curved if self.mode == "nonlinear" else 0)
        return 1 + systems(pairs) + of_samples + 2 * 2 * pairs

    def _pairs(self, iteration: int) -> int:
        return max(1, self.pairs // 2) if iteration < FEW else self.pairs


class MGVI(_NIFTy):
    """Metric Gaussian variational inference.

    Where the Jacobian at the mean is known, the density of the Gaussian is, too; weights are then
    given if the budget has simulations for them. Each sample is a draw of that density, but those
    of a pair are mirror images: the mean of all is that of the Gaussian.
    """

    @property
    def name(self) -> str:
        return "MGVI"

    @property
    def mode(self) -> str:
        return "linear"


class GeoVI(_NIFTy):
    """Geometric variational inference: samples of MGVI that are moved along the curved metric.

    Their density is not known.
    """

    @property
    def name(self) -> str:
        return "geoVI"

    @property
    def mode(self) -> str:
        return "nonlinear"


class _Run:
    """NIFTy's steps on one problem."""

    def __init__(self, options: _NIFTy, places: Places, key: PRNGKeyArray):
        from msign.samplers.nifty_likelihood import Simulated, of_features, variational_inference

        problem = places.simulator.problem
        dim = problem.priors[places.scale - 1].lattice.dim
        self.options, self.places, self.key = options, places, key
        self.start = generator(jr.fold_in(key, 0)).normal(size=dim)
        self.likelihood = Simulated(places, of_features(problem), dim)
        self.steps = variational_inference(self.likelihood, self._value_and_gradient)
        self.linear: dict[str, Any] = {"absdelta": DELTA * dim / 10, "maxiter": LINEAR}
        self._best: tuple[float, Any, Any] | None = None  # energy, mean, samples

    def _value_and_gradient(self, primals: Any, *, primals_samples: Any) -> tuple[Any, Any]:
        """Of the energy; the lowest of an iteration is kept, as the budget may end in it."""
        energy, slope = self.likelihood.value_and_gradient(primals, primals_samples=primals_samples)
        if self._best is None or float(energy) < self._best[0]:
            self._best = float(energy), primals, primals_samples
        return energy, slope

    def minimised(self) -> Found:
        """The mean, by iterations until they or their part of the budget end.

        The first may use all of it: without one there is nothing.
        """
        from nifty.re import Samples

        simulator = self.places.simulator
        until = simulator.nfs + int(self.options.training * simulator.left)
        state = self.steps.init_state(
            jr.key_data(jr.fold_in(self.key, 1)),
            n_samples=lambda i: self.options._pairs(i),
            sample_mode=f"{self.options.mode}_resample",
            draw_linear_kwargs=self._linear(),
            nonlinearly_update_kwargs=self._curved(),
            kl_kwargs={"minimize_kwargs": {"xtol": DELTA, "maxiter": DESCENT}},
        )
        samples = Samples(pos=jnp.asarray(self.start), samples=None, keys=None)
        found: Found | None = None
        for iteration in range(self.options.iterations):
            self._best = None
            allowed = max(0, until - simulator.nfs) if iteration else simulator.left
            with contextlib.suppress(BudgetExceeded), simulator.limited(allowed):
                self.places.jacobian(_row(samples.pos), self.options._pairs(iteration))
                samples, state = self.steps.update(samples, state)
            if self._best is None or not np.isfinite(self._best[0]):
                break  # the budget ended before new samples were simulated, or one was rejected
            energy, mean, around = self._best
            energies = [*(found.energies if found else []), energy]
            everyone = np.asarray(around.at(mean).samples, np.float64)
            found = Found(np.asarray(mean, np.float64), everyone, energies)
            if state.nit == iteration:  # the budget ended
                break
        if found is None:
            raise ValueError(
                f"budget must last for an iteration of {self.options.name} without a rejected "
                f"simulation, got {simulator.budget}, with {simulator.failures} rejected"
            )
        return found

    def sampled(self, mean: np.ndarray, n: int) -> np.ndarray:
        """N samples around the mean, in pairs; fewer where the budget ends, none at the least."""
        from nifty.re import Samples

        pairs = -(-n // 2)
        around = Samples(pos=jnp.asarray(mean), samples=None, keys=None)
        keys = np.asarray(jr.key_data(jr.split(jr.fold_in(self.key, 2), pairs)))
        found: list[np.ndarray] = []
        with contextlib.suppress(BudgetExceeded):
            if self.places.jacobian(mean[None], pairs) is not None:
                self.linear = EXACTLY
            for one in keys:
                drawn, _ = self.steps.draw_samples(
                    around,
                    key=one,
                    sample_mode=f"{self.options.mode}_resample",
                    n_samples=1,
                    point_estimates=(),
                    draw_linear_kwargs=self._linear(),
                    nonlinearly_update_kwargs=self._curved(),
                )
                pair = np.asarray(drawn.samples, np.float64)
                if np.isfinite(pair).all():  # it is not where a simulation was rejected
                    found.append(pair)
        return np.concatenate(found)[:n] if found else np.zeros((0, len(mean)))

    def gaussian(self, mean: np.ndarray) -> Component | None:
        """The Gaussian of linear samples, where its determinant is known."""
        if self.linear is not EXACTLY:
            return None
        jacobian = self.places.jacobian(mean[None])
        assert jacobian is not None
        features = self.places.features(mean[None])
        likelihood = self.places.simulator.likelihood(self.places.scale)
        values, vectors = gauss_newton(likelihood, features, jacobian)
        return Component(mean, vectors, values, log_mass=0.0, searches=1)

    def _linear(self) -> dict[str, Any]:
        return {"cg_kwargs": self.linear}

    def _curved(self) -> dict[str, Any]:
        return {"minimize_kwargs": {"xtol": DELTA, "maxiter": CURVED}}


@contextlib.contextmanager
def _as_nifty_has_it() -> Iterator[None]:
    """Double precision, and no messages about iterations that end."""
    from nifty.re import logger

    level = logger.level
    logger.setLevel("CRITICAL")
    try:
        with jax.enable_x64(True):
            yield
    finally:
        logger.setLevel(level)


def _row(array: Any) -> np.ndarray:
    return np.asarray(array, np.float64)[None]


def _repeated(u: np.ndarray, n: int) -> np.ndarray:
    """N rows, those there are as often as need be."""
    return u[np.arange(n) % len(u)]


def _cast(u: np.ndarray) -> np.ndarray:
    return u.astype(default_dtype())
