"""The action samplers under one name; they are written in ``multippo.networks.samplers``."""

from __future__ import annotations

from multippo.networks.samplers import (
    ActionSampler,
    BernoulliSampler,
    CategoricalSampler,
    MultiCategoricalSampler,
    NormalSampler,
    NormalTanhSampler,
)

__all__ = [
    "ActionSampler",
    "BernoulliSampler",
    "CategoricalSampler",
    "MultiCategoricalSampler",
    "NormalSampler",
    "NormalTanhSampler",
]
