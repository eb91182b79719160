"""Flows in the likelihood-informed subspace, carried from scale to scale.

The directions that data inform are found anew at each scale, and the flow trained so far goes on
acting on those that continue its own. Where the gradients say that the posterior is Gaussian, the
exact Gaussian takes its place.
"""

import dataclasses
from typing import Any, NamedTuple

import jax.random as jr
import numpy as np
import paramax
from flowjax.bijections import AbstractBijection, Chain

from msign import checks
from msign.bijections import (
    ConditionalGaussian,
    InformedConfig,
    InformedFlow,
    TriangularMap,
    Whitened,
)
from msign.bijections.subspace import (
    Growth,
    can_widen,
    grown_flow,
    informed_flow,
    informed_part,
)
from msign.inference.flows.base import FlowKind, Start
from msign.inference.flows.beyond import fields_wanted, gaussian_beyond
from msign.inference.flows.directions import (
    ROWS_PER_DIRECTION,
    align,
    lift_directions,
    subspace_from_gradients,
)
from msign.inference.flows.probe import (
    Probe,
    probe_with_gradients,
    probe_without_gradients,
)
from msign.network import MsIGN
from msign.noise import on_device
from msign.problems.inverse import InverseProblem
from msign.variables import Variables

GAUSSIAN = 1e-5  # nats that a Gaussian may be wrong by to be taken for the posterior
CUBIC = 12  # leading variables with cubic terms in what further directions depend on
REGRESSED = 20  # fields for each cell where gradients come from regression


class Carried(NamedTuple):
    """The flow of the scale before, on its directions lifted to this one."""

    flow: Chain
    lifted: np.ndarray
    growth: Growth


@dataclasses.dataclass(frozen=True)
class Informed(FlowKind):
    """Couplings and affine maps of the few variables that data inform.

    Attributes:
        config: Hyper-parameters of the flow.
        per_direction: Gradients for each direction found: directions that few gradients find are
            poor ones, and bound the effective sample size whatever the flow.
        rate: Highest learning rate, of up to four variables; it falls slowly with more.
    """

    config: InformedConfig = dataclasses.field(default_factory=InformedConfig)
    per_direction: int = 30
    rate: float = 5e-3

    def __post_init__(self) -> None:
        checks.integer("per_direction", self.per_direction, 1)
        checks.positive("rate", self.rate)

    def start(self, given: Start) -> AbstractBijection:
        prior = given.network.prior_at(given.scale)
        carried = _carried(given)
        lifted = np.zeros((prior.lattice.dim, 0)) if carried is None else carried.lifted
        basis, probe = self._find_directions(given, carried)
        exact = _exact_gaussian(probe, lifted, GAUSSIAN)
        if exact is not None:
            basis, flow = exact
            growth: Growth = ((basis.shape[1], "affine"),)
        else:
            basis = align(basis, lifted)
            growth = _growth(carried, basis.shape[1], given.train, self.config)
            flow = self._grown(given, carried, growth)
        inner = InformedFlow(basis, flow, lifted, carried and carried.flow, growth)
        return Whitened(inner, prior)

    def finish(self, given: Start) -> AbstractBijection:
        """F_l with a Gaussian of directions that it leaves out, given those that it moves."""
        flow = given.network.flows[given.scale - 1]
        inner, model = informed_part(flow), given.network.variables(given.scale)
        problem = given.simulator.problem
        if inner is None or not self._leaves_out(model, problem):
            return flow
        found = gaussian_beyond(
            given.simulator,
            given.scale,
            model,
            self.config.beyond,
            self.per_direction,
            given.tolerance,
            CUBIC,
            given.allowance,
            jr.fold_in(given.key, 4),
        )
        if found is None:
            return flow
        wide = inner.followed_by(found.layer, found.basis)
        return Whitened(wide, given.network.prior_at(given.scale))

    def kept_to_finish(self, variables: Variables, problem: InverseProblem, share: int) -> int:
        if not self._leaves_out(variables, problem):
            return 0
        wanted = fields_wanted(variables.size, self.config.beyond, problem.layout.m)
        return min(2 * wanted, share // 8)

    def _leaves_out(self, variables: Variables, problem: InverseProblem) -> bool:
        """Whether there may be directions that were left out, and can be found."""
        full = self.config.max_rank <= variables.size < variables.dim
        return full and problem.differentiable and self.config.beyond > 0

    def _grown(self, given: Start, carried: Carried | None, growth: Growth) -> Chain:
        """The flow of the scale before with layers for new variables, which leave these alone."""
        if carried is not None and growth == carried.growth:
            return carried.flow
        before = None if carried is None else carried.flow
        return grown_flow(jr.fold_in(given.key, 1), before, *growth[-1], self.config)

    def least_allowance(self, dim: int) -> int:
        return 2 * self.per_direction

    def learning_rate(self, network: MsIGN, scale: int, train: str) -> float:
        return self.rate * min(1.0, 4 / network.variables(scale).size) ** (1 / 3)

    def describe(self, flow: AbstractBijection) -> Any:
        inner = informed_part(flow)
        assert inner is not None
        carried = inner.before.shape[0] if inner.before else 0
        beyond = None if inner.layer is None else inner.layer.structure
        return {"growth": inner.growth, "carried": carried, "beyond": beyond}

    def like(self, network: MsIGN, scale: int, description: Any) -> AbstractBijection:
        growth = tuple((rank, place) for rank, place in description["growth"])
        prior = network.prior_at(scale)
        d, k = prior.lattice.dim, description["carried"]
        flow = informed_flow(jr.key(0), growth, self.config)
        coarser = informed_part(network.flows[scale - 2]) if k else None
        before = coarser.now if coarser else None
        basis = np.eye(d, growth[-1][0])
        inner = InformedFlow(basis, flow, basis[:, :k], before, growth)
        if description.get("beyond"):
            layer = ConditionalGaussian.identity(growth[-1][0], *description["beyond"])
            inner = inner.followed_by(layer, np.zeros((d, description["beyond"][0])))
        return Whitened(inner, prior)

    def default_method(self, problem: InverseProblem, size: int) -> str:
        """A pool determines splines, an emulator what has more variables than these."""
        splines = size <= self.config.spline_rank
        return "pool" if splines or not problem.has_observations else "emulator"

    @property
    def few_variables(self) -> bool:
        return True

    @property
    def needs_exact_conditioning(self) -> bool:
        return True

    def _find_directions(self, given: Start, carried: Carried | None) -> tuple[np.ndarray, Probe]:
        """Orthonormal directions that data inform, with the simulations that they rest on."""
        simulator, scale, allowance = given.simulator, given.scale, given.allowance
        d = given.network.lattices[scale - 1].dim
        model = _proposal(given, carried)
        key, least = jr.fold_in(given.key, 0), 1 if carried is None else carried.lifted.shape[1]
        most = min(max(self.config.max_rank, least), d)
        if simulator.problem.differentiable:
            affordable = max(2, allowance // 2)
            # At first as many as a linear fit in all directions that there may be needs.
            first = ROWS_PER_DIRECTION * (self.config.max_rank + 1)
            n = min(max(first, self.per_direction * least), affordable)
            probe = probe_with_gradients(simulator, scale, model, key, n)
            while True:
                found = subspace_from_gradients(probe.gradients, most, given.tolerance, least)
                more = min(self.per_direction * found.basis.shape[1], affordable) - n
                if more <= 0:
                    return found.basis, probe
                further = jr.fold_in(key, n), more
                probe = probe.joined(probe_with_gradients(simulator, scale, model, *further))
                n += more
        given_to = simulator, scale, model, most, self.per_direction, REGRESSED
        probe = probe_without_gradients(*given_to, allowance, key)
        found = subspace_from_gradients(probe.gradients, most, given.tolerance, least, probe.span)
        return found.basis, probe


def _carried(given: Start) -> Carried | None:
    """The informed flow of the next coarser scale, if there is one."""
    if given.scale == 1:
        return None
    flow = informed_part(given.network.flows[given.scale - 2])
    if flow is None:
        return None
    prior = given.network.prior_at(given.scale)
    basis = np.asarray(paramax.unwrap(flow.basis), np.float64)
    assert isinstance(flow.now, Chain)
    return Carried(flow.now, lift_directions(prior, basis), flow.growth)


def _proposal(given: Start, carried: Carried | None) -> Variables:
    """Q~_l: what the coarser scales make of the prior of this one."""
    d = given.network.lattices[given.scale - 1].dim
    if carried is None:
        return given.network.variables(given.scale)
    return Variables(carried.flow, paramax.non_trainable(on_device(carried.lifted)), d)


def _growth(carried: Carried | None, rank: int, train: str, config: InformedConfig) -> Growth:
    """How the flow of a stage grows: where it has new variables, or where it alone is trained."""
    if carried is None:
        return ((rank, "inner"),)
    if train == "last":
        return (*carried.growth, (rank, "outer"))
    if rank == carried.lifted.shape[1] and carried.growth[-1][1] != "affine":
        return carried.growth
    wider = can_widen(carried.flow, rank, config)
    return (*carried.growth, (rank, "wider" if wider else "inner"))


def _exact_gaussian(
    probe: Probe, lifted: np.ndarray, tolerance: float
) -> tuple[np.ndarray, Chain] | None:
    """Directions and affine flow of a posterior that is Gaussian; None where it is not.

    Where gradients are linear in the field, the posterior is Gaussian and follows from them. It is
    taken for that if its density explains the log-likelihoods of all fields of the probe, but for a
    variance of `tolerance`. Directions left out of it cost less than what would refuse it.
    """
    if not np.all(np.isfinite(probe.log_likelihood)):
        return None  # fields that are impossible
    most = max(1, min(len(probe.gradients) // ROWS_PER_DIRECTION - 1, len(lifted)))
    informed = subspace_from_gradients(probe.gradients, most, 0.1 * tolerance, span=probe.span)
    basis = align(informed.basis, lifted)
    s, gradients = probe.along(basis)
    found = _gaussian_given(s, gradients)
    if found is None:
        return None
    matrix, shift = found
    z = np.linalg.solve(matrix, (s - shift).T).T
    missed = probe.log_likelihood - 0.5 * np.sum(s**2 - z**2, 1)
    rounding = 8 * np.finfo(np.float32).eps * np.abs(probe.log_likelihood).max()
    if not np.var(missed) < tolerance + rounding**2:
        return None
    return basis, Chain([TriangularMap.from_matrix(matrix, shift)])


def _gaussian_given(s: np.ndarray, gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Matrix and shift that make normal variables Gaussian ones.

    Gradients of the log-likelihood are fitted as linear in the variables, which is exact for linear
    Gaussian problems (the classical low-rank update). None where the fit has no proper precision,
    or where there are too few gradients.
    """
    n, r = s.shape
    if n < ROWS_PER_DIRECTION * (r + 1):
        return None
    design = np.concatenate([np.ones((n, 1)), s], 1)
    fitted = np.linalg.lstsq(design, gradients, rcond=None)[0]
    precision = np.eye(r) - 0.5 * (fitted[1:] + fitted[1:].T)
    if np.linalg.eigvalsh(precision)[0] <= 0:
        return None
    covariance = np.linalg.inv(precision)
    return np.linalg.cholesky(covariance), covariance @ fitted[0]
