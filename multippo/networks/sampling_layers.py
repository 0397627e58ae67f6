"""The action samplers of ``multippo.networks.samplers`` under one name."""

from __future__ import annotations

from multippo.networks.samplers.base import ActionSampler
from multippo.networks.samplers.discrete import BernoulliSampler, CategoricalSampler, MultiCategoricalSampler
from multippo.networks.samplers.gaussian import NormalSampler, NormalTanhSampler

__all__ = [
    "ActionSampler",
    "BernoulliSampler",
    "CategoricalSampler",
    "MultiCategoricalSampler",
    "NormalSampler",
    "NormalTanhSampler",
]
