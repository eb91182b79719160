"""Training is compiled once for all tests that train the same thing."""

import jax
import pytest

NAMES = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@pytest.fixture(scope="module")
def shared_compilation(tmp_path_factory):
    """Compiled code is kept between runs of a module, as the commands keep it."""
    before = [getattr(jax.config, name) for name in NAMES]
    for name, value in zip(NAMES, (str(tmp_path_factory.mktemp("jax")), 0.1), strict=True):
        jax.config.update(name, value)
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    for name, value in zip(NAMES, before, strict=True):
        jax.config.update(name, value)
