"""Environments and networks so small that every number they produce can be worked out by hand.

multippo's own tests use them, and yours can. ``Clock``, ``Goal`` and ``Spy`` are host environments;
``FunctionalClock`` and ``FunctionalGoal`` are the same tasks as pure JAX functions, for ``make_env``;
``TensorPendulum`` is a vector environment in torch tensors. ``TableNet``,
``CountNet`` and ``NoisyNet`` are networks without memory, with memory, and with noise of their own. ``check_env``
reports faults of an environment, ``check_module`` the rules of the protocol that a module breaks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from multippo.testing.check_env import EnvReport, check_env
from multippo.testing.check_module import ModuleReport, check_module
from multippo.testing.environments import Clock, FunctionalClock, FunctionalGoal, Goal, HostEnv, Spy
from multippo.testing.networks import CountNet, NoisyNet, TableNet, TinyActorCritic

if TYPE_CHECKING:
    from multippo.testing.tensor_pendulum import TensorPendulum

__all__ = [
    "Clock",
    "CountNet",
    "EnvReport",
    "FunctionalClock",
    "FunctionalGoal",
    "Goal",
    "HostEnv",
    "ModuleReport",
    "NoisyNet",
    "Spy",
    "TableNet",
    "TensorPendulum",
    "TinyActorCritic",
    "check_env",
    "check_module",
]


def __getattr__(name: str) -> Any:
    if name == "TensorPendulum":  # imports torch
        from multippo.testing.tensor_pendulum import TensorPendulum

        return TensorPendulum
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
