"""The FEM solver against scikit-fem with SuperLU and against CHOLMOD, in one run.

    python bench/fem.py [--cores 2] [--sizes 64 128] [--batches 96 100] [--repeats 8]

Everybody gets the same number of cores: the peers as many processes, each with one BLAS thread
(their set-up is not timed); ours as many threads. A peer takes its fields one by one, so it is
timed on a part of the batch, 6 fields a process. CHOLMOD re-uses its symbolic analysis, has its
matrix filled by one sparse product, and runs in whichever of its modes and orderings is fastest
here. Rounds of all contestants are interleaved; the table has the minima, once of the wall clock
and once of processor time over all cores, which other users of the machine disturb less.
Peers that are not installed are left out (scikit-sparse needs SuiteSparse and a compiler).
"""

import argparse
import importlib.util
import os
import time
import tracemalloc
from collections.abc import Callable
from functools import lru_cache, partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sla

from msign.problems.fem import EllipticSolver

STIFFNESS = np.array([[4, -1, -2, -1], [-1, 4, -1, -2], [-2, -1, 4, -1], [-1, -2, -1, 4]]) / 6


def problem(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodal load of four wells, and 15 patches of side 1/8."""
    s = np.arange(size + 1) / size
    load = np.zeros((size + 1, size + 1))
    for sign, a, b in ((1, 0.3, 0.3), (1, 0.3, 0.7), (-1, 0.7, 0.3), (-1, 0.7, 0.7)):
        load += sign * np.exp(-((s[:, None] - a) ** 2 + (s[None, :] - b) ** 2) / 0.02)
    t = (np.arange(size) + 0.5) / size
    patches = [
        (np.abs(t[:, None] - a) <= 1 / 16) & (np.abs(t[None, :] - b) <= 1 / 16)
        for a in np.arange(1, 6) / 6
        for b in (1 / 6, 1 / 2, 5 / 6)
    ]
    return load / size**2, 16 * np.array(patches, float) * 8 / size**2


@lru_cache
def fields(size: int, n: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(n, size, size))


class Peer:
    """What the peers share: lattice, observations and the adjoint gradient, one field at a time."""

    def __init__(self, size: int) -> None:
        self.size = size
        nodes = np.arange((size + 1) ** 2).reshape(size + 1, size + 1)
        self.inside = nodes[1:-1, 1:-1].ravel()
        self.corners = np.stack(
            [nodes[:-1, :-1], nodes[1:, :-1], nodes[1:, 1:], nodes[:-1, 1:]], axis=-1
        ).reshape(-1, 4)
        load, weights = problem(size)
        self.load = load.ravel()[self.inside]
        spread = sp.csr_matrix(
            (np.full(4 * size**2, 0.25), (np.repeat(np.arange(size**2), 4), self.corners.ravel()))
        )
        self.observe = (sp.csr_matrix(weights.reshape(len(weights), -1)) @ spread)[:, self.inside]

    def factorise(self, x: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        raise NotImplementedError

    def run(self, x: np.ndarray, gradient: bool) -> tuple[np.ndarray, np.ndarray | None]:
        solve = self.factorise(x)
        u = solve(self.load)
        observed = self.observe @ u
        if not gradient:
            return observed, None
        ends = np.zeros((2, (self.size + 1) ** 2))
        ends[0, self.inside], ends[1, self.inside] = u, solve(self.observe.T @ observed)
        u, p = ends[:, self.corners]
        return observed, -np.exp(x.ravel()) * ((u @ STIFFNESS) * p).sum(axis=1)


class ScikitFem(Peer):
    """scikit-fem's assembly, SciPy's SuperLU."""

    def __init__(self, size: int) -> None:
        import skfem

        super().__init__(size)
        line = np.linspace(0, 1, size + 1)
        mesh = skfem.MeshQuad.init_tensor(line, line)
        self.basis = skfem.Basis(mesh, skfem.ElementQuad1())
        i, j = np.floor(mesh.p[:, mesh.t].mean(axis=1) * size).astype(int)
        self.cells = i * size + j
        i, j = np.rint(mesh.p * size).astype(int)
        self.order = np.argsort(i * (size + 1) + j)[self.inside]

        @skfem.BilinearForm
        def form(u, v, w):
            return w["k"] * (u.grad[0] * v.grad[0] + u.grad[1] * v.grad[1])

        self.form = form

    def factorise(self, x: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        k = np.repeat(np.exp(x.ravel())[self.cells][:, None], self.basis.dx.shape[1], axis=1)
        matrix = self.form.assemble(self.basis, k=k).tocsc()
        return sla.splu(matrix[self.order][:, self.order]).solve


class Cholmod(Peer):
    """CHOLMOD with the symbolic analysis made once."""

    def __init__(self, size: int) -> None:
        from sksparse.cholmod import analyze

        super().__init__(size)
        n = len(self.inside)
        number = np.full((size + 1) ** 2, -1)
        number[self.inside] = np.arange(n)
        rows = number[np.repeat(self.corners, 4, axis=1)]
        columns = number[np.tile(self.corners, (1, 4))]
        keep = (rows >= columns) & (columns >= 0)
        entries, place = np.unique((columns * n + rows)[keep], return_inverse=True)
        cell = np.repeat(np.arange(size**2)[:, None], 16, axis=1)[keep]
        values = np.tile(STIFFNESS.ravel(), (size**2, 1))[keep]
        self.fill = sp.csr_matrix((values, (place, cell)))
        starts = np.searchsorted(entries // n, np.arange(n + 1))
        data = self.fill @ np.ones(size**2)
        self.matrix = sp.csc_matrix((data, entries % n, starts), shape=(n, n))
        trials = {}
        for mode in ("simplicial", "supernodal"):
            for ordering in ("amd", "metis", "nesdis"):
                self.factor = analyze(self.matrix, mode=mode, ordering_method=ordering)
                seconds = minimum(lambda: self.run(np.zeros(size**2), False), 4)
                trials[seconds] = (f"{mode}, {ordering}", self.factor)
        self.mode, self.factor = trials[min(trials)]

    def factorise(self, x: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        self.matrix.data = self.fill @ np.exp(x.ravel())
        self.factor.cholesky_inplace(self.matrix)
        return self.factor


PEERS = {"scikit-fem": (ScikitFem, "skfem"), "CHOLMOD": (Cholmod, "sksparse")}
SHARE = 6
_here: Peer


def _start(name: str, size: int) -> None:
    global _here
    _here = PEERS[name][0](size)


def _work(task: tuple[int, bool]) -> tuple[list[np.ndarray], float]:
    """Observations of a process's share of the fields, and the processor time they took."""
    first, gradient = task
    start = time.process_time()
    found = [_here.run(x, gradient)[0] for x in fields(_here.size, 100)[first : first + SHARE]]
    return found, time.process_time() - start


def _mode(_: int) -> str:
    return getattr(_here, "mode", "")


def minimum(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def run_peer(pool: Any, cores: int, gradient: bool) -> tuple[np.ndarray, float]:
    parts = pool.map(_work, [(SHARE * k, gradient) for k in range(cores)], 1)
    return np.concatenate([part for part, _ in parts]), sum(seconds for _, seconds in parts)


def run_ours(solver: EllipticSolver, x: np.ndarray, gradient: bool) -> tuple[np.ndarray, float]:
    start = time.process_time()
    if gradient:
        found = solver.observe_and_vjp(x, lambda observed, rows: observed)[0]
    else:
        found = solver.observe(x)
    return found, time.process_time() - start


def compare(size: int, batches: list[int], cores: int, repeats: int) -> dict[str, float]:
    """Print the table of one lattice; return our milliseconds of processor time a field."""
    load, weights = problem(size)
    ours = EllipticSolver(size, load, weights, threads=cores)
    pools = {
        name: get_context("spawn").Pool(cores, _start, (name, size))
        for name, (_, module) in PEERS.items()
        if importlib.util.find_spec(module)
    }
    for name, pool in pools.items():
        pool.map(_mode, range(cores))  # wait until set up
        if name == "CHOLMOD":
            print(f"  CHOLMOD runs {pool.apply(_mode, (0,))}")
    result = {}
    for batch in batches:
        x = fields(size, batch)
        reference = ours.observe(x)
        for gradient, label in ((False, "forward"), (True, "forward + gradient")):
            runs: dict[str, Callable] = {"msign": partial(run_ours, ours, x, gradient)}
            runs |= {name: partial(run_peer, pool, cores, gradient) for name, pool in pools.items()}
            best = {name: np.full(2, np.inf) for name in runs}  # wall, processor
            for _ in range(repeats):
                for name, run in runs.items():
                    for _ in range(4 if name != "scikit-fem" else 1):
                        start = time.perf_counter()
                        found, processor = run()
                        seconds = np.array([time.perf_counter() - start, processor])
                        best[name] = np.minimum(best[name], 1e3 * seconds / len(found))
                    error = np.abs(found - reference[: len(found)]).max() / np.abs(reference).max()
                    assert error < 1e-9, f"{name} differs by {error}"
            for column, clock in enumerate(("wall", "processor")):
                own = best["msign"][column]
                row = "".join(
                    f"{name} {best[name][column]:8.3f} ({best[name][column] / own:5.1f}x)   "
                    for name in pools
                )
                print(f"{size:4d} {batch:5d}  {label:18s} {clock:9s}  msign {own:7.4f}   {row}")
            result[f"{label}, {batch}"] = best["msign"][1]
    for pool in pools.values():
        pool.terminate()
    return result


def memory(size: int, cores: int) -> None:
    """Print the peak of allocated memory, beyond input and output, as the batch grows."""
    load, weights = problem(size)
    for batch in (96, 384, 1536):
        x = fields(size, batch)
        solver = EllipticSolver(size, load, weights, threads=cores)
        tracemalloc.start()
        out = solver.observe_and_vjp(x, lambda observed, rows: observed)
        peak = tracemalloc.get_traced_memory()[1] - sum(array.nbytes for array in out)
        tracemalloc.stop()
        print(f"  {size:4d}  batch {batch:4d}  {peak / 2**20:7.1f} MiB beyond input and output")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--batches", type=int, nargs="+", default=[96, 100])
    parser.add_argument("--repeats", type=int, default=8)
    options = parser.parse_args()
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"  # for the peers' processes
    print(f"milliseconds a field on {options.cores} cores (a peer's time over ours):")
    results = [
        compare(size, options.batches, options.cores, options.repeats) for size in options.sizes
    ]
    for size, small, large in zip(options.sizes[1:], results[:-1], results[1:], strict=True):
        growth = ", ".join(f"{large[key] / small[key]:.1f}x ({key})" for key in small)
        print(f"growth to {size}, processor time: {growth}")
    print("memory of forward + gradient:")
    for size in options.sizes:
        memory(size, options.cores)


if __name__ == "__main__":
    main()
