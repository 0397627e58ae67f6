"""Checkpoints: everything a run is made of, in a directory of plain arrays and JSON that every engine reads.

Format 1 is a directory with these files and no others; a reader follows no link, takes no file name from a file, and
executes nothing:

* ``checkpoint.json``: an object with ``format`` ("multippo.checkpoint"), ``format_version`` (1), ``multippo_version``
  and the fields of ``checkpoint_manifest.Manifest``.
* ``weights.safetensors``: parameters and statistics under portable names and in portable layouts, as ``to_portable``
  returns them.
* ``optimizer.safetensors``: ``first/NAME`` and ``second/NAME`` for every parameter, the moments in its portable layout.
* ``carry.safetensors``: ``network_state…`` (a leaf's path, such as ``network_state[1]['action'][0].key``),
  ``episodes…`` and ``key``; in a distillation ``teacher/0``, … in the order of the teacher's carry. Words of random
  keys are 64-bit integers.
* ``environment.safetensors``: the state of a functional environment, by path in its tree. A host environment, such as
  gymnasium's, can't be saved: a resumed run starts new episodes and a new carry, from a seed derived from the run's key
  and the iteration.

The structure of a carry is the network's, that of a state the environment's; neither is stored. The directory is
written under a temporary name, flushed to the disk and renamed, so a directory under its final name is complete.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, overload

import numpy as np
import optree

from multippo.algorithms.atomic import replace_directory
from multippo.algorithms.checkpoint_manifest import MANIFEST, Manifest, read_manifest, write_manifest
from multippo.algorithms.checkpoint_steps import latest_checkpoint
from multippo.algorithms.config import TrainConfig
from multippo.algorithms.stored_trees import describe, named_arrays, rebuild
from multippo.algorithms.tensor_files import check_sha256, read_tensors, write_tensors
from multippo.algorithms.types import TrainingState
from multippo.envs.api import Env
from multippo.envs.saving import SavedEnvState, read_env_state
from multippo.errors import DamagedCheckpointError
from multippo.networks.portable import load_portable, portable_split, to_portable
from multippo.networks.random_state import forget_drawn

__all__ = ["Checkpoint", "load_checkpoint", "save_checkpoint"]

_WEIGHTS, _OPTIMIZER, _CARRY, _ENVIRONMENT = (
    f"{name}.safetensors" for name in ("weights", "optimizer", "carry", "environment")
)
_FILES = {MANIFEST, _WEIGHTS, _OPTIMIZER, _CARRY, _ENVIRONMENT}
_MOST_LEAVES = 100_000


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
        config: Stored for whoever reads the checkpoint; loading does not use it.
        extra: More to store, as JSON has it.

    Returns:
        The directory, as an absolute path.

    Raises:
        FileExistsError: If something else is at ``path``.
        TypeError: If ``config`` or ``extra`` can't be written as JSON.
        OSError: If the disk is full, read-only, …; nothing is left behind then, and what was there stays.
    """
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
    )
    write_manifest(manifest)  # refuses what JSON can't hold before anything is written
    files = {
        _WEIGHTS: portable_split(network, training_state.params, training_state.variables),
        _OPTIMIZER: _moments(training_state, network),
        _CARRY: _carry(training_state, network.engine),
    }
    if environment is not None:
        files[_ENVIRONMENT] = environment
    with replace_directory(path) as directory:
        sums = {name: write_tensors(directory / name, arrays) for name, arrays in files.items()}
        (directory / MANIFEST).write_text(write_manifest(dataclasses.replace(manifest, sha256=sums)), "utf-8")
    return path


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
    directory = _find(Path(path))
    checkpoint = Checkpoint(path=directory, manifest=read_manifest(directory))
    return checkpoint if network is None else checkpoint.restore(network, env)


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
        return self._read(_WEIGHTS)

    def arrays(self) -> dict[str, dict[str, np.ndarray]]:
        """All that is stored, by part (``weights``, ``optimizer``, ``carry``, ``environment``) and name."""
        files = (_WEIGHTS, _OPTIMIZER, _CARRY, *([_ENVIRONMENT] if self.manifest.environment else []))
        return {file.partition(".")[0]: self._read(file) for file in files}

    def restore_weights(self, network: Any) -> None:
        """Writes parameters and statistics alone into a network.

        Raises:
            ValueError: If they do not fit.
        """
        load_portable(network, self._read(_WEIGHTS, _shapes(network), "parameter or statistic"))

    def restore(self, network: Any, env: Env | None = None) -> TrainingState:
        """Writes parameters and statistics into a network, and returns everything; see ``load_checkpoint``."""
        engine = network.engine
        weights = self._read(_WEIGHTS, _shapes(network), "parameter or statistic")
        first, second = self._read_moments(network)
        network_state, episodes, key, teacher_carry = self._read_carry(network)
        env_state: Any = None
        if self.manifest.environment:
            file = self.path / _ENVIRONMENT
            check_sha256(file, self._sha256(_ENVIRONMENT))  # now, before the network is changed
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
        arrays = self._read(_OPTIMIZER, expected, "moment")

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
        leaves = _carry_leaves(example)
        try:
            names = named_arrays(rebuild(self.manifest.episodes, _Anything(), "episodes"), "episodes")
        except ValueError as error:
            raise DamagedCheckpointError(f"{self.path / MANIFEST} is damaged: {error}.") from error
        expected: dict[str, tuple[int, ...] | None] = {
            **{name: (num_envs, *leaf.shape[1:]) for name, leaf in leaves.items()},
            **dict.fromkeys(names),
            "key": (2,),
        }
        taught, count = [], self.manifest.teacher_leaves
        if count is not None:
            taught = [_teacher_leaf(index) for index in range(min(count, _MOST_LEAVES))]
            expected |= dict.fromkeys(taught)
        arrays = self._read(_CARRY, expected, "carry")
        restored = [_like(engine, arrays[name], leaf) for name, leaf in leaves.items()]
        float_dtype = engine.to_numpy(engine.zeros(())).dtype
        sums = {name: engine.asarray(_as_float(arrays[name], float_dtype)) for name in names}
        return (
            optree.tree_unflatten(optree.tree_structure(example), restored),
            rebuild(self.manifest.episodes, sums, "episodes"),
            engine.random.wrap_key(arrays["key"]),
            None if count is None else [arrays[name] for name in taught],
        )


# -- writing


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None  # JSON has no others


def _moments(state: TrainingState, network: Any) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for moment, values in zip(("first", "second"), state.optimizer_state[:2], strict=True):
        for name, leaf in network.engine.leaves(network).items():
            if leaf.trained:
                arrays[f"{moment}/{name}"] = leaf.to_portable(np.asarray(values[leaf.native_path]))
    return arrays


def _carry(state: TrainingState, engine: Any) -> dict[str, np.ndarray]:
    leaves = _carry_leaves(forget_drawn(state.network_state))
    leaves |= {**named_arrays(state.episodes, "episodes"), "key": state.key}
    arrays = {name: engine.to_numpy(leaf) for name, leaf in leaves.items()}
    arrays |= {_teacher_leaf(index): leaf for index, leaf in enumerate(state.teacher_carry or [])}
    # The words of a key are 32-bit on one engine and 64-bit on another; in a file they are of one kind.
    return {name: array.astype(np.int64) if array.dtype == np.uint32 else array for name, array in arrays.items()}


def _teacher_leaf(index: int) -> str:
    return f"teacher/{index}"


def _carry_leaves(network_state: Any) -> dict[str, Any]:
    """The leaves of a carry by their paths, in the tree's order."""
    accessors, leaves, _ = optree.tree_flatten_with_accessor(network_state)
    return {accessor.codify("network_state"): leaf for accessor, leaf in zip(accessors, leaves, strict=True)}


def _environment(env_state: Any) -> dict[str, np.ndarray] | None:
    """A functional environment's state. A host one keeps its own to itself: ``internal`` is an empty tuple."""
    if isinstance(env_state, SavedEnvState):
        return dict(env_state.read(None))
    return None if env_state is None or env_state.internal == () else read_env_state(env_state)


def _refuse_other_things(path: Path) -> None:
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_dir():
        raise FileExistsError(f"{path} is no directory; a checkpoint can't be written there. Choose another path.")
    entries = {entry.name for entry in path.iterdir()}
    if entries and not (MANIFEST in entries and entries <= _FILES):
        raise FileExistsError(
            f"{path} holds other files than a checkpoint's, which would be lost. Choose a path of its own, such as "
            f"{path / 'step_0'}."
        )


# -- reading


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
