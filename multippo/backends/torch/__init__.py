"""The PyTorch engine: ``torch.nn`` modules, autograd, ``torch.compile``, fused AdamW."""

from multippo.backends.torch.engine import make_engine

__all__ = ["make_engine"]
