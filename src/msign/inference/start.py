"""The model with which a stage starts, from the trained model of the scale before.

Informed flows are carried over: the directions that data inform are found anew at each scale, and
the flow trained so far goes on acting on those that continue its own (but where the gradients say
that the posterior is Gaussian, the exact Gaussian takes its place). Glow flows start as the
identity on top of the coarser network, so that the start is the proposal q~_l of Algorithm 1.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from flowjax.bijections import Chain
from jaxtyping import PRNGKeyArray

from msign.bijections.glow import glow_flow
from msign.bijections.subspace import SubspaceFlow, TriangularMap, informed_stack
from msign.bijections.whitened import Whitened
from msign.inference.config import FitConfig
from msign.inference.models import (
    FlowCore,
    NetworkCore,
    StageModel,
    draw,
    excess_all,
    informed_flow,
    lift_directions,
)
from msign.inference.subspace import (
    Subspace,
    align,
    gradients_by_regression,
    subspace_from_gradients,
)
from msign.network import MsIGN
from msign.problems.inverse import InverseProblem
from msign.weights import normalised

LINEAR = 0.9999  # gradients this linear make the posterior Gaussian: start anew, exactly
PER_DIRECTION = 30  # gradients for each direction found, where that is more than the first lot
LINEAR_TOLERANCE = 1e-5  # nats left out of such a posterior
ENOUGH = 10.0  # fields that the weights of a probe must be worth to judge a start by them


class Probe(NamedTuple):
    """Fields simulated at the start of a stage.

    Attributes:
        u: Whitened coordinates `(n, d)`.
        gradients: Of the log-likelihood `(n, d)`, or what regression made of it.
        log_weights: Log-likelihood minus excess of the model that drew them `(n,)`.
    """

    u: np.ndarray
    gradients: np.ndarray
    log_weights: np.ndarray


def start_model(
    problem: InverseProblem,
    scale: int,
    before: StageModel | None,
    config: FitConfig,
    key: PRNGKeyArray,
    allowance: int,
) -> StageModel:
    """The starting model of a stage; `before` is the trained one of the next coarser scale.

    Simulates at most `allowance` times, to find the informed subspace.
    """
    if config.flow == "informed":
        return _informed_start(problem, scale, before, config, key, allowance)
    if before is None:
        network = MsIGN(
            problem.prior, problem.scales, config.glow, key=key, conditioning=config.conditioning
        )
    else:
        assert isinstance(before.core, NetworkCore)
        network = before.core.network
    model = StageModel(NetworkCore(network, scale), None, problem.priors[scale - 1].lattice.dim)
    if config.flow == "both":
        subspace, _ = _find_subspace(problem, scale, model, 1, config, key, allowance)
        network = with_informed_block(network, scale, subspace.basis, config, key)
        model = StageModel(NetworkCore(network, scale), None, model.dim)
    return model


def with_informed_block(
    network: MsIGN, scale: int, basis: np.ndarray, config: FitConfig, key: PRNGKeyArray
) -> MsIGN:
    """The network with an informed flow before the Glow stack of a scale."""
    prior = network.prior_at(scale)
    stack = informed_stack(jr.fold_in(key, 1), basis.shape[1], config.informed)
    block = Whitened(SubspaceFlow(jnp.asarray(basis, float), stack), prior)
    glow = glow_flow(jr.fold_in(key, 2), prior, config.glow.at(scale, network.scales))
    flows = (*network.flows[: scale - 1], Chain([block, glow]), *network.flows[scale:])
    return eqx.tree_at(lambda n: n.flows, network, flows)


def _informed_start(
    problem: InverseProblem,
    scale: int,
    before: StageModel | None,
    config: FitConfig,
    key: PRNGKeyArray,
    allowance: int,
) -> StageModel:
    prior = problem.priors[scale - 1]
    carried, core = None, None
    if before is not None:
        assert before.basis is not None and isinstance(before.core, FlowCore)
        core = before.core
        lifted = lift_directions(prior, np.asarray(before.basis, np.float64))
        carried = StageModel(core, jnp.asarray(lifted, float), prior.lattice.dim)
    rank_before = 0 if core is None else core.size
    subspace, probe = _find_subspace(
        problem, scale, carried, max(1, rank_before), config, key, allowance
    )
    u, gradients = probe.u, probe.gradients
    # Where gradients are linear the posterior is Gaussian and known exactly: directions are free.
    most = min(len(u) // 3 - 1, prior.lattice.dim)
    wide = subspace_from_gradients(gradients, max(1, most), LINEAR_TOLERANCE).basis
    if _explained(u @ wide, gradients @ wide) > LINEAR:
        basis, core, rank_before = wide, None, 0
    else:
        basis = subspace.basis if core is None else align(subspace.basis, lifted)
    s, g = u @ basis, gradients @ basis
    rank = basis.shape[1]
    ranks: tuple[int, ...] = (rank,)
    if core is not None:
        ranks = core.ranks if rank == rank_before else (*core.ranks, rank)
    if core is None or ranks != core.ranks:
        flow = informed_flow(jr.fold_in(key, 1), ranks, config.informed)
        if core is not None:
            flow = eqx.tree_at(lambda f: f.bijections[1].bijection, flow, core.flow)
        core = FlowCore(flow, ranks)
        guess = FlowCore(_gaussian_start(flow, rank_before, s, g), ranks)
        core = core if _is_worse(guess, core, s, probe.log_weights) else guess
    return StageModel(core, jnp.asarray(basis, float), prior.lattice.dim)


def _find_subspace(
    problem: InverseProblem,
    scale: int,
    model: StageModel | None,
    min_rank: int,
    config: FitConfig,
    key: PRNGKeyArray,
    allowance: int,
) -> tuple[Subspace, Probe]:
    """The informed subspace at a scale, with the simulations that it rests on."""
    d = problem.priors[scale - 1].lattice.dim
    key = jr.fold_in(key, 0)
    max_rank = min(max(config.informed.max_rank, min_rank), d)
    if problem.differentiable:
        n = max(2, min(config.subspace_samples, allowance // 2))
        probe = _gradients_at(problem, scale, *_fields(model, key, n, d))
        found = subspace_from_gradients(
            probe.gradients, max_rank, config.subspace_tolerance, min_rank
        )
        more = min(PER_DIRECTION * found.basis.shape[1], allowance // 2) - n
        if more > 0:
            fields = _fields(model, jr.fold_in(key, 1), more, d)
            rest = _gradients_at(problem, scale, *fields)
            probe = Probe(*(np.concatenate(pair) for pair in zip(probe, rest, strict=True)))
    else:
        n = max(2, min(max(config.subspace_samples, 20 * d), 20_000, allowance))
        u, excess = _fields(model, key, n, d)
        if model is not None and model.basis is not None:
            known = np.asarray(model.basis, np.float64)
        else:
            known = np.eye(d) if d <= max_rank else np.zeros((d, 0))
        found_there = problem.evaluate(u, scale)
        gradients = _regressed(u, known, found_there.residual)
        probe = Probe(u, gradients, found_there.log_likelihood - excess)
    finite = np.all(np.isfinite(probe.gradients), axis=1)
    probe = Probe(
        probe.u[finite].astype(np.float64), probe.gradients[finite], probe.log_weights[finite]
    )
    found = subspace_from_gradients(probe.gradients, max_rank, config.subspace_tolerance, min_rank)
    return found, probe


def _gradients_at(problem: InverseProblem, scale: int, u: np.ndarray, excess: np.ndarray) -> Probe:
    found = problem.evaluate(u, scale, gradient=True)
    return Probe(u, np.asarray(found.gradient, np.float64), found.log_likelihood - excess)


def _regressed(u: np.ndarray, known: np.ndarray, residuals: np.ndarray) -> np.ndarray:
    u = u.astype(np.float64)
    good = np.all(np.isfinite(residuals), axis=1)
    s = u @ known
    rest = u - s @ known.T
    r = known.shape[1]
    gradients = np.full_like(u, np.nan)
    pieces = gradients_by_regression(s[good], rest[good], residuals[good])
    along_rest = pieces[:, r:] - (pieces[:, r:] @ known) @ known.T
    gradients[good] = pieces[:, :r] @ known.T + along_rest
    return gradients


def _fields(
    model: StageModel | None, key: PRNGKeyArray, n: int, d: int
) -> tuple[np.ndarray, np.ndarray]:
    """Whitened coordinates of n fields of a model (None: the prior), and their excess."""
    eta = jr.normal(key, (n, d))
    if model is None:
        return np.asarray(eta), np.zeros(n)
    u, _, excess = draw(model, eta)
    return np.asarray(u), np.asarray(excess, np.float64)


def _explained(s: np.ndarray, gradients: np.ndarray) -> float:
    """How much of the gradients is linear in the variables; one for a linear Gaussian problem."""
    n, r = s.shape
    if n < 3 * (r + 1):
        return 0.0
    design = np.concatenate([np.ones((n, 1)), s], 1)
    fit, *_ = np.linalg.lstsq(design, gradients, rcond=None)
    return float(1 - ((gradients - design @ fit) ** 2).sum() / (gradients**2).sum())


def _is_worse(guess: FlowCore, core: FlowCore, s: np.ndarray, log_weights: np.ndarray) -> bool:
    """Whether a guess is further from the posterior than the core as it is, by KL(q||p).

    Weights that are worth too few fields say nothing: then the guess stands.
    """
    finite = np.isfinite(log_weights)
    if not finite.any():
        return False
    weights = normalised(log_weights[finite])
    if 1 / np.sum(weights**2) < ENOUGH:
        return False
    fields = jnp.asarray(s[finite], float)
    gain = np.asarray(excess_all(guess, fields) - excess_all(core, fields), np.float64)
    return bool(weights @ gain < 0)


def _gaussian_start(flow: Chain, old: int, s: np.ndarray, gradients: np.ndarray) -> Chain:
    """The flow with a Gaussian guess for its new variables, given the old ones.

    Gradients of the log-likelihood are fitted as linear in the variables, which is exact for linear
    Gaussian problems (the classical low-rank update). Where the fit has no positive definite
    precision, or there are too few gradients, the flow stays as it is.
    """
    n, r = s.shape
    if n < 3 * (r + 1):
        return flow
    design = np.concatenate([np.ones((n, 1)), s], 1)
    fit, *_ = np.linalg.lstsq(design, gradients[:, old:], rcond=None)
    constant, slope = fit[0], fit[1:].T
    precision = np.eye(r - old) - 0.5 * (slope[:, old:] + slope[:, old:].T)
    values = np.linalg.eigvalsh(precision)
    if _explained(s, gradients[:, old:]) < 0.5 or values[0] < 0.5:
        return flow
    covariance = np.linalg.inv(precision)
    matrix, shift = np.eye(r), np.zeros(r)
    matrix[old:, old:] = np.linalg.cholesky(covariance)
    matrix[old:, :old] = covariance @ slope[:, :old]
    shift[old:] = covariance @ constant
    new = TriangularMap.from_matrix(matrix, shift)
    return eqx.tree_at(lambda f: f.bijections[-1], flow, new)
