"""What limits a trained informed posterior: directions left out, or the polynomial emulator.

    python bench/limits.py PROBLEM RUN [--fields 60000] [--seed 7]

PROBLEM is `elliptic` or another built-in problem, RUN the directory of its finished run. Fields of
the finest model are simulated anew. Printed are

- half of E|g outside|^2, g the gradient of the log-likelihood outside of the flow's directions: the
  nats that are lost by leaving these out (the lazy-map bound; the Jeffreys divergence has twice as
  much), as it is and with the next 16, 32, 64 and 128 directions, on gradients that did not choose
  them;
- how much of the variance of the log-likelihood a polynomial misses, on fields that it was not
  fitted to: in the flow's own variables, and with more directions, linearly and times the leading
  variables.
"""

import argparse

import jax.random as jr
import numpy as np

import msign
from msign.bijections.polynomials import RIDGE, Terms
from msign.inference.simulate import drawn_parts

FITTED = 2 / 3  # of the fields; the rest tests
CHOOSING, TESTING = 3000, 1000  # gradients that choose directions, and that say what is left out
PART = 4000  # fields at a time


def simulated(simulator, model, scale, n, seed):
    """Whitened fields, variables, features and log-likelihoods of n fields of a model."""
    parts = []
    for u, s, _ in drawn_parts(model, jr.key(seed), n, PART):
        own = simulator.evaluate(u, scale)
        parts.append((u.astype(np.float32), s, own.features, own.log_likelihood))
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def outside(simulator, scale, u, basis):
    """Gradients of the log-likelihood without their part along the directions of a flow."""
    gradient = simulator.evaluate(u, scale, gradient=True).gradient
    return gradient - (gradient @ basis) @ basis.T


def missed(design, features, log_likelihood, fitted):
    """Mean square and variance of the log-likelihood that a least-squares fit misses elsewhere."""
    known = design[:fitted]
    gram = (known.T @ known).astype(np.float64)
    gram += RIDGE * np.diag(np.diag(gram))
    found = np.linalg.solve(gram, known.T @ features[:fitted])
    predicted = design[fitted:] @ found.astype(np.float32)
    error = log_likelihood[fitted:] + 0.5 * (predicted**2).sum(1)
    return np.mean((features[fitted:] - predicted) ** 2), np.var(error)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problem")
    parser.add_argument("run")
    parser.add_argument("--fields", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    problem = getattr(msign.problems, options.problem)()
    posterior = msign.Posterior.load(options.run, problem)
    simulator, scale = msign.Simulator(problem), problem.scales
    model = posterior.network.variables(scale)
    u, s, features, values = simulated(simulator, model, scale, options.fields, options.seed)
    basis = model.directions

    choosing = outside(simulator, scale, u[:CHOOSING], basis)
    testing = outside(simulator, scale, u[CHOOSING : CHOOSING + TESTING], basis)
    directions = np.linalg.svd(choosing, full_matrices=False)[2]
    print(f"{model.size} directions; nats lost by leaving the others out:")
    for k in (0, 16, 32, 64, 128):
        left = testing - (testing @ directions[:k].T) @ directions[:k]
        print(f"  with {k:3d} more  {0.5 * np.mean((left**2).sum(1)):.4f}")

    fitted = int(FITTED * len(s))
    x = ((s - s[:fitted].mean(0)) / s[:fitted].std(0)).astype(np.float32)
    own = Terms.of(x.shape[1], 12, fitted // 3).design(x)
    print("missed by polynomials      terms  mean square  variance of the log-likelihood")

    def line(name, design):
        square, variance = missed(design, features, values, fitted)
        print(f"  {name:24s} {design.shape[1]:5d}      {square:.5f}  {variance:.4f}", flush=True)

    line("own variables", own)
    for k, leading in ((32, 0), (32, 32), (64, 32)):
        more = u @ directions[:k].T.astype(np.float32)
        products = (more[:, :, None] * x[:, None, :leading]).reshape(len(x), -1)
        line(f"+ {k}, times {leading} leading", np.concatenate([own, more, products], 1))


if __name__ == "__main__":
    main()
