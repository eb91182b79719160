"""What the flows of coarse scales are worth at finer ones, behind exact conditioning alone.

    python bench/inherited.py RUN STAGE [--fields 4000] [--seed 1]

RUN is the directory of a run, finished or not, of the elliptic problem (64 x 64 cells), STAGE a
stage that it has finished. At each finer scale fields of F_1 to F_STAGE, with the identity for all
flows above, are simulated. Printed are divergence and effective sample size by their weights, the
log evidence, and the mass of one mode, which is a half by symmetry: a change of sign along the
second leading eigenvector of the prior leads from one to the other.
"""

import argparse
import json
import pathlib

import jax.random as jr
import numpy as np

import msign
from msign.experiments.capture import leading_eigenvectors
from msign.inference.files import FitFiles, prior_network
from msign.inference.simulate import simulate
from msign.weights import normalised, weight_report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("stage", type=int)
    parser.add_argument("--fields", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    problem = msign.problems.elliptic()
    kept = json.loads((options.run / "config.json").read_text())
    config = msign.FitConfig.from_json(kept["fit"])
    network = prior_network(problem, config)
    files = FitFiles(options.run, write=False)
    network, _ = files.load_stage(options.stage, network, config.kind)
    print("scale: J, ESS, k-hat, log evidence, mass of one mode, weighted")
    for scale in range(options.stage + 1, problem.scales + 1):
        model = network.variables(scale)
        given = msign.Simulator(problem), model, scale, jr.key(options.seed), options.fields
        drawn = simulate(*given)
        found = weight_report(drawn.log_weights)
        separating = leading_eigenvectors(problem.priors[scale - 1])[1]
        right = np.asarray(drawn.s)[:, separating] > 0
        weighted = normalised(drawn.log_weights)[right].sum()
        print(
            f"{scale}: {found.jeffreys:.2f} {found.ess_fraction:.3f} {found.khat:.2f} "
            f"{found.log_evidence:.3f} {right.mean():.3f} {weighted:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
