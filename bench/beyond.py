"""What a Gaussian of further directions brings behind a trained informed flow.

    python bench/beyond.py PROBLEM RUN [--most 128 256] [--shrunk 1e-4 1e-2 0.3] [--seed 3]

PROBLEM is `elliptic`, `elliptic-hard`, or another built-in problem, RUN the directory of its
finished run. Its finest flow is taken without such a layer; for each number of directions and each
ridge of the regression a layer is made anew. Printed are simulations, seconds, the nats that the
lazy-map bound says are lost by leaving the directions out, those that are still lost along them
behind the layer (on gradients that were not fitted), and the Jeffreys divergence and effective
sample size of 20,000 fresh fields.
"""

import argparse
import time

import jax.numpy as jnp
import jax.random as jr

import msign
from msign.bijections import InformedFlow
from msign.bijections.subspace import informed_part
from msign.inference.flows import beyond
from msign.inference.flows.informed import CUBIC
from msign.inference.simulate import simulate
from msign.variables import Variables
from msign.weights import weight_report

FIELDS = 20_000


def without_layer(posterior: msign.Posterior) -> Variables:
    """The finest model as training left it."""
    inner = informed_part(posterior.network.flows[-1])
    model = posterior.network.variables(posterior.problem.scales)
    if inner.layer is None:
        return model
    core = inner.now.bijections[0].bijection
    return Variables(core, jnp.asarray(model.directions[:, : core.shape[0]]), model.dim)


def with_layer(model: Variables, found: beyond.Beyond) -> Variables:
    """The model with a layer of further directions."""
    flow = InformedFlow(model.directions, model.flow).followed_by(found.layer, found.basis)
    return Variables(flow.now, flow.basis, model.dim)


def quality(problem: msign.InverseProblem, model: Variables, seed: int) -> str:
    drawn = simulate(msign.Simulator(problem), model, problem.scales, jr.key(seed + 100), FIELDS)
    report = weight_report(drawn.log_weights)
    return f"J {report.jeffreys:.4f} +- {report.jeffreys_stderr:.4f}  ESS {report.ess_fraction:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problem")
    parser.add_argument("run")
    parser.add_argument("--most", type=int, nargs="+", default=[128])
    parser.add_argument("--shrunk", type=float, nargs="+", default=[beyond.SHRUNK])
    parser.add_argument("--seed", type=int, default=3)
    options = parser.parse_args()
    name, _, variant = options.problem.partition("-")
    make = getattr(msign.problems, name)
    problem = make(hard=True) if variant == "hard" else make()
    model = without_layer(msign.Posterior.load(options.run, problem))
    print(f"without: {quality(problem, model, options.seed)}", flush=True)
    for most in options.most:
        for shrunk in options.shrunk:
            beyond.SHRUNK = shrunk
            simulator, began = msign.Simulator(problem), time.perf_counter()
            found = beyond.gaussian_beyond(
                simulator, problem.scales, model, most, 30, 1e-3, CUBIC, 10**7, jr.key(options.seed)
            )
            seconds = time.perf_counter() - began
            if found is None:
                print(f"{most} directions, ridge {shrunk:g}: nothing to gain", flush=True)
                continue
            print(
                f"{found.basis.shape[1]} directions, ridge {shrunk:g}: {simulator.nfs:,} nFS, "
                f"{seconds:.0f} s, lost {found.before:.4f} before, {found.after:.4f} after, "
                f"{quality(problem, with_layer(model, found), options.seed)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
