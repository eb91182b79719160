"""A batched finite-element solver for the elliptic problem.

- `dissection`: in which order unknowns are eliminated, once for each lattice;
- `compilation`: how kernels are compiled and kept;
- `simd`: numbers that hold several fields at once;
- `kernels`, `substitution`: the factorisation and the triangular solves;
- `passes`: forward and adjoint pass over a block of fields;
- `solver`: the class, its checks, its threads;
- `traceable`: the bridge to JAX.
"""

from msign.problems.fem.solver import EllipticSolver

__all__ = ["EllipticSolver"]
