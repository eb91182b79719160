"""One maximum-likelihood training step of a Glow stack: msign against normflows.

A step is the loss (forward KL up to a constant), its gradient and an Adam update, in float32,
for fields of one channel on a side x side lattice squeezed to four channels. Every measurement
runs in a process of its own, one at a time, bound to ``--threads`` cores; a step is timed after
compilation and warm-up. The two sides alternate for ``--rounds`` rounds. "At most" is the ratio if
the convolutions of a step, and nothing else, ran as fast as a product of as many channels does.

    python bench/glow.py --peer-python /path/to/venv/with/normflows/bin/python
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

LIBRARIES = ("msign", "normflows")
PRODUCTS = "products"
PART_SITES = 8_192  # lattice sites of the fields whose gradient is taken at a time


def msign_step(side: int, batch: int, blocks: int, hidden: int) -> Callable[[], object]:
    """Return a function that does one training step and waits for its result."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import optax

    from msign.bijections import glow_stack

    shape = (side // 2, side // 2, 4)
    # The gradient is summed over parts of the batch whose activations fit in the cache.
    part = max(
        n for n in range(1, batch + 1) if n == 1 or (batch % n == 0 and n * side**2 <= PART_SITES)
    )
    stack = glow_stack(jax.random.key(0), shape, blocks, hidden, position=False)
    parameters, rest = eqx.partition(stack, eqx.is_inexact_array)
    data = jax.random.normal(jax.random.key(1), (batch // part, part, *shape))
    adam = optax.adam(1e-3)

    def loss(parameters, xs):
        flow = eqx.combine(parameters, rest)
        z, log_det = jax.vmap(flow.inverse_and_log_det)(xs)
        return (0.5 * (z**2).sum() - log_det.sum()) / batch

    @jax.jit
    def step(parameters, state, data):
        def add(total, xs):
            return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(parameters, xs)), None

        zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, parameters))
        (value, gradient), _ = jax.lax.scan(add, zero, data)
        change, state = adam.update(gradient, state)
        return optax.apply_updates(parameters, change), state, value

    state = adam.init(parameters)

    def run() -> object:
        nonlocal parameters, state
        parameters, state, value = step(parameters, state, data)
        return jax.block_until_ready((parameters, value))[1]

    return run


def normflows_step(side: int, batch: int, blocks: int, hidden: int) -> Callable[[], object]:
    """Return the same for ``blocks`` Glow blocks of normflows."""
    import normflows as nf
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    shape = (4, side // 2, side // 2)
    base = nf.distributions.DiagGaussian(shape, trainable=False)
    flows = [nf.flows.GlowBlock(shape[0], hidden) for _ in range(blocks)]
    model = nf.NormalizingFlow(base, flows)
    data = torch.randn(batch, *shape)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)

    def run() -> object:
        optimiser.zero_grad()
        loss = model.forward_kld(data)
        loss.backward()
        optimiser.step()
        return loss.item()

    return run


def product_steps(side: int, batch: int, blocks: int, hidden: int) -> Callable[[], object]:
    """Return a function with as many operations as the convolutions of a step: plain products."""
    import jax
    import jax.numpy as jnp

    cells, width = batch * side**2 // 4, side // 2
    neighbours = (3 - 2 / width) ** 2  # of a cell, itself included, that are not outside
    weights = neighbours * 2 * hidden + hidden**2 + neighbours * hidden * 4
    operations = 3 * 2 * cells * blocks * weights
    count = max(1, round(operations / (2 * cells * hidden**2)))
    matrix = jnp.eye(hidden)

    @jax.jit
    def step(x):
        return jax.lax.scan(lambda x, _: (x @ matrix, None), x, None, length=count)[0]

    x = jnp.ones((cells, hidden))
    return lambda: jax.block_until_ready(step(x))


def times(step: Callable[[], object], steps: int, seconds: float) -> list[float]:
    """Return the times in milliseconds of up to ``steps`` steps, for about ``seconds``."""
    for _ in range(2):
        step()
    taken: list[float] = []
    while len(taken) < steps and (len(taken) < 3 or sum(taken) < 1e3 * seconds):
        start = time.perf_counter()
        step()
        taken.append(1e3 * (time.perf_counter() - start))
    return taken


def measure(library: str, python: str, side: int, threads: int, options) -> list[float] | None:
    """Run this file as a worker; None if the library is not installed there."""
    arguments = ["--worker", library, "--sides", side, "--threads", threads]
    for name in ("batch", "blocks", "hidden", "steps", "seconds"):
        arguments += [f"--{name}", getattr(options, name)]
    command = [python, __file__, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if "No module named 'normflows'" in done.stderr:
        return None
    if done.returncode:
        raise RuntimeError(f"{library} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def worker(options) -> None:
    cores = sorted(os.sched_getaffinity(0))[: options.threads[0]]
    os.sched_setaffinity(0, cores)
    make = {"msign": msign_step, "normflows": normflows_step, PRODUCTS: product_steps}[
        options.worker
    ]
    step = make(options.sides[0], options.batch, options.blocks, options.hidden)
    print(json.dumps(times(step, options.steps, options.seconds)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sides", type=int, nargs="+", default=[2, 8, 64])
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200, help="most steps of a round")
    parser.add_argument("--seconds", type=float, default=5, help="at most so long a round")
    parser.add_argument("--peer-python", default=sys.executable, help="python with normflows")
    parser.add_argument("--worker", choices=[*LIBRARIES, PRODUCTS], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options)

    print(f"Glow training step, ms: batch {options.batch}, {options.blocks} blocks, float32")
    heads = ("lattice", 9), ("threads", 9), ("msign min / median", 22), ("normflows", 22)
    print("".join(f"{head:>{n}}" for head, n in (*heads, ("ratio", 8), ("at most", 9))))
    pythons = {"msign": sys.executable, "normflows": options.peer_python}
    for threads in options.threads:
        for side in options.sides:
            taken: dict[str, list[float]] = {library: [] for library in LIBRARIES}
            for _ in range(options.rounds):
                for library in list(pythons):
                    new = measure(library, pythons[library], side, threads, options)
                    if new is None:
                        print(f"normflows is not installed in {pythons.pop(library)}")
                    else:
                        taken[library] += new
            row = f"{f'{side}x{side}':>9}{threads:>9}"
            for ms in taken.values():
                cell = f"{min(ms):.2f} / {statistics.median(ms):.2f}" if ms else "-"
                row += f"{cell:>22}"
            if taken["normflows"]:
                row += f"{min(taken['normflows']) / min(taken['msign']):>8.1f}"
                products = measure(PRODUCTS, sys.executable, side, threads, options)
                assert products is not None
                row += f"{min(taken['normflows']) / min(products):>9.1f}"
            print(row, flush=True)


if __name__ == "__main__":
    main()
