"""Level 1 for networks: a replay before any update repeats the rollout, each engine alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from multippo.trees import named_leaves, tree_leaves, tree_map

from ..evidence.deviations import Deviation, compare, portable_deviation, worst_of
from ..evidence.network_evidence import DISCOUNT, GAE_LAMBDA, NetworkEvidence
from ..evidence.training_evidence import TrainingEvidence
from ..specimens.scripted_environment import sum_of_actions
from .check import Check


def _replay(field: str) -> Any:
    def measure(evidence: NetworkEvidence) -> Deviation:
        transition = evidence.rollout.transition
        stored = getattr(transition.network_output, field)
        return compare(getattr(evidence.replayed, field), stored, mask=transition.valid)

    return measure


def _replay_keeps_actions(evidence: NetworkEvidence) -> Deviation:
    """Distance of the action evaluated under other weights from the one taken."""
    transition = evidence.rollout.transition
    moved = evidence.replayed_under_other_weights
    if compare(moved.value_estimates, evidence.replayed.value_estimates).worst == 0.0:
        return Deviation(np.inf, "", "other weights gave the same values; the check is void")
    return compare(moved.actions, transition.network_output.actions, mask=transition.valid)


def _rollout_acted(evidence: NetworkEvidence) -> Deviation:
    """Distance of the stored actions from those that the environment received, each at its step."""
    transition = evidence.rollout.transition
    actions = tree_map(lambda a: np.reshape(a, (-1, *a.shape[2:])), transition.network_output.actions)
    expected = np.reshape(sum_of_actions(actions), transition.valid.shape)
    return compare(transition.metrics["acted"], expected)


def _network_writes_nothing(evidence: NetworkEvidence) -> Deviation:
    assert evidence.replayed is not None  # acts and replays, so that writes are noted
    return worst_of(portable_deviation(after, evidence.arrays) for after in evidence.arrays_after.values())


def _advantage_recurrence(evidence: NetworkEvidence) -> Deviation:
    """Distance of the advantages from their definition, computed backwards step by step in double precision."""
    transition, found = evidence.rollout.transition, []
    values, v_last = transition.network_output.value_estimates, evidence.rollout.v_last
    parts = map(tree_leaves, (transition.rewards, values, v_last, transition.bootstrap_values))
    for (name, got), *leaves in zip(named_leaves(evidence.advantages[0]), *parts, strict=True):
        reward, value, last, bootstrap = (leaf.astype(np.float64) for leaf in leaves)
        expected, later = np.zeros_like(value), np.zeros_like(last)
        for t in reversed(range(len(value))):
            following = last if t == len(value) - 1 else value[t + 1]
            ended = transition.terminated[t] | transition.truncated[t]
            following = np.where(
                transition.truncated[t], bootstrap[t], np.where(transition.terminated[t], 0, following)
            )
            delta = reward[t] + DISCOUNT * following - value[t]
            later = np.where(transition.valid[t], delta + DISCOUNT * GAE_LAMBDA * np.where(ended, 0, later), 0)
            expected[t] = later
        found.append(compare({name: got}, {name: expected}))
    return worst_of(found)


def _ratio_every_minibatch(evidence: NetworkEvidence) -> Deviation:
    batches = evidence.minibatches
    ratios = tree_map(lambda new, old: np.abs(np.expm1(new.astype(np.float64) - old)), batches.new, batches.old)
    valid = evidence.rollout.transition.valid
    visits: Any = np.zeros(valid.shape, int)
    np.add.at(visits, (batches.t, batches.env), batches.valid)
    assert evidence.specimen.ppo is not None
    if not np.array_equal(visits, valid * evidence.specimen.ppo.num_epochs):
        return Deviation(np.inf, "", "not every valid step is in one minibatch of each epoch")
    found: list[Deviation] = []
    for _, ratio in named_leaves(ratios):
        ratio = np.where(batches.valid, np.nan_to_num(ratio, nan=np.inf), 0.0)
        n = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
        found.append(Deviation(float(ratio[n]), f"t={batches.t[n]}, env={batches.env[n]} (minibatch {n[0]})"))
    return worst_of(found)


def _ratio_training(evidence: TrainingEvidence) -> Deviation:
    return _worst_ratio(evidence.run.resting_reports)


def _ratio_train_ppo(evidence: TrainingEvidence) -> Deviation:
    if len(evidence.logged) != len(evidence.run.resting_reports):
        return Deviation(np.inf, "", f"{len(evidence.logged)} iterations were logged")
    return _worst_ratio(evidence.logged)


def _worst_ratio(reports: list[dict[str, Any]]) -> Deviation:
    return worst_of(
        Deviation(float(np.nan_to_num(report[name], nan=np.inf)), f"iteration {i}, {name}")
        for i, report in enumerate(reports)
        for name in ("ratio/first_max_dev", "ratio/last_max_dev")
    )


def _statistics_in_training(evidence: TrainingEvidence) -> Deviation:
    """Fails if a parameter changes by a bit at learning rate 0, or statistics stand still in an iteration."""
    trained = evidence.trained
    for i, (before, after) in enumerate(evidence.run.resting_arrays):
        found = portable_deviation({n: after[n] for n in trained}, {n: before[n] for n in trained})
        if found.worst:
            return Deviation(found.worst, f"iteration {i}, {found.where}", "moved at learning rate 0")
        still = [n for n in before if n.endswith("mean") and n not in trained and np.array_equal(before[n], after[n])]
        if still:
            return Deviation(np.inf, f"iteration {i}, {still[0]}", "a statistic did not move")
    return Deviation(0.0)


NETWORK_CHECKS: tuple[Check, ...] = (
    # The environment reports in single precision.
    Check("rollout/acted", _rollout_acted, tolerance={"float32": 1e-5, "float64": 1e-6}),
    Check("replay/log_likelihood", _replay("loglikelihoods")),
    Check("replay/value", _replay("value_estimates")),
    Check("replay/keeps_actions", _replay_keeps_actions),
    Check("network/writes_nothing", _network_writes_nothing, exact=True),
    Check("advantage/recurrence", _advantage_recurrence),
    # In double precision training alone suffices.
    Check("ratio/every_minibatch", _ratio_every_minibatch, needs=("ppo",), precisions=("float32",)),
)

TRAINING_CHECKS: tuple[Check, ...] = (
    Check("ratio/training", _ratio_training, trains=True),
    Check("ratio/train_ppo", _ratio_train_ppo, needs=("by_train_ppo",), trains=True),
    Check("statistics/in_training", _statistics_in_training, exact=True, trains=True),
)
