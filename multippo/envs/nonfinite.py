"""Detection of steps whose outcome is not finite, which are counted and cut out of everything else.

A simulator that blows up returns NaN or an infinity now and then. A step with such an outcome is *broken*: its episode
is cut there and a new one started, and the step enters no loss and no return. The step before stays whole, since the
observation between the two was finite and so was its value. The other environments are not touched.

Where the next episode's first observation is not finite, only that start is replaced: the step before is sound.

A number that does not fit into the type that networks compute in is not finite either: of 1e299 in ``float64`` a
network in single precision would see an infinity or the number itself, depending on the engine.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from multippo.backends.registry import computes_in_float64
from multippo.envs.api import Env, EnvState
from multippo.trees import named_leaves, select, tree_leaves, tree_map

LARGEST = float(np.finfo(np.float32).max)
"""The largest number of single precision."""

_ONE_THREAD = 10_000
"""Number of entries up to which OpenBLAS multiplies vectors in the thread that asks."""


def fits(leaf: np.ndarray) -> np.ndarray:
    """Mask of the entries of a NumPy array that are finite in the type that networks compute in."""
    if leaf.dtype.kind != "f" or leaf.dtype.itemsize <= 4 or computes_in_float64():
        return np.isfinite(leaf)
    return np.abs(leaf) <= LARGEST


def guarded_leaves(obs: Any, reward: Any) -> list[str]:
    """Names of the leaves that are checked: ``EnvState.broken`` holds 1 + a position in this list."""
    return [name for name, _ in _leaves(obs, reward)]


def broken_leaf(xp: Any, obs: Any, reward: Any, seen: Any, valid: Any) -> Any:
    """Finds the leaf that is not finite in each environment.

    Args:
        xp: Array namespace.
        obs: Observations after the step, ``[B, ...]``.
        reward: Rewards of the step, ``[B]``.
        seen: ``[B]`` bool, False where the observation is the last of a terminated episode, which nothing depends on;
            True where the step was only a reset, whose observation is the first of an episode.
        valid: ``[B]`` bool, True where the step was one of the task, and so has a reward.

    Returns:
        ``[B]`` int32: 0 where all is finite, else 1 + the position in ``guarded_leaves`` of the first leaf that is not.
    """
    code = xp.zeros(valid.shape, xp.int32)
    for position, (name, leaf) in enumerate(_leaves(obs, reward)):
        finite = fits(leaf) if xp is np else xp.isfinite(leaf)
        wrong = ~xp.all(xp.reshape(finite, (leaf.shape[0], -1)), axis=1)
        wrong = wrong & valid if name.startswith("reward") else wrong & seen
        code = xp.where(wrong & (code == 0), xp.asarray(position + 1, dtype=xp.int32), code)
    return code


def restart_broken(env: Env, env_state: EnvState) -> EnvState:
    """A host environment's step with broken episodes reset and ``broken`` set; the step itself where all is finite.

    The values stay as they are, for the run to stop at, where the environment can't reset single episodes.
    """
    if env_state.broken is not None:
        return env_state
    # In every step: without the leaves' names, and no array twice.
    obs, final = env_state.obs, env_state.final_obs
    if _is_sound(obs) and _is_sound(env_state.reward) and (final is obs or _is_sound(final)):
        return env_state
    # Copies: a restart may write into the environment's own.
    terminated, truncated = np.array(env_state.terminated), np.array(env_state.truncated)
    code, start = _step_and_start(env, env_state)
    which = (code > 0) | (start > 0)
    restarted = env.restart(env_state, which) if which.any() else None
    if restarted is None:
        return _as_shown(env_state)._replace(broken=np.zeros_like(code))
    blown, begun = code > 0, start > 0
    if (terminated & begun).any():
        # In place, since the environment may know its latest state by this array.
        restarted.terminated[begun] = terminated[begun]

    def without(leaf: Any) -> Any:
        return np.where(blown, np.zeros_like(leaf), leaf)

    return restarted._replace(
        reward=tree_map(without, env_state.reward),
        metrics=tree_map(without, env_state.metrics),
        # No value is taken of a broken episode's last observation; it must only be finite.
        final_obs=select(np, blown | ~env_state.valid & begun, restarted.obs, env_state.final_obs),
        # Replacing a start ends no episode.
        truncated=np.where(begun, truncated, restarted.truncated),
        broken=np.where(blown, code, -start),
    )


def _is_sound(tree: Any) -> bool:
    if not hasattr(tree, "dtype"):
        return all(_is_sound(leaf) for leaf in tree_leaves(tree))
    if tree.dtype.kind != "f":
        return True
    # One quick pass: a sum of squares within the bound has no part that is not finite or too large. Without such a part
    # it may overflow, too. For larger arrays BLAS wakes threads, which wait for each other on a busy machine.
    return (tree.size <= _ONE_THREAD and float(np.vdot(tree, tree)) <= LARGEST**2) or bool(fits(tree).all())


def _step_and_start(env: Env, env_state: EnvState) -> tuple[np.ndarray, np.ndarray]:
    """Codes of the leaf that is not finite in each environment, for the step and for a new episode's start."""
    valid, terminated, truncated = env_state.valid, env_state.terminated, env_state.truncated
    nowhere = np.zeros_like(valid)
    if env.may_skip:
        # The last observation is shown once more, and nothing depends on a terminated episode's; then comes the start.
        ended, begins = terminated, ~valid
    else:
        ended = begins = terminated | truncated
    code = broken_leaf(np, env_state.obs, env_state.reward, valid & ~ended, valid)
    if not env.may_skip and truncated.any():
        final = broken_leaf(np, env_state.final_obs, env_state.reward, truncated, nowhere)
        code = np.where(code == 0, final, code)
    start = broken_leaf(np, env_state.obs, env_state.reward, begins & (code == 0), nowhere)
    return code, start


def _as_shown(env_state: EnvState) -> EnvState:
    """The state with infinities for numbers that networks can't take, so that every engine stops at them."""

    def shown(leaf: np.ndarray) -> np.ndarray:
        beyond = ~fits(leaf) & np.isfinite(leaf)
        return np.where(beyond, np.copysign(np.inf, leaf), leaf) if beyond.any() else leaf

    parts = {name: tree_map(shown, getattr(env_state, name)) for name in ("obs", "reward", "final_obs")}
    return env_state._replace(**parts)


def restart_unsound(env: Env, env_state: EnvState) -> EnvState:
    """A host environment's first state, with episodes reset again whose first observation is not finite.

    The values stay as they are, for the run to stop at, where the environment can't do that or it does not help.
    """
    if env_state.broken is not None or env.functional or env.arrays == "torch":
        return env_state
    every = np.ones_like(env_state.valid)
    code = broken_leaf(np, env_state.obs, env_state.reward, every, ~every)
    restarted = env.restart(env_state, code > 0) if code.any() else None
    if restarted is None:
        return _as_shown(env_state)
    # No episode has ended.
    return restarted._replace(truncated=~every, final_obs=restarted.obs, broken=-code)


def unsound_starts(env_state: EnvState) -> tuple[int, str, int]:
    """Number of episodes that were reset again, and the leaf and environment of the first of them."""
    codes = np.zeros(1, int) if env_state.broken is None else np.abs(np.asarray(env_state.broken))
    (places,) = np.nonzero(codes)
    if not len(places):
        return 0, "", 0
    name = guarded_leaves(env_state.obs, env_state.reward)[codes[places[0]] - 1]
    return len(places), name.removeprefix("next "), int(places[0])


def _leaves(obs: Any, reward: Any) -> list[tuple[str, Any]]:
    kinds = (("reward", reward), ("next observation", obs))
    named = [(f"{kind} {name!r}" if name else kind, leaf) for kind, tree in kinds for name, leaf in named_leaves(tree)]
    # Rewards of any type, since training casts them and must find the same leaves.
    return [(name, leaf) for name, leaf in named if name.startswith("reward") or "float" in str(leaf.dtype)]
