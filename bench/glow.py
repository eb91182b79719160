"""One maximum-likelihood training step of a Glow stack: msign against normflows.

A step is the loss (forward KL up to a constant), its gradient and an Adam update, in float32,
for fields of one channel on a side x side lattice squeezed to four channels. Every measurement
runs in a process of its own, one at a time, bound to ``--threads`` cores; a step is timed after
compilation and warm-up. The two sides alternate for ``--rounds`` rounds.

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
PART_SITES = 20_000  # lattice sites of the fields whose gradient is taken at a time


def msign_step(side: int, batch: int, blocks: int, hidden: int) -> Callable[[], object]:
    """Return a function that does one training step and waits for its result."""
    import jax
    import jax.numpy as jnp

    from msign.bijections.conv import convolve

    c, half = 4, 2
    shape = (side // 2, side // 2, c)
    # The gradient is summed over parts of the batch whose activations fit in the cache.
    part = max(
        n for n in range(1, batch + 1) if n == 1 or (batch % n == 0 and n * side**2 <= PART_SITES)
    )
    keys = jax.random.split(jax.random.key(0), 5)

    def normal(key, *shape, scale):
        return scale * jax.random.normal(key, (blocks, *shape))

    parameters = {
        "log_scale": jnp.zeros((blocks, c)),
        "shift": jnp.zeros((blocks, c)),
        "matrix": jnp.eye(c) + normal(keys[0], c, c, scale=0.1),
        "w1": normal(keys[1], 3, 3, half, hidden, scale=0.2),
        "b1": jnp.zeros((blocks, hidden)),
        "w2": normal(keys[2], 1, 1, hidden, hidden, scale=0.2),
        "b2": jnp.zeros((blocks, hidden)),
        "w3": normal(keys[3], 3, 3, hidden, c, scale=0.01),
        "b3": jnp.zeros((blocks, c)),
    }
    data = jax.random.normal(keys[4], (batch // part, part, *shape))

    def block(x, p):
        x = (x * jnp.exp(p["log_scale"]) + p["shift"]) @ p["matrix"]
        log_det = x[..., 0].size * (p["log_scale"].sum() + jnp.linalg.slogdet(p["matrix"])[1])
        kept, moved = x[..., :half], x[..., half:]
        h = jnp.tanh(convolve(kept, p["w1"]) + p["b1"])
        h = jnp.tanh(convolve(h, p["w2"]) + p["b2"])
        h = convolve(h, p["w3"]) + p["b3"]
        log_scale = jnp.tanh(h[..., :half])
        moved = moved * jnp.exp(log_scale) + h[..., half:]
        return jnp.concatenate([kept, moved], -1), log_det + log_scale.sum()

    def negative_log_prob(p, x):
        z, log_dets = jax.lax.scan(block, x, p)
        return 0.5 * (z**2).sum() - log_dets.sum()

    def loss(p, xs):
        return jax.vmap(negative_log_prob, (None, 0))(p, xs).sum() / batch

    def gradient(p, data):
        def add(total, xs):
            return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(p, xs)), None

        zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, p))
        return jax.lax.scan(add, zero, data)[0]

    @jax.jit
    def step(state, data):
        p, m, v, t = state
        value, g = gradient(p, data)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, v, g)
        rate = 1e-3 * jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        p = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), p, m, v)
        return (p, m, v, t + 1), value

    zeros = jax.tree.map(jnp.zeros_like, parameters)
    state = (parameters, zeros, zeros, jnp.ones(()))

    def run() -> object:
        nonlocal state
        state, value = step(state, data)
        return jax.block_until_ready((state, value))[1]

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
    make = msign_step if options.worker == "msign" else normflows_step
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
    parser.add_argument("--steps", type=int, default=200, help="at most so many steps a round")
    parser.add_argument("--seconds", type=float, default=5, help="at most so long a round")
    parser.add_argument("--peer-python", default=sys.executable, help="python with normflows")
    parser.add_argument("--worker", choices=LIBRARIES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options)

    print(f"Glow training step, ms: batch {options.batch}, {options.blocks} blocks, float32")
    print(f"{'lattice':>9}{'threads':>9}{'msign min / median':>22}{'normflows':>22}{'ratio':>8}")
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
            print(row, flush=True)


if __name__ == "__main__":
    main()
