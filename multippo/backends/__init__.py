"""Choosing an engine: by the environment variable ``MULTIPPO_BACKEND``, ``use_backend``, else the first installed."""

from multippo.backends.registry import (
    active_engine,
    available_backends,
    describe_backends,
    engine_of_array,
    get_backend,
    load_engine,
    matmul_precision,
    precision,
    register_backend,
    use_backend,
)

__all__ = [
    "active_engine",
    "available_backends",
    "describe_backends",
    "engine_of_array",
    "get_backend",
    "load_engine",
    "matmul_precision",
    "precision",
    "register_backend",
    "use_backend",
]
