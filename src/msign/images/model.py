"""What the training loop trains: MsIGN or the baseline, built and read alike."""

import os
from typing import Any

import equinox as eqx
import jax.random as jr
from jaxtyping import PRNGKeyArray, PyTree

from msign import archive, training
from msign.images.config import Architecture
from msign.images.glow import Glow
from msign.images.mu import Moments, prior_of
from msign.lattice import Lattice
from msign.network import MsIGN

Model = MsIGN | Glow


def build_model(
    architecture: Architecture,
    shape: tuple[int, int, int],
    moments: Moments,
    key: PRNGKeyArray | None = None,
) -> Model:
    """A network with initial weights for images of a shape.

    MsIGN starts as the Haar prior with these moments; Glow standardises by them.
    """
    key = jr.key(0) if key is None else key
    if architecture.model == "msign":
        prior = prior_of(shape, moments)
        return MsIGN(prior, architecture.scales, architecture.flow, key=key)
    lattice = Lattice(shape[:2], shape[2])
    std = float((prior_of(shape, moments).marginal_std((1, 1)) ** 2).mean() ** 0.5)
    return Glow(lattice, architecture.scales, architecture.flow, moments.mean, std, key)


def stages_of(model: Model, stage_epochs: int) -> tuple[int, ...]:
    """Scales that are trained for, in order: all of MsIGN's, the last of Glow's."""
    if isinstance(model, MsIGN) and stage_epochs > 0:
        return tuple(range(1, model.scales + 1))
    return (model.scales,)


def split_trainable(model: Model, stage: int) -> tuple[PyTree, Model]:
    """The weights that a stage trains (of flows up to its scale), and the model without them."""
    weights, fixed = training.split_trainable(_trained(model, stage))
    return weights, eqx.tree_at(lambda m: _trained(m, stage), model, fixed)


def join(weights: PyTree, rest: Model, stage: int) -> Model:
    """Inverse of `split_trainable`."""
    whole = training.combine(weights, _trained(rest, stage))
    return eqx.tree_at(lambda m: _trained(m, stage), rest, whole)


def _trained(model: Model, stage: int) -> list[Any]:
    if isinstance(model, MsIGN):
        return list(model.flows[:stage])
    return [*model.flows, *(model.splits if model.scales > 1 else ())]


def load_model(path: str | os.PathLike[str]) -> Model:
    """Read a network of either kind."""
    description, _ = archive.read_description(path)
    return Glow.load(path) if description.get("model") == "glow" else MsIGN.load(path)
