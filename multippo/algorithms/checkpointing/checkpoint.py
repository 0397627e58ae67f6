"""Reading of a checkpoint."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, overload

import numpy as np
import optree

from multippo.algorithms.checkpointing.descriptions import leaves_by_path, rebuild_episodes
from multippo.algorithms.checkpointing.manifest import MANIFEST, Manifest, read_manifest
from multippo.algorithms.checkpointing.steps import latest_checkpoint
from multippo.algorithms.checkpointing.tensor_files import ArrayType, read_tensors
from multippo.algorithms.types import TrainingState
from multippo.envs.api import Env
from multippo.envs.functional.saving import SavedEnvState
from multippo.errors import DamagedCheckpointError
from multippo.networks.core.error_paths import refuse_other_module
from multippo.networks.weights.portable import load_portable, to_portable

WEIGHTS, OPTIMIZER, CARRY, ENVIRONMENT = (
    f"{name}.safetensors" for name in ("weights", "optimizer", "carry", "environment")
)
MOMENTS = ("first", "second")
_SCALARS = ("count", "mean", "m2")
"""Fields of ``RewardScale`` that environments share."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint on the disk.

    Attributes:
        path: Its directory.
        manifest: Everything but its arrays: ``step``, ``iteration``, ``backend``, ``config``, ``extra``, ….
    """

    path: Path
    manifest: Manifest

    def weights(self) -> dict[str, np.ndarray]:
        """Parameters and statistics, as ``to_portable`` returns them."""
        return self._read(WEIGHTS)

    def arrays(self) -> dict[str, dict[str, np.ndarray]]:
        """All that is stored, by part (``weights``, ``optimizer``, ``carry``, ``environment``) and name."""
        files = (WEIGHTS, OPTIMIZER, CARRY, *([ENVIRONMENT] if self.manifest.environment else []))
        return {file.partition(".")[0]: self._read(file) for file in files}

    def restore_weights(self, network: Any) -> None:
        """Writes parameters and statistics alone into a network.

        Raises:
            ValueError: If they do not fit.
        """
        load_portable(network, self._read(WEIGHTS, to_portable(network), "parameter or statistic"))

    def restore(self, network: Any, env: Env | None = None) -> TrainingState:
        """Writes parameters and statistics into a network, and returns everything; see ``load_checkpoint``."""
        engine, manifest = network.engine, self.manifest
        own = to_portable(network)
        weights = self._read(WEIGHTS, own, "parameter or statistic")
        first, second = self._read_moments(network, own)
        network_state, episodes, key, teacher_carry = self._read_carry(network)
        env_state: Any = None
        if manifest.environment:
            self._read(ENVIRONMENT)  # finds damage before the network is changed
            env_state = SavedEnvState(lambda like: self._read(ENVIRONMENT, like, "part of the environment's state"))
            env_state = env_state if env is None else env_state.restore(env)
        load_portable(network, weights)
        split = engine.split(network)
        return TrainingState(
            definition=split.definition,
            params=engine.snapshot(split.params),
            variables=engine.snapshot(split.variables),
            optimizer_state=(first, second, manifest.optimizer_count),
            network_state=network_state,
            env_state=env_state,
            episodes=episodes,
            key=key,
            iteration=manifest.iteration,
            step=manifest.step,
            learning_rate=manifest.learning_rate,
            teacher_carry=teacher_carry,
            planned_steps=manifest.planned_steps,
            eval_return=manifest.eval_return,
            eval_due=bool(manifest.eval_due),
        )

    def _read(self, file: str, like: Mapping[str, Any] | None = None, what: str = "array") -> dict[str, np.ndarray]:
        sums = self.manifest.sha256
        if sums is not None and file not in sums:
            raise DamagedCheckpointError(f"{self.path / MANIFEST} is damaged: sha256 says nothing of {file}.")
        return read_tensors(self.path / file, like, what=what, sha256=None if sums is None else sums[file])

    def _read_moments(self, network: Any, own: Mapping[str, np.ndarray]) -> list[dict[Any, np.ndarray]]:
        trained = {name: leaf for name, leaf in network.engine.leaves(network).items() if leaf.trained}
        like = {f"{moment}/{name}": own[name] for moment in MOMENTS for name in trained}
        # Earlier versions stored no moments of frozen parameters on torch; they are zeros.
        frozen = {name for name, _ in network.engine.named_params(network.engine.split(network).variables)} & {*trained}
        known = self._read(OPTIMIZER) if frozen else like
        absent = {name for name in like.keys() - known.keys() if name.partition("/")[2] in frozen}
        arrays = self._read(OPTIMIZER, {name: like[name] for name in like if name not in absent}, "moment")
        arrays |= {name: np.zeros_like(like[name]) for name in absent}
        # In the parameter's own order of memory: a fused optimiser walks both at once.
        return [
            {
                leaf.native_path: np.array(leaf.from_portable(arrays[f"{moment}/{name}"]), order="C")
                for name, leaf in trained.items()
            }
            for moment in MOMENTS
        ]

    def _read_carry(self, network: Any) -> tuple[Any, Any, Any, list[np.ndarray] | None]:
        engine, num_envs, count = network.engine, self.manifest.num_envs, self.manifest.teacher_leaves
        # One environment's carry shows structure, shapes and types; none of full size is made before the file fits.
        example = network.initialize_state(1)
        carry = leaves_by_path(example, "network_state")
        try:
            episodes: Any = rebuild_episodes(self.manifest.episodes)
        except ValueError as error:
            raise DamagedCheckpointError(f"{self.path / MANIFEST} is damaged: {error}.") from error
        sums, taught = list(leaves_by_path(episodes, "episodes")), [f"teacher/{index}" for index in range(count or 0)]
        float_dtype = engine.to_numpy(engine.zeros(())).dtype
        like: dict[str, ArrayType | None] = {"key": ArrayType((2,), np.uint32), **dict.fromkeys(taught)}
        for name, leaf in carry.items():
            like[name] = ArrayType((num_envs, *leaf.shape[1:]), engine.to_numpy(leaf).dtype)
        for name in sums:
            like[name] = ArrayType(() if name.rpartition(".")[2] in _SCALARS else (num_envs,), float_dtype)
        arrays = self._read(CARRY, like, "carry")
        # In the leaf's own type, which NumPy may lack.
        restored = [engine.xp.astype(engine.asarray(arrays[name]), leaf.dtype) for name, leaf in carry.items()]
        return (
            optree.tree_unflatten(optree.tree_structure(example), restored),
            optree.tree_unflatten(optree.tree_structure(episodes), [engine.asarray(arrays[name]) for name in sums]),
            engine.random.wrap_key(arrays["key"]),
            None if count is None else [arrays[name] for name in taught],
        )


@overload
def load_checkpoint(path: str | os.PathLike[str], network: None = None, *, env: None = None) -> Checkpoint: ...
@overload
def load_checkpoint(path: str | os.PathLike[str], network: Any, *, env: Env | None = None) -> TrainingState: ...
def load_checkpoint(
    path: str | os.PathLike[str], network: Any = None, *, env: Env | None = None
) -> Checkpoint | TrainingState:
    """Reads a checkpoint, written by any engine, into a network on any engine.

    Args:
        path: A checkpoint, or a directory whose latest checkpoint is meant: of ``step_…`` directories, or of a run.
        network: Gets the weights and statistics; built like the one saved. None: only look into the checkpoint.
        env: The environment to go on in, if its state should be made at once. Otherwise ``train_ppo`` makes it.

    Returns:
        The ``initial_state`` for ``train_ppo``, or without ``network`` the ``Checkpoint``.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        DamagedCheckpointError: If a file is not what was saved. The network is unchanged then, as with any other error.
        ValueError: If it is of a later format, or does not fit.
    """
    if network is not None:
        refuse_other_module("load_checkpoint", network, "network")
    if env is not None and not isinstance(env, Env):
        raise TypeError(f"load_checkpoint(env=...) is a {type(env).__name__}; expected an environment of make_env's.")
    if not isinstance(path, str | os.PathLike):
        raise TypeError(
            f"load_checkpoint got a {type(path).__name__} as its path; expected that of a checkpoint or of a directory "
            "that holds some. CheckpointFolder.latest() is None before the first is saved."
        )
    directory = _find(Path(path))
    checkpoint = Checkpoint(path=directory, manifest=read_manifest(directory))
    return checkpoint if network is None else checkpoint.restore(network, env)


def _find(path: Path) -> Path:
    if os.path.lexists(path / MANIFEST):
        return path
    inner = path / "checkpoints"
    for directory in (path,) if inner.is_symlink() else (path, inner):
        latest = latest_checkpoint(directory)
        if latest is not None:
            return latest
    if not path.exists():
        raise FileNotFoundError(f"There is no checkpoint {path}: nothing is there.")
    raise FileNotFoundError(f"There is no checkpoint in {path}: no {MANIFEST}, and no directory step_… that holds one.")
