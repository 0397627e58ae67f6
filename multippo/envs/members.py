"""The single environments inside the vector environments that this library builds."""

from __future__ import annotations

import copy
import dataclasses
import multiprocessing
import pickle
import signal
import traceback
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
from gymnasium.vector.async_vector_env import _async_worker  # pyright: ignore[reportPrivateUsage]

from multippo.envs.other_interfaces import refuse_other_interface
from multippo.envs.returned import RESET_AND_STEP, Observations, split_reset, split_step

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MadeMember", "Member", "MemberConstructor", "run_member"]


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
        in_worker: Whether it runs in a process of its own, from which an exception must bring its traceback along.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], index: int, in_worker: bool) -> None:
        super().__init__(env)
        self._index, self._in_worker = index, in_worker
        self._observations = Observations(env.observation_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """As ``gymnasium.Env.reset``."""
        try:
            obs, info = split_reset(self.env.reset(seed=seed, options=options))
            self._observations.check(obs)
        except Exception as error:
            explained = _explained(error, self._index, self._in_worker, self.env)
            if explained is not error:
                raise explained from None
            raise
        return obs, info

    def step(self, action: Any) -> Any:
        """As ``gymnasium.Env.step``."""
        try:
            obs, reward, terminated, truncated, info = split_step(self.env.step(action))
            self._observations.check(obs)
        except Exception as error:
            explained = _explained(error, self._index, self._in_worker, self.env)
            if explained is not error:
                raise explained from None
            raise
        if terminated or truncated:
            obs = copy.deepcopy(obs)
        return obs, reward, terminated, truncated, info


class MadeMember(NamedTuple):
    """What there is to know of a member that has been made.

    Attributes:
        name: The environment's class.
        max_episode_steps: The registered time limit, if it has one and is the first of the batch.
        observation_space: Its space of observations.
        action_space: Its space of actions.
    """

    name: str
    max_episode_steps: int | None
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]


@dataclasses.dataclass(frozen=True)
class MemberConstructor:
    """Makes one member: a class rather than a closure, so that it reaches a worker process and can be recognised."""

    make: Callable[[], gymnasium.Env[Any, Any]]
    index: int
    in_worker: bool
    made: list[MadeMember] = dataclasses.field(default_factory=list["MadeMember"], compare=False)
    """What it has made in this process; a vector environment makes the first one here even if workers run them."""

    def __call__(self) -> Member:
        """A new environment.

        Raises:
            TypeError: If the user's constructor returns something else.
        """
        if self.in_worker and multiprocessing.parent_process() is not None:
            # A terminal sends Ctrl-C to the workers as well. They go on, so that the iteration at hand can be finished
            # and saved; who stops them is the process that started them.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        env = self.make()
        if not isinstance(env, gymnasium.Env):
            if hasattr(env, "reset") and hasattr(env, "step"):
                refuse_other_interface(env)
            raise TypeError(
                f"The constructor of environment {self.index} returned a {type(env).__name__}, expected a "
                "gymnasium.Env: pass functions without arguments that make one environment each."
            )
        # One speaks for all, and gymnasium copies a lot to answer.
        spec = env.spec if self.index == 0 else None
        limit = spec.max_episode_steps if spec else None
        made = MadeMember(type(env.unwrapped).__name__, limit, env.observation_space, env.action_space)
        self.made[:] = [made]
        return Member(env, self.index, self.in_worker)


def run_member(index: int, make: Callable[[], Any], pipe: Any, parent_pipe: Any, *rest: Any) -> None:
    """What a worker process runs: gymnasium's own worker, which first says whether its environment is made.

    It sends True, or False after it has put the constructor's exception into the queue of errors; then it ends.
    """
    try:
        try:
            env = make()
        except SystemExit as stop:
            raise RuntimeError(f"The constructor of environment {index} ended its process: {stop!r}.") from stop
    except Exception as error:
        explained = _explained(error, index, in_worker=True)
        error_queue = rest[1]
        parent_pipe.close()
        error_queue.put((index, type(explained), explained, traceback.format_exc()))
        pipe.send(False)
        return
    pipe.send(True)
    _async_worker(index, lambda: env, pipe, parent_pipe, *rest)


def _explained(error: Exception, index: int, in_worker: bool, env: gymnasium.Env[Any, Any] | None = None) -> Exception:
    """The exception, with notes of where it comes from.

    One that would not reach the parent process as it is becomes a RuntimeError that says the same: gymnasium's pipe
    loses it without a word, and the parent waits for it for ever.
    """
    text = "".join(traceback.format_exception_only(error)).strip()
    trace = f"In its worker process:\n{traceback.format_exc()}"
    place = f"Raised by environment {index} of the batch."
    error.add_note(place)
    if isinstance(error, ValueError) and "values to unpack" in str(error) and env is not None:
        # A wrapper of gymnasium's has taken apart what the environment has returned.
        error.add_note(f"If it is what {type(env.unwrapped).__name__} returned: {RESET_AND_STEP}")
    if not in_worker:
        return error
    error.add_note(trace)
    return error if _is_portable(error) else RuntimeError(f"{text}\n{place} {trace}")


def _is_portable(error: Exception) -> bool:
    """Whether it can be pickled, unpickled, and wrapped in another of its type, as gymnasium does."""
    try:
        arrived = pickle.loads(ForkingPickler.dumps(error))
        same = str(arrived) == str(error) and arrived.__notes__ == error.__notes__
        return same and type(error)(arrived).args[0] is arrived
    except Exception:
        return False
