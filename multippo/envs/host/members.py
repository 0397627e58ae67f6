"""The single environments inside the vector environments that this library builds."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import signal
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import gymnasium
from gymnasium.vector.async_vector_env import _async_worker  # pyright: ignore[reportPrivateUsage]

from multippo.envs.other_interfaces import refuse_other_interface
from multippo.envs.return_checks import RESET_AND_STEP, Observations, split_reset, split_step

Wrapper = Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]


class Member(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Guards a single environment against what a vector environment would not notice.

    * What it returns is checked: observations against its declared space, by name; that a reward is a number, and a
      flag a bool. A vector environment takes some of it for what it is not, and reports the rest as an error of the
      buffer it does not fit into.
    * Its last observation of each episode is copied. An environment that returns one array again and again would
      overwrite it in the reset that follows in the same step, and the truncated episode would be valued by the next.

    Args:
        env: The environment.
        index: Its place in the batch.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], index: int) -> None:
        super().__init__(env)
        self._index = index
        self._observations = Observations(env.observation_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """As ``gymnasium.Env.reset``."""
        try:
            obs, info = split_reset(self.env.reset(seed=seed, options=options))
            self._observations.check(obs)
        except Exception as error:
            self._add_notes(error)
            raise
        return obs, info

    def step(self, action: Any) -> Any:
        """As ``gymnasium.Env.step``."""
        try:
            obs, reward, terminated, truncated, info = split_step(self.env.step(action))
            self._observations.check(obs)
        except Exception as error:
            self._add_notes(error)
            raise
        if terminated or truncated:
            obs = copy.deepcopy(obs)
        return obs, reward, terminated, truncated, info

    def _add_notes(self, error: Exception) -> None:
        error.add_note(f"Raised by environment {self._index} of the batch.")
        if isinstance(error, ValueError) and "values to unpack" in str(error):
            # A wrapper of gymnasium's has taken apart what the environment has returned.
            error.add_note(f"If it is what {type(self.unwrapped).__name__} returned: {RESET_AND_STEP}")


class MadeMember(NamedTuple):
    """Facts of a member that has been made.

    Attributes:
        name: The environment's class.
        max_episode_steps: The registered time limit, if it has one.
        observation_space: Its space of observations.
        action_space: Its space of actions.
    """

    name: str
    max_episode_steps: int | None
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]


@dataclasses.dataclass(frozen=True)
class MemberConstructor:
    """Makes one member: a class rather than a closure, so that it reaches a worker process.

    Attributes:
        make: Makes the environment.
        index: Its place in the batch.
        wrappers: Applied to the environment in turn.
        first: Shared by the constructors of a batch: the first member that was made, which a vector environment makes
            in this process even if workers run all of them.
    """

    make: Callable[[], gymnasium.Env[Any, Any]]
    index: int
    wrappers: Sequence[Wrapper]
    first: list[MadeMember]

    def __call__(self) -> Member:
        """Makes the environment.

        Raises:
            TypeError: If the user's constructor returns something else.
            ValueError: If its spaces are not those of the first.
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


def run_member(
    index: int, make: Callable[[], Any], pipe: Any, parent_pipe: Any, shared_memory: Any, errors: Any, *rest: Any
) -> None:
    """Runs gymnasium's own worker, from which exceptions of the constructor and of any kind arrive too."""
    # A terminal sends Ctrl-C to the workers as well. They go on, so that the iteration at hand can be finished and
    # saved; who stops them is the process that started them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    errors = _PortableErrors(errors)
    try:
        env = make()
    except (Exception, SystemExit) as error:
        parent_pipe.close()
        pipe.recv()
        errors.put((index, type(error), error, traceback.format_exc()))
        pipe.send((None, False))
        return
    _async_worker(index, lambda: env, pipe, parent_pipe, shared_memory, errors, *rest)


class _PortableErrors:
    """A queue of errors that sends the text of an exception that can't be pickled, which would be lost silently."""

    def __init__(self, errors: Any) -> None:
        self._errors = errors

    def put(self, entry: tuple[int, type, BaseException, str]) -> None:
        index, _, error, trace = entry
        try:
            is_portable = str(pickle.loads(ForkingPickler.dumps(error))) == str(error)
        except Exception:
            is_portable = False
        if not is_portable or isinstance(error, SystemExit):
            error = RuntimeError("".join(traceback.format_exception_only(error)).strip())
        self._errors.put((index, type(error), error, trace))
