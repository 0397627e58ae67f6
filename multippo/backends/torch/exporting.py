"""Programmes of torch that run without multippo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import array_api_compat.torch as torch_namespace
import torch

from multippo.trees import tree_map


class _Programme(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, observation: Any, carry: Any, start: Any) -> Any:
        return self._function(observation, carry, start)


def save_programme(make: Callable[[Any], Callable[..., Any]], args: tuple[Any, ...], path: Path) -> Any:
    """See ``Engine.save_programme``."""
    args, function = tree_map(torch.tensor, args), make(torch_namespace)
    sizes = tree_map(lambda _: {0: torch.export.Dim("batch")}, args)
    with torch.no_grad():
        result = function(*args)  # makes the constants
        programme = torch.export.export(_Programme(function), args, dynamic_shapes=sizes, strict=False)
    torch.export.save(programme, path)
    return result
