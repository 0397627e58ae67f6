"""Single environments stepped in this process, one after another or in threads.

Threads pay where a step releases the interpreter's lock, as MuJoCo's does. Each environment has random numbers of its
own, so its trajectory does not depend on the thread that steps it, nor on the order.
"""

from __future__ import annotations

import copy
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, iterate
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from multippo.envs.host.members import Member, MemberConstructor
from multippo.envs.host.workers import num_cores
from multippo.envs.observations import FLAGS, NUMBERS, split_step
from multippo.envs.wrappers import ActionRepeat

_MOST_THREADS = 4
"""Number of threads above which they mostly wait for the interpreter's lock."""

_TIMED_STEPS, _TIMED_ROUNDS, _LONGEST_S = 4, 9, 0.5
"""Steps in each timing, timings of each number of threads, and seconds after which three timings are enough."""


class InProcessVectorEnv(SyncVectorEnv):
    """Members stepped in this process, each reset in the step in which its episode ends.

    A step returns arrays that the next one overwrites, and infos with the ended episodes' last observations alone.

    Args:
        members: Constructors of the environments.
        num_threads: Threads that step them, the caller's included.

    Attributes:
        vectorization: ``"sync"`` or ``"threads"`` if ``choose_threads`` had a choice, else None.
    """

    vectorization: Literal["sync", "threads"] | None = None
    envs: list[Member]  # type: ignore[assignment]
    _env_obs: list[Any]
    _observations: Any

    def __init__(self, members: Sequence[MemberConstructor], num_threads: int = 1) -> None:
        self._helpers = _Helpers(0)
        super().__init__(members, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
        self.use_threads(num_threads)
        # All that the members return is checked in the first step.
        self._steps: list[Callable[[Any], Any]] = [member.step for member in self.envs]
        self._is_checked = False
        space = self.single_observation_space
        if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary) and space.shape:
            self._joined = self._observations.reshape(-1, *space.shape[1:])
        else:
            self._joined = None

    def use_threads(self, count: int) -> None:
        """Changes the number of threads, the caller's included."""
        self._helpers.stop()
        self._helpers = _Helpers(count - 1)

    def choose_threads(self) -> None:
        """Chooses the number of threads by a clock, where that can change nothing but the time.

        Only gymnasium's MuJoCo environments have a choice: their random numbers are their own, and a seeded reset
        leaves no trace of the steps that were timed. An environment of the user's may share anything with others.
        """
        count = most_threads(self.num_envs)
        if count == 1 or not all(_is_left_by_a_reset(member.env) for member in self.envs):
            return
        space: Any = self.action_space
        actions = np.random.default_rng(0).uniform(space.low, space.high).astype(space.dtype)
        self.reset(seed=0)
        times: dict[int, list[float]] = {1: [], count: []}
        end = time.perf_counter() + _LONGEST_S
        for timed in range(_TIMED_ROUNDS):
            if timed >= 3 and time.perf_counter() > end:
                break
            for num_threads, taken in times.items():
                self.use_threads(num_threads)
                self.step(actions)  # lets the threads arrive
                begin = time.perf_counter()
                for _ in range(_TIMED_STEPS):
                    self.step(actions)
                taken.append(time.perf_counter() - begin)
        # A core is not taken from others for a gain within the clock's noise.
        is_quicker = statistics.median(times[count]) < 0.95 * statistics.median(times[1])
        self.use_threads(count if is_quicker else 1)
        self.vectorization = "threads" if is_quicker else "sync"

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """See ``SyncVectorEnv.step``."""
        self._terminations.fill(False)
        self._truncations.fill(False)
        results = self._env_obs, self._rewards, self._terminations, self._truncations
        rows = list(actions if isinstance(actions, np.ndarray) else iterate(self.action_space, actions))
        step = _Step(self.envs, self._steps, rows, results)
        self._helpers.run(step)
        if step.errors:
            raise step.errors[min(step.errors)]
        self._gather()
        if not self._is_checked:
            self._steps, self._is_checked = [member.env.step for member in self.envs], True
        finals = step.finals
        infos = {"final_obs": [finals.get(place) for place in range(self.num_envs)]} if finals else {}
        return self._observations, self._rewards, self._terminations, self._truncations, infos

    def _gather(self) -> None:
        """Copies the members' observations into one array or tree."""
        try:
            if self._joined is None:
                concatenate(self.single_observation_space, self._env_obs, self._observations)
            else:
                # Casts as np.stack does, in a third of its time.
                np.concatenate(self._env_obs, out=self._joined)
        except (TypeError, ValueError):
            for member, obs in zip(self.envs, self._env_obs, strict=True):
                member.check(obs)
            raise

    def close_extras(self, **kwargs: Any) -> None:
        """Ends the threads and closes the environments."""
        self._helpers.stop()
        super().close_extras(**kwargs)


def most_threads(num_envs: int) -> int:
    """Number of threads for a number of environments on this machine."""
    return min(num_envs, num_cores(), _MOST_THREADS)


def _is_left_by_a_reset(env: gymnasium.Env[Any, Any]) -> bool:
    while type(env) in (TimeLimit, OrderEnforcing, PassiveEnvChecker, ActionRepeat):
        env = env.env  # type: ignore[attr-defined]
    return type(env).__module__.startswith("gymnasium.envs.mujoco.") and env.render_mode is None


class _Step:
    """One step of all members, which threads share: each takes the next member until none is left.

    Attributes:
        done: Lock that a thread other than the caller's releases after the last member.
        finals: Last observations of the episodes that ended, by place.
        errors: Errors, by place.
    """

    # No reference to the vector environment, which would not be collected while its threads live.
    __slots__ = ("_actions", "_left", "_members", "_places", "_results", "_steps", "done", "errors", "finals")

    def __init__(
        self,
        members: list[Member],
        steps: list[Callable[[Any], Any]],
        actions: list[Any],
        results: tuple[list[Any], np.ndarray, np.ndarray, np.ndarray],
    ) -> None:
        self._members, self._steps, self._actions, self._results = members, steps, actions, results
        # Both are advanced by one thread at a time, since the interpreter's lock is held meanwhile.
        self._places, self._left = iter(range(len(actions))), iter(range(len(actions) - 1, -1, -1))
        self.done = _locked()
        self.finals: dict[int, Any] = {}
        self.errors: dict[int, BaseException] = {}

    def take_part(self) -> int:
        """Steps members until none is left; returns the number still at work after this thread's last, -1 for none."""
        members, steps, actions, left = self._members, self._steps, self._actions, -1
        all_obs, rewards, terminations, truncations = self._results
        for place in self._places:
            try:
                returned = obs, reward, terminated, truncated, _ = steps[place](actions[place])
                if type(reward) not in NUMBERS or type(terminated) not in FLAGS or type(truncated) not in FLAGS:
                    # NumPy would cast what is not a number.
                    obs, reward, terminated, truncated, _ = split_step(returned)
                rewards[place] = reward
                if terminated or truncated:
                    terminations[place], truncations[place] = terminated, truncated
                    # The reset might overwrite it.
                    self.finals[place] = copy.deepcopy(obs)
                    obs, _ = members[place].reset()
                all_obs[place] = obs
            except BaseException as error:
                members[place].blame(error)
                self.errors[place] = error
            left = next(self._left)
        return left


class _Helpers:
    """Threads that take part in steps, and wait in between.

    A thread that comes late finds the work done and nobody waiting for it, so a busy core delays a step by one member's
    step at most. Futures of a pool would take longer than a step of HalfCheetah to hand over.

    Args:
        count: Number of threads beside the caller's.
    """

    def __init__(self, count: int) -> None:
        self._step: list[_Step | None] = [None]
        self._signals = [_locked() for _ in range(count)]
        for signal in self._signals:
            threading.Thread(target=_help, args=(signal, self._step), daemon=True).start()

    def run(self, step: _Step) -> None:
        """Takes a step, and waits until it is done."""
        if self._signals:
            self._step[0] = step
            self._wake()
        if step.take_part() != 0:
            try:
                step.done.acquire()
            except KeyboardInterrupt:  # no member is left in the midst of a step
                step.done.acquire()
                raise

    def stop(self) -> None:
        """Ends the threads."""
        self._step[0] = None
        self._wake()
        self._signals = []

    __del__ = stop  # the threads know nothing of this object

    def _wake(self) -> None:
        for signal in self._signals:
            # One that is not locked has not arrived yet.
            if signal.locked():
                signal.release()


def _locked() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def _help(signal: threading.Lock, latest: list[_Step | None]) -> None:
    while True:
        signal.acquire()
        step = latest[0]
        if step is None:
            return
        if step.take_part() == 0:
            step.done.release()
        del step
