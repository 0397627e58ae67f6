"""Which of gymnasium's autoreset modes a vector environment uses, and where it leaves an episode's last observation.

| mode | the step on which an episode ends returns | the next step |
|---|---|---|
| NEXT_STEP | the final observation | ignores its action, resets, reward 0: no step of the task |
| SAME_STEP | the next episode's first observation; the final one is in ``infos["final_obs"]`` | an ordinary step |
| DISABLED | the final observation | is an error, unless the caller has reset the environment |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from multippo.envs.observations import take_rows

if TYPE_CHECKING:
    from multippo.envs.observations import ObservationMap

__all__ = ["autoreset_mode", "final_observations"]


def autoreset_mode(vector_env: VectorEnv[Any, Any, Any], declared: AutoresetMode | str | None = None) -> AutoresetMode:
    """The autoreset mode of a vector environment.

    Args:
        vector_env: The environment, whose ``metadata["autoreset_mode"]`` is read.
        declared: The user's word on it, for an environment that does not say.

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


def final_observations(observations: ObservationMap, infos: dict[str, Any], done: np.ndarray, obs: Any) -> Any:
    """Final observations under SAME_STEP: where an episode has ended its last observation, elsewhere ``obs``.

    ``infos["final_obs"]`` (``final_observation`` in older environments) comes in two forms: one observation per
    environment, None where no episode ended; or one batched tree like the observations themselves.

    Args:
        observations: Converts raw observations.
        infos: What the step returned.
        done: ``[B]`` bool, where an episode has ended; at least one.
        obs: The converted observations of this step.

    Raises:
        ValueError: If an ended episode's final observation is missing.
    """
    rows = np.flatnonzero(done)
    raw = infos.get("final_obs", infos.get("final_observation"))
    if raw is None:
        raise ValueError(
            f"The episodes of environments {rows.tolist()} ended, but the step's infos hold no 'final_obs' (received "
            f"the keys {sorted(infos)}). Without it a truncated episode would be valued by the next episode's first "
            "observation. Make the vector environment report it, or use AutoresetMode.NEXT_STEP."
        )
    if _is_per_environment(raw):
        missing = [int(row) for row in rows if raw[row] is None]
        if missing:
            raise ValueError(
                f"The episodes of environments {missing} ended, but infos['final_obs'] holds None for them: make the "
                "vector environment report the last observation of every episode, terminated or truncated."
            )
        final = observations(observations.stack([raw[row] for row in rows]), len(rows))
        return observations.put(obs, rows, final)
    final = observations(_without_masks(raw), len(done))
    return observations.put(obs, rows, take_rows(final, rows))


def _is_per_environment(raw: Any) -> bool:
    return isinstance(raw, list) or (isinstance(raw, np.ndarray) and raw.dtype == object)


def _without_masks(raw: Any) -> Any:
    """A dict without the ``_key`` entries in which gymnasium marks the environments that reported ``key``."""
    if not isinstance(raw, dict):
        return raw
    return {key: _without_masks(value) for key, value in raw.items() if not (key.startswith("_") and key[1:] in raw)}
