"""What a training run can be told: frozen, keyword-only, checked when made."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

__all__ = ["DEFAULT_NUM_ENVS", "EvalConfig", "PPOConfig", "TrainConfig"]

DEFAULT_NUM_ENVS = 8
"""How many copies of an environment made by name there are, if nobody says."""


def _require(condition: bool, field: str, received: Any, expected: str) -> None:
    if not condition:
        raise ValueError(f"{field}={received!r} is not possible: expected {expected}.")


def _positive_int(config: Any, *fields: str) -> None:
    for field in fields:
        value = getattr(config, field)
        ok = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        _require(ok, field, value, "an integer of at least 1")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Proximal policy optimisation (Schulman et al., 2017, arXiv:1707.06347).

    The defaults are meant for a small task on a CPU with 8 environments.
    """

    num_envs: int | None = None
    """Environments stepped side by side, B. None: as many as the environment passed in has, or 8 for one made by
    name."""

    rollout_length: int = 128
    """Steps every environment takes between two updates, T."""

    total_steps: int = 50_000
    """Environment steps to train for; rounded up to whole iterations of T x B."""

    discounting_factor: float = 0.99
    """gamma, in [0, 1]."""

    gae_lambda: float = 0.95
    """lambda of generalised advantage estimation (Schulman et al., 2016, arXiv:1506.02438), in [0, 1]."""

    clip_range: float = 0.2
    """epsilon of the clipped surrogate objective (2017, equation 7)."""

    value_clip_range: float | None = None
    """Clip the value estimate to this distance from the one at rollout time; None does not."""

    learning_rate: float = 5e-4
    """Adam's step size at the start."""

    lr_schedule: Literal["constant", "linear", "cosine"] = "linear"
    """How the learning rate falls over the iterations: not at all, in a line to 0, or along half a cosine to 0."""

    adam_epsilon: float = 1e-5
    """Adam's epsilon."""

    weight_decay: float = 0.0
    """Decoupled weight decay (AdamW)."""

    gradient_clipping: float | None = 0.5
    """Largest global norm of the gradient; None does not clip."""

    normalize_advantages: bool = True
    """Scale each minibatch's advantages to mean 0 and (population) standard deviation 1."""

    combine_advantages: Literal["sum", "mean", "separate"] = "sum"
    """Rewards in a tree: add (or average) the per-key advantages to one for every action, or let each key of the
    action tree learn from the advantage of the same key."""

    scale_rewards: bool = True
    """Divide rewards by the running standard deviation of the discounted return, for the loss alone: what is logged
    stays in the environment's units (see ``reward_scaling``)."""

    num_epochs: int = 10
    """Passes over the rollout in one update."""

    num_minibatches: int = 4
    """Minibatches in one pass."""

    sequence_length: int | None = None
    """Steps of one training sequence, a divisor of ``rollout_length``. None: 1 where the network has no memory, else
    the longest that still gives every minibatch the same number of sequences."""

    critic_loss_weight: float = 0.5
    """Weight of the value loss."""

    target_kl: float | None = None
    """Stop an update's epochs once the approximate KL divergence of a minibatch exceeds this; None never does."""

    def __post_init__(self) -> None:
        _positive_int(self, "rollout_length", "total_steps", "num_epochs", "num_minibatches")
        if self.num_envs is not None:
            _positive_int(self, "num_envs")
        for field in ("discounting_factor", "gae_lambda"):
            value = getattr(self, field)
            _require(_is_number(value) and 0 <= value <= 1, field, value, "a number in [0, 1]")
        for field in ("learning_rate", "weight_decay", "critic_loss_weight"):
            value = getattr(self, field)
            _require(_is_number(value) and value >= 0, field, value, "a finite number of at least 0")
        for field in ("clip_range", "adam_epsilon"):
            value = getattr(self, field)
            _require(_is_number(value) and value > 0, field, value, "a finite number above 0")
        for field in ("value_clip_range", "gradient_clipping", "target_kl"):
            value = getattr(self, field)
            _require(
                value is None or (_is_number(value) and value > 0), field, value, "a finite number above 0, or None"
            )
        _require(
            self.lr_schedule in ("constant", "linear", "cosine"),
            "lr_schedule",
            self.lr_schedule,
            "'constant', 'linear' or 'cosine'",
        )
        _require(
            self.combine_advantages in ("sum", "mean", "separate"),
            "combine_advantages",
            self.combine_advantages,
            "'sum', 'mean' or 'separate'",
        )
        if self.sequence_length is not None:
            _positive_int(self, "sequence_length")
            if self.rollout_length % self.sequence_length:
                raise ValueError(
                    f"sequence_length={self.sequence_length} does not divide rollout_length={self.rollout_length}; "
                    "choose a divisor, or leave it unset."
                )
        if self.num_envs is not None:
            self._check_minibatches(self.num_envs)

    def _check_minibatches(self, num_envs: int) -> None:
        length = self.sequence_length or 1
        sequences = num_envs * (self.rollout_length // length)
        if sequences % self.num_minibatches:
            raise ValueError(
                f"num_envs={num_envs} x rollout_length={self.rollout_length} gives {sequences} sequences of "
                f"{length} steps, which can't be split into num_minibatches={self.num_minibatches} equal parts; "
                f"choose num_minibatches among the divisors of {sequences}"
                + (f", or a sequence_length shorter than {length}." if length > 1 else ".")
            )

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps in one rollout, T x B."""
        if self.num_envs is None:
            raise ValueError("num_envs is not set; it is known once the configuration meets an environment.")
        return self.num_envs * self.rollout_length

    @property
    def num_iterations(self) -> int:
        """Rollouts and updates in a whole run."""
        return math.ceil(self.total_steps / self.steps_per_iteration)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Evaluation during training: whole episodes, own seeds, nothing of the training state touched."""

    enabled: bool = False
    """Whether to evaluate during training."""

    every_steps: int = 25_000
    """Environment steps between two evaluations; one more follows the last iteration."""

    num_episodes: int = 20
    """Whole episodes in one evaluation."""

    num_envs: int = 20
    """Environments the episodes are played in side by side; each plays its share of whole episodes."""

    max_episode_steps: int | None = None
    """Give up on an episode after this many steps; None: the environment's own limit, or 10,000."""

    deterministic: bool = True
    """Act with the mode of the action distribution; otherwise sample."""

    def __post_init__(self) -> None:
        _positive_int(self, "every_steps", "num_episodes", "num_envs")
        if self.max_episode_steps is not None:
            _positive_int(self, "max_episode_steps")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A whole training run."""

    ppo: PPOConfig = dataclasses.field(default_factory=PPOConfig)
    """The algorithm."""

    eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)
    """Evaluation during training."""

    seed: int = 0
    """Seed of resets, action noise and minibatch permutations (the initial weights come from the network's Rngs)."""

    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile on the torch engine: ``auto`` compiles on CUDA only, where it pays. JAX always compiles."""

    checkpoint_every_steps: int | None = None
    """Environment steps between two calls of ``checkpoint_fn``; None: only after the last iteration."""

    log_every_steps: int = 0
    """On JAX with a functional environment, how many environment steps run inside one compiled call: rounded down to
    whole iterations, of which there is at least one. ``log_fn`` is called for each of them afterwards; evaluations and
    checkpoints wait as well. Elsewhere every iteration is logged as it ends."""

    def __post_init__(self) -> None:
        _require(isinstance(self.ppo, PPOConfig), "ppo", self.ppo, "a PPOConfig")
        _require(isinstance(self.eval, EvalConfig), "eval", self.eval, "an EvalConfig")
        ok = isinstance(self.seed, int) and not isinstance(self.seed, bool) and 0 <= self.seed < 2**63
        _require(ok, "seed", self.seed, "an integer in [0, 2**63)")
        _require(self.compile in ("auto", "on", "off"), "compile", self.compile, "'auto', 'on' or 'off'")
        if self.checkpoint_every_steps is not None:
            _positive_int(self, "checkpoint_every_steps")
        ok = isinstance(self.log_every_steps, int) and self.log_every_steps >= 0
        _require(ok, "log_every_steps", self.log_every_steps, "an integer of at least 0")
