"""Vector environments in torch tensors of one device, as simulators on a GPU are, without a copy to the host.

| a step returns | as in |
|---|---|
| ``obs, reward, terminated, truncated, info`` | IsaacLab, ManiSkill, gymnasium |
| ``obs, reward, done, info``, with ``info["time_outs"]`` | rsl_rl |

The last observation of an episode is in ``info["final_obs"]`` (``"final_observation"`` in ManiSkill), a whole batch.
IsaacLab and rsl_rl report none; a truncated episode is then valued by the observation before its last step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from multippo.action_spaces import is_bounded, num_choices
from multippo.arguments import describe
from multippo.envs.api import Env, EnvState
from multippo.envs.keys import host_seed
from multippo.envs.observations import make_observation_map, mismatch
from multippo.trees import named_leaves


class TensorEnv(Env):
    """A vector environment in torch tensors, which starts a new episode in the step in which one ends.

    Tensors are handed on as they are, and nothing waits for the device. Types and shapes are checked in ``reset``, not
    in every step. An end that is both a termination and a truncation counts as a termination.

    Args:
        env: The environment: ``num_envs``, ``device``, ``single_observation_space``, ``single_action_space``,
            ``reset(seed=…)`` and ``step(actions)``, and if it has a time limit, ``max_episode_steps`` or
            ``max_episode_length``. Attributes may lie in its ``unwrapped``.
        id: Name of the environment; by default the registered id, else the class name.
        observation_space: Space of one observation; by default the environment's.
        action_space: Space of one action; by default the environment's.
        remake: Function of a batch size that makes the same environment again, for ``similar``.

    Raises:
        ValueError: If a space is missing or not supported, or the environment resets in the step after an end.
    """

    functional = False
    arrays = "torch"
    restarts = False

    def __init__(
        self,
        env: Any,
        *,
        id: str | None = None,
        observation_space: gymnasium.Space[Any] | None = None,
        action_space: gymnasium.Space[Any] | None = None,
        remake: Callable[[int], Any] | None = None,
    ) -> None:
        spec = getattr(env, "spec", None)
        self.id = id or (spec.id if spec else type(getattr(env, "unwrapped", env)).__name__)
        self.vector_env = env
        self.num_envs, self.device = attribute(env, "num_envs"), torch.device(attribute(env, "device"))
        self.max_episode_steps = attribute(env, "max_episode_steps") or attribute(env, "max_episode_length")
        mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode", AutoresetMode.SAME_STEP)
        if mode not in (AutoresetMode.SAME_STEP, AutoresetMode.SAME_STEP.value):
            raise ValueError(
                f"{self.id} has the autoreset mode {mode}; an environment in tensors must start a new episode in the "
                "step in which one ends, AutoresetMode.SAME_STEP."
            )
        self.observation_space = observation_space or self._space("observation_space")
        self.action_space = action_space or self._space("action_space")
        if make_observation_map(self.observation_space).space != self.observation_space:
            raise ValueError(
                f"The observation space {self.observation_space} of {self.id} is not supported in tensors; supported "
                "are Box, and Dict and Tuple of those. Return one-hot vectors for numbers of a Discrete space."
            )
        self._actions = _action_map(self.action_space, self.device)
        self._valid = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        self._final_checked = False
        self._remake = remake
        self._with = functools.partial(
            TensorEnv, id=id, observation_space=observation_space, action_space=action_space, remake=remake
        )

    def reset(self, key: Any) -> EnvState:
        """See ``Env.reset``.

        Raises:
            ValueError: If the observations do not fit the space.
        """
        obs = self._checked(self.vector_env.reset(seed=host_seed(key, self.num_envs))[0])
        never, zero = ~self._valid, torch.zeros(self.num_envs, device=self.device)
        return EnvState(obs, zero, never, never, obs, self._valid, {}, ())

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        """See ``Env.step``. Tensors of the state may be the environment's own, and the next step may write to them.

        Raises:
            ValueError: If the first last observations do not fit the space.
        """
        del env_state
        # Not in inference mode: the environment could not write to tensors made in it after the rollout.
        with torch.inference_mode(False), torch.no_grad():
            return self._step(action)

    def _step(self, action: Any) -> EnvState:
        obs, reward, *ends, info = self.vector_env.step(self._actions(action))
        done, truncated = ends if len(ends) == 2 else (ends[0], info.get("time_outs", ~self._valid))
        done, truncated = done.bool(), truncated.bool()
        terminated = done & ~truncated if len(ends) == 1 else done
        final = info.get("final_obs", info.get("final_observation"))
        if final is not None:
            final = _as_tree(final) if self._final_checked else self._checked(final)
            self._final_checked = True
        # An end that is both counts as a termination.
        return EnvState(_as_tree(obs), reward.float(), terminated, truncated & ~terminated, final, self._valid, {}, ())

    def similar(self, num_envs: int) -> TensorEnv:
        """See ``Env.similar``."""
        if self._remake is None:
            raise ValueError(
                f"{self.id} was made by the user, so it can't be made again with {num_envs} environments: pass "
                "eval_env=, or make_env(..., remake=) with a function of the number of environments."
            )
        return self._with(self._remake(num_envs))

    @property
    def _inner(self) -> Any:
        return self.vector_env

    def close(self) -> None:
        """See ``Env.close``."""
        getattr(self.vector_env, "close", lambda: None)()

    def _space(self, name: str) -> gymnasium.Space[Any]:
        space = attribute(self.vector_env, f"single_{name}")
        if space is None:
            raise ValueError(f"{self.id} has no single_{name}: pass make_env(..., {name}=), that of one environment.")
        return space

    def _checked(self, obs: Any) -> Any:
        """Observations as a tree of tensors that fit the space.

        Raises:
            ValueError: If a tensor is missing, or of another shape, type or device than expected.
        """
        obs = _as_tree(obs)
        expected = dict(named_leaves(_boxes(self.observation_space)))
        received = dict(named_leaves(obs))
        if received.keys() != expected.keys():
            raise mismatch("observation", describe(obs), f"a tree with the entries {list(expected)}")
        for name, box in expected.items():
            leaf, shape = received[name], (self.num_envs, *box.shape)
            dtype = torch.from_numpy(np.empty(0, box.dtype)).dtype
            fits = isinstance(leaf, torch.Tensor) and (tuple(leaf.shape), leaf.dtype) == (shape, dtype)
            if not fits or leaf.device.type != self.device.type:
                text = f"a tensor {shape} of {dtype} on {self.device}"
                kind = f" of {leaf.dtype} on {leaf.device}" if isinstance(leaf, torch.Tensor) else ""
                raise mismatch(f"observation {name!r}" if name else "observation", describe(leaf) + kind, text)
        return obs


def attribute(env: Any, name: str) -> Any:
    """An attribute of an environment, or of the one that it wraps; None if neither has it."""
    return getattr(env, name, getattr(getattr(env, "unwrapped", env), name, None))


def is_tensor_env(env: Any) -> bool:
    """True for a batch of environments on a torch device; gymnasium's vector environments have none."""
    return isinstance(attribute(env, "device"), torch.device | str) and attribute(env, "num_envs") is not None


def _as_tree(obs: Any) -> Any:
    """A TensorDict as a dict; anything else as it is."""
    return obs if isinstance(obs, torch.Tensor | dict | tuple) else dict(obs.items())


def _boxes(space: spaces.Space[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _boxes(part) for key, part in space.items()}
    return tuple(map(_boxes, space)) if isinstance(space, spaces.Tuple) else space


def _action_map(space: spaces.Space[Any], device: torch.device) -> Callable[[Any], Any]:
    """The map of ``envs.actions`` from policy coordinates to the environment's, in tensors.

    Raises:
        ValueError: If the space is not supported.
    """
    if isinstance(space, spaces.Dict):
        maps = {key: _action_map(part, device) for key, part in space.items()}
        return lambda action: {key: part(action[key]) for key, part in maps.items()}
    tensor = functools.partial(torch.as_tensor, device=device)
    if num_choices(space) is not None:
        start = tensor(np.asarray(space.low if isinstance(space, spaces.Box) else getattr(space, "start", 0)))
        return lambda action: tensor(action) + start
    if not isinstance(space, spaces.Box):
        raise ValueError(
            f"The action space {space} is not supported; supported are Box, Discrete, MultiDiscrete, MultiBinary, and "
            "Dict of those."
        )
    low, high = tensor(space.low), tensor(space.high)
    bounded = tensor(is_bounded(space))
    lower, upper = torch.where(bounded, low, -1), torch.where(bounded, high, 1)
    scale, offset = (upper - lower) / 2, (upper + lower) / 2
    # A new tensor, also where there are no bounds: an environment may write into its action.
    return lambda action: torch.addcmul(offset, tensor(action), scale).clamp_(low, high)
