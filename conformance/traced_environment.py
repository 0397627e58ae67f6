"""The scripted environment as a pure JAX function, which one engine traces into its rollout and others step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from multippo.envs.api import Env, EnvState
from multippo.trees import tree_leaves, tree_map

from .environment import NUM_STEPS

if TYPE_CHECKING:
    from .environment import ScriptedEnv

__all__ = ["TracedEnv"]

_ROLLOUTS = 5


class TracedEnv(Env):
    """Plays back what a ``ScriptedEnv`` showed; needs JAX.

    Args:
        scripted: The environment to play back: one without skipped steps, whose actions are arrays.
    """

    functional = True
    id = "traced"

    def __init__(self, scripted: ScriptedEnv) -> None:
        import jax

        self.num_envs = scripted.num_envs
        self.observation_space, self.action_space = scripted.observation_space, scripted.action_space
        still = np.zeros((self.num_envs, *(scripted.action_space.shape or ())), np.float32)
        states = [scripted.reset(0)]
        states += [scripted.step(states[-1], still) for _ in range(_ROLLOUTS * NUM_STEPS)]
        self._tape = tree_map(lambda *leaves: np.stack(leaves), *(state._replace(metrics={}) for state in states))
        self._tape = self._tape._replace(reward=self._tape.reward.astype(np.float32))
        self._step = jax.jit(self._trace_step)

    def reset(self, key: Any) -> EnvState:
        """The start of the script."""
        del key
        import jax.numpy as jnp

        return self._at(jnp.zeros((), jnp.int32), jnp.zeros(self.num_envs))

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        """The next step of the script."""
        return self._step(env_state.internal, action)

    def _trace_step(self, place: Any, action: Any) -> EnvState:
        acted: Any = sum(leaf.reshape((self.num_envs, -1)).sum(axis=1) for leaf in tree_leaves(action))
        return self._at(place + 1, acted)

    def _at(self, place: Any, acted: Any) -> EnvState:
        import jax.numpy as jnp

        row = tree_map(lambda leaf: jnp.asarray(leaf)[place], self._tape)
        return row._replace(internal=place, metrics={"acted": acted.astype(jnp.float32)})
