"""What is compiled for one case is not compiled again for the next: most runs here have the same shapes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def compilation_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    import jax
    from jax.experimental.compilation_cache import compilation_cache as cache

    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update(names[0], str(tmp_path_factory.mktemp("xla")))
    jax.config.update(names[1], 0.0)
    cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    cache.reset_cache()
