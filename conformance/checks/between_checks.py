"""Level 2: two engines with the same parameters and keys compute the same numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from multippo.algorithms.types import Transition

from ..evidence.deviations import Deviation, compare, portable_deviation, worst_of
from ..evidence.module_evidence import ModuleEvidence
from ..evidence.network_evidence import NetworkEvidence
from ..evidence.training_evidence import TrainingEvidence
from .check import Check

BETWEEN = {"float32": 2e-5, "float64": 1e-10}
"""Deviation allowed between engines: two libraries' exp, tanh and order of summation. In single precision up to 8e-6
were measured in a forward pass, and 5e-7 in parameters after an iteration of training."""


def _outputs(got: ModuleEvidence, expected: ModuleEvidence) -> Deviation:
    a, b = got.rollout[0], expected.rollout[0]
    return worst_of([compare(a.over_time, b.over_time), compare(a.next_state, b.next_state, axes=("env",))])


def _relative(pick: Callable[[Any], Any]) -> Callable[[Any, Any], Deviation]:
    """Compares arrays by portable name that ``pick`` takes from the evidence."""
    return lambda got, expected: portable_deviation(pick(got), pick(expected), relative=True)


def _over_time(pick: Callable[[NetworkEvidence], Any]) -> Callable[[NetworkEvidence, NetworkEvidence], Deviation]:
    """Compares what ``pick`` takes from the evidence at valid steps."""
    return lambda got, expected: compare(pick(got), pick(expected), mask=expected.rollout.transition.valid)


def _of_rollout(pick: Callable[[Transition], Any]) -> Callable[[NetworkEvidence, NetworkEvidence], Deviation]:
    return _over_time(lambda evidence: pick(evidence.rollout.transition))


def _losses(got: NetworkEvidence, expected: NetworkEvidence) -> Deviation:
    if not expected.losses["ratio/clip_fraction"] > 0:
        return Deviation(np.inf, expected.backend, "no ratio was outside the clip range; the check is void")
    return portable_deviation(got.losses, expected.losses, relative=True)


def _minibatch_order(got: NetworkEvidence, expected: NetworkEvidence) -> Deviation:
    a, b = got.minibatches, expected.minibatches
    axes = ("minibatch", "step", "sequence")
    places = ({"t": m.t, "env": m.env} for m in (a, b))
    return worst_of([compare(*places, axes=axes, mask=b.valid), compare(a.valid, b.valid, axes=axes)])


def _loss_term(name: str) -> Callable[[TrainingEvidence, TrainingEvidence], Deviation]:
    def measure(got: TrainingEvidence, expected: TrainingEvidence) -> Deviation:
        reports = ([*evidence.run.resting_reports, evidence.run.report] for evidence in (got, expected))
        pairs = enumerate(zip(*reports, strict=True))
        return worst_of(Deviation(_apart(a[name], b[name]), f"iteration {i}") for i, (a, b) in pairs)

    return measure


def _apart(a: float, b: float) -> float:
    return float(np.nan_to_num(abs(a - b), nan=np.inf))


def _gradient(got: TrainingEvidence, expected: TrainingEvidence) -> Deviation:
    silent = [name for name, moment in expected.run.moments.items() if not np.any(moment)]
    if silent:
        return Deviation(np.inf, silent[0], "no gradient reaches it; the check is void")
    # Clipped gradients are small, so their deviations count in proportion to the largest of them.
    largest = max(float(np.max(np.abs(moment))) for moment in expected.run.moments.values())
    scaled = ({name: m / largest for name, m in evidence.run.moments.items()} for evidence in (got, expected))
    return portable_deviation(*scaled)


def _clipping(got: TrainingEvidence, expected: TrainingEvidence) -> Deviation:
    """Fails where no gradient is clipped, since the other checks of training would be void."""
    config = expected.specimen.ppo
    assert config is not None and config.gradient_clipping is not None
    for evidence in (got, expected):
        if not evidence.run.report["gradient/norm"] > config.gradient_clipping:
            return Deviation(np.inf, evidence.backend, "the gradient's norm was below the clip")
        if not evidence.run.report["ratio/clip_fraction"] > 0:
            return Deviation(np.inf, evidence.backend, "no ratio was outside the clip range")
    return Deviation(0.0)


def _options(got: TrainingEvidence, expected: TrainingEvidence) -> Deviation:
    found: list[Deviation] = []
    for name in expected.specimen.shows:
        a, b = got.run.report[name], expected.run.report[name]
        if not np.isfinite(b) or b == 0:
            return Deviation(np.inf, name, f"{name} is {b}; the option had no effect and the check is void")
        found.append(Deviation(_apart(a, b), name))
    return worst_of(found)


def _after_training(trained: bool) -> Callable[[TrainingEvidence, TrainingEvidence], Deviation]:
    return _relative(lambda e: {name: a for name, a in e.run.arrays.items() if (name in e.trained) is trained})


_gradient_by_unroll = _relative(lambda e: e.gradient(step_by_step=False))
_between = functools.partial(Check, tolerance=BETWEEN)
_in_training = functools.partial(Check, tolerance=BETWEEN, trains=True)

MODULES_BETWEEN: tuple[Check, ...] = (
    _between("module/output", _outputs),
    _in_training("module/gradient", _gradient_by_unroll, needs=("differentiated",), precisions=("float64",)),
    _between("module/statistics", _relative(lambda e: e.statistics_after()), needs=("learns_statistics",)),
)

NETWORKS_BETWEEN: tuple[Check, ...] = (
    _between("rollout/action", _of_rollout(lambda t: t.network_output.actions)),
    _between("rollout/log_likelihood", _of_rollout(lambda t: t.network_output.loglikelihoods)),
    _between("rollout/value", _of_rollout(lambda t: (t.network_output.value_estimates, t.bootstrap_values))),
    _between("rollout/reward", _of_rollout(lambda t: t.rewards)),
    _between("rollout/carry", lambda a, b: compare(a.rollout.starts, b.rollout.starts, axes=("sequence", "env"))),
    _between("replay/other_weights", _over_time(lambda e: e.replayed_under_other_weights)),
    _between("advantage/value", _over_time(lambda e: e.advantages)),
    _between("loss/terms", _losses, needs=("ppo",), precisions=("float64",)),
    Check("minibatch/order", _minibatch_order, needs=("ppo",), precisions=("float32",), exact=True),
)

TRAINING_BETWEEN: tuple[Check, ...] = (
    *(_in_training(f"loss/{name}", _loss_term(f"losses/{name}")) for name in ("actor", "critic", "regularization")),
    _in_training("loss/gradient", _gradient),
    Check("training/clipping", _clipping, trains=True, exact=True),
    _in_training("training/options", _options, needs=("shows",)),
    _in_training("training/parameters", _after_training(True)),
    _in_training("training/statistics", _after_training(False)),
)
