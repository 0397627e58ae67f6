"""Distillation: a student network learns to act as a trained teacher does."""

from multippo.algorithms.distillation.distillation_config import DistillationConfig, DistillationTrainConfig
from multippo.algorithms.distillation.teacher import distillation_loss
from multippo.algorithms.distillation.training import train_distillation

__all__ = ["DistillationConfig", "DistillationTrainConfig", "distillation_loss", "train_distillation"]
