"""A specimen of every module of the library, alone and composed, and of modules as users write them."""

from __future__ import annotations

from multippo.networks.adapter import PPOAdapter
from multippo.networks.containers import Concat, Parallel, Sequential, Splitter
from multippo.networks.feedforward import Dense
from multippo.networks.normalizer import Normalizer
from multippo.networks.recurrent import LSTM
from multippo.networks.sampling_layers import CategoricalSampler, NormalTanhSampler
from multippo.networks.types import StatefulModule
from multippo.rngs import Rngs

from .custom import CentredTrace, MovingAverage, NoisyGain
from .specimens import ModuleSpecimen, normal_inputs

__all__ = ["MODULES"]

_F = 5
_TREE = {"camera": (2, 3), "joints": (4,)}


def _parallel() -> StatefulModule:
    return Parallel({"keys": LSTM(_F, 3, Rngs(1)), "a.b": Normalizer(_F)})


def _concat() -> StatefulModule:
    # Not in alphabetical order, in which JAX walks the children.
    return Concat(joints=Sequential([Normalizer(4), Dense(4, 3, Rngs(1), "tanh")]), body=LSTM(6, 4, Rngs(2)))


def _adapter() -> StatefulModule:
    actor = Sequential([Dense(_F, 4, Rngs(1)), NormalTanhSampler(Rngs(2), 0.1)])
    return PPOAdapter(action=actor, value=Sequential([LSTM(_F, 3, Rngs(3)), Dense(3, 1, Rngs(4))]))


def _nested() -> StatefulModule:
    inner = Parallel(fast=Dense(6, 3, Rngs(1), "swish"), slow=Sequential([LSTM(6, 3, Rngs(2)), LSTM(3, 3, Rngs(3))]))
    joined = Sequential([inner, Concat(slow=Dense(3, 2, Rngs(4)), fast=Normalizer(3))])
    return Sequential([Normalizer(_F), Dense(_F, 6, Rngs(5), "relu"), joined, Splitter(left=2, right=3)])


def _user_defined() -> StatefulModule:
    return Sequential([NoisyGain(_F, Rngs(1)), MovingAverage(_F, 3), CentredTrace(_F)])


_flat = normal_inputs((_F,))

MODULES: tuple[ModuleSpecimen, ...] = (
    ModuleSpecimen(name="Dense", build=lambda: Dense(_F, 4, Rngs(1), "gelu"), sample=_flat, differentiated=True),
    ModuleSpecimen(name="LSTM", build=lambda: LSTM(_F, 4, Rngs(1)), sample=_flat, carries=True, differentiated=True),
    ModuleSpecimen(
        name="LSTM, trainable initial state",
        build=lambda: LSTM(_F, 4, Rngs(1), trainable_initial_state=True),
        sample=_flat,
        carries=True,
        differentiated=True,
    ),
    ModuleSpecimen(name="Normalizer", build=lambda: Normalizer(_F), sample=_flat, emits=True, learns_statistics=True),
    ModuleSpecimen(
        name="Normalizer of a tree",
        build=lambda: Normalizer(_TREE),
        sample=normal_inputs(_TREE),
        emits=True,
        learns_statistics=True,
    ),
    ModuleSpecimen(
        name="NormalTanhSampler, entropy bonus",
        build=lambda: NormalTanhSampler(Rngs(1), 0.1, min_std=0.01, std_scale=0.8),
        sample=normal_inputs((6,)),
        carries=True,
        emits=True,
    ),
    ModuleSpecimen(
        # tanh of samples around 6 is 1 to five digits: whoever inverts it in replay is off.
        name="NormalTanhSampler, saturated",
        build=lambda: NormalTanhSampler(Rngs(1)),
        sample=normal_inputs((6,), scale=0.3, offset=6.0),
        carries=True,
        emits=True,
    ),
    ModuleSpecimen(
        # Logits far apart: some actions have probability 0 in either precision, others 1.
        name="CategoricalSampler, entropy bonus",
        build=lambda: CategoricalSampler(Rngs(1), 0.1),
        sample=normal_inputs((4,), scale=20.0),
        carries=True,
        emits=True,
    ),
    ModuleSpecimen(name="Splitter", build=lambda: Splitter(mean=2, rest=1), sample=_flat),
    ModuleSpecimen(
        name="Parallel",
        build=_parallel,
        sample=_flat,
        carries=True,
        emits=True,
        learns_statistics=True,
    ),
    ModuleSpecimen(
        name="Concat",
        build=_concat,
        sample=normal_inputs({"body": (6,), "joints": (4,)}),
        carries=True,
        emits=True,
        learns_statistics=True,
    ),
    ModuleSpecimen(name="PPOAdapter", build=_adapter, sample=_flat, carries=True, emits=True, differentiated=True),
    ModuleSpecimen(
        name="Sequential of nested containers",
        build=_nested,
        sample=_flat,
        carries=True,
        emits=True,
        learns_statistics=True,
    ),
    ModuleSpecimen(
        name="user-defined modules",
        build=_user_defined,
        sample=_flat,
        carries=True,
        emits=True,
        learns_statistics=True,
    ),
)
