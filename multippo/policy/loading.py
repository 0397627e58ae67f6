"""A policy from a run's directory, a checkpoint or a network."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np

from multippo.algorithms.checkpointing.manifest import MANIFEST
from multippo.envs.api import spaces_of
from multippo.errors import UsageError
from multippo.networks.types import StatefulModule
from multippo.policy.policy import Policy, make_policy
from multippo.runs.directory import RunDirectory
from multippo.runs.loading import load_run


def load_policy(
    source: str | os.PathLike[str] | Any,
    *,
    backend: str | None = None,
    checkpoint: str | Path | int = "latest",
    deterministic: bool = True,
    seed: int = 0,
    observation_space: Any = None,
    action_space: Any = None,
) -> Policy:
    """A trained policy for use, from observations as the environment gives them to the environment's own actions.

    Observations and actions are those of the environment itself: integers of a Discrete space, dicts, uint8 images and
    masks on one side, bounds, shapes and types on the other.

        policy = mp.load_policy("runs/pendulum")
        action, carry = policy(observation, None)  # at the start of an episode
        action, carry = policy(observation, carry)

    Args:
        source: A run's directory, one of its checkpoints, or a network.
        backend: Engine that acts: ``"jax"`` compiles, ``"torch"`` takes no gradients. None for NumPy code made from the
            network, the quickest for few observations, which imports no framework; a network that can't be turned into
            such code, such as one with layers of a framework's own, acts on its engine, and the log says so.
        checkpoint: Checkpoint of a run: ``"latest"``, ``"best"``, a step, or a path.
        deterministic: True to act with the mode of the action distribution, False to sample.
        seed: Seed of the noise. Every call with ``carry=None`` begins a stream of its own, the first one that of
            ``multippo eval --seed``.
        observation_space: Space of one observation, for a network.
        action_space: Space of one action, for a network.

    Raises:
        MultippoError: If the directory or the checkpoint can't be used.
        ImportError: If a package of the environment or the engine is missing.
        TypeError: If the network is not a StatefulModule.
        ValueError: If an argument is not possible, or a space is missing or not supported.
    """
    options: dict[str, Any] = {"backend": backend, "deterministic": deterministic, "seed": seed}
    if isinstance(source, StatefulModule):
        if observation_space is None or action_space is None:
            raise ValueError(
                "load_policy(network) needs observation_space= and action_space=: those of one environment, such as "
                "gymnasium.make(...).observation_space."
            )
        return make_policy(source, observation_space, action_space, **options)
    with loaded_run(source, checkpoint, backend) as (network, spaces, dtype):
        return make_policy(network, *spaces, dtype=dtype, **options)


@contextlib.contextmanager
def loaded_run(
    source: str | os.PathLike[str], checkpoint: str | Path | int, backend: str | None
) -> Generator[tuple[Any, tuple[Any, Any], Any]]:
    """A run's network, the spaces of its environment, and NumPy's floating-point type, under the run's settings.

    Args:
        source: A run's directory, or one of its checkpoints.
        checkpoint: See ``load_policy``.
        backend: Engine of the network; None for NumPy's.
    """
    path = Path(source)
    if (path / MANIFEST).is_file():
        checkpoint, path = path.absolute(), path.absolute().parent.parent
        if not RunDirectory(path).config.is_file():
            raise UsageError(
                f"{source} is a checkpoint outside a run, which does not say how its network is built: make the "
                "network, mp.load_checkpoint(path, network), and mp.load_policy(network, observation_space=..., "
                "action_space=...)."
            )
    directory = RunDirectory(path)
    settings = directory.settings()
    with settings.engine(backend or "numpy", "cpu" if backend is None else None):
        run = load_run(path, checkpoint, 1)
        spaces = spaces_of(run.env)
        run.env.close()
        dtype = np.float64 if settings.precision == "float64" else np.float32
        yield run.network, spaces, dtype
