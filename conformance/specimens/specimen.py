"""Subjects of checks: builders for any engine, and inputs."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

import multippo as mp
from multippo.envs.api import Env
from multippo.random import host

from .scripted_environment import NUM_ENVS, NUM_STEPS, SCRIPT

Sample = Callable[[Any], Any]
"""Function from a NumPy key to a tree of ``[T, B, ...]`` inputs."""

_COUNT = 7


@dataclasses.dataclass(frozen=True)
class Specimen:
    """Subject of checks.

    Attributes:
        name: Name in reports.
        requires: Packages without which the subject is left out.
        only_on: Engines whose frameworks' own modules are in the subject, which others leave out. Empty: all engines.
    """

    name: str
    _: dataclasses.KW_ONLY
    requires: tuple[str, ...] = ()
    only_on: tuple[str, ...] = ()

    def why_not(self, backend: str) -> str | None:
        """Reason for leaving the subject out on an engine; None where it is run."""
        missing = [package for package in self.requires if importlib.util.find_spec(package) is None]
        if missing:
            return f"needs {' and '.join(missing)}, not installed"
        if self.only_on and backend not in self.only_on:
            return f"is made of modules of the frameworks of {' and '.join(self.only_on)}"
        return None


@dataclasses.dataclass(frozen=True)
class ModuleSpecimen(Specimen):
    """A module, and the properties that its checks ask for.

    Attributes:
        build: Function that makes the module on the active engine.
        sample: Function that makes inputs.
        carries: True if the module has a carry.
        emits: True if the module emits ``rollout_extras``.
        learns_statistics: True if ``update_statistics`` changes something.
        differentiated: True if the gradient is checked for this module alone; other compositions' is in training.
        script: Ends of episodes, as in ``scripted_environment.SCRIPT``.
        seed: Seed of the numbers in the module's arrays.
        zeroed: True for weights of 0, at which formulas have their kinks.
        smooth: True if the module has a derivative by definition, whose gradient is compared with differences, too.
    """

    build: Callable[[], mp.StatefulModule]
    sample: Sample
    _: dataclasses.KW_ONLY
    carries: bool = False
    emits: bool = False
    learns_statistics: bool = False
    differentiated: bool = False
    script: tuple[str, ...] = SCRIPT
    seed: int = 10
    zeroed: bool = False
    smooth: bool = False


@dataclasses.dataclass(frozen=True)
class NetworkSpecimen(Specimen):
    """A network whose output is a ``PPONetworkOutput``, and its environment.

    Attributes:
        build: Function that makes the network on the active engine.
        env: Function that makes the environment.
        obs_statistics: Mean and standard deviation around which a Normalizer's statistics are set.
        sequence_length: L, for training and minibatches.
        ppo: Settings of the training; None for no training.
        trained_in: Floating-point types of the training; few, as compiling an iteration takes longest of all.
        by_train_ppo: True to train through ``train_ppo`` too, which compiles once more.
        shows: Metrics of the iteration that learns, which show options of ``ppo`` at work: none may be 0 or NaN.
    """

    build: Callable[[], mp.StatefulModule]
    env: Callable[[], Env]
    _: dataclasses.KW_ONLY
    obs_statistics: tuple[float, float] = (0.0, 1.0)
    sequence_length: int = 6
    ppo: mp.PPOConfig | None = None
    trained_in: tuple[str, ...] = ("float64",)
    by_train_ppo: bool = False
    shows: tuple[str, ...] = ()


def normal_inputs(
    shape: Any, scale: float = 1.0, offset: float = 0.0, rows: tuple[int, int] = (NUM_STEPS, NUM_ENVS)
) -> Sample:
    """Sampler of normal inputs of one shape, or of a dict of shapes; ``rows`` is ``(T, B)``."""

    def sample(key: Any) -> Any:
        if not isinstance(shape, dict):
            return offset + scale * host.normal(key, (*rows, *shape))
        names, keys = sorted(shape), host.split(key, len(shape))
        return {name: normal_inputs(shape[name], scale, offset, rows)(keys[i]) for i, name in enumerate(names)}

    return sample


def randomise(module: Any, statistics: tuple[float, float] = (0.0, 1.0), seed: int = 10, zeroed: bool = False) -> None:
    """Writes random numbers, none of them 0, into every array of a module, the same ones on every engine.

    Biases would start at 0, and a missing or doubled one, or two in the wrong order, would not be seen.

    Args:
        module: The module.
        statistics: Mean and standard deviation around which statistics are set.
        seed: Seed of the numbers.
        zeroed: True for zeros, and statistics of exactly that mean and standard deviation.
    """
    mean, std = statistics
    key = host.key(seed)
    arrays: dict[str, np.ndarray] = {}
    for number, (name, leaf) in enumerate(module.engine.leaves(module).items()):
        value, path = leaf.read(), name.split(".")
        noise = host.normal(host.fold_in(key, number), value.shape) * (not zeroed)
        if leaf.trained:
            fan_in = value.shape[0] if value.ndim > 1 else 4
            arrays[name] = noise * (1.2 / np.sqrt(fan_in))
        elif "M2" in path:
            arrays[name] = _COUNT * std**2 * np.exp(0.3 * noise)
        elif value.dtype.kind == "f":
            arrays[name] = mean + 0.3 * std * noise
        elif path[-1] == "counter":
            arrays[name] = np.asarray([0, _COUNT], value.dtype)
    mp.load_portable(module, {**mp.to_portable(module), **arrays})
