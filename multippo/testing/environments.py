"""Host environments in NumPy, without gymnasium's vector environments in between; two of them as JAX functions, too."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium import spaces

from multippo.envs.api import Env, EnvState
from multippo.envs.keys import key_words
from multippo.envs.wrappers import EnvWrapper
from multippo.trees import select

End = Literal["terminated", "truncated"]
Autoreset = Literal["same_step", "next_step"]


class HostEnv(Env):
    """A batch of environments that end and start episodes independently, in either of gymnasium's two manners.

    A subclass defines the start of an episode, its steps and the observation.

    Args:
        num_envs: Number of environments, B.
        autoreset: ``"same_step"``, or ``"next_step"``: the step after an end only resets, and is not valid.
    """

    functional = False

    def __init__(self, num_envs: int, autoreset: Autoreset) -> None:
        self.id = type(self).__name__
        self.num_envs = num_envs
        self.may_skip = autoreset == "next_step"
        self._options: dict[str, Any] = {"autoreset": autoreset}

    @abc.abstractmethod
    def _begin(self, which: np.ndarray) -> None:
        """Starts an episode where ``which`` ``[B]`` holds, drawing from ``self._rng``."""

    @abc.abstractmethod
    def _advance(self, action: Any, which: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Takes a step where ``which`` holds; returns reward, terminated and truncated, ``[B]`` each."""

    @abc.abstractmethod
    def _observe(self) -> np.ndarray:
        """The current observation of each environment, in a new array."""

    def similar(self, num_envs: int) -> Env:
        """See ``Env.similar``."""
        kind: Any = type(self)
        return kind(num_envs=num_envs, **self._options)

    def reset(self, key: Any) -> EnvState:
        """See ``Env.reset``."""
        everywhere, nowhere = np.ones(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        self._rng = np.random.default_rng(key_words(key))
        self._begin(everywhere)
        self._pending = nowhere
        obs = self._observe()
        reward = np.zeros(self.num_envs, np.float32)
        return EnvState(obs, reward, nowhere, nowhere.copy(), obs, everywhere, {}, ())

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        """See ``Env.step``."""
        del env_state
        valid = ~self._pending
        self._begin(self._pending)
        reward, terminated, truncated = self._advance(action, valid)
        reward, terminated, truncated = np.where(valid, reward, 0.0), terminated & valid, truncated & valid
        ended, final_obs = terminated | truncated, self._observe()
        if self.may_skip:
            self._pending = ended
        else:
            self._begin(ended)
        return EnvState(self._observe(), reward.astype(np.float32), terminated, truncated, final_obs, valid, {}, ())

    def restart(self, env_state: EnvState, which: np.ndarray) -> EnvState:
        """See ``Env.restart``."""
        self._begin(which)
        self._pending = self._pending & ~which
        return env_state._replace(
            obs=select(np, which, self._observe(), env_state.obs),
            terminated=env_state.terminated & ~which,
            truncated=env_state.truncated | which,
        )


class Clock(HostEnv):
    """Shows the time as a one-hot vector, pays 1 a step, and ends after ``length`` steps.

    The last observation, time ``length``, is shown nowhere else.

    Args:
        length: Number of steps of an episode, or a sequence with one for each environment.
        end: The flag with which episodes end: ``"terminated"`` or ``"truncated"``.
        num_envs: Number of environments, B.
        autoreset: Step of the reset after an end; see ``HostEnv``.
    """

    def __init__(
        self,
        length: int | Sequence[int],
        end: End = "terminated",
        num_envs: int = 1,
        autoreset: Autoreset = "same_step",
    ) -> None:
        super().__init__(num_envs, autoreset)
        self.length, self.end = np.broadcast_to(np.asarray(length), (num_envs,)), end
        self.observation_space = spaces.Box(0, 1, (int(self.length.max()) + 1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._options |= {"length": length, "end": end}
        self.time = np.zeros(num_envs, np.int64)

    def _begin(self, which: np.ndarray) -> None:
        self.time = np.where(which, 0, self.time)

    def _advance(self, action: Any, which: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self.time = self.time + which
        over = self.time == self.length
        never = np.zeros_like(over)
        ends = (over, never) if self.end == "terminated" else (never, over)
        return np.ones(self.num_envs), *ends

    def _observe(self) -> np.ndarray:
        return np.eye(int(self.length.max()) + 1, dtype=np.float32)[self.time]


class Goal(HostEnv):
    """Draws a goal in [-1, 1] at each start and shows it; pays minus the squared distance of the action to it.

    Args:
        num_envs: Number of environments, B.
        length: Number of steps of an episode, which ends by truncation.
        autoreset: Step of the reset after an end; see ``HostEnv``.
    """

    def __init__(self, num_envs: int = 1, length: int = 2, autoreset: Autoreset = "same_step") -> None:
        super().__init__(num_envs, autoreset)
        self.observation_space = spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.max_episode_steps = length
        self._options |= {"length": length}
        self.goal, self.time = np.zeros(num_envs), np.zeros(num_envs, np.int64)

    def _begin(self, which: np.ndarray) -> None:
        drawn = self._rng.uniform(-1, 1, self.num_envs)
        self.goal, self.time = np.where(which, drawn, self.goal), np.where(which, 0, self.time)

    def _advance(self, action: Any, which: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self.time = self.time + which
        reward = -((np.asarray(action)[:, 0] - self.goal) ** 2)
        return reward, np.zeros(self.num_envs, np.bool_), self.time == self.max_episode_steps

    def _observe(self) -> np.ndarray:
        return self.goal[:, None].astype(np.float32)


class Spy(EnvWrapper):
    """Passes everything on to a host environment, and keeps all keys, states and actions.

    Args:
        env: The environment.

    Attributes:
        resets: Keys of every reset.
        states: Every state returned, those of resets included.
        actions: The action of every step.
        real_steps: Number of valid steps, of all environments together.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.resets: list[Any] = []
        self.states: list[EnvState] = []
        self.actions: list[Any] = []
        self.real_steps = 0

    def reset(self, key: Any) -> EnvState:
        """See ``Env.reset``."""
        self.resets.append(key)
        return super().reset(key)

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        """See ``Env.step``."""
        self.actions.append(action)
        after = super().step(env_state, action)
        self.real_steps += int(after.valid.sum())
        return after

    def _changed(self, env_state: EnvState) -> EnvState:
        self.states.append(env_state)
        return env_state


class State(NamedTuple):
    """State of a functional environment, in brax's manner. ``info["truncation"]`` is 1 where the episode was cut."""

    obs: Any
    reward: Any
    done: Any
    info: dict[str, Any]
    metrics: dict[str, Any]


class FunctionalClock:
    """``Clock`` as pure JAX functions of a single environment's state, for ``make_env``.

    Args:
        length: Number of steps of an episode.
        end: The flag with which episodes end: ``"terminated"`` or ``"truncated"``.
    """

    action_space = spaces.Discrete(2)

    def __init__(self, length: int, end: End = "terminated") -> None:
        self.length, self.end = length, end

    def reset(self, key: Any) -> State:
        """Starts an episode at time 0."""
        del key
        return self._at(np.zeros((), np.int32))

    def step(self, state: State, action: Any) -> State:
        """Advances the time by one step."""
        del action
        return self._at(state.info["time"] + 1)

    def _at(self, time: Any) -> State:
        import jax

        over = (time == self.length).astype(np.float32)
        cut = over if self.end == "truncated" else over * 0
        obs = jax.nn.one_hot(time, self.length + 1, dtype=np.float32)
        return State(obs, jax.numpy.ones(()), over, {"truncation": cut, "time": time}, {})


class FunctionalGoal:
    """``Goal`` as pure JAX functions of a single environment's state, for ``make_env``.

    Args:
        length: Number of steps of an episode, which ends by truncation.
    """

    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, length: int = 2) -> None:
        self.length = length

    def reset(self, key: Any) -> State:
        """Draws a new goal."""
        import jax

        goal, zero = jax.random.uniform(key, (1,), np.float32, -1.0, 1.0), jax.numpy.zeros(())
        return State(goal, zero, zero, {"truncation": zero, "time": np.zeros((), np.int32)}, {})

    def step(self, state: State, action: Any) -> State:
        """Pays the reward and advances the time."""
        time = state.info["time"] + 1
        over = (time == self.length).astype(np.float32)
        reward = -((action - state.obs) ** 2).sum()
        return State(state.obs, reward, over, {"truncation": over, "time": time}, {})
