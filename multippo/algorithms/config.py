"""Settings of a training run: frozen, keyword-only, checked when made."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from multippo.arguments import is_integer, is_number, known_keywords, require

_Class = TypeVar("_Class")

DEFAULT_NUM_ENVS = 8
"""Default number of environments."""


_MOST_ENVS, _MOST_STEPS = 2**20, 2**24
"""Environments, and steps of a rollout: more would take minutes to make, and memory without end."""


_hints = functools.cache(get_type_hints)


def check_types(config: Any) -> None:
    """Raises a ValueError unless truth values, choices and settings within settings are of their fields' types.

    NumPy's numbers become Python's: a size may come from an array's shape or a sweep over ``np.logspace``.
    """
    for field, hint in _hints(type(config)).items():
        value = getattr(config, field)
        if isinstance(value, np.generic):
            value = value.item()
            object.__setattr__(config, field, value)
        if get_origin(hint) is Literal:
            choices = get_args(hint)
            fits = isinstance(value, str) and value in choices
            require(fits, field, value, f"one of {', '.join(map(repr, choices))}")
        elif hint is bool:
            require(isinstance(value, bool), field, value, "True or False")
        elif isinstance(hint, type) and dataclasses.is_dataclass(hint):
            require(isinstance(value, hint), field, value, f"{hint.__name__}(...)")


def _check(config: Any, fields: Iterable[str], expected: str, holds: Callable[[Any], bool]) -> None:
    """Raises a ValueError unless a condition holds of fields; None will do where the field's type has it."""
    hints = _hints(type(config))
    for field in fields:
        value, optional = getattr(config, field), type(None) in get_args(hints[field])
        fits = (optional and value is None) or holds(value)
        require(fits, field, value, f"{expected}, or None" if optional else expected)


def _positive_int(config: Any, *fields: str, most: float = math.inf) -> None:
    limit = "" if most == math.inf else f", at most {most}"
    _check(config, fields, f"an integer of at least 1{limit}", lambda value: is_integer(value, 1) and value <= most)


@known_keywords
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
    """Environment steps to train for; rounded up to whole iterations of T x B, so a run may take up to T x B - 1 more.
    ``TrainResult.total_steps`` is the number taken, without those in which an environment only reset itself (``valid``
    False), so it may be lower. Steps taken before a run was continued count as well."""

    discounting_factor: float = 0.99
    """gamma, in [0, 1]."""

    gae_lambda: float = 0.98
    """lambda of generalised advantage estimation (Schulman et al., 2016, arXiv:1506.02438), in [0, 1]. The larger, the
    further ahead a consequence may lie, and the noisier the estimate; 0.95 is common for dense rewards."""

    recompute_advantages: bool = False
    """Estimate advantages and value targets again before each epoch, with the critic's weights of that moment
    (Andrychowicz et al., 2021, arXiv:2006.05990, section 3.5), instead of once an iteration. The values of final
    observations, where an episode was cut, stay those of the rollout: the observations are not stored."""

    clip_range: float = 0.2
    """epsilon of the clipped surrogate objective (2017, equation 7)."""

    value_clip_range: float | None = None
    """Distance from the value estimate at rollout time to which later ones are clipped: the value loss is the larger of
    the squared errors with and without clipping, as in OpenAI Baselines' PPO2; None does not clip. In units of the
    returns that are learnt (see ``scale_rewards``)."""

    learning_rate: float = 5e-4
    """Adam's step size at the start."""

    lr_schedule: Literal["constant", "linear", "cosine", "adaptive_kl"] = "linear"
    """Change of the learning rate over the iterations: not at all, in a line to 0 (Schulman et al., 2017,
    table 5), along half a cosine to 0 (Loshchilov and Hutter, 2017, arXiv:1608.03983, equation 5, without restarts), or
    by how far the policy moved (see ``desired_kl``). Lines and cosines end with ``total_steps``; a run continued with
    more goes on at the rate that a run of that length would have had."""

    learning_rate_warmup: int = 0
    """Iterations at the start over which the learning rate rises in a line to what the schedule says, (i + 1) / (n + 1)
    of it in iteration i of n (gradual warm-up: Goyal et al., 2017, arXiv:1706.02677, section 2.2)."""

    desired_kl: float = 0.01
    """KL divergence that ``lr_schedule="adaptive_kl"`` aims at; refused in the other schedules. After an iteration in
    which the mean approximate divergence of the minibatches was above twice this, the rate is divided by 1.5; below
    half of this (and not 0), multiplied by 1.5. The rule is that of rsl_rl (Rudin et al., 2022, arXiv:2109.11978),
    applied there after each minibatch, to the divergence in closed form. The mean is over all minibatches looked at, of
    which the first has divergence 0; where there is only one, the rate stays. With ``target_kl`` the minibatch that
    stopped the epochs is among them, so the rate may move after a stop."""

    min_learning_rate: float = 1e-5
    """Lower bound of the rate of ``lr_schedule="adaptive_kl"``; refused in the other schedules."""

    max_learning_rate: float = 1e-2
    """Upper bound of the rate of ``lr_schedule="adaptive_kl"``; refused in the other schedules."""

    adam_betas: tuple[float, float] = (0.9, 0.999)
    """Adam's decay rates of the first and second moment, in [0, 1)."""

    adam_epsilon: float = 1e-5
    """Adam's epsilon, outside the square root (Kingma and Ba, 2015, arXiv:1412.6980, algorithm 1); the default is not
    the paper's 1e-8 but what OpenAI Baselines' PPO2 has."""

    weight_decay: float = 0.0
    """Decoupled weight decay (AdamW, Loshchilov and Hutter, 2019, arXiv:1711.05101): each step takes learning rate x
    this x the parameter off it."""

    gradient_clipping: float | None = 0.5
    """Largest global norm of the gradient (Pascanu et al., 2013, arXiv:1211.5063); None does not clip."""

    normalize_advantages: bool = True
    """Scale advantages to mean 0 and (population) standard deviation 1, as OpenAI Baselines' PPO2 does (Andrychowicz et
    al., 2021, arXiv:2006.05990, section 3.3, compare it with none)."""

    advantage_normalization: Literal["minibatch", "batch"] = "minibatch"
    """Entries that ``normalize_advantages``, which must be on, takes together: each minibatch's, or all of the
    rollout's before they are cut into minibatches."""

    combine_advantages: Literal["sum", "mean", "separate"] = "sum"
    """Use of several rewards, in a tree: add (or average) their advantages to one for every action, or let each key of
    the action tree learn from the advantage of the same key."""

    scale_rewards: bool = True
    """Divide rewards by the running standard deviation of the discounted return (Engstrom et al., 2020,
    arXiv:2005.12729, section 3), for the loss alone: metrics stay in the environment's units. ``reward/scale`` logs the
    divisor."""

    reward_clip: float | None = None
    """Clip rewards to this distance from 0, after any scaling and for the loss alone, as OpenAI Baselines' VecNormalize
    does at 10; None does not clip. ``reward/clip_fraction`` logs the share that was clipped."""

    entropy_weight: float | None = None
    """Weight of the policy's entropy in the loss (2017, equation 9; the bonus is that of Williams and Peng, 1991,
    Connection Science 3), for all samplers of the network, which must have none of their own; None: the weight that
    each sampler was made with."""

    entropy_schedule: Literal["constant", "linear"] = "constant"
    """Change of ``entropy_weight`` over the iterations: not at all, or in a line to 0, as the learning rate does."""

    num_epochs: int = 10
    """Passes over the rollout in one update."""

    num_minibatches: int = 4
    """Minibatches in one pass."""

    sequence_length: int | None = None
    """Steps of one training sequence, a divisor of ``rollout_length``, over which gradients go back (truncated
    backpropagation through time, Williams and Peng, 1990, Neural Computation 2), from the carry that the rollout had
    there. None: 1 where the network has no memory, else the longest that still gives every minibatch the same number of
    sequences."""

    remat_steps: int | None = None
    """Steps of a training sequence whose activations are kept at a time: those of a longer one are computed once more
    in the backward pass, from the carry before every so many steps (rematerialisation, or checkpointing: Chen et al.,
    2016, arXiv:1604.06174; in time: Gruslys et al., 2016, arXiv:1606.03401), which takes less memory and gives the
    same to rounding. None keeps all."""

    critic_loss_weight: float = 0.5
    """Weight of the value loss."""

    target_kl: float | None = None
    """Stop an update's epochs once the approximate KL divergence of a minibatch exceeds this, before the step of that
    minibatch is taken; None never stops. ``update/minibatches`` logs the number of steps taken, ``kl/stop`` the
    divergence that exceeded this. OpenAI's Spinning Up (2018) stops at 1.5 times its ``target_kl``; the estimate of the
    divergence, ``mean((rho - 1) - log rho)``, is Schulman's (2020, "Approximating KL divergence", k3)."""

    nonfinite: Literal["restart", "stop"] = "restart"
    """Reaction to an observation or a reward that is not finite: cut and restart that episode, leave the step out of
    the loss, and count it in ``rollout/nonfinite_steps`` (the run stops nevertheless if every environment has such a
    step in one rollout, or the environment can't be restarted); or stop the run, naming environment, step and leaf. An
    episode that begins with such a value is reset again, and counted in the same metric; a functional environment takes
    another of its starts. A loss or gradient that is not finite always stops the run."""

    def __post_init__(self) -> None:
        if isinstance(self.combine_advantages, bool):  # nnx-ppo's
            object.__setattr__(self, "combine_advantages", "sum" if self.combine_advantages else "separate")
        check_types(self)
        _positive_int(self, "total_steps", "num_epochs", "num_minibatches", "sequence_length", "remat_steps")
        _positive_int(self, "rollout_length", most=_MOST_STEPS)
        _positive_int(self, "num_envs", most=_MOST_ENVS)
        _check(self, ["learning_rate_warmup"], "an integer of at least 0", lambda value: is_integer(value, 0))
        shares = ("discounting_factor", "gae_lambda")
        _check(self, shares, "a number in [0, 1]", lambda value: is_number(value) and 0 <= value <= 1)
        weights = ("learning_rate", "weight_decay", "critic_loss_weight", "entropy_weight")
        _check(self, weights, "a finite number of at least 0", lambda value: is_number(value) and value >= 0)
        bounds = ("clip_range", "value_clip_range", "gradient_clipping", "target_kl", "reward_clip", "adam_epsilon")
        positive = (*bounds, "desired_kl", "min_learning_rate", "max_learning_rate")
        _check(self, positive, "a finite number above 0", lambda value: is_number(value) and value > 0)
        betas: Any = self.adam_betas
        ok = isinstance(betas, tuple | list) and len(betas) == 2 and all(is_number(b) and 0 <= b < 1 for b in betas)
        require(ok, "adam_betas", betas, "two numbers in [0, 1)")
        # JSON has lists only, and torch takes no integer.
        object.__setattr__(self, "adam_betas", tuple(float(beta) for beta in betas))
        self._check_learning_rate()
        if self.entropy_schedule != "constant" and self.entropy_weight is None:
            raise ValueError(
                f"entropy_schedule={self.entropy_schedule!r} needs an entropy_weight to start from, which is None: "
                "give one, such as entropy_weight=0.01; it takes the place of the samplers' own weights."
            )
        for field in ("desired_kl", "min_learning_rate", "max_learning_rate"):
            self._refuse_without_effect(field, "lr_schedule", "adaptive_kl")
        self._refuse_without_effect("advantage_normalization", "normalize_advantages", True)
        if self.sequence_length is not None and self.rollout_length % self.sequence_length:
            raise ValueError(
                f"sequence_length={self.sequence_length} does not divide rollout_length={self.rollout_length}; "
                "choose a divisor, or leave it unset."
            )
        if self.num_envs is not None:
            self._check_minibatches(self.num_envs)

    def _refuse_without_effect(self, field: str, other: str, needed: Any) -> None:
        """Refuses a field with another value than its default where it has no effect."""
        value, default = getattr(self, field), getattr(type(self), field)
        if value != default and getattr(self, other) != needed:
            raise ValueError(
                f"{field}={value!r} has no effect with {other}={getattr(self, other)!r}: set {other}={needed!r}, or "
                f"leave {field} at its default, {default!r}."
            )

    def _check_learning_rate(self) -> None:
        low, high = self.min_learning_rate, self.max_learning_rate
        require(low <= high, "min_learning_rate", low, f"at most max_learning_rate={high!r}")
        if self.lr_schedule == "adaptive_kl":
            rate = self.learning_rate
            expected = f"for lr_schedule='adaptive_kl' one between min_learning_rate={low!r} and {high!r}, the largest"
            require(low <= rate <= high, "learning_rate", rate, expected)

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


def _enabled_by_any_field(cls: type[_Class]) -> type[_Class]:
    """Makes ``enabled`` true by default where any field is given."""
    init: Any = cls.__init__

    @functools.wraps(init)
    def call(self: Any, *args: Any, **fields: Any) -> None:
        init(self, *args, **{"enabled": bool(fields), **fields})

    cls.__init__ = call
    return cls


@_enabled_by_any_field
@known_keywords
@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Evaluation during training: whole episodes, seeds of their own, nothing of the training state touched.

    Any field that is given switches evaluations on, ``EvalConfig(every_steps=10_000)`` say, unless ``enabled=False`` is
    given as well. ``dataclasses.replace`` gives all fields, and so leaves ``enabled`` as it is.
    """

    enabled: bool = False
    """Evaluate during training; on by default if any other field is given."""

    every_steps: int = 25_000
    """Environment steps between two evaluations; one more follows the last iteration."""

    num_episodes: int = 20
    """Whole episodes in one evaluation."""

    num_envs: int = 20
    """Environments the episodes are played in side by side; each plays its share of whole episodes."""

    max_episode_steps: int | None = None
    """Steps after which an episode is given up; None: the environment's own limit, or 10,000."""

    deterministic: bool = True
    """Act with the mode of the action distribution; otherwise sample."""

    def __post_init__(self) -> None:
        check_types(self)
        _positive_int(self, "every_steps", "num_episodes", "max_episode_steps")
        _positive_int(self, "num_envs", most=_MOST_ENVS)


@known_keywords
@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A whole training run."""

    ppo: PPOConfig = dataclasses.field(default_factory=PPOConfig)
    """The algorithm."""

    eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)
    """Evaluation during training."""

    seed: int = 0
    """Seed of resets, action noise and minibatch permutations (the initial weights come from the network's Rngs)."""

    compile: Literal["auto", "on", "off", "reduce-overhead"] = "auto"
    """torch.compile on the torch engine: ``auto`` compiles on CUDA only, where it pays, and on a CPU repeats the
    operations recorded in the first gradient step; with ``off`` every module is called in every step, as hooks want it;
    ``reduce-overhead`` also has CUDA graphs launch what is compiled. JAX always compiles."""

    checkpoint_every_steps: int | None = None
    """Environment steps between two calls of ``checkpoint_fn``; None: only after the last iteration."""

    checkpoint_at_evals: bool = False
    """Call ``checkpoint_fn`` after every evaluation, too, so that the best of the networks evaluated can be kept (see
    ``CheckpointFolder``)."""

    log_every_steps: int = 0
    """Environment steps after which metrics are fetched from the device, on JAX with a functional environment: rounded
    down to whole iterations, at least one, and an evaluation or a checkpoint comes first. 0 for as many iterations as
    take half a second. Nothing else depends on it: ``log_fn`` gets each iteration's metrics and weights. Elsewhere
    every iteration is logged as it ends."""

    def __post_init__(self) -> None:
        check_types(self)
        require(is_integer(self.seed, 0) and self.seed < 2**63, "seed", self.seed, "an integer in [0, 2**63)")
        _positive_int(self, "checkpoint_every_steps")
        _check(self, ["log_every_steps"], "an integer of at least 0", lambda value: is_integer(value, 0))
