"""PPO for stateful networks, on JAX and PyTorch.

The environment variable ``MULTIPPO_BACKEND`` or ``use_backend`` chooses the engine; importing this package loads
neither framework.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from typing import Any

_MODULES = {
    alias.name: str(statement.module)
    for statement in ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or b"").body
    if isinstance(statement, ast.ImportFrom)
    for alias in statement.names
}
"""The module of each public name, read from the stub for type checkers, which is the one list of them."""

_LATER = (
    "multippo.algorithms",
    "multippo.envs",
    "multippo.networks.factories",
    "multippo.networks.weights.libraries",
    "multippo.policy",
    "multippo.runs",
)
"""Modules imported at first use, since gymnasium and the training loop take longer than the rest together."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'multippo' has no attribute {name!r}")
    if _MODULES[name] == __name__:
        return importlib.import_module(f"{__name__}.{name}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


for _name, _module in _MODULES.items():
    if _module != __name__ and not _module.startswith(_LATER):
        __getattr__(_name)

__all__ = sorted(  # pyright: ignore[reportUnsupportedDunderAll]
    name for name, module in _MODULES.items() if name == "random" or (module != __name__ and not name.startswith("_"))
)
