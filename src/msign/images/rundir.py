"""A training run on disk: configuration, log, checkpoint, one model per finished stage, pictures.

    config.json        data set, setting, seed, moments of the prior: what a run can be resumed with
    log.jsonl          one line per validation
    checkpoint.npz     all of the running stage's state
    stage_<l>.msign    the kept model of each finished stage
    model.msign        the model of the last stage
    samples/           pictures drawn while it trained, `latest.png` the newest

Every file is written under a temporary name and renamed, and no file is ever unpickled.
"""

import json
import os
import pathlib
from typing import Any

import numpy as np

from msign import archive
from msign.images.config import Setting
from msign.images.model import Model, load_model
from msign.images.mu import Moments
from msign.images.pixels import Pixels
from msign.rundir import RunDirectory


class ImageRun:
    """Files of one run.

    Args:
        path: The directory, made if it does not exist.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.files = RunDirectory(path)
        self.path = self.files.path
        (self.path / "samples").mkdir(exist_ok=True)

    @classmethod
    def existing(cls, path: str | os.PathLike[str]) -> "ImageRun":
        """A run that has begun."""
        if not (pathlib.Path(path) / "config.json").is_file():
            raise ValueError(f"run must be a directory with a run in it, got {os.fspath(path)}")
        return cls(path)

    @property
    def started(self) -> bool:
        """Whether a run has begun here."""
        return self.files.started

    # --- configuration -------------------------------------------------------------------------

    def write_config(self, config: dict[str, Any], moments: Moments) -> None:
        """Write what the run is made of."""
        mu = [np.asarray(m).tolist() for m in moments.mu]
        self.files.write_json("config.json", {**config, "moments": {**moments._asdict(), "mu": mu}})

    def read_config(self) -> dict[str, Any]:
        """Read it."""
        return self.files.read_json("config.json")

    def moments(self) -> Moments:
        """Moments of the prior."""
        saved = self.read_config()["moments"]
        mu = tuple(np.asarray(m) for m in saved["mu"])
        return Moments(saved["mean"], saved["std"], mu, saved["images"])

    def setting(self) -> Setting:
        """Architecture and training."""
        return Setting.from_description(self.read_config()["setting"])

    def pixels(self) -> Pixels:
        """How grey levels become numbers."""
        architecture = self.setting().architecture
        levels = self.read_config()["levels"]
        return Pixels.with_bits(levels, architecture.bits, architecture.output)

    def check_same(self, config: dict[str, Any]) -> None:
        """Refuse to resume with another data set, seed or setting, naming the difference."""
        self.files.check_same(config)

    # --- log, stages, checkpoint ---------------------------------------------------------------

    def write_log(self, records: list[dict[str, Any]]) -> None:
        """Write `log.jsonl`, one line per validation."""
        self.files.write_lines("log.jsonl", records)

    def read_log(self) -> list[dict[str, Any]]:
        """All records so far."""
        path = self.path / "log.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def save_stage(self, model: Model, stage: int, last: bool) -> None:
        """Write the kept model of a finished stage and drop the checkpoint."""
        model.save(self.path / f"stage_{stage}.msign")
        if last:
            model.save(self.path / "model.msign")
        (self.path / "checkpoint.npz").unlink(missing_ok=True)

    def load_stage(self, stage: int) -> Model | None:
        """The kept model of a stage; None if it is not finished."""
        path = self.path / f"stage_{stage}.msign"
        return load_model(path) if path.exists() else None

    def model(self) -> Model:
        """The finished model, or that of the last finished stage."""
        if (self.path / "model.msign").exists():
            return load_model(self.path / "model.msign")
        raise ValueError(f"run must be finished (no model.msign yet), got {self.path}")

    def save_checkpoint(self, state: Any, progress: dict[str, Any]) -> None:
        """Write the state of the running stage."""
        archive.save(self.path / "checkpoint.npz", state, progress)

    def load_checkpoint(self, stage: int, like: Any) -> tuple[Any, dict[str, Any]] | None:
        """State and progress of a running stage; None if it has no checkpoint."""
        path = self.path / "checkpoint.npz"
        if not path.exists():
            return None
        progress, _ = archive.read_description(path)
        return (archive.load(path, like), progress) if progress["stage"] == stage else None
