"""Settings of a distillation: frozen, keyword-only, checked when made."""

from __future__ import annotations

import dataclasses
from typing import Literal

from multippo.algorithms.config import EvalConfig, PPOConfig, TrainConfig, as_python, check_choice
from multippo.arguments import known_keywords, require


@known_keywords
@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationConfig:
    """Policy distillation (Rusu et al., 2015, arXiv:1511.06295), on the student's own rollouts.

    Fields other than ``loss`` mean what they do in ``PPOConfig``, and are checked alike.
    """

    loss: Literal["nll", "kl"] = "nll"
    """Loss. "nll": ``-log p_student(a | obs)`` of the action a that is the mode of the teacher's
    distribution: a Gaussian's mean, the most likely of discrete actions (the paper's equation 1). "kl":
    ``KL(p_teacher || p_student)`` in closed form (equation 3, with temperature 1), which teaches the whole
    distribution, its spread too; the one to choose for discrete actions."""

    num_envs: int | None = None
    """Environments stepped side by side, B; None: as many as there are, or 8 for an environment made by name."""

    rollout_length: int = 128
    """Steps every environment takes between two updates, T."""

    total_steps: int = 50_000
    """Environment steps to train for; rounded up to whole iterations of T x B."""

    learning_rate: float = 5e-4
    """Adam's step size at the start."""

    lr_schedule: Literal["constant", "linear", "cosine"] = "linear"
    """Change of the learning rate over the iterations."""

    learning_rate_warmup: int = 0
    """Iterations at the start over which the learning rate rises."""

    adam_betas: tuple[float, float] = (0.9, 0.999)
    """Adam's decay rates of the first and second moment."""

    adam_epsilon: float = 1e-5
    """Adam's epsilon."""

    weight_decay: float = 0.0
    """Decoupled weight decay."""

    gradient_clipping: float | None = 0.5
    """Largest global norm of the gradient; None does not clip."""

    num_epochs: int = 10
    """Passes over the rollout in one update."""

    num_minibatches: int = 4
    """Minibatches in one pass."""

    sequence_length: int | None = None
    """Steps of one training sequence, a divisor of ``rollout_length``; None: see ``PPOConfig``."""

    nonfinite: Literal["restart", "stop"] = "restart"
    """Reaction to a value of an environment that is not finite, see ``PPOConfig``."""

    def __post_init__(self) -> None:
        as_python(self)
        check_choice(self, "loss")
        check_choice(self, "lr_schedule")
        object.__setattr__(self, "adam_betas", self.as_ppo().adam_betas)

    def as_ppo(self) -> PPOConfig:
        """Settings of rollouts, minibatches and optimiser, which are PPO's; rewards have no part in them.

        Raises:
            ValueError: If a field has a value that is not possible.
        """
        shared = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "loss"}
        return PPOConfig(scale_rewards=False, normalize_advantages=False, **shared)


@known_keywords
@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationTrainConfig:
    """A whole distillation; the counterpart of ``TrainConfig``."""

    distillation: DistillationConfig = dataclasses.field(default_factory=DistillationConfig)
    """The algorithm."""

    eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)
    """Evaluation of the student during training."""

    seed: int = 0
    """Seed of resets, action noise and minibatch permutations."""

    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile on the torch engine, see ``TrainConfig``."""

    checkpoint_every_steps: int | None = None
    """Environment steps between two calls of ``checkpoint_fn``; None: only after the last iteration."""

    checkpoint_at_evals: bool = False
    """Call ``checkpoint_fn`` after every evaluation, too, see ``TrainConfig``."""

    log_every_steps: int = 0
    """Environment steps in one compiled call where everything can be compiled, see ``TrainConfig``."""

    def __post_init__(self) -> None:
        fits = isinstance(self.distillation, DistillationConfig)
        require(fits, "distillation", self.distillation, "a DistillationConfig")
        self.as_train()

    def as_train(self) -> TrainConfig:
        """Settings of the loop, which is PPO's.

        Raises:
            ValueError: If a field has a value that is not possible.
        """
        shared = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "distillation"}
        return TrainConfig(ppo=self.distillation.as_ppo(), **shared)
