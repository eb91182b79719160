"""Multi-stage maximum likelihood (paper, section 6.2, Algorithm 1 and appendix G).

At stage l the flows F_1, ..., F_l are trained on images pooled to scale l, from the model that
stage l - 1 left and from F_l = identity. What is kept of a stage is the running average of weights
with the fewest bits per dimension on images held out from the training set.
"""

import math
import os
import time
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PyTree

from msign.images.config import Setting
from msign.images.evaluate import bits_per_dim, field_of
from msign.images.glow import Glow
from msign.images.model import Model, build_model, join, split_trainable, stages_of
from msign.images.mu import estimate_moments
from msign.images.pixels import Pixels
from msign.images.progress import TrainingProgress
from msign.images.rundir import ImageRun
from msign.images.sets import ImageSet, Split, held_out
from msign.images.step import Weights, make_step, on_all_devices, optimiser_of
from msign.images.stream import order_of_epoch, steps_per_epoch, training_batches
from msign.images.synthesis import sample_images
from msign.report.images import image_grid, save_png

IN_FLIGHT = 16  # steps between two looks at the loss


class Trained(NamedTuple):
    """What training leaves.

    Attributes:
        model: The network.
        pixels: How grey levels become numbers.
        records: One dictionary per validation.
    """

    model: Model
    pixels: Pixels
    records: list[dict[str, Any]]


class Task(NamedTuple):
    """What all stages of a run share."""

    setting: Setting
    pixels: Pixels
    train: ImageSet
    valid: ImageSet
    values: int
    seed: int
    run: ImageRun
    progress: TrainingProgress


class StageState(eqx.Module):
    """All that changes while a stage runs; what a checkpoint holds.

    Attributes:
        weights: Weights, their average and Adam's state.
        best: The average with the fewest validation bits so far.
    """

    weights: Weights
    best: PyTree


def train(
    images: ImageSet,
    setting: Setting,
    out: str | os.PathLike[str],
    seed: int = 0,
    resume: bool = False,
    about: dict[str, Any] | None = None,
    values: int | None = None,
    show: bool = True,
) -> Trained:
    """Train a model of images, or go on with a run that was interrupted.

    Args:
        images: Training images; `setting.training.validation` of them are held out.
        setting: Architecture and training.
        out: Directory of the run.
        seed: Same seed, same numbers.
        resume: Go on with the run in `out`, if there is one.
        about: Where the images come from, kept in the run's configuration.
        values: What bits are divided by; None: the values of an image. With a border of zeros
            (`pad`), the values of the image without it.
        show: A progress bar, where there is a terminal.
    """
    run = ImageRun(out)
    if run.started and not resume:
        raise ValueError(f"out holds a run already: --resume or --overwrite it: {run.path}")
    training, architecture = setting.training, setting.architecture
    split = held_out(images, min(training.validation, len(images) // 5), seed)
    steps_per_epoch(split.train, training.batch)
    values = math.prod(images.shape) if values is None else values
    pixels = Pixels.with_bits(images.levels, architecture.bits, architecture.output)
    config = {
        "about": about or {},
        "seed": seed,
        "shape": list(images.shape),
        "levels": images.levels,
        "images": len(images),
        "values": values,
        "setting": setting.describe(),
    }
    if run.started:
        run.check_same(config)
        moments = run.moments()
    else:
        moments = estimate_moments(
            split.train, pixels, architecture.scales, architecture.per_band, seed=seed
        )
    model = build_model(architecture, images.shape, moments, jr.fold_in(jr.key(seed), 0))
    run.write_config(config, moments)
    stages = stages_of(model, training.stage_epochs)
    records = run.read_log()
    with TrainingProgress(show, _costs(model, setting, split, stages)) as progress:
        task = Task(setting, pixels, *split, values, seed, run, progress)
        for stage in stages:
            finished = run.load_stage(stage)
            if finished is None:
                records = [r for r in records if r["stage"] < stage]
                model, records = train_stage(task, model, stage, stage == stages[-1], records)
                run.save_stage(model, stage, stage == stages[-1])
            else:
                model = finished
    return Trained(model, pixels, records)


def train_stage(
    task: Task, model: Model, stage: int, last: bool, records: list[dict[str, Any]]
) -> tuple[Model, list[dict[str, Any]]]:
    """The model after one stage, and the log with its records."""
    training = task.setting.training
    per_epoch = steps_per_epoch(task.train, training.batch)
    steps = per_epoch * (training.epochs if last else training.stage_epochs)
    if isinstance(model, Glow):
        model = _started(task, model, stage)
    optimiser = optimiser_of(training, steps, last)
    params, rest = split_trainable(model, stage)
    state = StageState(Weights(params, params, optimiser.init(params)), params)
    state, done = task.run.load_checkpoint(stage, state) or (state, _nothing_done(records))
    done = {name: done[name] for name in _nothing_done([])}
    weights, best = on_all_devices((state.weights, state.best))
    step = make_step(rest, stage, task.pixels, training, optimiser, task.values)
    key = jr.fold_in(jr.fold_in(jr.key(task.seed), 1), stage)
    first = done["step"]
    batches = training_batches(task.train, training.batch, task.seed, stage, first, steps)
    begin, saved = time.monotonic() - done["seconds"], time.monotonic()
    losses: list[Array] = []
    for number, images in enumerate(batches, start=first):
        weights, loss = step(weights, images, key, number)
        losses.append(loss)
        done["step"] = number + 1
        epoch, within = divmod(number + 1, per_epoch)
        whole = within == 0 and (epoch % training.validate_every == 0 or number + 1 == steps)
        old = time.monotonic() - saved >= training.checkpoint_seconds
        if whole or old or len(losses) == IN_FLIGHT:
            for value in jax.device_get(losses):  # one by one: the sum is the same after a resume
                done["loss"] += float(value)
            done["losses"] += len(losses)
            losses = []
            done["seconds"] = time.monotonic() - begin
            task.progress.at(stage, (number + 1) / steps, epoch=str(-(-(number + 1) // per_epoch)))
        if whole:
            averaged = join(weights.average, rest, stage)
            if _validated(task, averaged, stage, epoch, done):
                best = jax.tree.map(jnp.copy, weights.average)
            if training.patience is not None and done["stale"] >= training.patience:
                break
        if old:
            task.run.save_checkpoint(StageState(weights, best), {"stage": stage, **done})
            saved = time.monotonic()
    batches.close()
    kept = jax.tree.map(jnp.asarray, jax.device_get(best))  # on one device
    return join(kept, rest, stage), done["records"]


def _nothing_done(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Progress at the start of a stage."""
    numbers = {"step": 0, "best": None, "stale": 0, "seconds": 0.0, "loss": 0.0, "losses": 0}
    return {**numbers, "records": records}


def _validated(task: Task, model: Model, stage: int, epoch: int, done: dict[str, Any]) -> bool:
    """Validate, log, draw samples; whether the model is the best so far."""
    bits = bits_per_dim(model, task.pixels, task.valid, stage, values=task.values).mean
    seen = done["loss"] / done["losses"]
    record = {
        "stage": stage,
        "epoch": epoch,
        "step": done["step"],
        "train_bits": seen,
        "valid_bits": bits,
        "seconds": round(done["seconds"], 2),
    }
    if not (math.isfinite(seen) and math.isfinite(bits)):
        rate = task.setting.training.learning_rate
        raise RuntimeError(
            f"training diverged at stage {stage}, epoch {epoch} ({seen} bits per dimension, {bits} "
            f"held out): a smaller learning_rate than {rate} may help"
        )
    better = done["best"] is None or bits < done["best"]
    done |= {"best": bits, "stale": 0} if better else {"stale": done["stale"] + 1}
    done |= {"loss": 0.0, "losses": 0, "records": [*done["records"], record]}
    task.run.write_log(done["records"])
    count = task.setting.training.samples
    drawn = sample_images(model, task.pixels, count, task.seed, scale=stage)
    grid = image_grid(task.pixels.shown(drawn), 8)
    for name in (f"stage{stage}_epoch{epoch:04d}.png", "latest.png"):
        save_png(grid, task.run.path / "samples" / name)
    task.progress.update(train=f"{seen:.3f}", valid=f"{bits:.3f}")
    return better


def _started(task: Task, model: Glow, stage: int) -> Glow:
    """Glow's own start: actnorms from the first batch."""
    order = order_of_epoch(len(task.train), task.seed, stage, 0)
    images = task.train.read(np.sort(order[: task.setting.training.batch]))
    return model.started_from(field_of(model, task.pixels, images, task.seed))


def _costs(
    model: Model, setting: Setting, split: Split, stages: tuple[int, ...]
) -> dict[int, float]:
    """Cost of each stage: steps times cells of all flows that a step goes through."""
    training = setting.training
    per_epoch = steps_per_epoch(split.train, training.batch)
    cells = np.cumsum([math.prod(lattice.shape) for lattice in model.lattices])
    epochs = {l: training.epochs if l == stages[-1] else training.stage_epochs for l in stages}
    return {l: float(per_epoch * epochs[l] * cells[l - 1]) for l in stages}
