"""Image synthesis: data sets, maximum likelihood, and what a person wants to look at."""

from msign.images.catalogue import load_images
from msign.images.config import PRESETS, Architecture, Setting, Training
from msign.images.evaluate import bits_per_dim, independent_pixels_bits, round_trip_error
from msign.images.glow import Glow
from msign.images.model import build_model, load_model
from msign.images.mu import Moments, estimate_moments, prior_of
from msign.images.pixels import Pixels
from msign.images.rundir import ImageRun
from msign.images.sets import FolderImages, ImageSet, Split, StoredImages
from msign.images.synthesis import (
    generated_snapshots,
    interpolate,
    recovered_snapshots,
    sample_images,
)
from msign.images.training import train

__all__ = [
    "PRESETS",
    "Architecture",
    "FolderImages",
    "Glow",
    "ImageRun",
    "ImageSet",
    "Moments",
    "Pixels",
    "Setting",
    "Split",
    "StoredImages",
    "Training",
    "bits_per_dim",
    "build_model",
    "estimate_moments",
    "generated_snapshots",
    "independent_pixels_bits",
    "interpolate",
    "load_images",
    "load_model",
    "prior_of",
    "recovered_snapshots",
    "round_trip_error",
    "sample_images",
    "train",
]
