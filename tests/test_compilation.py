"""How programs are compiled, and where they are kept: where the user says, or nowhere."""

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from msign.compilation import keep_compiled_programs

OPTIONS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@pytest.fixture(autouse=True)
def configuration():
    """Without a directory at first; afterwards as it was."""
    before = {name: jax.config.values[name] for name in OPTIONS}
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def directory() -> str | None:
    return jax.config.values["jax_compilation_cache_dir"]


def test_in_the_directory_of_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("MSIGN_CACHE", str(tmp_path))
    keep_compiled_programs()
    chosen = directory()
    assert chosen is not None and chosen.startswith(str(tmp_path))
    keep_compiled_programs()
    assert directory() == chosen


def test_programs_of_other_flags_are_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setenv("MSIGN_CACHE", str(tmp_path))
    found = set()
    for flags in ("", "--xla_cpu_use_fusion_emitters=false"):
        monkeypatch.setenv("XLA_FLAGS", flags)
        jax.config.update("jax_compilation_cache_dir", None)
        keep_compiled_programs()
        found.add(directory())
    assert len(found) == 2


def test_nowhere_where_it_is_switched_off(monkeypatch):
    monkeypatch.setenv("MSIGN_CACHE", "off")
    keep_compiled_programs()
    assert directory() is None


def test_a_directory_that_the_user_has_chosen_stays(monkeypatch, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    monkeypatch.setenv("MSIGN_CACHE", str(tmp_path))
    keep_compiled_programs()
    assert directory() == str(tmp_path / "own")
