"""The NumPy engine: the reference that others are held to, and the worked example of an engine. It does not train."""

from multippo.backends.numpy.engine import make_engine

__all__ = ["make_engine"]
