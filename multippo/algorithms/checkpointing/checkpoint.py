"""A checkpoint on the disk, and how it is read: names and shapes are compared before any array is."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, overload

import numpy as np
import optree

from multippo.algorithms.checkpointing.descriptions import named_arrays, rebuild
from multippo.algorithms.checkpointing.manifest import MANIFEST, Manifest, read_manifest
from multippo.algorithms.checkpointing.steps import latest_checkpoint
from multippo.algorithms.checkpointing.tensor_files import check_sha256, read_tensors
from multippo.algorithms.types import TrainingState
from multippo.envs.api import Env
from multippo.envs.saving import SavedEnvState
from multippo.errors import DamagedCheckpointError
from multippo.networks.portable import load_portable, to_portable
from multippo.networks.types import StatefulModule

__all__ = [
    "CARRY",
    "ENVIRONMENT",
    "OPTIMIZER",
    "WEIGHTS",
    "Checkpoint",
    "carry_leaves",
    "check_network",
    "load_checkpoint",
    "teacher_leaf",
]

WEIGHTS, OPTIMIZER, CARRY, ENVIRONMENT = (
    f"{name}.safetensors" for name in ("weights", "optimizer", "carry", "environment")
)
_MOST_LEAVES = 100_000
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
        load_portable(network, self._read(WEIGHTS, _shapes(network), "parameter or statistic"))

    def restore(self, network: Any, env: Env | None = None) -> TrainingState:
        """Writes parameters and statistics into a network, and returns everything; see ``load_checkpoint``."""
        engine = network.engine
        weights = self._read(WEIGHTS, _shapes(network), "parameter or statistic")
        first, second = self._read_moments(network)
        network_state, episodes, key, teacher_carry = self._read_carry(network)
        env_state: Any = None
        if self.manifest.environment:
            file = self.path / ENVIRONMENT
            check_sha256(file, self._sha256(ENVIRONMENT))  # now, before the network is changed
            env_state = SavedEnvState(lambda shapes: read_tensors(file, shapes, what="part of the environment's state"))
            env_state = env_state if env is None else env_state.restore(env)
        load_portable(network, weights)
        split = engine.split(network)
        return TrainingState(
            definition=split.definition,
            params=engine.snapshot(split.params),
            variables=engine.snapshot(split.variables),
            optimizer_state=(first, second, self.manifest.optimizer_count),
            network_state=network_state,
            env_state=env_state,
            episodes=episodes,
            key=key,
            iteration=self.manifest.iteration,
            step=self.manifest.step,
            learning_rate=self.manifest.learning_rate,
            teacher_carry=teacher_carry,
            planned_steps=self.manifest.planned_steps,
            eval_return=self.manifest.eval_return,
            eval_due=bool(self.manifest.eval_due),
        )

    def _read(
        self, file: str, expected: Mapping[str, tuple[int, ...] | None] | None = None, what: str = "array"
    ) -> dict[str, np.ndarray]:
        return read_tensors(self.path / file, expected, what=what, sha256=self._sha256(file))

    def _sha256(self, file: str) -> str | None:
        sums = self.manifest.sha256
        if sums is not None and file not in sums:
            raise DamagedCheckpointError(f"{self.path / MANIFEST} is damaged: sha256 says nothing of {file}.")
        return None if sums is None else sums[file]

    def _read_moments(self, network: Any) -> tuple[dict[Any, np.ndarray], dict[Any, np.ndarray]]:
        trained = {name: leaf for name, leaf in network.engine.leaves(network).items() if leaf.trained}
        shapes = _shapes(network)
        expected = {f"{moment}/{name}": shapes[name] for moment in ("first", "second") for name in trained}
        arrays = self._read(OPTIMIZER, expected, "moment")

        def native(moment: str) -> dict[Any, np.ndarray]:
            # In the parameter's own order of memory: a fused optimiser walks both at once.
            return {
                leaf.native_path: np.array(leaf.from_portable(arrays[f"{moment}/{name}"]), order="C")
                for name, leaf in trained.items()
            }

        return native("first"), native("second")

    def _read_carry(self, network: Any) -> tuple[Any, Any, Any, list[np.ndarray] | None]:
        engine, num_envs = network.engine, self.manifest.num_envs
        # One environment's carry tells structure, shapes and types; none of full size is made before the file fits.
        example = network.initialize_state(1)
        leaves = carry_leaves(example)
        try:
            names = named_arrays(rebuild(self.manifest.episodes, _Anything(), "episodes"), "episodes")
        except ValueError as error:
            raise DamagedCheckpointError(f"{self.path / MANIFEST} is damaged: {error}.") from error
        expected: dict[str, tuple[int, ...] | None] = {
            **{name: (num_envs, *leaf.shape[1:]) for name, leaf in leaves.items()},
            **{name: () if name.rpartition(".")[2] in _SCALARS else (num_envs,) for name in names},
            "key": (2,),
        }
        taught, count = [], self.manifest.teacher_leaves
        if count is not None:
            taught = [teacher_leaf(index) for index in range(min(count, _MOST_LEAVES))]
            expected |= dict.fromkeys(taught)
        arrays = self._read(CARRY, expected, "carry")
        for name in names:
            if arrays[name].dtype.kind not in "fiu":
                raise DamagedCheckpointError(f"{name!r} in {self.path / CARRY} is of {arrays[name].dtype}, no numbers.")
        restored = [_like(engine, arrays[name], leaf) for name, leaf in leaves.items()]
        float_dtype = engine.to_numpy(engine.zeros(())).dtype
        sums = {name: engine.asarray(_as_float(arrays[name], float_dtype)) for name in names}
        return (
            optree.tree_unflatten(optree.tree_structure(example), restored),
            rebuild(self.manifest.episodes, sums, "episodes"),
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
        check_network("load_checkpoint", network)
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


def check_network(function: str, network: Any) -> None:
    """TypeError if a function called ``function`` was given something else than a network."""
    if not isinstance(network, StatefulModule):
        raise TypeError(
            f"{function} needs a StatefulModule as its network, built like the one in training; got a "
            f"{type(network).__name__}."
        )


def teacher_leaf(index: int) -> str:
    """The name of an array of a teacher's carry."""
    return f"teacher/{index}"


def carry_leaves(network_state: Any) -> dict[str, Any]:
    """The leaves of a carry by their paths, in the tree's order."""
    accessors, leaves, _ = optree.tree_flatten_with_accessor(network_state)
    return {accessor.codify("network_state"): leaf for accessor, leaf in zip(accessors, leaves, strict=True)}


class _Anything(dict[str, Any]):
    """Has a value under every name; shows which names a description asks for."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> str:
        return name


def _like(engine: Any, array: np.ndarray, leaf: Any) -> Any:
    """An array of a file as the engine's, of the type of ``leaf``, which NumPy may not have."""
    array = array.astype(engine.to_numpy(leaf).dtype, copy=False)
    return engine.xp.astype(engine.asarray(array), leaf.dtype)


def _as_float(array: np.ndarray, dtype: Any) -> np.ndarray:
    return array.astype(dtype, copy=False) if array.dtype.kind == "f" else array


def _shapes(network: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(array.shape) for name, array in to_portable(network).items()}


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
