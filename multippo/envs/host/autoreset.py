"""Autoreset modes of gymnasium's vector environments, and the place where each leaves an episode's last observation.

| mode | the step on which an episode ends returns | the next step |
|---|---|---|
| NEXT_STEP | the final observation | ignores its action, resets, reward 0: no step of the task |
| SAME_STEP | the next episode's first observation; the final one is in ``infos["final_obs"]`` | an ordinary step |
| DISABLED | the final observation | is an error, unless the caller has reset the environment |
"""

from __future__ import annotations

import copy
import functools
import logging
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from multippo.envs.observations import ObservationMap, put_rows, take_rows
from multippo.trees import tree_leaves

_LOG = logging.getLogger("multippo")


def autoreset_mode(vector_env: VectorEnv[Any, Any, Any], declared: AutoresetMode | str | None = None) -> AutoresetMode:
    """The autoreset mode of a vector environment.

    Args:
        vector_env: The environment, whose ``metadata["autoreset_mode"]`` is read.
        declared: The mode that the user declares, for an environment without one.

    Raises:
        ValueError: If the mode is not known: a guess would teach the policy wrong transitions without a sign.
    """
    base = vector_env.unwrapped
    if isinstance(base, SyncVectorEnv | AsyncVectorEnv):
        # These two write their mode into a dict that belongs to the member environments' class, so the metadata says
        # what was made last. The attribute is what they step by.
        mode: Any = base.autoreset_mode
    else:
        mode = vector_env.metadata.get("autoreset_mode") if vector_env.metadata else None
    mode = mode if declared is None else declared
    for known in AutoresetMode:
        if mode in (known, known.value, known.name):
            return known
    names = ", ".join(f"AutoresetMode.{known.name}" for known in AutoresetMode)
    raise ValueError(
        f"{vector_env} does not say how it resets: its metadata['autoreset_mode'] is {mode!r}, expected one of "
        f"{names}. Set it on the environment, or pass autoreset_mode=, as the environment really behaves."
    )


def final_observations(observations: ObservationMap, infos: Any, done: np.ndarray, obs: Any) -> Any:
    """Final observations under SAME_STEP: where an episode has ended its last observation, elsewhere ``obs``.

    ``infos["final_obs"]`` (``final_observation`` in older environments) comes in two forms: one observation per
    environment, None where no episode ended; or one batched tree like the observations themselves. ``infos`` may also
    be a list with a dict for each environment.

    Args:
        observations: Converts raw observations.
        infos: Returned by the step.
        done: ``[B]`` bool, where an episode has ended; at least one.
        obs: The converted observations of this step.

    Raises:
        ValueError: If an ended episode's final observation is missing.
    """
    rows, size = np.flatnonzero(done), len(done)
    raw, received = _reported(infos, size)
    if raw is None:
        raise ValueError(
            f"The episodes of environments {rows.tolist()} ended, but the step's infos hold no 'final_obs' (received "
            f"{received}): make the vector environment report it, or use AutoresetMode.NEXT_STEP."
        )
    if _is_per_environment(raw, observations.space):
        missing = [int(row) for row in rows if raw[row] is None]
        if missing:
            raise ValueError(
                f"The episodes of environments {missing} ended, but infos['final_obs'] holds None for them: report the "
                "last observation of every episode, terminated or truncated."
            )
        final = observations(observations.stack([raw[row] for row in rows]), len(rows))
        return put_rows(obs, rows, final)
    return put_rows(obs, rows, take_rows(observations(_without_masks(raw), size), rows))


def refuse_ignored_mask(name: str, which: np.ndarray, before: Any, after: Any) -> None:
    """Raises if a vector environment's reset of some environments has touched others.

    Args:
        name: The environment's.
        which: ``[B]`` bool, the ``reset_mask`` that it was given.
        before: Converted observations before the reset.
        after: Converted observations that it returned.

    Raises:
        ValueError: If an environment outside the mask shows another observation than before.
    """
    touched = np.zeros_like(which)
    for old, new in zip(tree_leaves(before), tree_leaves(after), strict=True):
        other = (old != new) & ~((old != old) & (new != new))
        touched |= np.reshape(other, (len(which), -1)).any(axis=1)
    touched &= ~which
    if touched.any():
        raise ValueError(
            f"{name} was to reset the environments {np.flatnonzero(which).tolist()} by options['reset_mask'], and "
            f"then showed other observations of {np.flatnonzero(touched).tolist()}: it seems to ignore the mask. Begin "
            "episodes only where it holds, or use AutoresetMode.NEXT_STEP."
        )


def report_overwritten(name: str, done: np.ndarray, final: Any, obs: Any) -> None:
    """Warns if every episode that has ended shows the next episode's first observation as its last.

    Workers that the user has started send an episode's last observation after the reset, which has overwritten it if
    the environment writes into one array again and again.

    Args:
        name: The environment's.
        done: ``[B]`` bool, where an episode has ended; at least one.
        final: Converted final observations.
        obs: Converted observations, the next episode's first where one has ended.
    """
    rows = np.flatnonzero(done)
    pairs = zip(tree_leaves(take_rows(final, rows)), tree_leaves(take_rows(obs, rows)), strict=True)
    if all(last.tobytes() == first.tobytes() for last, first in pairs):
        _LOG.warning(
            "%s reports as the last observation of its environments %s exactly the first one of the next episode. If "
            "episodes do not end as they begin, the environment returns one array again and again and its reset has "
            "overwritten the observation: return copies from reset and step, or pass make_env the functions that make "
            "the environments, with vectorization='async' for worker processes.",
            name,
            rows.tolist(),
        )


def keep_final_observations(base: SyncVectorEnv) -> None:
    """Makes a ``SyncVectorEnv`` in mode SAME_STEP report copies of its episodes' last observations.

    An environment that writes into one array again and again would overwrite what is reported in the reset that follows
    in the same step, and the truncated episode would be valued by the next one's first observation. gymnasium hands
    infos to this method before the reset; nothing else of the user's object is touched.
    """
    vars(base)["_add_info"] = functools.partial(_add_copied, base)


def _add_copied(base: SyncVectorEnv, infos: dict[str, Any], info: dict[str, Any], place: int) -> dict[str, Any]:
    if "final_obs" in info:
        info = {**info, "final_obs": copy.deepcopy(info["final_obs"])}
    return type(base)._add_info(base, infos, info, place)  # pyright: ignore[reportPrivateUsage]


def _reported(infos: Any, size: int) -> tuple[Any, str]:
    """The final observations in a step's infos, or None; and the infos in words."""
    if isinstance(infos, dict):
        return _final(infos), f"the keys {sorted(map(str, infos))}"
    if isinstance(infos, list | tuple) and len(infos) == size and all(isinstance(info, dict) for info in infos):
        found = [_final(info) for info in infos]
        return (None if all(final is None for final in found) else found), "one dict for each environment"
    return None, f"a {type(infos).__name__}, expected a dict"


def _final(info: dict[str, Any]) -> Any:
    return info.get("final_obs", info.get("final_observation"))


def _is_per_environment(raw: Any, space: spaces.Space[Any]) -> bool:
    # Of a Tuple space a tuple is the batch itself.
    as_tuple = isinstance(raw, tuple) and not isinstance(space, spaces.Tuple)
    return as_tuple or isinstance(raw, list) or (isinstance(raw, np.ndarray) and raw.dtype == object)


def _without_masks(raw: Any) -> Any:
    """A dict without the ``_key`` entries in which gymnasium marks the environments that reported ``key``."""
    if not isinstance(raw, dict):
        return raw
    return {key: _without_masks(value) for key, value in raw.items() if not (key.startswith("_") and key[1:] in raw)}
