"""The suite tested: modules that are wrong on purpose, and the check that must catch each.

Two kinds of mistake can't be made by a module, and so are not here: resetting on terminations only (a module is told
``done``, never why an episode ended), and updating statistics before the gradient phase (the training loop decides
when; what a module can do, moving its statistics in a call or in replay, is here).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from multippo.networks.adapter import PPOAdapter
from multippo.networks.containers import Sequential
from multippo.networks.dropout import Dropout
from multippo.networks.feedforward import Dense
from multippo.networks.normalizer import Normalizer
from multippo.networks.recurrent import LSTM
from multippo.networks.sampling_layers import NormalTanhSampler
from multippo.networks.types import StatefulModule
from multippo.rngs import Rngs

from . import mutant_modules as wrong
from .environment import ScriptedEnv
from .mutant_modules import FEATURES
from .network_specimens import CONTINUOUS
from .specimens import ModuleSpecimen, NetworkSpecimen, normal_inputs

__all__ = ["MUTANTS", "Mutant"]

_HIDDEN = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mutant:
    """A wrong module.

    Attributes:
        specimen: The module, or a network that holds it.
        caught_by: Name of the check that must fail.
    """

    specimen: ModuleSpecimen | NetworkSpecimen
    caught_by: str


def _alone(
    name: str,
    build: Callable[[], StatefulModule],
    caught_by: str,
    features: int = FEATURES,
    offset: float = 0.0,
    only_on: tuple[str, ...] = (),
    smooth_at_zero: bool = False,
) -> Mutant:
    specimen = ModuleSpecimen(
        name=name,
        only_on=only_on,
        build=build,
        sample=normal_inputs((features,), offset=offset),
        carries=True,
        emits=True,
        learns_statistics=True,
        differentiated=True,
        zeroed=smooth_at_zero,
        smooth=smooth_at_zero,
    )
    return Mutant(specimen=specimen, caught_by=caught_by)


def _as_trunk(name: str, build: Callable[[], StatefulModule], caught_by: str, outputs: int = _HIDDEN) -> Mutant:
    """In a network that acts, in front of the actor and the critic."""

    def network() -> StatefulModule:
        actor = Sequential([Dense(outputs, 4, Rngs(2)), NormalTanhSampler(Rngs(3))])
        return Sequential([build(), PPOAdapter(action=actor, value=Dense(outputs, 1, Rngs(4)))])

    return _acting(name, network, caught_by)


def _as_sampler(name: str, build: Callable[[], StatefulModule], caught_by: str) -> Mutant:
    """In a network that acts, as its sampler."""

    def network() -> StatefulModule:
        actor = Sequential([Dense(FEATURES, 4, Rngs(2)), build()])
        return PPOAdapter(action=actor, value=Dense(FEATURES, 1, Rngs(4)))

    return _acting(name, network, caught_by)


def _acting(name: str, network: Callable[[], StatefulModule], caught_by: str) -> Mutant:
    env = lambda: ScriptedEnv((FEATURES,), CONTINUOUS)  # noqa: E731
    return Mutant(specimen=NetworkSpecimen(name=name, build=network, env=env), caught_by=caught_by)


def _lstm(kind: type[LSTM]) -> Callable[[], StatefulModule]:
    return lambda: kind(FEATURES, _HIDDEN, Rngs(1))


def _dense(kind: type[Dense]) -> Callable[[], StatefulModule]:
    return lambda: kind(FEATURES, _HIDDEN, Rngs(1))


def _normalizer(kind: type[Normalizer]) -> Callable[[], StatefulModule]:
    return lambda: kind(FEATURES)


def _sampler(kind: type[NormalTanhSampler]) -> Callable[[], StatefulModule]:
    return lambda: kind(Rngs(1))


_STEPS, _WRITES = "unroll/step_by_step", "call/writes_nothing"

MUTANTS: tuple[Mutant, ...] = (
    _as_trunk("resets one step late", _lstm(wrong.ResetsOneStepLate), "replay/value"),
    _alone("resets in the next call", wrong.ResetsInTheNextCall, "reset/forgets"),
    _alone("never resets", _lstm(wrong.NeverResets), "reset/forgets"),
    _alone("resets to another shape", _lstm(wrong.ResetsToAnotherShape), "reset/kept"),
    _alone("resets in place", _lstm(wrong.ResetsInPlace), "reset/writes_nothing", only_on=("torch",)),
    _alone("unroll ignores resets", _lstm(wrong.IgnoresResets), _STEPS),
    _alone("misses the second of two ends", _lstm(wrong.MissesTheSecondOfTwoEnds), _STEPS),
    _alone("misses an end at the first step", _lstm(wrong.MissesTheFirstStep), _STEPS),
    _alone("misses an end at the last step", _lstm(wrong.MissesTheLastStep), _STEPS),
    _as_trunk("unroll starts afresh", _lstm(wrong.StartsAfresh), "replay/value"),
    _alone("loses its carry", _lstm(wrong.LosesItsCarry), "carry/moves"),
    _alone("unroll loses its carry", _lstm(wrong.LosesItsCarryInUnroll), _STEPS),
    _alone("unroll stops the gradient", _lstm(wrong.StopsTheGradient), "unroll/gradient"),
    _alone("flat at zero", _dense(wrong.FlatAtZero), "gradient/differences", only_on=("jax",), smooth_at_zero=True),
    _alone("carry without batch axis", wrong.CarryWithoutBatchAxis, "carry/batch_axis"),
    _alone("mixes environments", _dense(wrong.MixesEnvironments), "call/rows_apart"),
    _alone("writes in the call", _dense(wrong.WritesInTheCall), _WRITES),
    _alone("counts in a Python attribute", _dense(wrong.CountsInPython), _WRITES),
    _alone("remembers in a list", _dense(wrong.RemembersInAList), _WRITES),
    _alone("updates statistics in the call", _normalizer(wrong.UpdatesStatisticsInTheCall), _WRITES),
    _alone("updates statistics in replay", _normalizer(wrong.UpdatesStatisticsInUnroll), "statistics/only_in_update"),
    _as_trunk("normalises by the batch", _normalizer(wrong.NormalisesByTheBatch), "replay/log_likelihood", FEATURES),
    _alone("counts invalid entries", _normalizer(wrong.CountsInvalidEntries), "statistics/of_valid_entries"),
    _alone(
        "forgets its children's statistics",
        lambda: wrong.ForgetsItsChildren([Normalizer(FEATURES)]),
        "statistics/move",
    ),
    _alone(
        "update forgets what is inside", lambda: wrong.UpdatesNothingInside(Normalizer(FEATURES)), "statistics/move"
    ),
    _alone("hands dropout no rollout_extras", lambda: wrong.HandsNoExtrasIn(Dropout(0.4, Rngs(1))), "extras/used"),
    _alone(
        "unroll hands no rollout_extras in",
        lambda: wrong.UnrollsWithoutExtras(NormalTanhSampler(Rngs(1))),
        "replay/keeps_actions",
        6,
    ),
    _as_sampler(
        "hands no rollout_extras in",
        lambda: wrong.HandsNoExtrasIn(NormalTanhSampler(Rngs(1))),
        "replay/keeps_actions",
    ),
    _as_sampler("draws afresh in replay", _sampler(wrong.DrawsAfreshInReplay), "replay/keeps_actions"),
    _alone("stores the squashed sample", _sampler(wrong.StoresTheSquashedSample), "replay/output", 6, 1.0),
    _as_trunk("draws on the host", _dense(wrong.DrawsOnTheHost), "replay/log_likelihood"),
)
