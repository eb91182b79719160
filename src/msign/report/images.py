"""Pictures of images: grids, written as PNG without any axes."""

import os
from collections.abc import Sequence

import numpy as np
from PIL import Image

from msign import checks
from msign.archive import atomic_write

WIDTH = 640  # pixels of a grid, about
GAP = 2


def image_grid(images: np.ndarray, columns: int, zoom: int | None = None) -> np.ndarray:
    """Images `(n, height, width, channels)` of bytes side by side, row by row.

    Args:
        images: Grey (one channel) or in colour (three).
        columns: Images per row.
        zoom: Pixels per pixel; None: so that the grid is about 640 wide.
    """
    if images.ndim != 4 or images.shape[-1] not in (1, 3) or not len(images):
        raise ValueError(f"images must have shape (n, height, width, 1 or 3), got {images.shape}")
    n, height, width, channels = images.shape
    columns = min(checks.integer("columns", columns, 1), n)
    zoom = max(1, round(WIDTH / (columns * width))) if zoom is None else zoom
    large = images.repeat(zoom, 1).repeat(zoom, 2)
    rows = -(-n // columns)
    step_y, step_x = height * zoom + GAP, width * zoom + GAP
    grid = np.full((rows * step_y + GAP, columns * step_x + GAP, channels), 128, np.uint8)
    for i, image in enumerate(large):
        y, x = GAP + (i // columns) * step_y, GAP + (i % columns) * step_x
        grid[y : y + height * zoom, x : x + width * zoom] = image
    return grid


def snapshot_grid(rows: Sequence[Sequence[np.ndarray]], zoom: int | None = None) -> np.ndarray:
    """One row per image, its snapshots from left to right, all shown at the side of the last.

    Args:
        rows: For each image its snapshots `(height, width, channels)`, coarse to fine.
        zoom: As for `image_grid`.
    """
    side = rows[-1][-1].shape[0]
    shown = [
        snapshot.repeat(side // snapshot.shape[0], 0).repeat(side // snapshot.shape[0], 1)
        for row in rows
        for snapshot in row
    ]
    return image_grid(np.stack(shown), len(rows[0]), zoom)


def save_png(picture: np.ndarray, path: str | os.PathLike[str]) -> None:
    """Write a picture `(height, width, 1 or 3)`, which takes its name only when complete."""
    image = Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else picture)
    with atomic_write(path) as file:
        image.save(file, format="PNG", optimize=True)
