"""Domain randomisation: a simulated system of its own for each episode (Tobin et al., 2017, arXiv:1703.06907)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


class RandomizedEnv:
    """An environment of brax or playground whose system is drawn anew for each fresh start.

    The entries that differ are kept in the state's ``info["system"]``.

    Args:
        env: The environment.
        randomization_fn: Function ``(system, rng) -> (systems, in_axes)`` of the kind that brax and playground take:
            of a system and keys ``[N, 2]`` it makes N systems, in which entries that differ have a leading axis.
    """

    def __init__(self, env: Any, randomization_fn: Callable[..., Any]) -> None:
        self.env, self._randomization_fn = env, randomization_fn
        base = env.unwrapped
        self._name = "_mjx_model" if hasattr(base, "_mjx_model") else "sys"
        self._system = getattr(base, self._name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, key: jax.Array) -> Any:
        """The state at the start of an episode, in a system drawn for it."""
        key, use = jax.random.split(key)
        systems, _ = self._randomization_fn(self._system, use[None])
        pairs = enumerate(zip(jax.tree.leaves(systems), jax.tree.leaves(self._system), strict=True))
        own = {str(place): new[0] for place, (new, old) in pairs if jnp.ndim(new) > jnp.ndim(old)}
        return self._within(own, self.env.reset, key)

    def step(self, state: Any, action: Any) -> Any:
        """The state after an action."""
        info = dict(state.info)
        return self._within(info.pop("system"), self.env.step, state.replace(info=info), action)

    def _within(self, own: dict[str, Any], method: Callable[..., Any], *args: Any) -> Any:
        leaves, structure = jax.tree.flatten(self._system)
        for place, leaf in own.items():
            leaves[int(place)] = leaf
        setattr(self.env.unwrapped, self._name, jax.tree.unflatten(structure, leaves))
        try:
            state = method(*args)
        finally:
            setattr(self.env.unwrapped, self._name, self._system)
        return state.replace(info={**state.info, "system": own})
