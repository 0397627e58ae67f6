"""Level 2: two engines with the same parameters and keys compute the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from .checks import Check
from .measure import Deviation, compare, portable_deviation, worst_of
from .module_evidence import ModuleEvidence
from .network_evidence import NetworkEvidence
from .training_evidence import TrainingEvidence

__all__ = ["BETWEEN", "MODULES_BETWEEN", "NETWORKS_BETWEEN", "TRAINING_BETWEEN"]

BETWEEN = {"float32": 2e-5, "float64": 1e-10}
"""What engines may be apart by: two libraries' exp, tanh and order of summation. In single precision up to 8e-6 were
measured in a forward pass, and 5e-7 in parameters after an iteration of training."""


def _outputs(got: ModuleEvidence, expected: ModuleEvidence) -> Deviation:
    a, b = got.rollout[0], expected.rollout[0]
    return worst_of([compare(a.over_time, b.over_time), compare(a.next_state, b.next_state, axes=("env",))])


def _module_gradient(got: ModuleEvidence, expected: ModuleEvidence) -> Deviation:
    return portable_deviation(got.gradient(step_by_step=False), expected.gradient(step_by_step=False), relative=True)


def _module_statistics(got: ModuleEvidence, expected: ModuleEvidence) -> Deviation:
    return portable_deviation(got.statistics_after(), expected.statistics_after(), relative=True)


def _of_rollout(pick: Any) -> Any:
    def measure(got: NetworkEvidence, expected: NetworkEvidence) -> Deviation:
        mask = expected.rollout.transition.valid
        return compare(pick(got.rollout.transition), pick(expected.rollout.transition), mask=mask)

    return measure


def _carries(got: NetworkEvidence, expected: NetworkEvidence) -> Deviation:
    return compare(got.rollout.starts, expected.rollout.starts, axes=("sequence", "env"))


def _replay(got: NetworkEvidence, expected: NetworkEvidence) -> Deviation:
    mask = expected.rollout.transition.valid
    return compare(got.replayed_under_other_weights, expected.replayed_under_other_weights, mask=mask)


def _advantages(got: NetworkEvidence, expected: NetworkEvidence) -> Deviation:
    return compare(got.advantages, expected.advantages, mask=expected.rollout.transition.valid)


def _losses(got: NetworkEvidence, expected: NetworkEvidence) -> Deviation:
    if not expected.losses["ratio/clip_fraction"] > 0:
        return Deviation(np.inf, expected.backend, "no ratio was outside the clip range; the check is void")
    return portable_deviation(got.losses, expected.losses, relative=True)


def _minibatch_order(got: NetworkEvidence, expected: NetworkEvidence) -> Deviation:
    a, b = got.minibatches, expected.minibatches
    axes = ("minibatch", "step", "sequence")
    places = ({"t": m.t, "env": m.env} for m in (a, b))
    return worst_of([compare(*places, axes=axes, mask=b.valid), compare(a.valid, b.valid, axes=axes)])


def _loss_term(name: str) -> Any:
    def measure(got: TrainingEvidence, expected: TrainingEvidence) -> Deviation:
        reports = ([*evidence.resting_reports, evidence.report] for evidence in (got, expected))
        found: list[Deviation] = []
        for i, (a, b) in enumerate(zip(*reports, strict=True)):
            wrong = abs(a[name] - b[name])
            found.append(Deviation(float(np.nan_to_num(wrong, nan=np.inf)), f"iteration {i}"))
        return worst_of(found)

    return measure


def _gradient(got: TrainingEvidence, expected: TrainingEvidence) -> Deviation:
    silent = [name for name, moment in expected.moments.items() if not np.any(moment)]
    if silent:
        return Deviation(np.inf, silent[0], "no gradient reaches it; the check is void")
    # Clipped gradients are small: what counts is how far off they are beside the largest of them.
    largest = max(float(np.max(np.abs(moment))) for moment in expected.moments.values())
    scaled = ({name: m / largest for name, m in evidence.moments.items()} for evidence in (got, expected))
    return portable_deviation(*scaled)


def _clipping(got: TrainingEvidence, expected: TrainingEvidence) -> Deviation:
    """The other checks of training are void where nothing is clipped."""
    config = expected.specimen.ppo
    assert config is not None and config.gradient_clipping is not None
    for evidence in (got, expected):
        if not evidence.report["gradient/norm"] > config.gradient_clipping:
            return Deviation(np.inf, evidence.backend, "the gradient's norm was below the clip")
        if not evidence.report["ratio/clip_fraction"] > 0:
            return Deviation(np.inf, evidence.backend, "no ratio was outside the clip range")
    return Deviation(0.0)


def _options(got: TrainingEvidence, expected: TrainingEvidence) -> Deviation:
    found: list[Deviation] = []
    for name in expected.specimen.shows:
        a, b = got.report[name], expected.report[name]
        if not np.isfinite(b) or b == 0:
            return Deviation(np.inf, name, f"{name} is {b}; the option had no effect and the check is void")
        found.append(Deviation(float(np.nan_to_num(abs(a - b), nan=np.inf)), name))
    return worst_of(found)


def _after_training(trained: bool) -> Any:
    def measure(got: TrainingEvidence, expected: TrainingEvidence) -> Deviation:
        leaves = expected.engine.leaves(expected.network)
        names = [name for name in expected.arrays if leaves[name].trained is trained]
        return portable_deviation(
            {n: got.arrays[n] for n in names}, {n: expected.arrays[n] for n in names}, relative=True
        )

    return measure


MODULES_BETWEEN: tuple[Check[ModuleEvidence], ...] = (
    Check("module/output", _outputs, tolerance=BETWEEN),
    Check(
        "module/gradient",
        _module_gradient,
        needs=("differentiated",),
        trains=True,
        precisions=("float64",),
        tolerance=BETWEEN,
    ),
    Check("module/statistics", _module_statistics, needs=("learns_statistics",), tolerance=BETWEEN),
)

NETWORKS_BETWEEN: tuple[Check[NetworkEvidence], ...] = (
    Check("rollout/action", _of_rollout(lambda t: t.network_output.actions), tolerance=BETWEEN),
    Check("rollout/log_likelihood", _of_rollout(lambda t: t.network_output.loglikelihoods), tolerance=BETWEEN),
    Check(
        "rollout/value",
        _of_rollout(lambda t: (t.network_output.value_estimates, t.bootstrap_values)),
        tolerance=BETWEEN,
    ),
    Check("rollout/reward", _of_rollout(lambda t: t.rewards), tolerance=BETWEEN),
    Check("rollout/carry", _carries, tolerance=BETWEEN),
    Check("replay/other_weights", _replay, tolerance=BETWEEN),
    Check("advantage/value", _advantages, tolerance=BETWEEN),
    Check("loss/terms", _losses, needs=("ppo",), precisions=("float64",), tolerance=BETWEEN),
    Check("minibatch/order", _minibatch_order, needs=("ppo",), precisions=("float32",), exact=True),
)

TRAINING_BETWEEN: tuple[Check[TrainingEvidence], ...] = (
    Check("loss/actor", _loss_term("losses/actor"), trains=True, tolerance=BETWEEN),
    Check("loss/critic", _loss_term("losses/critic"), trains=True, tolerance=BETWEEN),
    Check("loss/regularization", _loss_term("losses/regularization"), trains=True, tolerance=BETWEEN),
    Check("loss/gradient", _gradient, trains=True, tolerance=BETWEEN),
    Check("training/clipping", _clipping, trains=True, exact=True),
    Check("training/options", _options, needs=("shows",), trains=True, tolerance=BETWEEN),
    Check("training/parameters", _after_training(True), trains=True, tolerance=BETWEEN),
    Check("training/statistics", _after_training(False), trains=True, tolerance=BETWEEN),
)
