"""Two modes: the square of an average of a field is known, its sign is not (paper, section 6.1.1).

    msign run examples/two_modes.py --budget 1e5 --out runs/two_modes

Both signs explain the one datum equally well, and half of the posterior belongs to each. The exact
posterior is known, so that the report can show it beside what was learned.
"""

import msign

problem = msign.problems.synthetic(size=32)
