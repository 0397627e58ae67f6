"""``check_env``: plays in an environment and says in plain words what is wrong with it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from gymnasium import spaces

from multippo.envs.api import Env, EnvState
from multippo.envs.guard import LARGEST, fits, guarded_leaves
from multippo.testing.random_actions import mask_in, random_action
from multippo.testing.single_env import look_at_single
from multippo.trees import named_leaves, tree_leaves, tree_map, tree_structure

__all__ = ["EnvReport", "check_env"]


@dataclasses.dataclass(frozen=True)
class EnvReport:
    """What ``check_env`` found. True if there are no errors; prints as a list.

    Attributes:
        errors: What makes training on the environment wrong or impossible.
        warnings: What is allowed and seldom meant.
        episodes: Episodes that ended while it was played.
        steps: Steps taken in every environment.
    """

    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    episodes: int
    steps: int

    def __bool__(self) -> bool:
        return not self.errors

    def __str__(self) -> str:
        lines = [f"error: {text}" for text in self.errors] + [f"warning: {text}" for text in self.warnings]
        played = f"{self.steps} steps and {self.episodes} episode ends were looked at"
        return "\n".join([*lines, f"{played}; {_how_many(len(lines))}."])


def check_env(
    env: Any, num_envs: int | None = None, *, num_steps: int = 500, seed: int = 0, **kwargs: Any
) -> EnvReport:
    """Plays random actions, and compares what comes with what the environment declares and what training relies on.

    Looked at are: the spaces; types, shapes, bounds and finiteness of observations and rewards; which flags end an
    episode, and that its last observation is reported; that equal seeds give equal episodes and successive episodes and
    environments differ; that a functional environment is pure.

    Args:
        env: Whatever ``make_env`` takes: a name, a function that makes a ``gymnasium.Env``, a vector environment, a
            functional environment, or an ``Env``. It is reset and stepped, and closed unless it was passed in made.
        num_envs: How many environments to play in; by default 2, or what ``env`` itself says.
        num_steps: How long.
        seed: Of the resets and the actions.
        **kwargs: For ``make_env``.

    Returns:
        The findings. Nothing is raised for what the environment does wrong.

    >>> print(check_env("CartPole-v1", num_steps=100))
    100 steps and 8 episode ends were looked at; nothing is wrong.
    """
    from multippo.envs import make_env

    findings = _Findings()
    if num_envs is None and (isinstance(env, str) or (callable(env) and not hasattr(env, "step"))):
        num_envs = 2
    if not look_at_single(env, seed, findings.error, findings.warn):
        return findings.report()
    try:
        made = make_env(env, num_envs, **kwargs)
    except Exception as error:
        return findings.report(f"It can't be made: {_text(error)}")
    try:
        return _Player(made, findings, seed).play(num_steps)
    finally:
        if made is not env and getattr(made, "vector_env", None) is not env:
            made.close()


def _how_many(findings: int) -> str:
    return "nothing is wrong" if not findings else f"{findings} finding{'s' if findings > 1 else ''}"


class _Findings:
    """Errors and warnings, each kind said once."""

    def __init__(self) -> None:
        self._errors: dict[str, str] = {}
        self._warnings: dict[str, str] = {}
        self.episodes = self.steps = 0

    def error(self, kind: str, text: str) -> None:
        self._errors.setdefault(kind, text)

    def warn(self, kind: str, text: str) -> None:
        self._warnings.setdefault(kind, text)

    def report(self, *errors: str) -> EnvReport:
        return EnvReport((*self._errors.values(), *errors), tuple(self._warnings.values()), self.episodes, self.steps)


class _Player:
    def __init__(self, env: Env, findings: _Findings, seed: int) -> None:
        self.env, self.findings, self.seed = env, findings, seed
        self._first: list[list[np.ndarray]] = [[] for _ in range(env.num_envs)]
        self._rewards: list[np.ndarray] = []
        self._played: list[Any] = []
        self._outside: dict[str, tuple[spaces.Box, float, float]] = {}
        # Whether any observation has changed amid an episode, and any last one been another than the next's first.
        self._moves = self._parts = False

    def play(self, num_steps: int) -> EnvReport:
        """Everything."""
        try:
            states = self._trajectory(num_steps)
        except Exception as error:
            return self.findings.report(_text(error))
        self._between_episodes()
        try:
            self._repeat(states)
        except Exception as error:
            return self.findings.report(f"When it was played a second time: {_text(error)}")
        if self.env.functional:
            self._pure()
        return self.findings.report()

    # -- one pass

    def _trajectory(self, num_steps: int) -> list[EnvState]:
        live = self.env.reset(self.seed)
        state = self._copy(live)
        self._look(state, None)
        fresh = np.ones(self.env.num_envs, np.bool_)
        states = [state]
        rng = np.random.default_rng(self.seed)
        for _ in range(num_steps):
            self._first_observations(state, fresh)
            action = random_action(self.env.action_space, self.env.num_envs, rng, mask_in(state.obs))
            self._played.append(action)
            live = self.env.step(live, action)
            state = self._copy(live)
            self.findings.steps += 1
            self._look(state, states[-1])
            states.append(state)
            ended = state.terminated | state.truncated
            # With skipped steps an episode begins after the step that only resets.
            fresh = ~state.valid if self.env.may_skip else ended
            self.findings.episodes += int(ended.sum())
        if not self.findings.episodes:
            self.findings.warn(
                "endless",
                f"No episode ended within {num_steps} steps of random actions: returns are only reported when one "
                "does. Give it a time limit (max_episode_steps=), or check more steps.",
            )
        elif self._moves and not self._parts and not self.env.may_skip:
            self.findings.warn(
                "last observation",
                "The last observation of every episode was the first one of the next. If these differ in the task, an "
                "array that is returned again and again was overwritten by the reset (return copies), or the wrong one "
                "is reported as final_obs; then truncated episodes are valued wrongly.",
            )
        for name, (space, least, most) in self._outside.items():
            self.findings.warn(
                f"bounds {name}",
                f"The observation{f' {name!r}' if name else ''} leaves its declared bounds: it reached {least:g} to "
                f"{most:g}, and {space} is declared. Nothing depends on it, but a reader may.",
            )
        rewards = np.concatenate([np.ravel(reward) for reward in self._rewards])
        if len(rewards) and np.all(rewards == rewards[0]) and rewards[0] == 0.0:
            self.findings.warn("no reward", "Every reward was 0; random actions may never reach any.")
        return states

    def _copy(self, state: EnvState) -> EnvState:
        """What is looked at, as NumPy arrays that no later step changes."""
        broken = None if state.broken is None else np.array(state.broken)
        return tree_map(np.array, state._replace(internal=(), broken=()))._replace(broken=broken)

    # -- one state

    def _look(self, state: EnvState, before: EnvState | None) -> None:
        self._fits("observation", state.obs)
        ended = state.terminated | state.truncated
        if before is not None:
            self._rewards += [np.asarray(leaf)[state.valid] for leaf in tree_leaves(state.reward)]
            if tree_structure(state.reward) != tree_structure(before.reward):
                self.findings.error("reward tree", "Rewards do not have the same keys in every step and at the reset.")
            self._finite("reward", state.reward, state.valid)
            self._moves |= bool(_rows_that_differ(before.obs, state.obs)[~ended & state.valid].any())
        if np.any(ended):
            self._fits("final observation", state.final_obs)
            self._parts |= bool(_rows_that_differ(state.final_obs, state.obs)[ended].any())
        if state.broken is not None and np.any(state.broken > 0):
            # A functional environment's adapter has replaced the value already.
            name = guarded_leaves(state.obs, state.reward)[int(state.broken.max()) - 1]
            self.findings.error(f"broken {name}", f"The {name} is not finite in step {self.findings.steps}.")
        if state.broken is not None and np.any(state.broken < 0):
            name = guarded_leaves(state.obs, state.reward)[-int(state.broken.min()) - 1].removeprefix("next ")
            self.findings.error(f"start {name}", f"The {name} with which an episode begins is not always finite.")
        if np.any(state.terminated & state.truncated):
            self.findings.error("both", "A step both terminated and truncated its episode; it must be one of them.")

    def _fits(self, what: str, obs: Any) -> None:
        declared = dict(_space_leaves(self.env.observation_space))
        received = dict(named_leaves(obs))
        if declared.keys() != received.keys():
            self.findings.error(
                f"{what} keys", f"The {what} has the leaves {sorted(received)}, its space {sorted(declared)}."
            )
            return
        for name, leaf in received.items():
            space, called = declared[name], f"The {what}{f' {name!r}' if name else ''}"
            if leaf.shape[1:] != space.shape:
                self.findings.error(
                    f"{what} shape {name}", f"{called} has shape {leaf.shape[1:]}; declared is {space}."
                )
            elif leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
                self.findings.error(f"{what} finite {name}", f"{called} is not finite in step {self.findings.steps}.")
            elif leaf.dtype.kind == "f" and not fits(leaf).all():
                self.findings.error(
                    f"{what} finite {name}",
                    f"{called} reaches {np.abs(leaf).max():g} in step {self.findings.steps}. In float32, in which "
                    f"networks compute, what is beyond {LARGEST:.2g} is not finite.",
                )
            elif isinstance(space, spaces.Box) and (name in self._outside or not _inside(leaf, space)):
                _, least, most = self._outside.get(name, (space, leaf.min(), leaf.max()))
                self._outside[name] = space, float(min(least, leaf.min())), float(max(most, leaf.max()))

    def _finite(self, what: str, tree: Any, where: np.ndarray) -> None:
        for name, leaf in named_leaves(tree):
            if not np.isfinite(leaf[where]).all():
                called = f"The {what}{f' {name!r}' if name else ''}"
                self.findings.error(f"{what} finite {name}", f"{called} is not finite in step {self.findings.steps}.")

    def _first_observations(self, state: EnvState, fresh: np.ndarray) -> None:
        for i in np.flatnonzero(fresh):
            self._first[i].append(
                np.concatenate([np.ravel(leaf[i]).astype(np.float64) for leaf in tree_leaves(state.obs)])
            )

    # -- between episodes and passes

    def _between_episodes(self) -> None:
        several = [starts for starts in self._first if len(starts) > 1]
        if several and all(np.array_equal(starts[0], start) for starts in several for start in starts[1:]):
            self.findings.warn(
                "one start",
                "Every episode of an environment began with the same observation. If the task draws its start at "
                "random, it does not use the random generator that reset seeds.",
            )
        elif len(self._first) > 1 and all(np.array_equal(self._first[0][0], starts[0]) for starts in self._first[1:]):
            self.findings.warn(
                "equal environments",
                "The environments of the batch all began with the same observation, though later episodes differ: each "
                "must be seeded differently.",
            )

    def _repeat(self, states: list[EnvState]) -> None:
        """Equal seeds and actions must give an equal run."""
        live = self.env.reset(self.seed)
        pairs = zip(states[1:], self._played, strict=True)
        self._same("reset", states[0], self._copy(live), 0)
        for t, (expected, action) in enumerate(pairs, start=1):
            live = self.env.step(live, action)
            if not self._same("step", expected, self._copy(live), t):
                return

    def _same(self, kind: str, expected: EnvState, received: EnvState, t: int) -> bool:
        for part in ("obs", "reward", "terminated", "truncated"):
            before, after = named_leaves(getattr(expected, part)), named_leaves(getattr(received, part))
            for (name, old), (_, new) in zip(before, after, strict=False):
                if not np.array_equal(old, new, equal_nan=old.dtype.kind == "f"):
                    where = np.argwhere(np.reshape(old != new, (len(old), -1)).any(axis=1))[0, 0]
                    leaf = f"{part}{f' {name!r}' if name else ''}"
                    self.findings.error(
                        "repeat",
                        f"The same seed and actions gave another run: {leaf} of environment {where} differs first "
                        f"after {kind} {t}. Draw every random number from self.np_random, or from the key that reset "
                        "got.",
                    )
                    return False
        return True

    def _pure(self) -> None:
        """A step of a functional environment must depend on its arguments alone."""
        state = self.env.reset(self.seed)
        action = self._played[0]
        first, second = self._copy(self.env.step(state, action)), self._copy(self.env.step(state, action))
        self._same("a step repeated from the same state,", first, second, 1)


def _rows_that_differ(one: Any, other: Any) -> np.ndarray:
    """``[B]`` bool."""
    pairs = zip(tree_leaves(one), tree_leaves(other), strict=True)
    return np.any([np.reshape(a != b, (len(a), -1)).any(axis=1) for a, b in pairs], axis=0)


def _space_leaves(space: spaces.Space[Any]) -> list[tuple[str, Any]]:
    tree = _space_tree(space)
    return named_leaves(tree)


def _space_tree(space: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _space_tree(sub) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_space_tree(sub) for sub in space.spaces)
    return space


def _inside(leaf: np.ndarray, space: spaces.Box) -> bool:
    # Rounding to the declared type may lift a value over the bound by one unit.
    slack = 1e-6 * np.maximum(1.0, np.abs(leaf.astype(np.float64)))
    return bool(np.all(leaf >= space.low - slack) and np.all(leaf <= space.high + slack))


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
