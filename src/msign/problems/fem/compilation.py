"""How the kernels are compiled, and when a compiled kernel on disk may be used again.

Numba keeps a compiled function as long as *its own* file is unchanged, but the functions it calls
are compiled into it. Here a change of any kernel file makes all of them stale.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

_FILES = (
    "compilation.py", "dissection.py", "simd.py", "leaf.py", "kernels.py", "substitution.py",
    "passes.py",
)  # fmt: skip


def _fingerprint() -> str:
    digest = hashlib.sha256()
    for name in _FILES:
        digest.update(Path(__file__).with_name(name).read_bytes())
    return digest.hexdigest()


_STAMP = _fingerprint()


def kernel(function: Callable) -> Any:
    """Compile a function; it runs without Python's global lock and is kept on disk if possible."""
    try:
        compiled = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no place to write to
        return numba.njit(nogil=True)(function)
    file: Any = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if not hasattr(file, "_source_stamp"):  # another Numba: do not risk a stale kernel
        return numba.njit(nogil=True)(function)
    file._source_stamp = _STAMP
    return compiled
