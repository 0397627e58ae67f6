"""Distillation: a student network learns to act as a trained teacher does."""
