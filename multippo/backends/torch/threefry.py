"""The random generator's rounds on a CPU, by NumPy, whose words of 32 bits wrap around by themselves.

torch has next to no arithmetic on unsigned words, and would mask wider ones after each of a hundred operations. One
operator hides NumPy's calls, so that a recording repeats them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from multippo.random import host

_ops: Any = torch.ops.multippo


def on_cpu(rounds: Callable[..., Any]) -> Callable[..., Any]:
    """``rounds``, the generator on words of a signed type, but on a CPU by NumPy. The words are equal."""

    @functools.wraps(rounds)
    def call(*words: Any) -> Any:
        if words[0].device.type != "cpu" or torch.compiler.is_compiling():
            return rounds(*words)
        return tuple(_ops.threefry([torch.as_tensor(word) for word in words]))

    return call


def _threefry(words: list[torch.Tensor]) -> list[torch.Tensor]:
    found = host.threefry(*(word.numpy().astype(np.uint32) for word in words))
    return [torch.from_numpy(np.asarray(word, np.int64)) for word in found]


torch.library.define("multippo::threefry", "(Tensor[] words) -> Tensor[]")
torch.library.impl("multippo::threefry", "CompositeExplicitAutograd")(_threefry)
