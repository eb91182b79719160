"""Training is compiled once for all tests that train the same thing."""

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

NAMES = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_enable_compilation_cache",
)


@pytest.fixture(scope="module")
def shared_compilation(tmp_path_factory, quick_compilation):
    """Compiled code is kept between runs of a module, as the commands keep it."""
    before = [getattr(jax.config, name) for name in NAMES]
    during = (str(tmp_path_factory.mktemp("jax")), 0.1, True)
    _configure(during)
    yield
    _configure(before)


def _configure(values):
    for name, value in zip(NAMES, values, strict=True):
        jax.config.update(name, value)
    compilation_cache.reset_cache()
