"""Runs and refinements that are killed at random moments and go on to the same result.

    python bench/kills.py [--times 20] [--seed 0] [--only run|refine] [--workers 0 2] [--keep DIR]

Each trial starts the command in a process of its own, sends it SIGKILL or SIGINT at a random
moment after it began to keep files, resumes it, sends the next signal, and so on, up to four of
them; then it lets the command end. It prints one line a trial: whether summary or refinement are
the same, but for seconds, as those of a run that nothing stopped, with no process left behind and,
after SIGINT, the command to go on with. It goes on until each kind of signal came `--times` times
to each command. With workers the forward map is NumPy code that worker processes evaluate; they
read all fields from memory, as they do where fields are large.

Processes are forked from this one after everything is imported, and programs that were compiled
are kept, in the directory of `--keep` from one call to the next, so that a trial takes seconds.
Moments are chosen in the command's processor time, so that they are as random on a busy machine.
Leave it on the cores on which it began: on one core and on two, XLA adds numbers in another order.
"""

import argparse
import dataclasses
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
from typing import Any

import msign.experiments.refine  # noqa: F401  (imported here once, for all processes)
from msign import lending
from msign.cli import app

SIGNALS = (signal.SIGKILL, signal.SIGINT)
LONGEST = 900  # seconds that a process may take
LEAVING = 10  # seconds that workers have to see that their run is gone
# Two modes, two stages; a refinement has something to do where the run ended too early.
RUNS = {
    "run": ["synthetic", "--size", "4", "--budget", "5000"],
    "refine": ["synthetic", "--size", "4", "--gamma", "0.03", "--budget", "1000"],
}
TICKS = os.sysconf("SC_CLK_TCK")


class Process:
    """The command `msign` with arguments, in a process of its own, the first of a new session.

    Args:
        arguments: Of the command.
        text: File for what it prints.
    """

    def __init__(self, arguments: list[str], text: pathlib.Path):
        self.arguments, self.text = arguments, text
        self.code: int | None = None
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._become()

    def _become(self) -> None:
        os.setsid()  # so that a signal can go to all processes of a run
        out = os.open(self.text, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.argv = ["msign", *self.arguments]
        code = 1
        try:
            app(prog_name="msign")
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}")
        sys.stdout.flush()
        os._exit(code)

    def poll(self) -> int | None:
        """Its exit code, less than zero for a signal; None while it runs."""
        if self.code is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if done else None
        return self.code

    def wait(self) -> int:
        """Its exit code, when it has ended."""
        until = time.monotonic() + LONGEST
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                os.killpg(self.pid, signal.SIGKILL)
                raise RuntimeError(f"{self.arguments} took more than {LONGEST} seconds")
            time.sleep(0.02)
        return code

    def used(self) -> float:
        """Seconds of processor time so far, infinite if it has ended."""
        if self.poll() is not None:
            return float("inf")
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def leaves(self) -> list[int]:
        """Processes of its session that are still there a while after it has ended."""
        until = time.monotonic() + LEAVING
        while (found := _session(self.pid)) and time.monotonic() < until:
            time.sleep(0.1)
        return found


def _session(leader: int) -> list[int]:
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


class Trials:
    """One command and its undisturbed result.

    Args:
        kind: `run` or `refine`.
        folder: Where all files go.
        workers: Processes that evaluate the forward map, then in NumPy; 0: none.
    """

    def __init__(self, kind: str, folder: pathlib.Path, workers: int = 0):
        self.kind, self.folder, self.workers = kind, folder, workers
        self.whole = folder / "whole"
        if not (self.whole / "report.html").exists():
            shutil.rmtree(self.whole, ignore_errors=True)
            self.finish(self.start("run", self.whole))
        if kind == "refine" and not (self.files(self.whole) / "refined.json").exists():
            self.finish(self.start("refine", self.whole))
        self.expected = self.result(self.whole)
        self.seconds = self._undisturbed()

    def _undisturbed(self) -> float:
        """Processor time of the command while it keeps files, with all programs compiled."""
        again = self.prepared("again")
        process = self.start(self.kind, again)
        self.wait_for_files(process, again)
        began = process.used()
        while (used := process.used()) < float("inf"):
            last = used
            time.sleep(0.02)
        self.finish(process)
        assert self.result(again) == self.expected, "two undisturbed runs differ"
        return last - began

    def prepared(self, name: str) -> pathlib.Path:
        """A directory for the command to work in: for a refinement one with a finished run."""
        out = self.folder / name
        shutil.rmtree(out, ignore_errors=True)
        if self.kind == "refine":
            shutil.copytree(self.whole, out, ignore=shutil.ignore_patterns("refine"))
        return out

    def start(self, kind: str, out: pathlib.Path, resume: bool = False) -> Process:
        hidden = ["--black-box"] if self.workers else []
        where = {
            "run": ["run", *RUNS[self.kind], *hidden, "--out", str(out)],
            "refine": ["refine", str(out), "-n", "200", "--budget", "1e5"],
        }
        spread = ["--workers", str(self.workers)] if self.workers else []
        goes_on = ["--resume"] if resume else []
        return Process([*where[kind], *spread, *goes_on], self.folder / "printed")

    def finish(self, process: Process) -> None:
        """Wait for a process that must end well."""
        code = process.wait()
        if code != 0:
            text = process.text.read_text()
            raise RuntimeError(f"{process.arguments} ended with {code}:\n{text}")

    def files(self, out: pathlib.Path) -> pathlib.Path:
        return out if self.kind == "run" else out / "refine"

    def result(self, out: pathlib.Path) -> Any:
        """What the command found, without the time that it took."""
        name = "summary.json" if self.kind == "run" else "refined.json"
        return _without_seconds(json.loads((self.files(out) / name).read_text()))

    def wait_for_files(self, process: Process, out: pathlib.Path) -> None:
        while process.poll() is None and not (self.files(out) / "config.json").exists():
            time.sleep(0.01)

    def disturbed(
        self, out: pathlib.Path, number: int, rng: random.Random, resume: bool
    ) -> tuple[bool, str]:
        """Whether the command was still there at a random moment, and what a signal made of it."""
        process = self.start(self.kind, out, resume)
        self.wait_for_files(process, out)
        moment = rng.uniform(0, self.seconds)
        at = process.used() + moment
        while process.used() < at:
            time.sleep(0.01)
        if process.poll() is not None:
            return False, f"done with code {process.code}"
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)  # as a terminal
        code = process.wait()
        told, text = f"after {moment:.1f} s code {code}", process.text.read_text()
        started = text.strip() != "stopped"  # before the command has looked for its files
        if number == signal.SIGINT and code and started and "--resume" not in text:
            told += f" WITHOUT a command to go on: {text[-500:]!r}"
        if left := process.leaves():
            told += f" WITH processes {left} left behind"
        return True, told

    def trial(self, number: int, rng: random.Random, most: int) -> tuple[int, bool, str]:
        """Signals that a command had, `most` at most, whether it ended as it should, what happened.

        Every signal but the first comes after `--resume`.
        """
        out, told, came = self.prepared("disturbed"), [], 0
        for _ in range(most):
            if self.is_done(out):
                break
            landed, what = self.disturbed(out, number, rng, self.has_begun(out))
            told.append(what)
            came += landed
        if not self.is_done(out):
            process = self.start(self.kind, out, self.has_begun(out))
            if process.wait() != 0:
                told.append(f"NOT resumed: {process.text.read_text()[-2000:]}")
                return came, False, "; ".join(told)
        if self.result(out) != self.expected:
            told.append("ANOTHER RESULT")
        text = "; ".join(told)
        return came, not any(word in text for word in ("ANOTHER", "WITH")), text

    def has_begun(self, out: pathlib.Path) -> bool:
        return (self.files(out) / "config.json").exists()

    def is_done(self, out: pathlib.Path) -> bool:
        """Whether nothing is left to do; a run is finished when its page is."""
        name = "report.html" if self.kind == "run" else "refined.json"
        return (self.files(out) / name).exists()


def _without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_seconds(v) for k, v in value.items() if k != "seconds"}
    if isinstance(value, list):
        return [_without_seconds(v) for v in value]
    return repr(value)  # NaN is the same as NaN


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=20, help="Signals of each kind.")
    parser.add_argument("--most", type=int, default=4, help="Signals of one trial.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("run", "refine"))
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--keep", type=pathlib.Path, help="Directory of all files, kept.")
    options = parser.parse_args()
    lending.LEAST_BYTES = 1
    # A job in the background of a shell ignores Ctrl-C, and so would all processes that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rng = random.Random(options.seed)
    kinds = [options.only] if options.only else ["run", "refine"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or pathlib.Path(temporary)
        os.environ["MSIGN_CACHE"] = str(folder / "programs")
        groups = {}
        for workers, kind in itertools.product(options.workers, kinds):
            place = folder / f"{kind} {workers}"
            place.mkdir(parents=True, exist_ok=True)
            trials = Trials(kind, place, workers=workers)
            print(f"{kind}, {workers} workers: {trials.seconds:.1f} s undisturbed", flush=True)
            groups |= {(trials, number): Tally() for number in SIGNALS}
        while any(tally.signals < options.times for tally in groups.values()):
            for (trials, number), tally in groups.items():
                if tally.signals >= options.times:
                    continue
                came, same, told = trials.trial(number, rng, options.most)
                tally.signals += came
                tally.trials += came > 0
                tally.same += came > 0 and same
                name = f"{trials.kind}, {trials.workers} workers, {signal.Signals(number).name}"
                print(f"{name}: {'as it should' if same else 'NOT SO'}  ({told})", flush=True)
                print(f"  so far {tally}", flush=True)


@dataclasses.dataclass
class Tally:
    """Signals that came, trials in which any did, and how many of these ended as they should."""

    signals: int = 0
    trials: int = 0
    same: int = 0

    def __str__(self) -> str:
        return f"{self.signals} signals, {self.same} of {self.trials} trials as they should"


if __name__ == "__main__":
    main()
