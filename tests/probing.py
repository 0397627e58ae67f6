"""Environments whose every observation can be told from all others, and what a run did to each of their samples.

The update of a run is read from Adam's first moment after a single minibatch: it is a tenth of the gradient, and the
gradient of a table's row is the derivative of the loss by the one value that stands there.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import support
import training
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import multippo as mp
from multippo.testing import Clock, HostEnv, TableNet

ONE_STEP: dict[str, Any] = {
    "iterations": 1,
    "num_epochs": 1,
    "num_minibatches": 1,
    "learning_rate": 0.0,
    "scale_rewards": False,
    "normalize_advantages": False,
    "gradient_clipping": None,
}
"""Training that moves nothing, and whose one gradient tells the advantage of every sample."""


class Script(HostEnv):
    """Ends and rewards by a plan; every observation of a run has a number of its own, shown one-hot.

    Args:
        ends: ``[T, B]``, 0 where a (real) step ends no episode, 1 where it terminates one, 2 where it cuts one.
        rewards: ``[T, B]``, 1 by default.
        autoreset: See ``HostEnv``.
    """

    def __init__(self, ends: Any, rewards: Any = None, autoreset: Any = "same_step") -> None:
        self.ends = np.asarray(ends)
        self.rewards = np.ones(self.ends.shape) if rewards is None else np.asarray(rewards, float)
        time, num_envs = self.ends.shape
        super().__init__(num_envs, autoreset)
        self.per_env = 2 * time + 2
        self.observation_space = spaces.Box(0, 1, (num_envs * self.per_env,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.number = np.zeros(num_envs, int)
        self.steps = np.zeros(num_envs, int)

    def reset(self, key: Any) -> Any:
        """See ``Env.reset``."""
        self.number, self.steps = np.full(self.num_envs, -1), np.zeros(self.num_envs, int)
        return super().reset(key)

    def _begin(self, which: np.ndarray) -> None:
        self.number = self.number + which

    def _advance(self, action: Any, which: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        row = np.minimum(self.steps, len(self.ends) - 1), np.arange(self.num_envs)
        self.number, self.steps = self.number + which, self.steps + which
        return self.rewards[row], self.ends[row] == 1, self.ends[row] == 2

    def _observe(self) -> np.ndarray:
        size = self.num_envs * self.per_env
        return np.eye(size, dtype=np.float32)[np.arange(self.num_envs) * self.per_env + self.number]


class Continuous(Clock):
    """Two clocks, of 2 and 3 steps, with two continuous actions, which they ignore."""

    def __init__(self) -> None:
        super().__init__([2, 3], "truncated", 2)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)

    def similar(self, num_envs: int) -> Any:
        """See ``Env.similar``."""
        return Continuous()


class Faulty(Clock):
    """Clocks of which environment 2 gives once, after a step of the run, what is not finite.

    Args:
        faults: The number of that step, counted from 1, by the name of what is not finite; a reward is infinite.
        lengths: See ``Clock``.
        autoreset: See ``Clock``.
    """

    BAD = 2

    def __init__(self, faults: dict[str, int], lengths: Any = 20, autoreset: Any = "same_step") -> None:
        super().__init__(lengths, "truncated", 4, autoreset)
        self.faults, self.count = faults, 0

    def step(self, env_state: Any, action: Any) -> Any:
        """See ``Env.step``."""
        state = super().step(env_state, action)
        self.count += 1
        for name, step in self.faults.items():
            if step == self.count:
                value = np.array(getattr(state, name))
                value[self.BAD] = np.inf if name == "reward" else np.nan
                state = state._replace(**{name: value})
        return state


class Numbered(gymnasium.Env[Any, Any]):
    """A gymnasium environment that ends after ``length`` steps; every observation has its own number, shown one-hot.

    Args:
        length: Steps of an episode.
        end: "terminated", "truncated", or "both" flags at once.
        size: Observations of a run at most.
        kind: "box", "dict" (``{"where": one-hot, "when": uint8}``) or "tuple" of the two.
        offset: Number of the first observation.
    """

    action_space = spaces.Discrete(2)

    def __init__(self, length: int, end: str = "truncated", size: int = 32, kind: str = "box", offset: int = 0) -> None:
        self.length, self.end, self.size, self.kind, self.offset = length, end, size, kind, offset
        where, when = spaces.Box(0, 1, (size,), np.float32), spaces.Box(0, 255, (1,), np.uint8)
        self.observation_space = {
            "box": where,
            "dict": spaces.Dict({"where": where, "when": when}),
            "tuple": spaces.Tuple([where, when]),
        }[kind]
        self.number, self.time = offset - 1, 0
        self.actions: list[Any] = []

    def _observe(self) -> Any:
        where, when = np.eye(self.size, dtype=np.float32)[self.number], np.asarray([self.time], np.uint8)
        return {"box": where, "dict": {"where": where, "when": when}, "tuple": (where, when)}[self.kind]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """See ``gymnasium.Env.reset``."""
        super().reset(seed=seed)
        self.number, self.time = self.number + 1, 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        """See ``gymnasium.Env.step``."""
        self.actions.append(action)
        self.number, self.time = self.number + 1, self.time + 1
        over = self.time == self.length
        return self._observe(), 1.0, over and self.end != "truncated", over and self.end != "terminated", {}


class ExplodingGradient(TableNet):
    """Its gradient is finite until its table has moved, and its value stays so."""

    def heads(self, memory: Any, x: Any) -> Any:
        """See ``TinyActorCritic.heads``."""
        memory, logits, value = super().heads(memory, x)
        table = self.values[...]
        return memory, logits, value + self.poison(self.engine.stop_gradient(self.xp.sum(table * table) > 0.0), table)

    def poison(self, moved: Any, table: Any) -> Any:
        """0, whose derivative is NaN: that of the square root at 0 is infinite, and infinity times 0 is NaN."""
        return self.xp.sqrt(self.xp.where(moved, self.xp.sum(table) * 0.0, self.xp.ones_like(table[0]))) * 0.0


class ExplodingLoss(ExplodingGradient):
    """Its value is finite until its table has moved."""

    def poison(self, moved: Any, table: Any) -> Any:
        """0, then NaN."""
        return self.xp.where(moved, self.xp.full_like(table[0], np.nan), self.xp.zeros_like(table[0]))


class Small(gymnasium.Env[Any, Any]):
    """Counts its steps; subclasses say what it shows, and a step's reward, termination and cut."""

    observation_space: Any = spaces.Box(0, 9, (1,), np.float32)
    action_space: Any = spaces.Discrete(2)
    time = 0

    def observe(self) -> Any:
        """The observation at ``time``."""
        return np.zeros(1, np.float32)

    def outcome(self) -> tuple[Any, Any, Any]:
        """Of the step that has led to ``time``."""
        return 1.0, False, False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """See ``gymnasium.Env.reset``."""
        super().reset(seed=seed)
        self.time = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        """See ``gymnasium.Env.step``."""
        self.time += 1
        return self.observe(), *self.outcome(), {}


class Receiver(gymnasium.Env[Any, Any]):
    """Keeps the actions it receives, and refuses those that are not its space's; episodes of five steps."""

    observation_space = spaces.Box(0, 1, (2,), np.float32)

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self.action_space = action_space
        self.actions: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """See ``gymnasium.Env.reset``."""
        super().reset(seed=seed)
        return np.array([0.3, 0.9], np.float32), {}

    def step(self, action: Any) -> Any:
        """See ``gymnasium.Env.step``."""
        # A number on its own comes as a scalar, which a Box takes with a warning, and an array of no axes without.
        assert self.action_space.contains(action if np.shape(action) else np.asarray(action)), action
        assert action.dtype == self.action_space.dtype
        self.actions.append(np.array(action))
        return np.array([0.9, 0.3], np.float32), 1.0, False, len(self.actions) % 5 == 0, {}


def received(make_network: Any, space: spaces.Space[Any], num_envs: int, steps: int) -> tuple[np.ndarray, Any, Any]:
    """The actions that ``Receiver``s got ``[T, B, ...]``, the rollout, and its replay."""
    members = [Receiver(space) for _ in range(num_envs)]
    env = gymnasium_env(lambda index: members[index], num_envs=num_envs)
    stored, replayed = support.rolled_and_replayed(env, make_network(), steps)
    return np.stack([member.actions for member in members], axis=1), stored, replayed


modes = {mode.name.lower(): mode for mode in AutoresetMode}
"""gymnasium's ways to start the next episode."""


def gymnasium_env(make: Callable[[int], Any], mode: str = "same_step", num_envs: int = 1, **options: Any) -> Any:
    """``num_envs`` of ``make(index)`` in a vector environment of one autoreset mode, as an environment of ours."""
    constructors = [lambda index=index: make(index) for index in range(num_envs)]
    return mp.make_env(SyncVectorEnv(constructors, autoreset_mode=modes[mode]), **options)


def advantages_of(network: Any, run: training.Run, valid_steps: int) -> np.ndarray:
    """The advantage of each row of a ``TableNet``'s values in a run of ``ONE_STEP``; 0 where it was not visited.

    The critic's loss is half the mean of ``(V - A - V)**2`` with the default weight, so a row's gradient is ``-A / N``.
    """
    first, _, count = training.portable_moments(network, run.state)
    assert count == 1
    (values,) = (moment for name, moment in first.items() if name.split(".")[-1] == "values")
    return -values / (1 - 0.9) * valid_steps


def reference_advantages(
    rewards: Any, values: Any, bootstrap: Any, ends: Any, last_value: float, gamma: float, gae_lambda: float
) -> np.ndarray:
    """Generalised advantages of one environment's steps, by a loop from the last step to the first.

    Args:
        rewards: ``[T]``.
        values: ``[T]``.
        bootstrap: ``[T]``, what a cut episode is worth after its last step.
        ends: ``[T]``, 0 for none, 1 for a termination, 2 for a cut.
        last_value: Value of the observation after the last step.
        gamma: Discount.
        gae_lambda: Trace decay.
    """
    found, trace, following = np.zeros(len(rewards)), 0.0, last_value
    for time in reversed(range(len(rewards))):
        if ends[time]:
            trace, following = 0.0, bootstrap[time] if ends[time] == 2 else 0.0
        trace = rewards[time] + gamma * following - values[time] + gamma * gae_lambda * trace
        found[time], following = trace, values[time]
    return found
