"""The JAX engine: flax NNX modules, ``jax.jit``, ``lax.scan``, optax."""

from multippo.backends.jax.engine import make_engine

__all__ = ["make_engine"]
