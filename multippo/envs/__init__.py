"""Environments: gymnasium, brax, playground, and the user's own, behind one contract.

``api.py`` holds the contract. ``make_env`` makes an environment from a name or an object. JAX is imported with the
first functional environment, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from multippo.envs.api import Env, EnvState
from multippo.envs.host.host_env import GymnasiumEnv
from multippo.envs.make import make_env
from multippo.envs.registry import list_envs

if TYPE_CHECKING:
    from multippo.envs.functional.functional_env import FunctionalEnv

__all__ = ["Env", "EnvState", "FunctionalEnv", "GymnasiumEnv", "list_envs", "make_env"]


def __getattr__(name: str) -> Any:
    if name == "FunctionalEnv":
        from multippo.envs.functional.functional_env import FunctionalEnv

        return FunctionalEnv
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
