"""What an executor gains, and what it costs: `python bench/executors.py`.

A simulator that sleeps 20 ms a field, on 8 threads of a Dask worker, against one call after the
other; and the elliptic solver, which is fast, on one Dask worker and on one process, against this
process.
"""

import argparse
import time

import distributed
import numpy as np

import msign
from msign.problems.workers import opened

SLEEP = 0.02
THREADS = 8
WARM_UP = 2
WANTED_RATE, WANTED_OVERHEAD = 6.0, 0.2


def sleeping(x):
    x = np.asarray(x)
    time.sleep(SLEEP * len(x))
    return x[:, :1]


def nowhere():
    return 0.0


def measured(simulator, u, gradient, repeats, elsewhere=nowhere):
    """Seconds of a batch: the fastest one's, and the processors' on average, here and elsewhere.

    The processors' are what overhead there is where nothing happens at the same time; they do not
    depend on what else the machine has to do. The first two batches compile and size everything.
    """
    scale, taken = simulator.problem.scales, []
    for i in range(repeats + WARM_UP):
        if i == WARM_UP:
            before = time.process_time() + elsewhere()
        began = time.perf_counter()
        simulator.evaluate(u, scale, gradient)
        taken.append(time.perf_counter() - began)
    used = time.process_time() + elsewhere() - before
    return min(taken[WARM_UP:]), used / repeats


def local_cluster(threads):
    return distributed.LocalCluster(n_workers=1, threads_per_worker=threads, dashboard_address=None)


def sleeper(fields, repeats):
    prior = msign.LaplacePrior((4,), alpha=0.5, beta=2.0)
    problem = msign.InverseProblem(prior, sleeping, [0.0], noise_std=1.0)
    u = np.random.default_rng(0).normal(size=(fields, 4))
    serial, _ = measured(msign.Simulator(problem), u, False, 1)
    with local_cluster(THREADS) as cluster, distributed.Client(cluster) as client:
        spread, _ = measured(msign.Simulator(problem, executor=client), u, False, repeats)
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
        print(f"  here             {here[0]:6.2f} s, processors {here[1]:6.2f} s")
        for name, taken in (("one Dask worker", on_dask), ("one process", in_process)):
            wall, used = (b / a - 1 for a, b in zip(here, taken, strict=True))
            print(
                f"  {name:15}  {taken[0]:6.2f} s, processors {taken[1]:6.2f} s; overhead "
                f"{wall:+.0%}, of processors {used:+.0%} (wanted below {WANTED_OVERHEAD:.0%})"
            )


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
