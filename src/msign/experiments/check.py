"""`msign new` and `msign check`: a problem to start from, and a look at one before it is run."""

import math
import os
import pathlib
import time
from typing import Any, NamedTuple

import jax.random as jr
import numpy as np

from msign import archive
from msign.experiments.multiscale import ScaleError, discretisation_errors
from msign.inference.watch import clock
from msign.noise import normal
from msign.problems import InverseProblem, Simulator
from msign.problems.simulator import Evaluated

TEMPLATE = pathlib.Path(__file__).with_name("template.py")
DIRECTIONS = 4  # along which the derivative is compared with differences
STEPS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 1e-4)  # of differences, in deviations of the prior
AGREES = 1e-2  # of the derivative; single precision leaves differences of 1e-3
BATCH = 64  # fields whose simulation is timed, or fewer if they take longer than PATIENCE seconds
PATIENCE, REPEATED = 5.0, 2
WORTH_TIMING, MOST_REPEATED = 0.2, 100  # seconds; on a busy machine single moments say nothing
BUDGETS = (10_000, 100_000, 800_000)  # whose time is told


def write_template(path: str | os.PathLike[str], overwrite: bool) -> None:
    """Write a commented problem file to start from."""
    path = pathlib.Path(path)
    if path.suffix != ".py":
        raise ValueError(f"file must end in .py, got {str(path)!r}")
    if path.exists() and not overwrite:
        raise ValueError(f"file exists already: choose another or --overwrite it, got {path}")
    text = TEMPLATE.read_text().replace("  # type: ignore[no-untyped-def]", "")
    with archive.atomic_write(path) as file:
        file.write(text.replace("FILE", path.name).encode())


class Checked(NamedTuple):
    """What a look at a problem found.

    Attributes:
        problem: Its name.
        field_shape: Of the finest lattice.
        shapes: Of the lattices of all scales, coarse to fine.
        observations: Shape of the data; None: a log-likelihood alone.
        derivative: `JAX`, `vjp` or None.
        gradient_error: Relative difference from finite differences; None without a derivative.
        errors: Discretisation error of each scale.
        misfit: Typical residual of prior draws in standard deviations of Gaussian noise.
        seconds: Of one simulation, of many at once.
        seconds_with_gradient: The same with derivative.
        rejected: Fraction of prior draws whose simulation was rejected.
        inflate: Of the problem.
    """

    problem: str
    field_shape: tuple[int, ...]
    shapes: list[tuple[int, ...]]
    observations: tuple[int, ...] | None
    derivative: str | None
    gradient_error: float | None
    errors: list[ScaleError]
    misfit: float | None
    seconds: float
    seconds_with_gradient: float | None
    rejected: float
    inflate: int

    @property
    def agrees(self) -> bool:
        """Whether the derivative, if there is one, is that of the forward map."""
        return self.gradient_error is None or self.gradient_error < AGREES

    def budgets(self) -> dict[int, float]:
        """Seconds that the simulations of some budgets take."""
        return {budget: budget * self.seconds for budget in BUDGETS}

    def values(self) -> dict[str, Any]:
        """All of it as plain values."""
        errors = [e._asdict() for e in self.errors]
        budgets = {str(k): v for k, v in self.budgets().items()}
        return {**self._asdict(), "errors": errors, "agrees": self.agrees, "budgets": budgets}


def check_problem(problem: InverseProblem, n: int = 50, seed: int = 0) -> Checked:
    """Try a problem on n prior draws a scale: shapes, derivative, coarse scales, time."""
    simulator, scale = Simulator(problem), problem.scales
    simulator.check()
    u = normal(jr.key(seed), (min(BATCH, problem.chunk), problem.dim))
    found, seconds = _timed(simulator, u, False)
    good = np.isfinite(found.log_likelihood)
    misfit = None
    if problem.noise_cov is not None and good.any():
        misfit = float(np.sqrt(np.median(np.mean(found.features[good] ** 2, 1))))
    error = slower = None
    if problem.differentiable:
        error = gradient_error(simulator, scale, seed)
        _, slower = _timed(simulator, u, True)
    return Checked(
        problem=problem.name,
        field_shape=problem.prior.lattice.field_shape,
        shapes=[p.lattice.shape for p in problem.priors],
        observations=problem.layout.shape if problem.has_observations else None,
        derivative="JAX" if problem.traceable else "vjp" if problem.vjp is not None else None,
        gradient_error=error,
        errors=discretisation_errors(problem, n, seed),
        misfit=misfit,
        seconds=seconds,
        seconds_with_gradient=slower,
        rejected=float(1 - good.mean()),
        inflate=problem.inflate,
    )


def _timed(simulator: Simulator, u: np.ndarray, gradient: bool) -> tuple[Evaluated, float]:
    """What simulations give, and the seconds of one of them, of as many as take little time."""

    def once(rows: int) -> tuple[Evaluated, float]:
        began = time.perf_counter()
        found = simulator.evaluate(u[:rows], simulator.problem.scales, gradient)
        return found, (time.perf_counter() - began) / rows

    once(1)  # which may compile
    rows = int(np.clip(PATIENCE / once(1)[1], 1, len(u)))
    found, _ = once(rows)
    tried = [once(rows)[1] for _ in range(REPEATED)]
    while rows * sum(tried) < WORTH_TIMING and len(tried) < MOST_REPEATED:
        tried.append(once(rows)[1])
    return found, min(tried)


def gradient_error(simulator: Simulator, scale: int, seed: int) -> float:
    """Largest relative difference of the log-likelihood's slope from central differences.

    Along directions half way between the gradient, where the slope is not small, and a random one.
    Of several steps the one counts that agrees best: too small ones drown in rounding errors.
    """
    d = simulator.problem.at_scale(scale).prior.lattice.dim
    u = normal(jr.key(seed + 1), (DIRECTIONS, d)).astype(np.float64)
    found = simulator.evaluate(u, scale, gradient=True)
    assert found.gradient is not None
    good = np.isfinite(found.log_likelihood)
    if not good.any():
        return np.inf
    u, gradient = u[good], found.gradient[good]
    direction = _unit(gradient) + _unit(normal(jr.key(seed + 2), u.shape))
    slope = np.sum(gradient * direction, 1)
    errors = []
    for step in STEPS:
        up, down = (
            simulator.evaluate(u + s * step * direction, scale).log_likelihood for s in (1, -1)
        )
        difference = (up - down) / (2 * step)
        size = np.maximum(np.abs(difference), np.abs(slope)) + np.finfo(float).tiny
        errors.append(np.nan_to_num(np.abs(slope - difference) / size, nan=np.inf))
    return float(np.max(np.min(errors, axis=0)))


def _unit(a: np.ndarray) -> np.ndarray:
    return a / np.maximum(np.linalg.norm(a, axis=1, keepdims=True), np.finfo(float).tiny)


def checked_lines(found: Checked) -> list[str]:
    """A look at a problem for people, line by line."""
    cells = math.prod(found.field_shape)
    lines = [
        f"problem          {found.problem}, a field of shape {found.field_shape}: {cells} cells"
    ]
    if found.observations is None:
        lines.append("data             none: a log-likelihood alone")
    else:
        lines.append(f"data             of shape {found.observations}")
    lines.append(f"derivative       {_derivative(found)}")
    if found.misfit is not None:
        lines.append(
            f"prior and data   residuals of prior draws are {found.misfit:.3g} standard deviations "
            "of the noise"
        )
    if found.rejected:
        lines.append(f"failures         {100 * found.rejected:.2g} percent of prior draws")
    gradient = ""
    if found.seconds_with_gradient is not None:
        gradient = f", {1e3 * found.seconds_with_gradient:.3g} ms with its derivative"
    lines += [f"one simulation   {1e3 * found.seconds:.3g} ms{gradient}", ""]
    lines.append("scale  lattice       relative error of F  in units of the noise")
    for error, shape in zip(found.errors, found.shapes, strict=True):
        text = " x ".join(map(str, shape))
        lines.append(
            f"{error.scale:5d}  {text:12s}  {error.relative:19.2e}  {error.in_noise:21.3g}"
        )
    lines += ["", *_about_errors(found), "budget     its simulations take (training comes on top)"]
    lines += [f"{budget:9,d}  {clock(s)}" for budget, s in found.budgets().items()]
    return lines


def _derivative(found: Checked) -> str:
    if found.derivative is None:
        return "none; one would save simulations (JAX code, or vjp=...)"
    by = "by JAX" if found.derivative == "JAX" else "as given (vjp)"
    word = "agrees with" if found.agrees else "DIFFERS from"
    return f"{by}, {word} finite differences (to {found.gradient_error:.1e})"


def _about_errors(found: Checked) -> list[str]:
    """What becomes of coarse scales that are off by more than the noise."""
    off = [e.scale for e in found.errors if e.in_noise > 1]
    if not off or found.misfit is None:
        return []
    which, whose = (
        (f"scales up to {max(off)} are", "their") if max(off) > 1 else ("scale 1 is", "its")
    )
    done = "a run adds" if found.inflate else "without inflate=0 a run would add"
    return [f"{which} off by more than the noise: {done} that to {whose} noise", ""]
