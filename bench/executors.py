"""What an executor gains, and what it costs: `python bench/executors.py`.

A simulator that sleeps 20 ms a field, on 8 threads of a Dask worker, against one call after the
other; and the elliptic solver, which is fast, on one Dask worker and on one process, against this
process. Pin it to one core (`taskset -c 1`) to have nothing happen at the same time.
"""

import argparse
import time
from collections.abc import Callable
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
        used: Of processors, here and elsewhere, as they were counted.
        work: The same without what an idle cluster uses meanwhile, see `measured`.
        alone: Of processors, had the batch had a core to itself.
    """

    wall: float
    used: float
    work: float
    alone: float


class Place(NamedTuple):
    """Who simulates.

    Attributes:
        simulator: Evaluates batches.
        elsewhere: Processor time so far of processes other than this one.
        cluster: Whether it needs the Dask cluster.
    """

    simulator: msign.Simulator
    elsewhere: Callable[[], float] = nowhere
    cluster: bool = False

    def counted(self):
        """Seconds of processors and of the clock so far."""
        return np.array([time.process_time() + self.elsewhere(), time.perf_counter()])


def measured(places, u, gradient, repeats):
    """Seconds of a batch at each place; the first is this process, and all take turns.

    Seconds of processors are what overhead there is where nothing happens at the same time. They
    hardly depend on what else the machine has to do, with one exception: the processes of a cluster
    wake up many times a second, whether there is work or not, for as long as a batch takes, which
    is longer than its computation where other programs use the same core. What they use while
    nobody asks for anything, a share r of a core, is therefore measured first. A batch that used
    `used` seconds of processors in `wall` seconds has used - r wall seconds of work, which take
    (used - r wall) / (1 - r) seconds on a core that does nothing but this work and the waking up.
    For places that need no cluster the share is taken off and not put back. It is measured before
    and after the batches. Seconds are medians: one batch that another program drove out of the
    caches does not decide.

    Two batches before these compile and size everything.
    """
    scale, taken = places[0].simulator.problem.scales, []
    for place in places:
        for _ in range(WARM_UP):
            place.simulator.evaluate(u, scale, gradient)
    idle = [_idle(place) for place in places]
    for _ in range(repeats):
        for place in places:
            before = place.counted()
            place.simulator.evaluate(u, scale, gradient)
            taken.append(place.counted() - before)
    idle = [(before + _idle(place)) / 2 for before, place in zip(idle, places, strict=True)]
    found = []
    for i, (place, share) in enumerate(zip(places, idle, strict=True)):
        used, wall = np.array(taken[i :: len(places)]).T
        work = np.median(used - share * wall)
        counted, alone = (np.median(used), work / (1 - share)) if place.cluster else (work, work)
        found.append(Taken(wall.min(), counted, work, alone))
    return found


def _idle(place):
    """The share of a core that is used while nobody asks for anything."""
    before = place.counted()
    time.sleep(IDLE)
    used, wall = place.counted() - before
    return used / wall


def local_cluster(threads):
    return distributed.LocalCluster(n_workers=1, threads_per_worker=threads, dashboard_address=None)


def sleeper(fields, repeats):
    prior = msign.LaplacePrior((4,), alpha=0.5, beta=2.0)
    problem = msign.InverseProblem(prior, sleeping, [0.0], noise_std=1.0)
    u = np.random.default_rng(0).normal(size=(fields, 4))
    (serial,) = measured([Place(msign.Simulator(problem))], u, False, 1)
    with local_cluster(THREADS) as cluster, distributed.Client(cluster) as client:
        (spread,) = measured([Place(msign.Simulator(problem, executor=client))], u, False, repeats)
    ratio = serial.wall / spread.wall
    print(
        f"{fields} fields of {SLEEP * 1000:.0f} ms: serial {fields / serial.wall:.0f}/s, "
        f"{THREADS} Dask threads {fields / spread.wall:.0f}/s, ratio {ratio:.2f} "
        f"(wanted {WANTED_RATE:g})"
    )


def elliptic(size, fields, repeats):
    problem = msign.problems.elliptic(size, inflate=0)
    u = np.random.default_rng(0).normal(size=(fields, problem.dim))
    for gradient in (False, True):
        with (
            local_cluster(1) as cluster,
            distributed.Client(cluster) as client,
            opened(1) as workers,
        ):
            places = [
                Place(msign.Simulator(problem)),
                Place(
                    msign.Simulator(problem, executor=client),
                    lambda client=client: sum(client.run(time.process_time).values()),
                    cluster=True,
                ),
                Place(
                    msign.Simulator(problem, executor=workers),
                    lambda workers=workers: workers.executor.submit(time.process_time).result(),
                ),
            ]
            here, on_dask, in_process = measured(places, u, gradient, repeats)
        what = "with gradients" if gradient else "values"
        print(f"elliptic {size} x {size}, {fields} fields, {what}")
        print(f"  {'':15}    clock  processors  without idle Dask  on a core of its own")
        print(_row("here", here, "7.2f"))
        for name, taken in (("one Dask worker", on_dask), ("one process", in_process)):
            print(_row(name, taken, "7.2f"))
            overhead = Taken(*(b / a - 1 for a, b in zip(here, taken, strict=True)))
            print(_row("  overhead", overhead, "+7.0%"))
    print(f"wanted below {WANTED_OVERHEAD:.0%}")


def _row(name, taken, form):
    wall, used, work, alone = (format(value, form) for value in taken)
    return f"  {name:15}  {wall}     {used}            {work}               {alone}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fields", type=int, default=4000, help="Of the elliptic problem.")
    parser.add_argument("--slow-fields", type=int, default=640, help="That sleep.")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    sleeper(given.slow_fields, given.repeats)
    elliptic(given.size, given.fields, given.repeats)


if __name__ == "__main__":
    main()
