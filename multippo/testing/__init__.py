"""Environments and networks so small that every number they produce can be worked out by hand.

multippo's own tests use them, and yours can. ``Clock``, ``Goal`` and ``Spy`` are host environments;
``FunctionalClock`` and ``FunctionalGoal`` are the same tasks as pure JAX functions, for ``make_env``. ``TableNet``,
``CountNet`` and ``NoisyNet`` are networks without memory, with memory, and with noise of their own. ``check_env``
reports faults of an environment, ``check_module`` the rules of the protocol that a module breaks.
"""

from __future__ import annotations

from multippo.testing.check_env import EnvReport, check_env
from multippo.testing.check_module import ModuleReport, check_module
from multippo.testing.environments import Clock, FunctionalClock, FunctionalGoal, Goal, HostEnv, Spy
from multippo.testing.networks import CountNet, NoisyNet, TableNet, TinyActorCritic

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
    "TinyActorCritic",
    "check_env",
    "check_module",
]
