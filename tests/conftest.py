"""All tests run in float64; those of float32 cast explicitly (`helpers.in_float32`)."""

import importlib.metadata
import os

from packaging.version import Version

# Compiling takes most of the suite's time: half of that is XLA's newer code for fusions, which JAX
# 0.11.1 and later have alone (a flag that XLA does not know ends the process), a tenth that it
# takes programs apart to compile them on several threads.
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_cpu_parallel_codegen_split_count=1",
        "--xla_cpu_use_fusion_emitters=false"
        * (Version(importlib.metadata.version("jaxlib")) < Version("0.11.1")),
    ]
)
# Each of as many processes as there are cores: threads of BLAS would only wait for each other.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
# No test reads or leaves compiled programs in a home directory.
os.environ["MSIGN_CACHE"] = "off"

import jax
import pytest
import threadpoolctl

threadpoolctl.threadpool_limits(1, user_api="blas")  # plugins of pytest have loaded it already

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_enable_compilation_cache", False)


@pytest.fixture(scope="module", autouse=True)
def forget_compiled_code():
    """Each compiled function takes memory maps, of which Linux gives a process 65,530."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="module")
def quick_compilation():
    """For modules of many small checks, where compiling takes longer than running."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
