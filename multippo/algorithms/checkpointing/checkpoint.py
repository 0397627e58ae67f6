"""Writing and reading of a checkpoint."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, overload

import numpy as np
import optree

from multippo.algorithms.checkpointing.manifest import (
    MANIFEST,
    Manifest,
    latest_checkpoint,
    read_manifest,
    write_manifest,
)
from multippo.algorithms.checkpointing.tensor_files import ArrayType, read_tensors, write_tensors
from multippo.algorithms.config import TrainConfig
from multippo.algorithms.metrics import json_ready
from multippo.algorithms.reward_scaling import RewardScale
from multippo.algorithms.types import EpisodeState, TrainingState
from multippo.envs.api import Env
from multippo.envs.functional.saving import SavedEnvState, read_env_state
from multippo.errors import DamagedCheckpointError
from multippo.files import create, replace_directory, short
from multippo.networks.core.error_paths import refuse_other_module
from multippo.networks.core.random_state import forget_drawn
from multippo.networks.weights.portable import load_portable, portable_split, to_portable

WEIGHTS, OPTIMIZER, CARRY, ENVIRONMENT = (
    f"{name}.safetensors" for name in ("weights", "optimizer", "carry", "environment")
)
MOMENTS = ("first", "second")
_SHARED = ("step", "iteration", "learning_rate", "planned_steps")
"""Fields that ``TrainingState`` and ``Manifest`` share."""
_SCALARS = ("count", "mean", "m2")
"""Fields of ``RewardScale`` that environments share."""
_FILES = {MANIFEST, WEIGHTS, OPTIMIZER, CARRY, ENVIRONMENT}
_SCALE = {"RewardScale": dict.fromkeys(RewardScale._fields, "array")}
"""Description of one reward's scale."""


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
        training_state: First argument of ``checkpoint_fn``, or ``TrainResult.training_state``.
        network: The state's network, which is only read, and may be in training meanwhile.
        config: Settings to store for readers of the checkpoint; loading does not use them.
        extra: More to store, as JSON has it.

    Returns:
        The directory, as an absolute path.

    Raises:
        FileExistsError: If something else is at ``path``.
        TypeError: If ``training_state`` or ``network`` is of another type, or ``config`` or ``extra`` can't be written
            as JSON.
        OSError: If the disk is full, read-only, …; nothing is left behind then, and an earlier checkpoint stays.
    """
    if not isinstance(training_state, TrainingState):
        raise TypeError(
            f"save_checkpoint(path, training_state, network) got a {type(training_state).__name__} as training_state; "
            "expected what checkpoint_fn is given, or the training_state of train_ppo's result."
        )
    refuse_other_module("save_checkpoint", network, "network")
    path = Path(os.path.abspath(path))
    _refuse_other_things(path)
    environment = _environment(training_state.env_state)
    if isinstance(config, TrainConfig):
        config = dataclasses.asdict(config)
    manifest = Manifest(
        backend=network.engine.name,
        num_envs=int(training_state.episodes.reward.shape[0]),
        optimizer_count=int(training_state.optimizer_state[2]),
        environment=environment is not None,
        episodes=describe(training_state.episodes),
        config=None if config is None else dict(config),
        extra=dict(extra or {}),
        teacher_leaves=None if training_state.teacher_carry is None else len(training_state.teacher_carry),
        eval_return=json_ready(training_state.eval_return),
        eval_due=training_state.eval_due,
        recent_episodes=json_ready(training_state.recent_episodes),
        **{name: getattr(training_state, name) for name in _SHARED},
    )
    write_manifest(manifest)  # raises before anything is written, if JSON can't hold config or extra
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
    # The words of a key are 32-bit on one engine and 64-bit on another; files hold one kind.
    return {name: array.astype(np.int64) if array.dtype == np.uint32 else array for name, array in arrays.items()}


def _environment(env_state: Any) -> dict[str, np.ndarray] | None:
    """Arrays of a functional environment's state, by path; None for a host environment, whose ``internal`` is empty."""
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint on the disk.

    Attributes:
        path: Directory of the checkpoint.
        manifest: Everything but the arrays: ``step``, ``iteration``, ``backend``, ``config``, ``extra``, ….
    """

    path: Path
    manifest: Manifest

    def weights(self) -> dict[str, np.ndarray]:
        """Parameters and statistics, as ``to_portable`` returns them."""
        return self._read(WEIGHTS)

    def arrays(self) -> dict[str, dict[str, np.ndarray]]:
        """All stored arrays, by part (``weights``, ``optimizer``, ``carry``, ``environment``) and name."""
        files = (WEIGHTS, OPTIMIZER, CARRY, *([ENVIRONMENT] if self.manifest.environment else []))
        return {file.partition(".")[0]: self._read(file) for file in files}

    def restore_weights(self, network: Any) -> None:
        """Writes parameters and statistics alone into a network.

        Raises:
            ValueError: If the network has others, or others' shapes.
            DamagedCheckpointError: If the file of weights is not what was saved.
            FileNotFoundError: If the file of weights is missing.
        """
        load_portable(network, self._read(WEIGHTS, to_portable(network), "parameter or statistic"))

    def restore(self, network: Any, env: Env | None = None) -> TrainingState:
        """Writes parameters and statistics into a network, and returns the whole state; see ``load_checkpoint``."""
        engine, manifest = network.engine, self.manifest
        own = to_portable(network)
        weights = self._read(WEIGHTS, own, "parameter or statistic")
        first, second = self._read_moments(network, own)
        network_state, episodes, key, teacher_carry = self._read_carry(network)
        env_state: Any = None
        if manifest.environment:
            self._read(ENVIRONMENT)  # damage must be found before the network is changed
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
            teacher_carry=teacher_carry,
            eval_return=manifest.eval_return,
            eval_due=bool(manifest.eval_due),
            recent_episodes=manifest.recent_episodes or (),
            **{name: getattr(manifest, name) for name in _SHARED},
        )

    def _read(self, file: str, like: Mapping[str, Any] | None = None, what: str = "array") -> dict[str, np.ndarray]:
        sums = self.manifest.sha256
        if sums is not None and file not in sums:
            raise DamagedCheckpointError(f"{self.path / MANIFEST} is damaged: sha256 says nothing of {file}.")
        return read_tensors(self.path / file, like, what=what, sha256=None if sums is None else sums[file])

    def _read_moments(self, network: Any, own: Mapping[str, np.ndarray]) -> list[dict[Any, np.ndarray]]:
        trained = {name: leaf for name, leaf in network.engine.leaves(network).items() if leaf.trained}
        like = {f"{moment}/{name}": own[name] for moment in MOMENTS for name in trained}
        # Earlier versions stored no moments of frozen parameters on torch; such moments are zeros.
        frozen = {name for name, _ in network.engine.named_params(network.engine.split(network).variables)} & {*trained}
        known = self._read(OPTIMIZER) if frozen else like
        like = {name: like[name] for name in like if name in known or name.partition("/")[2] not in frozen}
        arrays = self._read(OPTIMIZER, like, "moment")
        # Laid out in the parameter's own order of memory: a fused optimiser walks both at once.
        return [
            {
                leaf.native_path: np.array(
                    leaf.from_portable(arrays.get(f"{moment}/{name}", np.zeros_like(own[name]))), order="C"
                )
                for name, leaf in trained.items()
            }
            for moment in MOMENTS
        ]

    def _read_carry(self, network: Any) -> tuple[Any, Any, Any, list[np.ndarray] | None]:
        engine, num_envs, count = network.engine, self.manifest.num_envs, self.manifest.teacher_leaves
        # One environment's carry shows structure, shapes and types, and costs little if the file does not fit.
        example = network.initialize_state(1)
        carry = leaves_by_path(example, "network_state")
        try:
            episodes: Any = rebuild(self.manifest.episodes)
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
        # Cast on the engine, since NumPy may lack the leaf's type.
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
        network: Receiver of the weights and statistics, built like the one saved. None: only look into the checkpoint.
        env: The environment to go on in, if its state should be made at once. Otherwise ``train_ppo`` makes it.

    Returns:
        The ``initial_state`` for ``train_ppo``, or without ``network`` the ``Checkpoint``.

    Raises:
        FileNotFoundError: If there is no checkpoint, or one of its files is missing.
        DamagedCheckpointError: If a file is not what was saved. The network is unchanged then, as with any other error.
        ValueError: If the checkpoint is of a later format, or does not fit the network or the environment.
        TypeError: If an argument is of the wrong type.
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
    raise FileNotFoundError(f"There is no checkpoint in {path}: no {MANIFEST}, and no directory step_… that holds one.")


def describe(episodes: EpisodeState) -> dict[str, Any]:
    """Structure of the sums of episodes, as JSON.

    ``null`` is None, ``"array"`` a leaf, and an object with one entry a node: its kind, and its contents.

    Raises:
        TypeError: If rewards are in another tree than one of dicts with string keys, lists and tuples.
    """
    return {"EpisodeState": {"reward": "array", "length": "array", "scale": _described(episodes.scale)}}


def _described(scale: Any) -> Any:
    kind = type(scale)
    if scale is None:
        return None
    if kind is RewardScale:
        return _SCALE
    if isinstance(scale, dict) and all(isinstance(key, str) for key in scale):
        return {"dict": {key: _described(value) for key, value in scale.items()}}
    if kind in (list, tuple):
        return {kind.__name__: [_described(item) for item in scale]}
    raise TypeError(f"Rewards in {scale!r} can't be described: expected dicts with strings as keys, lists or tuples.")


def rebuild(description: Any) -> EpisodeState:
    """Sums of episodes that ``describe`` described, with ``"array"`` for each leaf.

    Raises:
        ValueError: If ``description`` is of anything else.
    """
    match description:
        case {"EpisodeState": {"reward": "array", "length": "array", **rest}} if rest.keys() <= {"scale"}:
            return EpisodeState("array", "array", _rebuilt(rest.get("scale")))
        case _:
            raise ValueError(f"{short(description)} does not describe the sums of episodes")


def _rebuilt(description: Any) -> Any:
    match description:
        case None:
            return None
        case {"RewardScale": _} if description == _SCALE:
            return RewardScale("array", "array", "array", "array")
        case {"dict": dict(parts)}:
            return {name: _rebuilt(part) for name, part in parts.items()}
        case {"list": list(items)}:
            return [_rebuilt(item) for item in items]
        case {"tuple": list(items)}:
            return tuple(_rebuilt(item) for item in items)
        case _:
            raise ValueError(f"{short(description)} does not describe the scales of rewards")


def leaves_by_path(tree: Any, root: str) -> dict[str, Any]:
    """Leaves of a tree by their paths, in the tree's order.

    >>> leaves_by_path({"a": [1.0, None, 2.0]}, "x")
    {"x['a'][0]": 1.0, "x['a'][2]": 2.0}
    """
    accessors, leaves, _ = optree.tree_flatten_with_accessor(tree)
    return {accessor.codify(root): leaf for accessor, leaf in zip(accessors, leaves, strict=True)}
