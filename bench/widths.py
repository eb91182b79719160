"""What limits the elliptic posterior: width of the couplings, steps of a round, directions.

    python bench/widths.py [--size 64] [--seed 0] [--hidden 24 48 96] [--steps 600] [--rank 64]

One fit for each combination; prints nFS, seconds, J and ESS of the certificate.
"""

import argparse
import itertools
import time

import msign
from msign import FitConfig, Informed, InformedConfig
from msign.inference import Emulator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=int, default=500_000)
    parser.add_argument("--hidden", type=int, nargs="+", default=[24, 48, 96])
    parser.add_argument("--steps", type=int, nargs="+", default=[600])
    parser.add_argument("--rank", type=int, nargs="+", default=[64])
    options = parser.parse_args()
    problem = msign.problems.elliptic(options.size)
    for hidden, steps, rank in itertools.product(options.hidden, options.steps, options.rank):
        flow = Informed(InformedConfig(hidden=hidden, max_rank=rank))
        config = FitConfig(flow=flow, method=Emulator(steps=steps))
        began = time.monotonic()
        posterior = msign.fit(problem, options.budget, seed=options.seed, config=config)
        report = posterior.certificate()
        print(
            f"width {hidden:3d}  {steps:4d} steps  rank {rank:3d}  {posterior.nfs:7d} nFS  "
            f"{time.monotonic() - began:6.0f} s  J {report.jeffreys:.3f} +- "
            f"{report.jeffreys_stderr:.3f}  ESS {report.ess_fraction:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
