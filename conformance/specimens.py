"""What a specimen is: how to build it on any engine, and what to feed it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

import multippo as mp
from multippo.algorithms.config import PPOConfig
from multippo.envs.api import Env
from multippo.networks.types import StatefulModule
from multippo.random import host

from .environment import NUM_ENVS, NUM_STEPS, SCRIPT

__all__ = ["EngineSpecimen", "ModuleSpecimen", "NetworkSpecimen", "Specimen", "normal_inputs", "randomise"]

Sample = Callable[[Any], Any]
"""From a NumPy key to a tree of ``[T, B, ...]`` inputs."""

_COUNT = 7


@dataclasses.dataclass(frozen=True, kw_only=True)
class Specimen:
    """What checks are made of.

    Attributes:
        name: What reports call it.
        requires: Packages without which it is left out.
        only_on: Engines whose frameworks' own modules it holds; on others it is left out. Empty where it runs on all.
    """

    name: str
    requires: tuple[str, ...] = ()
    only_on: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineSpecimen(Specimen):
    """An engine by itself."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModuleSpecimen(Specimen):
    """A module, and what is true of it.

    Attributes:
        build: Makes it on the active engine.
        sample: Makes inputs.
        carries: Whether it has a carry.
        emits: Whether it emits ``rollout_extras``.
        learns_statistics: Whether ``update_statistics`` changes something.
        differentiated: Whether its gradient is looked at alone; that of the other compositions is in training.
        script: When episodes end, as in ``environment.SCRIPT``.
        seed: Of the numbers in its arrays.
        zeroed: Whether its weights are 0 instead, where formulas have their kinks.
        smooth: Whether its gradient is held to differences, too: it has a derivative by definition.
    """

    build: Callable[[], StatefulModule]
    sample: Sample
    carries: bool = False
    emits: bool = False
    learns_statistics: bool = False
    differentiated: bool = False
    script: tuple[str, ...] = SCRIPT
    seed: int = 10
    zeroed: bool = False
    smooth: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkSpecimen(Specimen):
    """A network whose output is a ``PPONetworkOutput``, and the environment it acts in.

    Attributes:
        build: Makes it on the active engine.
        env: Makes the environment.
        obs_statistics: Mean and standard deviation around which a Normalizer's statistics are set.
        sequence_length: L, for training and minibatches.
        ppo: How it is trained, or None where it is not.
        trained_in: Floating-point types it is trained in; compiling a training iteration takes longest of all.
        by_train_ppo: Whether it is also trained through ``train_ppo``, which compiles once more.
        shows: Metrics of the iteration that learns, in which options of ``ppo`` are seen at work: none may be 0 or NaN.
    """

    build: Callable[[], StatefulModule]
    env: Callable[[], Env]
    obs_statistics: tuple[float, float] = (0.0, 1.0)
    sequence_length: int = 6
    ppo: PPOConfig | None = None
    trained_in: tuple[str, ...] = ("float64",)
    by_train_ppo: bool = False
    shows: tuple[str, ...] = ()


def normal_inputs(
    shape: Any, scale: float = 1.0, offset: float = 0.0, rows: tuple[int, int] = (NUM_STEPS, NUM_ENVS)
) -> Sample:
    """Normal inputs of one shape, or of a dict of shapes; ``rows`` is ``(T, B)``."""

    def sample(key: Any) -> Any:
        if isinstance(shape, dict):
            keys = host.split(key, len(shape))
            return {
                name: normal_inputs(part, scale, offset, rows)(keys[i])
                for i, (name, part) in enumerate(sorted(shape.items()))
            }
        return offset + scale * host.normal(key, (*rows, *shape))

    return sample


def randomise(module: Any, statistics: tuple[float, float] = (0.0, 1.0), seed: int = 10, zeroed: bool = False) -> None:
    """Writes random numbers, none of them 0, into every array of a module, the same ones on every engine.

    Biases start at 0, where a missing or doubled one, or two in the wrong order, would not be seen.

    Args:
        module: The module.
        statistics: Mean and standard deviation around which statistics are set.
        seed: Of the numbers.
        zeroed: Writes zeros, and statistics of exactly that mean and standard deviation.
    """
    mean, std = statistics
    key = host.key(seed)
    arrays: dict[str, np.ndarray] = {}
    for number, (name, leaf) in enumerate(module.engine.leaves(module).items()):
        value, last = leaf.read(), name.rpartition(".")[2]
        noise = host.normal(host.fold_in(key, number), value.shape) * (not zeroed)
        if leaf.trained:
            fan_in = value.shape[0] if value.ndim > 1 else 4
            arrays[name] = noise * (1.2 / np.sqrt(fan_in))
        elif _is_within(name, "M2"):
            arrays[name] = _COUNT * std**2 * np.exp(0.3 * noise)
        elif value.dtype.kind == "f":
            arrays[name] = mean + 0.3 * std * noise
        elif last == "counter":
            arrays[name] = np.asarray([0, _COUNT], value.dtype)
    mp.load_portable(module, {**mp.to_portable(module), **arrays})


def _is_within(name: str, part: str) -> bool:
    return part in name.split(".")
