"""How programs are compiled, and that they are kept, so that only a first fit waits for it.

JAX keeps them on disk where it is told to. `fit` and the commands tell it, unless the user has
chosen a directory of their own (``jax_compilation_cache_dir``) or has set ``MSIGN_CACHE=off`` in
the environment; any other value of ``MSIGN_CACHE`` is the directory.
"""

import hashlib
import os
import pathlib
import platform

import jax
from jax.experimental.compilation_cache import compilation_cache

WORTH_KEEPING = 0.1  # seconds of compilation; below it, reading a file saves nothing


def keep_compiled_programs() -> None:
    """Have JAX keep what it compiles from now on; where it already does, nothing changes."""
    place = os.environ.get("MSIGN_CACHE")
    if place == "off" or jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    default = pathlib.Path.home() / ".cache" / "msign" / "programs"
    folder = pathlib.Path(place or default) / _processor()
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", WORTH_KEEPING)
    compilation_cache.reset_cache()  # it may have been looked for, and not found, before


def _processor() -> str:
    """A name of this kind of processor: programs of another may have instructions it lacks."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = [platform.processor()]
    features = next((line for line in lines if line.startswith(("flags", "Features"))), lines[0])
    what = (platform.machine(), features, os.environ.get("XLA_FLAGS", ""))
    return hashlib.sha256(repr(what).encode()).hexdigest()[:16]
