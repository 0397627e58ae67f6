"""Small environment whose episodes end by a script, so that every rollout has every kind of end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space

from multippo.envs.api import Env, EnvState
from multippo.random import host
from multippo.trees import select, tree_leaves, tree_map

SCRIPT = (
    "............",  # an episode that does not end
    "T...........",  # terminated at the first step
    "...........C",  # cut (truncated) at the last
    "....TC......",  # two ends in a row
    "C..........T",  # at the first and the last step: two in a row across rollouts
    "..C..T..C..T",  # every third step
)
"""Ends of episodes in each environment at each step of a rollout, over and over: T terminated, C cut."""

_ROLLOUTS = 5
"""Number of rollouts that a TracedEnv can play back."""

NUM_ENVS, NUM_STEPS = len(SCRIPT), len(SCRIPT[0])


def script_ends(letters: str = "TC", script: tuple[str, ...] = SCRIPT) -> np.ndarray:
    """``[T, B]`` bool: True where the script holds one of the letters."""
    return np.asarray([[letter in letters for letter in row] for row in script]).T


class ScriptedEnv(Env):
    """Environment with noise as observations, rewards that depend on the action, and ends of episodes by ``SCRIPT``.

    Observations do not depend on actions: a policy that is off by a rounding error meets the same ones, so that engines
    can be compared to the last digit. Every ``reset`` starts the same episodes.

    Args:
        obs_shape: Shape of an observation, or a dict of shapes.
        action_space: gymnasium space of an action, or a dict of spaces.
        offset: Mean of every number in an observation.
        scale: Standard deviation of every number in an observation.
        reward_keys: Names of the rewards where they are a dict.
        may_skip: True for a step that does not count after every end, as in gymnasium's NEXT_STEP mode.
        mask_size: Size of a further entry ``action_mask`` of observations, 1 for about half of the actions, in some
            rows for none; possible with a dict of shapes.
    """

    functional = False
    id = "scripted"

    def __init__(
        self,
        obs_shape: tuple[int, ...] | Mapping[str, tuple[int, ...]],
        action_space: gymnasium.Space[Any],
        *,
        offset: float = 0.0,
        scale: float = 1.0,
        reward_keys: tuple[str, ...] = (),
        may_skip: bool = False,
        mask_size: int = 0,
    ) -> None:
        self.num_envs = NUM_ENVS
        self.may_skip = may_skip
        self.action_space = action_space
        self._offset, self._scale, self._reward_keys = offset, scale, reward_keys
        self._shapes = dict(obs_shape) if isinstance(obs_shape, Mapping) else {"": obs_shape}
        boxes: dict[str, gymnasium.Space[Any]] = {
            name: gymnasium.spaces.Box(-np.inf, np.inf, shape) for name, shape in self._shapes.items()
        }
        self._mask_size = mask_size
        if mask_size:
            boxes["action_mask"] = gymnasium.spaces.Box(0, 1, (mask_size,), np.int8)
        self.observation_space = boxes[""] if "" in boxes else gymnasium.spaces.Dict(boxes)
        self._obs_key, self._final_key, self._reward_key = host.split(host.key(20), 3)
        self._step, self._skip = 0, np.zeros(self.num_envs, np.bool_)

    def reset(self, key: Any) -> EnvState:
        """The start of the script."""
        del key
        none, still = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs)
        self._step, self._skip = 0, none
        obs, metrics = self._observe(self._obs_key), {"acted": still.astype(np.float32)}
        return EnvState(obs, self._rewards(still, none), none, none.copy(), obs, ~none, metrics, ())

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        """The next step of the script.

        Raises:
            ValueError: If an action is outside the action space, in policy coordinates.
        """
        del env_state
        self._check(action)
        place = self._step % NUM_STEPS
        self._step += 1
        skip = self._skip
        terminated, truncated = (script_ends(letter)[place] & ~skip for letter in "TC")
        ended = terminated | truncated
        after = self._observe(self._obs_key)
        final = select(np, ended, self._observe(self._final_key), after)
        # With skipped steps the final observation is shown, and the next episode's first one a step later.
        obs = final if self.may_skip else after
        if self.may_skip:
            self._skip = ended
        acted = sum_of_actions(action)
        metrics = {"acted": acted.astype(np.float32)}
        return EnvState(obs, self._rewards(acted, skip), terminated, truncated, final, ~skip, metrics, ())

    def _observe(self, key: Any) -> Any:
        keys = host.split(host.fold_in(key, self._step), len(self._shapes))
        drawn = {
            name: (self._offset + self._scale * host.normal(keys[i], (self.num_envs, *shape))).astype(np.float32)
            for i, (name, shape) in enumerate(sorted(self._shapes.items()))
        }
        if self._mask_size:
            uniform = host.uniform(host.fold_in(keys[0], 1), (self.num_envs, self._mask_size))
            drawn["action_mask"] = (uniform < 0.5).astype(np.int8)
        return drawn.get("", drawn)

    def _rewards(self, acted: Any, skip: np.ndarray) -> Any:
        drawn = host.normal(host.fold_in(self._reward_key, self._step), (self.num_envs,))
        reward = np.where(skip, 0.0, drawn + np.sin(acted))
        return {name: reward * (i + 1) for i, name in enumerate(self._reward_keys)} if self._reward_keys else reward

    def _check(self, action: Any) -> None:
        for value, space in _pairs(action, self.action_space):
            array = np.asarray(value)
            kinds, small = ("f", np.float32) if isinstance(space, gymnasium.spaces.Box) else ("iu", np.int8)
            fits = array.dtype.kind in kinds and batch_space(space, self.num_envs).contains(array.astype(small))
            if not fits:
                raise ValueError(f"An action of shape {array.shape}, type {array.dtype} is outside {space}: {array}.")


class TracedEnv(Env):
    """``ScriptedEnv`` as a pure JAX function, which one engine traces into its rollout and others step.

    Args:
        scripted: Environment to play back, without skipped steps, whose actions are arrays.
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


def _pairs(action: Any, space: Any) -> list[tuple[Any, Any]]:
    if isinstance(space, gymnasium.spaces.Dict):
        return [pair for key, sub in space.spaces.items() for pair in _pairs(action[key], sub)]
    return [(action, space)]


def sum_of_actions(actions: Any) -> np.ndarray:
    """Sum of each environment's actions, a metric of these environments."""
    leaves = [np.asarray(leaf) for leaf in tree_leaves(actions)]
    return np.sum([np.sum(np.reshape(leaf, (len(leaf), -1)), axis=1) for leaf in leaves], axis=0)
