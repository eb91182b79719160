"""What an executor gains, and what it costs: `python bench/executors.py`.

A simulator that sleeps 20 ms a field, on 8 threads of a Dask worker, against one call after the
other; and the elliptic solver, which is fast, on one Dask worker and on one process, against this
process. Pin it to one core (`taskset -c 1`) to have nothing happen at the same time.
"""

import argparse
import time
from typing import NamedTuple

import distributed
import numpy as np

import msign
from msign.problems.workers import opened

SLEEP = 0.02
THREADS = 8
WARM_UP = 2
IDLE = 5.0  # seconds in which nothing is asked for
WANTED_RATE, WANTED_OVERHEAD = 6.0, 0.2


def sleeping(x):
    x = np.asarray(x)
    time.sleep(SLEEP * len(x))
    return x[:, :1]


def nowhere():
    return 0.0


class Taken(NamedTuple):
    """Seconds of a batch.

    Attributes:
        wall: Of the fastest one, by the clock.
        used: Of processors on average, here and elsewhere, as they were counted.
        alone: Of processors, had the batch had a core to itself, see `measured`.
    """

    wall: float
    used: float
    alone: float


def measured(simulator, u, gradient, repeats, elsewhere=nowhere):
    """Seconds of a batch.

    The processors' are what overhead there is where nothing happens at the same time; they do not
    depend on what else the machine has to do, with one exception: the processes of a cluster wake
    up many times a second, whether there is work or not, for as long as a batch takes. Where other
    programs use the same core that is longer than its computation. What they use while nobody asks
    for anything, a share r of a core, is therefore measured first: a batch that used `used` seconds
    of processors in `wall` seconds has used - r wall seconds of work, which take
    (used - r wall) / (1 - r) seconds on a core that does nothing but this work and the waking up.

    The first two batches compile and size everything.
    """

    def counted():
        return np.array([time.process_time() + elsewhere(), time.perf_counter()])

    scale, taken = simulator.problem.scales, []
    for _ in range(WARM_UP):
        simulator.evaluate(u, scale, gradient)
    before = counted()
    time.sleep(IDLE)
    used, wall = counted() - before
    idle = used / wall
    before = counted()
    for _ in range(repeats):
        began = time.perf_counter()
        simulator.evaluate(u, scale, gradient)
        taken.append(time.perf_counter() - began)
    used, wall = (counted() - before) / repeats
    return Taken(min(taken), used, (used - idle * wall) / (1 - idle))


def local_cluster(threads):
    return distributed.LocalCluster(n_workers=1, threads_per_worker=threads, dashboard_address=None)


def sleeper(fields, repeats):
    prior = msign.LaplacePrior((4,), alpha=0.5, beta=2.0)
    problem = msign.InverseProblem(prior, sleeping, [0.0], noise_std=1.0)
    u = np.random.default_rng(0).normal(size=(fields, 4))
    serial = measured(msign.Simulator(problem), u, False, 1).wall
    with local_cluster(THREADS) as cluster, distributed.Client(cluster) as client:
        spread = measured(msign.Simulator(problem, executor=client), u, False, repeats).wall
    print(
        f"{fields} fields of {SLEEP * 1000:.0f} ms: serial {fields / serial:.0f}/s, "
        f"{THREADS} Dask threads {fields / spread:.0f}/s, ratio {serial / spread:.2f} "
        f"(wanted {WANTED_RATE:g})"
    )


def elliptic(size, fields, repeats):
    problem = msign.problems.elliptic(size, inflate=0)
    u = np.random.default_rng(0).normal(size=(fields, problem.dim))
    for gradient in (False, True):
        here = measured(msign.Simulator(problem), u, gradient, repeats)
        with local_cluster(1) as cluster, distributed.Client(cluster) as client:
            on_dask = measured(
                msign.Simulator(problem, executor=client),
                u,
                gradient,
                repeats,
                lambda client=client: sum(client.run(time.process_time).values()),
            )
        with opened(1) as workers:
            in_process = measured(
                msign.Simulator(problem, executor=workers),
                u,
                gradient,
                repeats,
                lambda workers=workers: workers.executor.submit(time.process_time).result(),
            )
        what = "with gradients" if gradient else "values"
        print(f"elliptic {size} x {size}, {fields} fields, {what}")
        print(f"  {'':15}    clock  processors  on a core of its own")
        print(f"  {'here':15}  {here.wall:5.2f} s     {here.used:5.2f} s  {here.alone:5.2f} s")
        for name, taken in (("one Dask worker", on_dask), ("one process", in_process)):
            clock, used, alone = (b / a - 1 for a, b in zip(here, taken, strict=True))
            print(f"  {name:15}  {taken.wall:5.2f} s     {taken.used:5.2f} s  {taken.alone:5.2f} s")
            print(f"  {'  overhead':15}  {clock:+7.0%}     {used:+7.0%}  {alone:+7.0%}")
    print(f"wanted below {WANTED_OVERHEAD:.0%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fields", type=int, default=4000, help="Of the elliptic problem.")
    parser.add_argument("--slow-fields", type=int, default=640, help="That sleep.")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    sleeper(given.slow_fields, given.repeats)
    elliptic(given.size, given.fields, given.repeats)


if __name__ == "__main__":
    main()
