"""Choosing an engine: by the environment variable ``MULTIPPO_BACKEND``, ``use_backend``, else the first installed."""

from multippo.backends.registry import active_engine as active_engine
from multippo.backends.registry import available_backends as available_backends
from multippo.backends.registry import describe_backends as describe_backends
from multippo.backends.registry import engine_of_array as engine_of_array
from multippo.backends.registry import get_backend as get_backend
from multippo.backends.registry import load_engine as load_engine
from multippo.backends.registry import matmul_precision as matmul_precision
from multippo.backends.registry import precision as precision
from multippo.backends.registry import register_backend as register_backend
from multippo.backends.registry import use_backend as use_backend
