"""Single environments as members of a batch: guarded against faults that a vector environment would not notice."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium

from multippo.envs.observations import RESET_AND_STEP, Observations, split_reset, split_step
from multippo.envs.registry import refuse_other_interface

Wrapper = Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]


class Member(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Guards a single environment against faults that a vector environment would not notice.

    * Observations are checked against the declared space, by name; a reward must be a number, and a flag a bool. A
      vector environment would cast some wrong values silently, and report the rest as an error of its buffer.
    * The last observation of each episode is copied. An environment that returns one array again and again would
      overwrite it in the reset that follows in the same step, and the truncated episode would be valued by the next.

    Args:
        env: The environment.
        index: Position of the environment in the batch.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], index: int) -> None:
        super().__init__(env)
        self._index = index
        self._observations = Observations(env.observation_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """See ``gymnasium.Env.reset``."""
        return self._checked(split_reset, self.env.reset, seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """See ``gymnasium.Env.step``."""
        obs, reward, terminated, truncated, _ = self._checked(split_step, self.env.step, action)
        if terminated or truncated:
            obs = copy.deepcopy(obs)
        # Nobody reads infos, and a worker process would send them.
        return obs, reward, terminated, truncated, {}

    def check(self, obs: Any) -> None:
        """Raises a ValueError unless an observation fits the space."""
        try:
            self._observations.check(obs)
        except ValueError as error:
            self.blame(error)
            raise

    def blame(self, error: BaseException) -> None:
        """Adds the environment's place to an error, once."""
        note = f"Raised by environment {self._index} of the batch."
        if note in getattr(error, "__notes__", ()):
            return
        error.add_note(note)
        if isinstance(error, ValueError) and "values to unpack" in str(error):
            # A wrapper of gymnasium's has failed to take the environment's result apart.
            error.add_note(f"If it is what {type(self.unwrapped).__name__} returned: {RESET_AND_STEP}")

    def _checked(self, split: Callable[[Any], Any], method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        try:
            values = split(method(*args, **options))
            self._observations.check(values[0])
            return values
        except Exception as error:
            self.blame(error)
            raise


class MadeMember(NamedTuple):
    """Facts of a member that has been made.

    Attributes:
        name: Name of the environment's class.
        max_episode_steps: The registered time limit, or None.
        observation_space: Space of one observation.
        action_space: Space of one action.
    """

    name: str
    max_episode_steps: int | None
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]


@dataclasses.dataclass(frozen=True)
class MemberConstructor:
    """Makes one member: a class rather than a closure, so that it reaches a worker process.

    Attributes:
        make: Function that makes the environment.
        index: Position of the environment in the batch.
        wrappers: Wrappers applied to the environment in turn.
        first: List that the constructors of a batch share, with the first member that was made; a vector environment
            makes it in this process even if workers run all of them.
    """

    make: Callable[[], gymnasium.Env[Any, Any]]
    index: int
    wrappers: Sequence[Wrapper]
    first: list[MadeMember]

    def __call__(self) -> Member:
        """Makes the environment.

        Raises:
            TypeError: If the user's constructor returns something else.
            ValueError: If the environment's spaces are not those of the first, or not supported.
        """
        env = self.make()
        if not isinstance(env, gymnasium.Env):
            if hasattr(env, "reset") and hasattr(env, "step"):
                refuse_other_interface(env)
            raise TypeError(
                f"The constructor of environment {self.index} returned a {type(env).__name__}, expected a "
                "gymnasium.Env: pass functions without arguments that make one environment each."
            )
        for wrapper in self.wrappers:
            env = wrapper(env)
        name = type(env.unwrapped).__name__
        if not self.first:
            limit = env.spec.max_episode_steps if env.spec else None
            self.first.append(MadeMember(name, limit, env.observation_space, env.action_space))
        for kind in ("observation_space", "action_space"):
            own, first = getattr(env, kind), getattr(self.first[0], kind)
            if own != first:
                raise ValueError(
                    f"Environment {self.index}, {name}, has the {kind} {own}, and environment 0, {self.first[0].name}, "
                    f"has {first}: environments that run side by side must have equal spaces, down to bounds and "
                    "types. Declare the same, or wrap them, for example in gymnasium.wrappers.TransformObservation."
                )
        return Member(env, self.index)
