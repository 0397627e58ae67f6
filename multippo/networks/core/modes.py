"""Modes of networks: acting by samples or by the mode of a distribution, inside a ``with`` block."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

from multippo.networks.core.error_paths import all_modules
from multippo.networks.samplers.base import ActionSampler

_FLAGS = ("training", "deterministic", "use_running_average")
"""Attributes that ``eval`` and ``train`` set, on modules of either framework."""


@contextlib.contextmanager
def evaluation_mode(network: Any, deterministic: bool) -> Generator[None]:
    """Lets the network act by the mode of its distributions inside a ``with`` block; its flags are put back after."""
    with _flags_kept(network):
        if deterministic:
            network.eval()
        yield


@contextlib.contextmanager
def training_mode(network: Any) -> Generator[None]:
    """Lets the network sample its actions inside a ``with`` block, also after ``eval``; its flags are put back after.

    Of a network that samples, parts in evaluation mode stay in it: the user has frozen them.
    """
    with _flags_kept(network):
        if any(isinstance(module, ActionSampler) and module.deterministic for module in all_modules(network)):
            network.train()
        yield


@contextlib.contextmanager
def _flags_kept(network: Any) -> Generator[None]:
    before = [
        (module, flag, vars(module)[flag]) for module in all_modules(network) for flag in _FLAGS if flag in vars(module)
    ]
    try:
        yield
    finally:
        # One by one: a part that was frozen before stays frozen.
        for module, flag, value in before:
            if vars(module)[flag] != value:
                setattr(module, flag, value)
