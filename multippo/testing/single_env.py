"""gymnasium's own checker for a single environment."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.utils import env_checker, passive_env_checker

from multippo.testing.random_actions import MASK_KEY

__all__ = ["gymnasium_findings"]

# The passive ones first: they say more of types than the assertion with which the last one ends.
_CHECKS: tuple[Callable[[Any], object], ...] = (
    passive_env_checker.env_reset_passive_checker,
    lambda env: passive_env_checker.env_step_passive_checker(env, env.action_space.sample()),
    lambda env: env_checker.check_env(env, skip_render_check=True, skip_close_check=True),
)
_WARNING = re.compile(r"WARN: (.*?)(?:\x1b\[0m)?$", re.DOTALL)
_LEFT_OUT = re.compile(
    "infinity|recommend using a symmetric|unwrapped version|Casting input"  # the adapter's work
    "|within the observation space"  # check_env gives the numbers
    "|truncates after 1 step"  # said of NumPy's False, too
)


def gymnasium_findings(env: Any) -> Iterator[str]:
    """Yields what ``gymnasium.utils.env_checker`` asserts and warns of.

    Args:
        env: A function that makes a ``gymnasium.Env``; nothing is said of anything else. Actions are drawn without
            regard to a mask, so that an environment with one is not stepped.
    """
    if not callable(env) or (hasattr(env, "step") and not inspect.isclass(env)):
        return
    single: Any = env()
    if not isinstance(single, gymnasium.Env):
        return
    masked = isinstance(single.observation_space, spaces.Dict) and MASK_KEY in single.observation_space.spaces
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for check in _CHECKS[:1] if masked else _CHECKS:
            try:
                check(single)
            except Exception as error:
                texts.append(str(error))
    single.close()
    texts += [found[1] for warning in caught if (found := _WARNING.search(str(warning.message)))]
    yield from (text for text in texts if not _LEFT_OUT.search(text))
