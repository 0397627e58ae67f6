"""Writing of a checkpoint."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from multippo.algorithms.checkpointing.checkpoint import CARRY, ENVIRONMENT, MOMENTS, OPTIMIZER, WEIGHTS
from multippo.algorithms.checkpointing.descriptions import describe, leaves_by_path
from multippo.algorithms.checkpointing.manifest import MANIFEST, Manifest, write_manifest
from multippo.algorithms.checkpointing.tensor_files import write_tensors
from multippo.algorithms.config import TrainConfig
from multippo.algorithms.types import TrainingState
from multippo.atomic_files import create, replace_directory
from multippo.envs.functional.saving import SavedEnvState, read_env_state
from multippo.networks.core.error_paths import refuse_other_module
from multippo.networks.core.random_state import forget_drawn
from multippo.networks.weights.portable import portable_split

_FILES = {MANIFEST, WEIGHTS, OPTIMIZER, CARRY, ENVIRONMENT}


def save_checkpoint(
    path: str | os.PathLike[str],
    training_state: TrainingState,
    network: Any,
    *,
    config: TrainConfig | Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a checkpoint; one that is at ``path`` already is replaced in one step.

    Args:
        path: The directory to write.
        training_state: What ``train_ppo`` hands to ``checkpoint_fn``, or ``TrainResult.training_state``.
        network: The network it belongs to. It is not written to, and may be in training meanwhile.
        config: Stored for readers of the checkpoint; loading does not use it.
        extra: More to store, as JSON has it.

    Returns:
        The directory, as an absolute path.

    Raises:
        FileExistsError: If something else is at ``path``.
        TypeError: If ``config`` or ``extra`` can't be written as JSON.
        OSError: If the disk is full, read-only, …; nothing is left behind then, and what was there stays.
    """
    if not isinstance(training_state, TrainingState):
        raise TypeError(
            f"save_checkpoint(path, training_state, network) got a {type(training_state).__name__} as training_state; "
            "expected what checkpoint_fn is given, or the training_state of train_ppo's result."
        )
    refuse_other_module("save_checkpoint", network, "network")
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"save_checkpoint got a {type(path).__name__} as its path; expected a directory to write.")
    path = Path(os.path.abspath(path))
    _refuse_other_things(path)
    environment = _environment(training_state.env_state)
    if isinstance(config, TrainConfig):
        config = dataclasses.asdict(config)
    manifest = Manifest(
        step=int(training_state.step),
        iteration=int(training_state.iteration),
        backend=network.engine.name,
        num_envs=int(training_state.episodes.reward.shape[0]),
        optimizer_count=int(training_state.optimizer_state[2]),
        learning_rate=training_state.learning_rate,
        environment=environment is not None,
        episodes=describe(training_state.episodes),
        config=None if config is None else dict(config),
        extra=dict(extra or {}),
        teacher_leaves=None if training_state.teacher_carry is None else len(training_state.teacher_carry),
        planned_steps=training_state.planned_steps,
        eval_return=_finite(training_state.eval_return),
        eval_due=training_state.eval_due,
    )
    write_manifest(manifest)  # refuses what JSON can't hold before anything is written
    files = {
        WEIGHTS: portable_split(network, training_state.params, training_state.variables),
        OPTIMIZER: _moments(training_state, network),
        CARRY: _carry(training_state, network.engine),
    }
    if environment is not None:
        files[ENVIRONMENT] = environment
    with replace_directory(path) as directory:
        sums = {name: write_tensors(directory / name, arrays) for name, arrays in files.items()}
        with create(directory / MANIFEST) as file:
            file.write(write_manifest(dataclasses.replace(manifest, sha256=sums)).encode())
    return path


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None  # JSON has no others


def _moments(state: TrainingState, network: Any) -> dict[str, np.ndarray]:
    return {
        # A frozen parameter has none, and begins with zeros once it is trained.
        f"{moment}/{name}": leaf.to_portable(np.asarray(values[leaf.native_path]))
        if leaf.native_path in values
        else np.zeros_like(leaf.read())
        for moment, values in zip(MOMENTS, state.optimizer_state[:2], strict=True)
        for name, leaf in network.engine.leaves(network).items()
        if leaf.trained
    }


def _carry(state: TrainingState, engine: Any) -> dict[str, np.ndarray]:
    leaves = leaves_by_path(forget_drawn(state.network_state), "network_state")
    leaves |= {**leaves_by_path(state.episodes, "episodes"), "key": state.key}
    arrays = {name: engine.to_numpy(leaf) for name, leaf in leaves.items()}
    arrays |= {f"teacher/{index}": leaf for index, leaf in enumerate(state.teacher_carry or [])}
    # The words of a key are 32-bit on one engine and 64-bit on another; in a file they are of one kind.
    return {name: array.astype(np.int64) if array.dtype == np.uint32 else array for name, array in arrays.items()}


def _environment(env_state: Any) -> dict[str, np.ndarray] | None:
    """State of a functional environment; None of a host environment, whose ``internal`` is empty."""
    if isinstance(env_state, SavedEnvState):
        return dict(env_state.read(None))
    return None if env_state is None or env_state.internal == () else read_env_state(env_state)


def _refuse_other_things(path: Path) -> None:
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_dir():
        raise FileExistsError(f"{path} is not a directory; a checkpoint can't be written there. Choose another path.")
    entries = {entry.name for entry in path.iterdir()}
    if entries and not (MANIFEST in entries and entries <= _FILES):
        raise FileExistsError(
            f"{path} holds other files than a checkpoint's, which would be lost. Choose a path of its own, such as "
            f"{path / 'step_0'}."
        )
