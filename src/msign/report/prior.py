"""What the prior looks like at every scale."""

import jax.random as jr
from matplotlib.figure import Figure

from msign import checks
from msign.bijections import GlowConfig
from msign.network import MsIGN
from msign.priors import LaplacePrior
from msign.report.figures import field_rows

MAX_SCALES = 6


def prior_figure(size: int, seed: int = 0, columns: int = 5) -> Figure:
    """Fields of the paper's prior on `size` x `size` cells, refined scale by scale."""
    prior = LaplacePrior((checks.integer("size", size, 2, 4096),) * 2, alpha=0.1, beta=2.0)
    if prior.max_scales == 1:
        raise ValueError(f"size must be divisible by 2, 3 or 5, got {size}")
    network = MsIGN(prior, min(prior.max_scales, MAX_SCALES), GlowConfig(blocks=0))
    rows = [network.sample(jr.key(seed), columns, l) for l in range(1, network.scales + 1)]
    labels = [f"l = {l}\n{x.shape[1]} x {x.shape[2]}" for l, x in enumerate(rows, start=1)]
    return field_rows(rows, labels, "The same prior fields at every scale")
