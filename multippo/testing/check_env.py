"""``check_env``, which plays in an environment and reports its faults in plain words."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import env_checker, passive_env_checker

from multippo.action_spaces import num_choices
from multippo.envs.api import Env, EnvState
from multippo.envs.make import make_env
from multippo.envs.nonfinite import LARGEST, fits, guarded_leaves
from multippo.errors import one_line
from multippo.networks.core.error_paths import thrower
from multippo.networks.factories.actor_critics import MASK_KEY
from multippo.networks.factories.observations import map_space
from multippo.trees import named_leaves, tree_leaves, tree_map

_Leaves = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class EnvReport:
    """Findings of ``check_env``. True if there are no errors; prints as a list.

    Attributes:
        errors: Faults that make training on the environment wrong or impossible.
        warnings: Findings that are allowed and seldom meant.
        episodes: Number of episodes that ended.
        steps: Number of steps taken in every environment.
    """

    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    episodes: int
    steps: int

    def __bool__(self) -> bool:
        return not self.errors

    def __str__(self) -> str:
        lines = [f"error: {text}" for text in self.errors] + [f"warning: {text}" for text in self.warnings]
        found = f"{len(lines)} finding{'s' if len(lines) > 1 else ''}" if lines else "nothing is wrong"
        return "\n".join([*lines, f"{self.steps} steps and {self.episodes} episode ends were looked at; {found}."])


def check_env(
    env: Any, num_envs: int | None = None, *, num_steps: int = 500, seed: int = 0, **kwargs: Any
) -> EnvReport:
    """Plays random actions in an environment and reports faults in its spaces, observations, rewards and episodes.

    Checked are: the spaces; types, shapes, bounds and finiteness of observations and rewards; flags that end an
    episode, and the report of its last observation; equal episodes of equal seeds, and different ones of successive
    episodes and of environments; warnings of the library. If no error is found in a single environment, the findings
    of ``gymnasium.utils.env_checker`` are added.

    Args:
        env: An environment as ``make_env`` takes it: a name, a function that makes a ``gymnasium.Env``, a vector
            environment, a functional environment, or an ``Env``. An environment that is made here is closed here.
        num_envs: Number of environments to play in; by default 2, or as many as ``env`` has.
        num_steps: Number of steps to play in each environment.
        seed: Seed of the resets and the actions.
        **kwargs: Arguments of ``make_env``.

    Returns:
        The findings; faults of the environment are not raised.

    >>> print(check_env("CartPole-v1", num_steps=100))
    100 steps and 4 episode ends were looked at; nothing is wrong.
    """
    if num_envs is None and (isinstance(env, str) or (callable(env) and not hasattr(env, "step"))):
        num_envs = 2
    findings, logger = _Findings(), logging.getLogger("multippo")
    logger.addHandler(findings)
    states: list[EnvState] = []
    try:
        made = make_env(env, num_envs, **kwargs)
    except Exception as error:
        findings.errors["made"] = f"It can't be made: {type(error).__name__}: {one_line(error)}"
    else:
        _play_twice(made, findings, states, num_steps, seed)
        if made is not env and getattr(made, "vector_env", None) is not env:
            made.close()
        if not findings.errors:
            findings.warnings |= {text: text for text in _gymnasium_findings(env)}
    finally:
        logger.removeHandler(findings)
    episodes = int(sum(np.sum(state.terminated | state.truncated) for state in states))
    return EnvReport(
        tuple(findings.errors.values()), tuple(findings.warnings.values()), episodes, max(len(states) - 1, 0)
    )


class _Findings(logging.Handler):
    """Errors and warnings by kind, one of each, with the warnings that the library logs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.errors: dict[str, str] = {}
        self.warnings: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging.Handler``."""
        self.warnings[str(record.msg)] = record.getMessage()


def _play_twice(env: Env, findings: _Findings, states: list[EnvState], num_steps: int, seed: int) -> None:
    """Plays two runs of one seed; adds the states of the first to ``states`` and the faults to the findings."""
    actions, again = list[Any](), list[EnvState]()
    try:
        try:
            _play(env, states, actions, num_steps, seed)
        finally:
            if states:
                _look(env, states, findings)
        _play(env, again, actions, num_steps, seed)
        _compare(states, again, findings)
    except Exception as error:
        by = f"step {len(again or states)}" if states else "reset"
        # Errors of the observation checks name the method, and what was expected of it.
        plain = thrower(error) == "multippo.envs.observations"
        findings.errors["raised"] = ("" if plain else f"{by} raised {type(error).__name__}: ") + one_line(error)


def _play(env: Env, states: list[EnvState], actions: list[Any], num_steps: int, seed: int) -> None:
    """Takes the given actions, and draws the missing ones."""
    rng = np.random.default_rng(seed)
    live = env.reset(seed)
    states.append(_copy(live))
    for step in range(num_steps):
        if step == len(actions):
            seen = states[-1].obs
            mask = seen.get(MASK_KEY) if isinstance(seen, Mapping) else None
            actions.append(random_action(env.action_space, env.num_envs, rng, mask))
        live = env.step(live, actions[step])
        states.append(_copy(live))


def _look(env: Env, states: list[EnvState], findings: _Findings) -> None:
    """Reports the faults of a run, complete or not."""
    errors, warnings = findings.errors, findings.warnings
    obs, final, reward, broken = (_stacked(states, part) for part in ("obs", "final_obs", "reward", "broken"))
    terminated, truncated, valid = (_stacked(states, part)[""] for part in ("terminated", "truncated", "valid"))
    ended = terminated | truncated
    if np.any(terminated & truncated):
        errors["both"] = "A step both terminated and truncated its episode; it must be one of them."
    for what, leaves, where in (
        ("observation", obs, valid | True),
        ("last observation", final, ended),
        ("reward", reward, valid),
    ):
        for name, leaf in leaves.items():
            bad = where & (_rows(~fits(leaf)) if leaf.dtype.kind == "f" else False)
            if bad.any():
                most = np.abs(leaf[bad]).max()
                found = f"reaches {most:g}" if np.isfinite(most) else "is not finite"
                errors[f"{what} {name}"] = (
                    f"{_called(what, name)} {found} in step {_first(bad)}. In float32, in which networks "
                    f"compute, what is beyond {LARGEST:.2g} is not finite."
                )
    guarded = guarded_leaves(states[0].obs, states[0].reward)
    for number in map(int, np.unique(broken.get("", 0))):  # the adapter has replaced these values
        if number > 0:
            errors["broken"] = f"The {guarded[number - 1]} is not finite in step {_first(broken[''] == number)}."
        elif number < 0:
            name = guarded[-number - 1].removeprefix("next ")
            errors["start"] = f"The {name} with which an episode begins is not always finite."
    declared = dict(named_leaves(map_space(lambda leaf: leaf, env.observation_space)))
    shapes = {name: leaf.shape[2:] for name, leaf in obs.items()}
    if shapes != {name: space.shape for name, space in declared.items()}:
        errors["shapes"] = f"The observation has the shapes {shapes}; its space is {env.observation_space}."
        return
    for name, leaf in obs.items():
        space, seen = declared[name], np.concatenate([leaf, final[name]])
        least, most = (end((0, 1)).astype(np.float64) for end in (seen.min, seen.max))
        slack = 1e-6 * np.maximum(1.0, np.maximum(-least, most))  # rounding may lift a value over the bound
        if np.any(least < space.low - slack) or np.any(most > space.high + slack):
            warnings[f"bounds {name}"] = (
                f"{_called('observation', name)} leaves its declared bounds: it reached {least.min():g} to "
                f"{most.max():g}, and {space} is declared. Nothing depends on it, but a reader may."
            )
    if len(states) > 1:
        _look_at_episodes(env, obs, final, reward, ended, valid, warnings)


def _look_at_episodes(
    env: Env, obs: _Leaves, final: _Leaves, reward: _Leaves, ended: np.ndarray, valid: np.ndarray, found: dict[str, str]
) -> None:
    """Warns of episodes that never end, pay nothing, or begin and end where they should not."""
    before, after = ({name: leaf[part] for name, leaf in obs.items()} for part in (slice(-1), slice(1, None)))
    moves = _differ(before, after) & ~ended[1:] & valid[1:]
    if not ended.any():
        found["endless"] = (
            f"No episode ended within {len(valid) - 1} steps of random actions: returns are only reported when one "
            "does. Give it a time limit (max_episode_steps=), or check more steps."
        )
    elif moves.any() and not (_differ(final, obs) & ended).any() and not env.may_skip:
        found["last observation"] = (
            "The last observation of every episode was the first one of the next. If these differ in the task, an "
            "array that is returned again and again was overwritten by the reset (return copies), or the wrong one "
            "is reported as final_obs; then truncated episodes are valued wrongly."
        )
    if not any(np.any(leaf[valid]) for leaf in reward.values()):
        found["no reward"] = "Every reward was 0; random actions may never reach any."
    # With skipped steps an episode begins after the step that only resets.
    begins = ~valid if env.may_skip else ended
    begins[0] = True
    flat = np.concatenate([leaf.reshape(*valid.shape, -1) for leaf in obs.values()], axis=2)
    starts = [flat[begins[:, row], row] for row in range(env.num_envs)]
    if max(map(len, starts)) == 1:
        return
    if all((own == own[0]).all() for own in starts):
        found["one start"] = (
            "Every episode of an environment began with the same observation. If the task draws its start at random, "
            "it does not use the random generator that reset seeds."
        )
    elif len(starts) > 1 and (flat[0] == flat[0, 0]).all():
        found["equal environments"] = (
            "The environments of the batch all began with the same observation, though later episodes differ: each "
            "must be seeded differently."
        )


def _compare(states: list[EnvState], again: list[EnvState], findings: _Findings) -> None:
    """Reports the first difference between two runs of equal seeds and actions."""
    parts = ("obs", "reward", "terminated", "truncated")
    differ = np.stack([_differ(_stacked(states, part), _stacked(again, part)) for part in parts], axis=1)
    if differ.any():
        step, part, row = np.argwhere(differ)[0]
        findings.errors["repeat"] = (
            f"The same seed and actions gave another run: {parts[part]} of environment {row} differs first after "
            f"{f'step {step}' if step else 'reset'}. Draw every random number from self.np_random, or from the key "
            "that reset got."
        )


# The passive checks first: they say more about types than the assertion with which the last one ends.
_CHECKS: tuple[Callable[[Any], object], ...] = (
    passive_env_checker.env_reset_passive_checker,
    lambda env: passive_env_checker.env_step_passive_checker(env, env.action_space.sample()),
    lambda env: env_checker.check_env(env, skip_render_check=True, skip_close_check=True),
)
_WARNING = re.compile(r"WARN: (.*?)(?:\x1b\[0m)?$", re.DOTALL)
_LEFT_OUT = re.compile(
    "infinity|recommend using a symmetric|unwrapped version|Casting input"  # the adapter's work
    "|within the observation space"  # check_env gives the numbers
    "|truncates after 1 step"  # said of NumPy's False, too
)


def _gymnasium_findings(env: Any) -> Iterator[str]:
    """Yields the faults that ``gymnasium.utils.env_checker`` finds in an environment that a function makes.

    An environment with an action mask is not stepped, since gymnasium draws actions without regard to one.
    """
    if not callable(env) or (hasattr(env, "step") and not inspect.isclass(env)):
        return
    single: Any = env()
    if not isinstance(single, gymnasium.Env):
        return
    masked = isinstance(single.observation_space, spaces.Dict) and MASK_KEY in single.observation_space.spaces
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for check in _CHECKS[:1] if masked else _CHECKS:
            try:
                check(single)
            except Exception as error:
                texts.append(str(error))
    single.close()
    texts += [found[1] for warning in caught if (found := _WARNING.search(str(warning.message)))]
    yield from (text for text in texts if not _LEFT_OUT.search(text))


def _copy(state: EnvState) -> EnvState:
    """The checked parts of a state, as NumPy arrays that no later step changes."""
    broken = {} if state.broken is None else np.array(state.broken)
    return tree_map(np.array, state._replace(internal=(), broken=broken))


def _stacked(states: list[EnvState], part: str) -> dict[str, np.ndarray]:
    """The leaves of a part by name, ``[T, B, ...]``."""
    names = [name for name, _ in named_leaves(getattr(states[0], part))]
    columns = zip(*(tree_leaves(getattr(state, part)) for state in states), strict=True)
    return dict(zip(names, map(np.stack, columns), strict=True))


def _differ(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> np.ndarray:
    """Mask ``[T, B]`` of the entries in which a leaf differs; NaN equals NaN."""
    pairs = [(leaf, other[name]) for name, leaf in one.items()]
    return np.logical_or.reduce([_rows((a != b) & ((a == a) | (b == b))) for a, b in pairs])


def _rows(leaf: Any) -> Any:
    """Mask ``[T, B]`` of the rows in which an entry is True."""
    return leaf.reshape(*leaf.shape[:2], -1).any(axis=2)


def _first(where: np.ndarray) -> int:
    """The first step in which a mask holds in any environment."""
    return int(np.argmax(where.any(axis=1)))


def _called(what: str, name: str) -> str:
    return f"The {what} {name!r}" if name else f"The {what}"


def random_action(space: spaces.Space[Any], num_envs: int, rng: np.random.Generator, mask: Any = None) -> Any:
    """Actions in policy coordinates, extremes included now and then.

    Args:
        space: Space of one action.
        num_envs: Number of actions, B.
        rng: Source of the actions.
        mask: Allowed choices, for Discrete and MultiDiscrete actions and a Box of integers: B rows of as many numbers
            as there are choices, in any shape; for a Dict of actions a dict with some of its keys. None, or a row
            without an allowed choice, allows all.
    """
    if isinstance(space, spaces.Dict):
        masks = mask if isinstance(mask, Mapping) else {}
        return {key: random_action(sub, num_envs, rng, masks.get(key)) for key, sub in space.spaces.items()}
    counts = num_choices(space)
    if counts is None:
        assert isinstance(space, spaces.Box)
        action = rng.uniform(-1.0, 1.0, (num_envs, *space.shape))
        extreme = rng.random((num_envs, *(1 for _ in space.shape))) < 0.1
        return np.where(extreme, np.sign(action), action).astype(np.float32)
    allowed = np.ones((num_envs, int(counts.sum())), np.bool_)
    if mask is not None:
        leaves = mask if isinstance(mask, tuple) else (mask,)
        given = np.concatenate([np.reshape(leaf, (num_envs, -1)) for leaf in leaves], axis=1) > 0
        # An array of another size is not a mask of these choices.
        allowed = given if given.shape == allowed.shape else allowed
    columns: list[np.ndarray] = []
    for part in np.split(allowed, np.cumsum(counts.ravel())[:-1], axis=1):
        part = part | ~part.any(axis=1, keepdims=True)
        columns.append(np.argmax(rng.random(part.shape) * part, axis=1))
    return np.stack(columns, axis=1).astype(np.int32).reshape(num_envs, *counts.shape)
