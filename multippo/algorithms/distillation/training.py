"""``train_distillation``, which trains a student to act as a teacher does, and its settings."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Literal

from multippo.algorithms.config import EvalConfig, PPOConfig, TrainConfig, check_types
from multippo.algorithms.distillation.teacher import TargetFn, Teacher
from multippo.algorithms.progress import progress_where_seen
from multippo.algorithms.reports import LogFn
from multippo.algorithms.run import CheckpointFn, Run
from multippo.algorithms.types import TrainingState, TrainResult
from multippo.arguments import known_keywords
from multippo.envs.api import Env
from multippo.networks.core.error_paths import refuse_other_module


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

    remat_steps: int | None = None
    """Steps of a training sequence whose activations are kept at a time; None: all, see ``PPOConfig``."""

    nonfinite: Literal["restart", "stop"] = "restart"
    """Reaction to a value of an environment that is not finite, see ``PPOConfig``."""

    def __post_init__(self) -> None:
        check_types(self)
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
    """Environment steps after which metrics are fetched where everything is compiled, see ``TrainConfig``."""

    def __post_init__(self) -> None:
        check_types(self)
        self.as_train()

    def as_train(self) -> TrainConfig:
        """Settings of the loop, which is PPO's.

        Raises:
            ValueError: If a field has a value that is not possible.
        """
        shared = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "distillation"}
        return TrainConfig(ppo=self.distillation.as_ppo(), **shared)


def train_distillation(
    env: Any,
    teacher: Any,
    student: Any,
    config: DistillationTrainConfig | None = None,
    *,
    log_fn: LogFn | None = None,
    checkpoint_fn: CheckpointFn | None = None,
    eval_env: Any = None,
    initial_state: TrainingState | None = None,
    target_fn: TargetFn | None = None,
    progress: bool = True,
) -> TrainResult:
    """Trains a student to act as a frozen teacher does (Rusu et al., 2015, arXiv:1511.06295).

    Each iteration the *student* acts for T steps in each of B environments, so it learns in the states that it comes
    to itself; the paper learns from stored games of the teacher. The teacher, in its deterministic mode, is
    shown the same observations, with a carry of its own that is reset where an episode ends and goes on from one
    rollout to the next. Then the student descends, in epochs of minibatches over (environment, sequence) as in PPO,

        L = -mean log p_student(u_teacher | obs) + regularisation        for loss="nll"
        L = mean KL(p_teacher(. | obs) || p_student(. | obs)) + regularisation        for loss="kl"

    with u_teacher the mode of the teacher's distribution before squashing, and the student's own regularisation
    (entropy bonus, bottlenecks). The student's critic is not trained, but layers shared with the actor are.
    Its statistics move as in PPO, after the updates.

    The teacher's samples reach the student's samplers by their places in the two networks: where each has one sampler,
    they are a pair; several are paired by the keys on the way to them, such as those of the action space. Paired
    samplers must be of one class and size; all else about the networks may differ, their engines too. Where this does
    not suit, ``target_fn`` decides.

    Where the environment, the teacher and the student are on an engine that compiles all three, an iteration is one
    compiled call. A teacher of another engine is shown the observations by way of NumPy, once an iteration.

    Logged are ``losses/distillation``, ``losses/regularization``, ``losses/total``, ``kl/teacher`` (mean
    KL(teacher || student), where ``loss="nll"`` was not given a ``target_fn`` and the samplers report it), and
    ``train_ppo``'s metrics of episodes, speed and the network; no ratios.

    Args:
        env: An environment from ``make_env``, or anything ``make_env`` takes.
        teacher: A StatefulModule with samplers, on any engine. Neither its weights, statistics and keys nor its mode
            are changed.
        student: The network to be trained, with a ``PPONetworkOutput``. It holds the trained weights afterwards.
        config: All settings; ``DistillationTrainConfig()`` by default.
        log_fn: See ``train_ppo``.
        checkpoint_fn: See ``train_ppo``; ``save_checkpoint`` takes the state with the student as its network.
        eval_env: See ``train_ppo``; the student is evaluated.
        initial_state: State to continue from, with the same teacher and a student built the same way.
        target_fn: ``target_fn(teacher_extras, student_extras)`` returns the student's snapshots for replay: a tree
            like ``student_extras`` with the samplers' entries replaced by the teacher's. Both are the snapshots of the
            networks' modules in the rollout, trees like their carries with leaves ``[T, B, ...]`` in the student's
            arrays. With ``loss="kl"`` the teacher's samplers emit a ``Lesson`` instead of an array, which is to be
            moved as a whole. A target in a wrong place of the right shape goes unnoticed: let the function check
            its assumptions.
        progress: See ``train_ppo``.

    Returns:
        The last state and metrics.

    Raises:
        ValueError: If teacher, student, environment, settings or ``initial_state`` do not fit together; before the
            first environment step.
        TypeError: If an argument, or a network's output, is of the wrong type; likewise.
        NonFiniteError: See ``train_ppo``.
        KeyboardInterrupt: See ``train_ppo``.
        Terminated: See ``train_ppo``.
    """
    config = DistillationTrainConfig() if config is None else config
    _check(teacher, student, config)

    def make_teacher(made_env: Env) -> Teacher:
        return Teacher(teacher, student, config.distillation.loss, target_fn, made_env.may_skip)

    with contextlib.ExitStack() as made:
        run = Run(env, student, config.as_train(), log_fn, checkpoint_fn, eval_env, initial_state, made, make_teacher)
        run.progress = made.enter_context(progress_where_seen(progress, run.ppo.total_steps, run.ppo.num_iterations))
        return run.go()


def _check(teacher: Any, student: Any, config: Any) -> None:
    for role, network in (("teacher", teacher), ("student", student)):
        refuse_other_module("train_distillation", network, role)
    if not isinstance(config, DistillationTrainConfig):
        raise TypeError(
            "train_distillation needs a DistillationTrainConfig(distillation=DistillationConfig(...)); got a "
            f"{type(config).__name__}."
        )
    # Arrays are compared and not modules: with_recording(teacher) is another module that shares all arrays.
    moved = {id(leaf.holder) for leaf in student.engine.leaves(student).values()}
    shared = [name for name, leaf in teacher.engine.leaves(teacher).items() if id(leaf.holder) in moved]
    if shared:
        raise ValueError(
            f"The student and the teacher share the array {shared[0]}, so training the student would change the "
            "teacher. Build them apart; load_portable(student, to_portable(teacher)) copies its weights."
        )
