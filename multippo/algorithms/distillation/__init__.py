"""Distillation: a student network learns to act as a trained teacher does."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multippo.algorithms.distillation.teacher import distillation_loss
    from multippo.algorithms.distillation.training import (
        DistillationConfig,
        DistillationTrainConfig,
        train_distillation,
    )

__all__ = ["DistillationConfig", "DistillationTrainConfig", "distillation_loss", "train_distillation"]


def __getattr__(name: str) -> Any:
    # Imported at first use: a run of PPO imports the teacher, and distillation imports that run.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    file = "teacher" if name == "distillation_loss" else "training"
    return getattr(importlib.import_module(f"{__name__}.{file}"), name)
