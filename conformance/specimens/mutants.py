"""Tests of the suite: modules that are wrong on purpose, and the check that must catch each.

Two kinds of mistake can't be made by a module, and so are missing: resetting on terminations only (a module gets
``done``, never the reason), and updating statistics before the gradient phase (the training loop decides when; a module
can only move its statistics in a call or in replay, as some do here).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import multippo as mp

from . import mutant_modules as wrong
from .mutant_modules import FEATURES
from .network_specimens import CONTINUOUS
from .scripted_environment import ScriptedEnv
from .specimen import ModuleSpecimen, NetworkSpecimen, normal_inputs

_HIDDEN = 4


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A module that is wrong on purpose.

    Attributes:
        specimen: The module, or a network that holds the module.
        caught_by: Name of the check that must fail.
    """

    specimen: ModuleSpecimen | NetworkSpecimen
    caught_by: str


Build = Callable[[], mp.StatefulModule]


def _alone(
    name: str, build: Build, caught_by: str, features: int = FEATURES, offset: float = 0.0, **more: Any
) -> Mutant:
    """Mutant that is held to every check of modules; ``more`` are properties of the specimen."""
    all_of_them = {"carries": True, "emits": True, "learns_statistics": True, "differentiated": True}
    sample = normal_inputs((features,), offset=offset)
    return Mutant(ModuleSpecimen(name, build, sample, **all_of_them, **more), caught_by)


def _as_trunk(name: str, build: Build, caught_by: str, outputs: int = _HIDDEN) -> Mutant:
    """Mutant in a network that acts, in front of the actor and the critic."""
    sampler = lambda: mp.NormalTanhSampler(mp.Rngs(3))  # noqa: E731
    return _acting(name, lambda: mp.Sequential([build(), _ports(outputs, sampler)]), caught_by)


def _as_sampler(name: str, build: Build, caught_by: str) -> Mutant:
    """Mutant in a network that acts, as its sampler."""
    return _acting(name, lambda: _ports(FEATURES, build), caught_by)


def _ports(features: int, sampler: Build) -> mp.StatefulModule:
    actor = mp.Sequential([mp.Dense(features, 4, mp.Rngs(2)), sampler()])
    return mp.PPOAdapter(action=actor, value=mp.Dense(features, 1, mp.Rngs(4)))


def _acting(name: str, network: Build, caught_by: str) -> Mutant:
    return Mutant(NetworkSpecimen(name, network, lambda: ScriptedEnv((FEATURES,), CONTINUOUS)), caught_by)


def _layer(kind: type[mp.LSTM] | type[mp.Dense]) -> Build:
    return lambda: kind(FEATURES, _HIDDEN, mp.Rngs(1))


def _normalizer(kind: type[mp.Normalizer]) -> Build:
    return lambda: kind(FEATURES)


def _sampler(kind: type[mp.NormalTanhSampler]) -> Build:
    return lambda: kind(mp.Rngs(1))


_STEPS, _WRITES, _SLOPES = "unroll/step_by_step", "call/writes_nothing", "gradient/differences"

MUTANTS: tuple[Mutant, ...] = (
    _as_trunk("resets one step late", _layer(wrong.ResetsOneStepLate), "replay/value"),
    _alone("resets in the next call", wrong.ResetsInTheNextCall, "reset/forgets"),
    _alone("never resets", _layer(wrong.NeverResets), "reset/forgets"),
    _alone("resets to another shape", _layer(wrong.ResetsToAnotherShape), "reset/kept"),
    _alone("resets in place", _layer(wrong.ResetsInPlace), "reset/writes_nothing", only_on=("torch",)),
    _alone("unroll ignores resets", _layer(wrong.IgnoresResets), _STEPS),
    _alone("misses the second of two ends", _layer(wrong.MissesTheSecondOfTwoEnds), _STEPS),
    _alone("misses an end at the first step", _layer(wrong.MissesTheFirstStep), _STEPS),
    _alone("misses an end at the last step", _layer(wrong.MissesTheLastStep), _STEPS),
    _as_trunk("unroll starts afresh", _layer(wrong.StartsAfresh), "replay/value"),
    _alone("loses its carry", _layer(wrong.LosesItsCarry), "carry/moves"),
    _alone("unroll loses its carry", _layer(wrong.LosesItsCarryInUnroll), _STEPS),
    _alone("unroll stops the gradient", _layer(wrong.StopsTheGradient), "unroll/gradient"),
    _alone("flat at zero", _layer(wrong.FlatAtZero), _SLOPES, only_on=("jax",), zeroed=True, smooth=True),
    _alone("carry without batch axis", wrong.CarryWithoutBatchAxis, "carry/batch_axis"),
    _alone("mixes environments", _layer(wrong.MixesEnvironments), "call/rows_apart"),
    _alone("writes in the call", _layer(wrong.WritesInTheCall), _WRITES),
    _alone("counts in a Python attribute", _layer(wrong.CountsInPython), _WRITES),
    _alone("remembers in a list", _layer(wrong.RemembersInAList), _WRITES),
    _alone("updates statistics in the call", _normalizer(wrong.UpdatesStatisticsInTheCall), _WRITES),
    _alone("updates statistics in replay", _normalizer(wrong.UpdatesStatisticsInUnroll), "statistics/only_in_update"),
    _as_trunk("normalises by the batch", _normalizer(wrong.NormalisesByTheBatch), "replay/log_likelihood", FEATURES),
    _alone("counts invalid entries", _normalizer(wrong.CountsInvalidEntries), "statistics/of_valid_entries"),
    _alone(
        "forgets its children's statistics",
        lambda: wrong.ForgetsItsChildren([mp.Normalizer(FEATURES)]),
        "statistics/move",
    ),
    _alone(
        "update forgets what is inside", lambda: wrong.UpdatesNothingInside(mp.Normalizer(FEATURES)), "statistics/move"
    ),
    _alone(
        "hands dropout no rollout_extras", lambda: wrong.HandsNoExtrasIn(mp.Dropout(0.4, mp.Rngs(1))), "extras/used"
    ),
    _alone(
        "unroll hands no rollout_extras in",
        lambda: wrong.UnrollsWithoutExtras(mp.NormalTanhSampler(mp.Rngs(1))),
        "replay/keeps_actions",
        6,
    ),
    _as_sampler(
        "hands no rollout_extras in",
        lambda: wrong.HandsNoExtrasIn(mp.NormalTanhSampler(mp.Rngs(1))),
        "replay/keeps_actions",
    ),
    _as_sampler("draws afresh in replay", _sampler(wrong.DrawsAfreshInReplay), "replay/keeps_actions"),
    _alone("stores the squashed sample", _sampler(wrong.StoresTheSquashedSample), "replay/output", 6, 1.0),
    _as_trunk("draws on the host", _layer(wrong.DrawsOnTheHost), "replay/log_likelihood"),
)
