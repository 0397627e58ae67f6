"""Data of training.

Legend of axes: ``T`` rollout length, ``B`` environments, ``L`` steps of a training sequence, ``S`` sequences.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from multippo.algorithms.metric_names import RETURN
from multippo.algorithms.metrics import plot_metric
from multippo.backends.registry import engine_of_array

if TYPE_CHECKING:
    from multippo.policy.policy import Policy

_PARTS = ("definition", "params", "variables")
"""Fields of a ``TrainingState`` that an engine's ``split`` makes of a network."""


Episodes = Sequence[Sequence[float | None]]
"""Return and length of each of some episodes, in the order of their ends; None for what overflowed before a save."""


class Transition(NamedTuple):
    """A rollout, ``[T, B, ...]``.

    Attributes:
        obs: The policy's observation at each step.
        network_output: The ``PPONetworkOutput`` at each step.
        rewards: Reward of each step; a tree where the environment's reward is one.
        terminated: True where the step ended its episode in a state of value zero.
        truncated: True where the step ended its episode by a cut.
        done: True where the step ended its episode, either way.
        valid: False where an environment only reset itself.
        metrics: The environment's reports beside the reward.
        rollout_extras: The modules' snapshots, for replay.
        bootstrap_values: V of the final observation, under the carry from before the reset, where ``truncated``;
            0 elsewhere. Keyed like the value estimates.
        broken: Above 0 where the step gave a value that is not finite, below 0 where the start after it did (see
            ``EnvState``); None if it is not known.
        targets: The teacher's samples, which a distillation replays in place of ``rollout_extras``; else None.
    """

    obs: Any
    network_output: Any
    rewards: Any
    terminated: Any
    truncated: Any
    done: Any
    valid: Any
    metrics: Any
    rollout_extras: Any
    bootstrap_values: Any
    broken: Any = None
    targets: Any = None

    @property
    def counted(self) -> Any:
        """``[T, B]`` bool: the steps that enter the loss, valid and not broken."""
        return self.valid if self.broken is None else self.valid & (self.broken <= 0)


class EpisodeState(NamedTuple):
    """Running sums of the episodes under way.

    Attributes:
        reward: ``[B]`` rewards so far.
        length: ``[B]`` steps so far.
        scale: Moments of the discounted return (``RewardScale``, one for each leaf of the rewards), or None where
            rewards are not scaled.
    """

    reward: Any
    length: Any
    scale: Any = None


class Sequences(NamedTuple):
    """A rollout cut into ``S`` training sequences of ``L`` steps; ``[L, S, ...]``, carries ``[S, ...]``.

    Attributes:
        network_state: Carry that each sequence starts from.
        obs: Observations.
        done: True where the carry is reset after the step.
        valid: True for entries that count.
        rollout_extras: Snapshots.
        loglikelihoods: Log-likelihoods of the actions under the policy that sampled them.
        value_estimates: Value estimates at rollout time.
        advantages: Advantages, keyed like the value estimates.
        returns: Targets of the value estimates, keyed like them.
    """

    network_state: Any
    obs: Any
    done: Any
    valid: Any
    rollout_extras: Any
    loglikelihoods: Any
    value_estimates: Any
    advantages: Any
    returns: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingState:
    """State of a run after an iteration. Arrays are copies that training does not change later.

    Attributes:
        definition: Structure of the network, which the engine's ``merge`` takes with the arrays.
        params: The trained arrays.
        variables: The tracked arrays (statistics).
        optimizer_state: Moments and step count.
        network_state: Carry of every training environment.
        env_state: State of the training environments; complete for functional ones, the last output for host ones.
        episodes: Sums of the episodes under way.
        learning_rate: Learning rate of the next iteration, where the schedule is ``"adaptive_kl"``; else None.
        teacher_carry: Leaves of the teacher's carry in a distillation, in NumPy; else None.
        key: The run's key, from which every iteration's is derived.
        iteration: Iterations finished.
        step: Environment steps taken.
        planned_steps: Steps of the iterations finished, resets of environments included; None: as many as the config
            of the continued run takes in as many iterations.
        eval_return: Mean return of the evaluation made after the last iteration; None if there was none.
        eval_due: True if a signal prevented the evaluation after the last iteration.
        recent_episodes: Return and length of each of the last 100 episodes that ended in training.
    """

    definition: Any = dataclasses.field(repr=False)
    params: Any = dataclasses.field(repr=False)
    variables: Any = dataclasses.field(repr=False)
    optimizer_state: Any = dataclasses.field(repr=False)
    network_state: Any = dataclasses.field(repr=False)
    env_state: Any = dataclasses.field(repr=False)
    episodes: EpisodeState = dataclasses.field(repr=False)
    key: Any = dataclasses.field(repr=False)
    iteration: int
    step: int
    learning_rate: float | None = None
    teacher_carry: list[Any] | None = dataclasses.field(default=None, repr=False)
    planned_steps: int | None = None
    eval_return: float | None = None
    eval_due: bool = False
    recent_episodes: Episodes = dataclasses.field(default=(), repr=False)

    def network(self) -> Any:
        """A network of its own with the state's weights."""
        engine = engine_of_array(self.key)
        network = copy.deepcopy(engine.merge(self.definition, self.params, self.variables))
        engine.update_module(network, self.params, self.variables)
        return network

    def __getstate__(self) -> dict[str, Any]:
        """The fields, with a network in place of its parts, not all of which pickle and copy find."""
        fields = {name: value for name, value in vars(self).items() if name not in _PARTS}
        return {**fields, "network": self.network()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Sets the fields from those of ``__getstate__``."""
        network = state["network"]
        parts = network.engine.split(network)
        vars(self).update({name: value for name, value in state.items() if name != "network"})
        vars(self).update(zip(_PARTS, (parts[0], *network.engine.snapshot(parts[1:])), strict=True))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainResult:
    """Result of ``train_ppo``. The network passed in holds the trained weights.

    Attributes:
        training_state: State after the last iteration; the ``initial_state`` of a continued run.
        final_metrics: The last metrics logged.
        eval_history: Metrics of every evaluation, in order.
        total_steps: Environment steps taken, those before the run was continued included. Not always
            ``PPOConfig.total_steps``: iterations are whole, so the last may go beyond it, and steps in which an
            environment only reset itself are not counted.
        total_iterations: Iterations finished, those before the run was continued included.
        history: What ``log_fn`` gets, in order; of more than 10,000 records some, spread over the run.
        spaces: Spaces of an observation and an action, as the environment gives and takes them.
    """

    training_state: TrainingState = dataclasses.field(repr=False)
    final_metrics: dict[str, float]
    eval_history: list[dict[str, float]]
    total_steps: int
    total_iterations: int
    history: list[dict[str, float]] = dataclasses.field(default_factory=list, repr=False)
    spaces: tuple[Any, Any] = dataclasses.field(repr=False)

    def plot(self, metric: str = RETURN) -> Any:
        """Matplotlib's figure of a metric over environment steps, which a notebook shows; ``savefig`` writes it."""
        return plot_metric({"": [self.history]}, metric)

    def policy(self, *, backend: str | None = None, deterministic: bool = True, seed: int = 0) -> Policy:
        """The trained policy for use in the environment's own coordinates; see ``multippo.load_policy``."""
        from multippo.policy.policy import make_policy

        network = self.training_state.network()
        return make_policy(network, *self.spaces, backend=backend, deterministic=deterministic, seed=seed)


class LoggingLevel(enum.Flag):
    """Names for nnx-ppo's programmes, without effect: everything is logged."""

    LOSSES = CRITIC_EXTRA = ACTOR_EXTRA = ROLLOUT_STATS = ROLLOUT_OBS = ENV_METRICS = enum.auto()
    NETWORK_METRICS = GRAD_NORM = WEIGHTS = THROUGHPUT = BASIC = ALL = LOSSES
    NONE = 0
