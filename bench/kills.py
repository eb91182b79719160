"""Runs and refinements that are killed at random moments and go on to the same result.

    python bench/kills.py [--times 20] [--seed 0] [--only run|refine] [--workers N]

Each trial starts the command as a process of its own, sends it SIGKILL or SIGINT at a random
moment after it began to keep files, and goes on with `--resume` until it is done, with one more
signal on the way in half of the trials. It prints one line a trial and, at the end, in how many of
them summary or refinement are the same, but for seconds, as those of a run that nothing stopped.
With `--workers` the forward map is NumPy code that worker processes evaluate.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

SIGNALS = (signal.SIGKILL, signal.SIGINT)
LONGEST = 900  # seconds that a process may take
PROBLEM = ["synthetic", "--size", "4"]  # two modes, two stages


class Trials:
    """One command and its undisturbed result.

    Args:
        kind: `run` or `refine`.
        folder: Where all files go; programs that are compiled are kept there, too.
        budget: Simulations of the run.
        workers: Processes that evaluate the forward map, then in NumPy; 0: none.
    """

    def __init__(self, kind: str, folder: pathlib.Path, budget: int = 5000, workers: int = 0):
        self.kind, self.folder, self.budget, self.workers = kind, folder, budget, workers
        self.whole = folder / "whole"
        if not (self.whole / "summary.json").exists():
            self.finish(self.start("run", self.whole))
        if kind == "refine":
            self.finish(self.start("refine", self.whole))
        self.expected = self.result(self.whole)
        self.seconds = self._undisturbed()

    def _undisturbed(self) -> float:
        """The command once more, with all programs compiled: how long it keeps files."""
        again = self.prepared("again")
        process = self.start(self.kind, again)
        self.wait_for_files(process, again)
        began = time.monotonic()
        self.finish(process)
        return time.monotonic() - began

    def prepared(self, name: str) -> pathlib.Path:
        """A directory for the command to work in: for a refinement one with a finished run."""
        out = self.folder / name
        shutil.rmtree(out, ignore_errors=True)
        if self.kind == "refine":
            shutil.copytree(self.whole, out, ignore=shutil.ignore_patterns("refine"))
        return out

    def start(self, kind: str, out: pathlib.Path, resume: bool = False) -> "subprocess.Popen[str]":
        hidden = ["--black-box"] if self.workers else []
        where = {
            "run": ["run", *PROBLEM, *hidden, "--out", str(out), "--budget", str(self.budget)],
            "refine": ["refine", str(out), "-n", "200", "--budget", "2e4"],
        }
        spread = ["--workers", str(self.workers)] if self.workers else []
        command = [sys.executable, "-m", "msign", *where[kind], *spread]
        command += ["--resume"] if resume else []
        settings = {"MSIGN_CACHE": str(self.folder / "programs")}
        return subprocess.Popen(
            command,
            env={**os.environ, **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # so that a signal can go to all processes of a run
        )

    def finish(self, process: "subprocess.Popen[str]") -> None:
        """Wait for a process that must end well."""
        text = process.communicate(timeout=LONGEST)[0]
        if process.returncode != 0:
            raise RuntimeError(f"{process.args} ended with {process.returncode}:\n{text}")

    def files(self, out: pathlib.Path) -> pathlib.Path:
        return out if self.kind == "run" else out / "refine"

    def result(self, out: pathlib.Path) -> Any:
        """What the command found, without the time that it took."""
        name = "summary.json" if self.kind == "run" else "refined.json"
        return _without_seconds(json.loads((self.files(out) / name).read_text()))

    def wait_for_files(self, process: "subprocess.Popen[str]", out: pathlib.Path) -> None:
        while process.poll() is None and not (self.files(out) / "config.json").exists():
            time.sleep(0.01)

    def disturbed(self, out: pathlib.Path, number: int, rng: random.Random, resume: bool) -> str:
        """The command with a signal at a random moment, and what came of it."""
        process = self.start(self.kind, out, resume)
        self.wait_for_files(process, out)
        moment = rng.uniform(0, self.seconds)
        time.sleep(moment)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.send_signal(number)
        text = process.communicate(timeout=LONGEST)[0]
        ended = "was done" if process.returncode == 0 else f"ended with {process.returncode}"
        if number == signal.SIGINT and process.returncode and "--resume" not in text:
            ended += " WITHOUT a command to go on"
        return f"{signal.Signals(number).name} after {moment:.1f} s: {ended}"

    def trial(self, number: int, rng: random.Random, again: bool) -> tuple[bool, str]:
        """Whether a command disturbed once, or `again`, ends as it should, and what happened."""
        out = self.prepared("disturbed")
        told = [self.disturbed(out, number, rng, False)]
        if again and not self.is_done(out):
            told.append(self.disturbed(out, number, rng, self.has_begun(out)))
        if not self.is_done(out):
            self.finish(self.start(self.kind, out, self.has_begun(out)))
        same = self.result(out) == self.expected and "WITHOUT" not in " ".join(told)
        return same, "; ".join(told)

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
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("run", "refine"))
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    # A job in the background of a shell ignores Ctrl-C, and so would all processes that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        for kind in [options.only] if options.only else ["run", "refine"]:
            trials = Trials(kind, pathlib.Path(folder), workers=options.workers)
            for number in SIGNALS:
                name, good = signal.Signals(number).name, 0
                for i in range(options.times):
                    same, told = trials.trial(number, rng, again=rng.random() < 0.5)
                    good += same
                    print(f"{kind} {i + 1}: {'same' if same else 'OTHER'}  ({told})", flush=True)
                print(f"{kind} {name}: {good} of {options.times} the same", flush=True)


if __name__ == "__main__":
    main()
