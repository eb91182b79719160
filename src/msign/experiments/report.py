"""`msign report`: the page of a finished run, from its directory alone."""

import os
import pathlib

from msign.inference import Posterior
from msign.report.image_page import write_image_report
from msign.report.run_page import write_report


def report_run(run: str | os.PathLike[str]) -> pathlib.Path:
    """Write `report.html` of a finished run, of a fit or of images; returns its path.

    Nothing in the directory is run. Whatever is wrong with its files is one line of error.
    """
    folder = pathlib.Path(run)
    images = (folder / "model.msign").exists()
    if not images and not (folder / "posterior.json").exists():
        raise ValueError(f"run must hold a finished run, got {os.fspath(run)!r}")
    try:
        if images:
            return write_image_report(folder)
        return write_report(Posterior.load(folder), folder)
    except (ValueError, OSError):
        raise
    except Exception as error:  # files of a stranger may be wrong in any way
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"run in {folder} is damaged: {what}") from error
