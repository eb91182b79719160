"""What a person wants to look at: samples, interpolations, and images inside the network.

Paper, figures 5 and 6 and the figures of appendix G.
"""

import jax.random as jr
import numpy as np

from msign import checks
from msign.images import precise
from msign.images.evaluate import BATCH_PIXELS, field_of
from msign.images.model import Model
from msign.images.pixels import Pixels
from msign.network import MsIGN


def sample_images(
    model: Model,
    pixels: Pixels,
    n: int,
    seed: int = 0,
    temperature: float = 1.0,
    scale: int | None = None,
) -> np.ndarray:
    """New images `(n, height, width, channels)`, as many grey levels as the model has.

    Args:
        model: The network.
        pixels: How grey levels become numbers.
        n: How many.
        seed: Random seed.
        temperature: Standard deviation of the noise.
        scale: Scale l of the images; None: the finest.
    """
    checks.integer("n", n, 1)
    checks.positive("temperature", temperature)
    scale = model.scales if scale is None else scale
    cells = int(np.prod(model.lattices[scale - 1].shape))
    batch = max(1, min(n, BATCH_PIXELS // cells))
    drawn = [
        pixels.image(
            model.sample(jr.fold_in(jr.key(seed), i), batch, scale, temperature=temperature)
        )
        for i in range(-(-n // batch))
    ]
    return np.concatenate(drawn)[:n]


def interpolate(
    model: Model, pixels: Pixels, first: np.ndarray, last: np.ndarray, steps: int = 9
) -> np.ndarray:
    """Images on the straight line in latent space between two given ones (figure 5, right).

    The ends are the given images themselves, encoded in the middle of their grey levels.

    Args:
        model: The network.
        pixels: How grey levels become numbers.
        first: An image `(height, width, channels)`.
        last: Another.
        steps: Number of images, both ends included.
    """
    checks.integer("steps", steps, 2)
    z = precise.encode(model, field_of(model, pixels, np.stack([first, last])))
    t = np.linspace(0, 1, steps, dtype=z[0].dtype)[:, None]
    between = [(1 - t) * entry[0] + t * entry[1] for entry in z]
    return pixels.image(precise.decode(model, between))


def generated_snapshots(
    model: Model,
    pixels: Pixels,
    n: int,
    seed: int = 0,
    temperature: float = 1.0,
    per_scale: int = 4,
) -> list[list[np.ndarray]]:
    """Snapshots inside every F_l while new images are generated (figure 6).

    For each image its fields at the head, equal parts and tail of F_1, then of F_2, and so on.
    """
    network = _msign(model)
    t = checks.positive("temperature", temperature)
    z = network.noise(jr.key(seed), checks.integer("n", n, 1))
    return _snapshots(network, pixels, tuple(t * entry for entry in z), per_scale)


def recovered_snapshots(
    model: Model, pixels: Pixels, images: np.ndarray, per_scale: int = 4
) -> list[list[np.ndarray]]:
    """The same while given images are recovered from their own noise (appendix G)."""
    network = _msign(model)
    z = precise.encode(network, field_of(network, pixels, images))
    return _snapshots(network, pixels, z, per_scale)


def _snapshots(network: MsIGN, pixels: Pixels, z: tuple, per_scale: int) -> list[list[np.ndarray]]:
    shown = [pixels.image(field) for scale in network.snapshots(z, per_scale) for field in scale]
    return [[part[i] for part in shown] for i in range(len(z[0]))]


def _msign(model: Model) -> MsIGN:
    if not isinstance(model, MsIGN):
        raise ValueError("snapshots need an MsIGN run: inside Glow there are no images to see")
    return model
