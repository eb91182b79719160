"""A gradient step of informed flows: as a fit has it compiled, and in the other of two orders.

    python bench/steps.py [--rounds 5]

Two variables on a pool (splines, Adam), and four, sixteen and sixty-four on an emulator (affine
couplings, Muon), batches as in a fit. "In order" is one operation after the other
(`msign.compilation.compiled_in_order`, which pools use), "side by side" XLA's own choice on a CPU.
The two alternate; the shortest of each counts. Milliseconds of the clock and of the processor.
"""

import argparse
import time
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from msign.bijections.subspace import InformedConfig, informed_flow
from msign.compilation import compiled_in_order
from msign.inference import Emulator, Pool
from msign.inference.methods import emulator, pool
from msign.inference.methods.polynomial import fit_polynomial
from msign.training import split_trainable
from msign.variables import Variables

STEPS, RATE = 100, 1e-3
OBSERVATIONS, FIELDS = 15, 8000


def pool_steps() -> tuple[Callable, tuple]:
    """Steps of the Jeffreys divergence on a pool of two variables: function and arguments."""
    rng, batch, watched = np.random.default_rng(0), Pool().batch, Pool().watched
    s = rng.normal(size=(STEPS, batch, 2))
    given = (s, -(s**2).sum(-1), np.zeros(s.shape[:2]), rng.normal(size=(STEPS, watched, 2)))
    bound = pool.Bound(None, jnp.asarray(10.0), jnp.asarray(0.0))
    minibatches = tuple(map(jnp.asarray, given))
    return pool._steps, (*flow_of(2), minibatches, bound, jnp.asarray(RATE), 1.0)


def emulator_steps(rank: int) -> tuple[Callable, tuple]:
    """Steps on the emulated posterior of some variables: function and arguments."""
    rng = np.random.default_rng(0)
    s = rng.normal(size=(FIELDS, rank))
    features = s[:, np.arange(OBSERVATIONS) % rank] + rng.normal(size=(FIELDS, OBSERVATIONS))
    emulated = fit_polynomial(s, features, np.zeros(FIELDS))
    last = (jnp.asarray(RATE), jr.key(1), STEPS, Emulator().batch, 1.0)
    return emulator._steps, (*flow_of(rank), emulated, *last)


def flow_of(rank: int) -> tuple[Variables, Variables]:
    flow = informed_flow(jr.key(0), ((rank, "inner"),), InformedConfig())
    return split_trainable(Variables(flow, None, rank))


def milliseconds(steps: Callable, arguments: tuple) -> tuple[float, float]:
    """Of a step, by the clock and of the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    jax.block_until_ready(steps(*arguments))
    spent = time.perf_counter() - clock, time.process_time() - processor
    return spent[0] * 1e3 / STEPS, spent[1] * 1e3 / STEPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(f"{'ms a step (processor)':24s}{'in order':>18s}{'side by side':>18s}  ratio")
    cases = {"pool, 2 variables": pool_steps()}
    cases |= {f"emulator, {rank} variables": emulator_steps(rank) for rank in (4, 16, 64)}
    for case, (steps, arguments) in cases.items():
        plain = steps.__wrapped__
        ways = (compiled_in_order(plain), eqx.filter_jit(plain))
        for way in ways:
            jax.block_until_ready(way(*arguments))  # compiles
        found = [[milliseconds(way, arguments) for way in ways] for _ in range(rounds)]
        best = [min(times) for times in zip(*found, strict=True)]
        cells = "".join(f"{f'{a:.2f} ({b:.2f})':>18s}" for a, b in best)
        print(f"{case:24s}{cells}{best[1][0] / best[0][0]:7.2f}", flush=True)


if __name__ == "__main__":
    main()
