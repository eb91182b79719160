"""Prior fields through the full conditioning chain, against one scipy inverse sine transform.

    python bench/prior.py

For each lattice, in a process of its own and in float32 (n = 1): time per field of

- `network`: `MsIGN.sample` with identity flows at every scale, random numbers included;
- `decode`:  the same from given noise;
- `layers`:  the literal chain of `prior.conditioning()` layers in lattice coordinates, scale
  after scale, each with its own transforms;

as minima over repeats, their ratio to `scipy.fft.idstn` (type 2, orthonormal, same size, same
process), the peak memory of the process, and the growth per doubling of the side. Then the dense
form of Theorem 3.1 (`DensePrior`) at 64 x 64: time to prepare and per field.
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

SIDES = (64, 256, 1024)


def best(f: Callable[[], Any], seconds: float) -> float:
    """Milliseconds of the fastest run, of at least five, after one to compile."""
    f()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        f()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def measure(side: int, seconds: float) -> dict[str, float]:
    """All timings of one lattice, in this process."""
    import equinox as eqx
    import jax
    import jax.random as jr
    import numpy as np
    import scipy.fft

    from msign import GlowConfig, LaplacePrior, MsIGN

    prior = LaplacePrior((side, side), alpha=0.1, beta=2.0)
    start = time.perf_counter()
    network = MsIGN(prior, prior.max_scales, GlowConfig(blocks=0))
    jax.block_until_ready(network.sample(jr.key(0), 1))
    prepare = 1e3 * (time.perf_counter() - start)
    z = network.noise(jr.key(0), 1)
    double = np.random.default_rng(0).normal(size=(side, side))
    single = double.astype(np.float32)

    first, *finer = prior.hierarchy(prior.max_scales)
    layers = [p.conditioning() for p in finer]

    @eqx.filter_jit
    def chain(first: Any, layers: list[Any], z: tuple[Any, ...]) -> Any:
        x = first.unwhiten(z[0][0])
        for layer, noise in zip(layers, z[1:], strict=True):
            x = layer.upsample(x, noise[0])
        return x

    def wait(f: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: jax.block_until_ready(f())

    return {
        "prepare": prepare,
        "network": best(wait(lambda: network.sample(jr.key(0), 1)), seconds),
        "decode": best(wait(lambda: network.decode(z)), seconds),
        "layers": best(wait(lambda: chain(first, layers, z)), seconds),
        "scipy64": best(lambda: scipy.fft.idstn(double, 2, norm="ortho"), seconds),
        "scipy32": best(lambda: scipy.fft.idstn(single, 2, norm="ortho"), seconds),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def measure_dense(side: int, seconds: float) -> dict[str, float]:
    """The dense form of the last layer, U^c x_c + W z, with the same prior."""
    import jax
    import jax.numpy as jnp
    import jax.random as jr
    import numpy as np

    from msign import DensePrior, LaplacePrior

    prior = LaplacePrior((side, side), alpha=0.1, beta=2.0)
    d = prior.lattice.dim
    root = np.asarray(jax.jit(lambda u: prior.unwhiten(u))(jnp.eye(d)), np.float64).reshape(d, d)
    start = time.perf_counter()
    dense = DensePrior(root.T @ root, (side, side))
    layer = dense.conditioning()
    prepare = 1e3 * (time.perf_counter() - start)
    x = jr.normal(jr.key(0), (d,))
    start = time.perf_counter()
    ours = prior.conditioning()
    ours_prepare = 1e3 * (time.perf_counter() - start)
    f, g = (jax.jit(lambda x, b=b: b.transform(x)) for b in (layer, ours))
    return {
        "prepare": prepare,
        "sample": best(lambda: jax.block_until_ready(f(x)), seconds),
        "ours prepare": ours_prepare,
        "ours sample": best(lambda: jax.block_until_ready(g(x)), seconds),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def in_own_process(what: str, side: int, seconds: float) -> dict[str, float]:
    """Run one measurement in a fresh process, so that memory and caches are its own."""
    command = [sys.executable, __file__, "--child", what, str(side), str(seconds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="per figure")
    parser.add_argument("--no-dense", action="store_true", help="leave the dense form out")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        what, side, seconds = options.child
        run = measure if what == "fast" else measure_dense
        print(json.dumps(run(int(side), float(seconds))))
        return

    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f}; float32, one field, milliseconds, minima")
    print(
        f"{'lattice':>12} {'prepare':>8} {'network':>8} {'decode':>8} {'layers':>8} "
        f"{'scipy64':>8} {'scipy32':>8} {'ratio64':>8} {'ratio32':>8} {'MB':>6} {'growth':>7}"
    )
    previous = None
    for side in SIDES:
        r = in_own_process("fast", side, options.seconds)
        growth = ""
        if previous:
            doublings = math.log2(side / previous[0])
            growth = f"{(r['network'] / previous[1]) ** (1 / doublings):.1f}"
        print(
            f"{f'{side}x{side}':>12} {r['prepare']:8.0f} {r['network']:8.2f} {r['decode']:8.2f} "
            f"{r['layers']:8.2f} {r['scipy64']:8.2f} {r['scipy32']:8.2f} "
            f"{r['network'] / r['scipy64']:8.1f} {r['network'] / r['scipy32']:8.1f} "
            f"{r['memory']:6.0f} {growth:>7}"
        )
        previous = (side, r["network"])
    print("ratio: network to scipy.fft.idstn of the same run; growth: per doubling of the side")
    if options.no_dense:
        return
    r = in_own_process("dense", 64, options.seconds)
    print("\nlast layer alone at 64x64: dense (Theorem 3.1 literally) and by transforms")
    print(
        f"  prepare: {r['prepare']:10.0f} ms {r['ours prepare']:10.1f} ms, "
        f"ratio {r['prepare'] / r['ours prepare']:.0f}"
    )
    print(
        f"  a field: {r['sample']:10.2f} ms {r['ours sample']:10.3f} ms, "
        f"ratio {r['sample'] / r['ours sample']:.0f};  dense peak memory {r['memory']:.0f} MB"
    )


if __name__ == "__main__":
    main()
