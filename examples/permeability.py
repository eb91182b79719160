"""Log-permeability of the ground from 15 pressures (paper, section 6.1.2).

    msign run examples/permeability.py --budget 1.2e5 --out runs/permeability

Each simulation solves -div(exp(x) grad p) = f on the unit square. The data are averages of p over
15 small patches or pairs of mirrored ones, so that the field and its mirror image explain them
equally well: the posterior has two modes.
"""

import msign

problem = msign.problems.elliptic(size=32)
