"""A specimen of every module of the library, alone and composed, and of modules as users write them."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from multippo.backends.registry import active_engine
from multippo.networks.adapter import PPOAdapter
from multippo.networks.containers import (
    Concat,
    Filter,
    Flattener,
    Map,
    Merge,
    Parallel,
    Scale,
    Sequential,
    Splitter,
)
from multippo.networks.convolution import Conv
from multippo.networks.delay import Delay
from multippo.networks.dropout import Dropout
from multippo.networks.feedforward import Dense, LayerNorm
from multippo.networks.lift import Lift
from multippo.networks.normalizer import Normalizer
from multippo.networks.recurrent import GRU, LSTM, RNN
from multippo.networks.residual import Residual
from multippo.networks.sampling_layers import (
    BernoulliSampler,
    CategoricalSampler,
    MultiCategoricalSampler,
    NormalSampler,
    NormalTanhSampler,
)
from multippo.networks.types import StatefulModule
from multippo.networks.variational import AR1VariationalBottleneck, VariationalBottleneck
from multippo.random import host
from multippo.rngs import Rngs

from .custom import CentredTrace, Holder, MovingAverage, NoisyGain
from .environment import NUM_ENVS, NUM_STEPS
from .graphs import graph_of_dense, graph_of_modules
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
    return Holder(Sequential([NoisyGain(_F, Rngs(1)), MovingAverage(_F, 3), CentredTrace(_F)]))


def _samplers() -> StatefulModule:
    grid = MultiCategoricalSampler([[2], [3]], Rngs(2), 0.1)
    switches = BernoulliSampler(Rngs(3), 0.1, action_shape=(1, 4))
    return Map(arm=NormalSampler(Rngs(1), action_shape=(2, 1)), hand=Map({"a.b": grid, "0": switches}))


def _rearranged() -> StatefulModule:
    taken = Filter({"z": ("deep", "joints"), "bytes": "camera"})
    scaled = Sequential([taken, Scale({"z": 0.5, "bytes": 1 / 255})])
    return Sequential([scaled, Map(bytes=Normalizer((2, 3)), z=LSTM(4, 3, Rngs(1))), Flattener()])


def _tuples_and_lists() -> StatefulModule:
    """Positions in a tuple that holds a list that holds a dict; and a function that takes a tuple out."""
    scaled = Scale((0.5, [None, {"camera": -2.0}]))
    example = (np.zeros(4, np.float32), [np.zeros(2, np.float32), {"camera": np.zeros((2, 3), np.float32)}])
    late = Delay(example, 2, (1.0, [-1.0, {"camera": 0.5}]))
    taken = Filter({"goal": (1, 0), "pair": lambda x: (x[1][1]["camera"], x[0])})
    return Sequential([scaled, late, taken, Map(goal=Flattener(), pair=Normalizer(((2, 3), (4,))))])


def _delays() -> StatefulModule:
    """Shorter than a rollout, as long as one, and longer."""
    example = {"camera": np.zeros((2, 3), np.uint8), "deep": {"joints": np.zeros(4, np.float32)}}
    delays = [Delay(example, k, {"camera": k, "deep": {"joints": np.arange(4) - k}}) for k in (1, 3, NUM_STEPS)]
    return Parallel({f"by {delay.k_steps}": delay for delay in [*delays, Delay(example, NUM_STEPS + 2)]})


def _codes() -> StatefulModule:
    """A delay, and heads of separate networks joined, one of them of a noisy code."""
    smooth = AR1VariationalBottleneck(3, Rngs(1), 0.1, 1e-3, 0.5, prior_correlation=0.8)
    code = Sequential([Dense(_F, 6, Rngs(2)), smooth, Dense(3, 2, Rngs(3)), Splitter(a=1, b=1)])
    return Sequential([Delay(np.zeros(_F), 2), Merge(code=code, sum=Parallel(c=LSTM(_F, 2, Rngs(4)))), Flattener(1)])


def _heads() -> StatefulModule:
    """Whatever has a softplus, and with zero weights is where that is put together of two halves."""
    code = AR1VariationalBottleneck(1, Rngs(2), 0.3)
    draws = Map(code=code, switches=BernoulliSampler(Rngs(3), 0.1), tanh=NormalTanhSampler(Rngs(4), 0.1))
    return Sequential([Dense(_F, 6, Rngs(1)), Splitter(code=2, switches=2, tanh=2), draws])


def _at_its_bound() -> StatefulModule:
    """With zero weights, a Normalizer exactly at its clip."""
    return Sequential([Dense(_F, 2, Rngs(1)), Lift(lambda x: x + 1.0), Normalizer(2, clip=1.0)])


def _images() -> StatefulModule:
    first = Conv(2, 3, (3, 2), Rngs(1), stride=(2, 1), padding="same", activation="tanh")
    return Sequential([Scale(1 / 255), first, Conv(3, 2, 2, Rngs(2)), Flattener()])


def _residual() -> StatefulModule:
    inner = Sequential([LayerNorm(_F), Dropout(0.3, Rngs(1)), GRU(_F, _F, Rngs(2)), Lift(lambda x: x**2 / (1 + x**2))])
    return Sequential([Normalizer(_F), Residual(inner)])


def _native() -> StatefulModule:
    """A linear layer as the framework makes it, not as the engine does."""
    engine = active_engine()
    if engine.name == "torch":
        return Lift(importlib.import_module("torch").nn.Linear(_F, 4))
    nnx = importlib.import_module("flax.nnx")
    return Lift(nnx.Linear(_F, 4, param_dtype=engine.float_dtype, rngs=nnx.Rngs(0)))


def _bytes(key: Any) -> Any:
    return (256 * host.uniform(key, (NUM_STEPS, NUM_ENVS, 4, 3, 2))).astype(np.uint8)


def _bytes_and_joints(key: Any) -> Any:
    camera = 255 * host.uniform(key, (NUM_STEPS, NUM_ENVS, 2, 3))
    return {"camera": camera.astype(np.uint8), "deep": {"joints": normal_inputs((4,))(key)}}


def _pairs(key: Any) -> Any:
    keys = host.split(key, 3)
    joints, goal, camera = (normal_inputs(shape)(keys[i]) for i, shape in enumerate(((4,), (2,), (2, 3))))
    return (joints, [goal, {"camera": camera}])


def _parameters(key: Any) -> Any:
    arm, grid, switches = (normal_inputs((size,))(host.fold_in(key, size)) for size in (4, 5, 4))
    return {"arm": arm, "hand": {"a.b": grid, "0": -switches}}


def _masked_logits(key: Any) -> Any:
    """Half of the actions are masked; in some rows all of them."""
    mask = host.uniform(host.fold_in(key, 1), (NUM_STEPS, NUM_ENVS, 4)) < 0.5
    return {"logits": normal_inputs((4,), scale=3.0)(key), "mask": mask.astype(np.int8)}


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
    ModuleSpecimen(
        name="GRU",
        build=lambda: GRU(_F, 4, Rngs(1), trainable_initial_state=True),
        sample=_flat,
        carries=True,
        differentiated=True,
    ),
    ModuleSpecimen(name="RNN", build=lambda: RNN(_F, 4, Rngs(1), activation="sigmoid"), sample=_flat, carries=True),
    ModuleSpecimen(
        name="RNN, trainable time constant",
        build=lambda: RNN(_F, 4, Rngs(1), time_constant=3.0, trainable_time_constant=True),
        sample=_flat,
        carries=True,
        differentiated=True,
    ),
    ModuleSpecimen(
        name="LayerNorm",
        build=lambda: LayerNorm(_F),
        sample=normal_inputs((_F,), scale=0.5, offset=3.0),
        differentiated=True,
    ),
    ModuleSpecimen(name="Conv", build=_images, sample=_bytes, differentiated=True),
    ModuleSpecimen(
        name="Dropout", build=lambda: Dropout(0.4, Rngs(1)), sample=normal_inputs((2, 3)), carries=True, emits=True
    ),
    ModuleSpecimen(name="Lift of a function", build=lambda: Lift(lambda x: x**2), sample=_flat),
    ModuleSpecimen(name="Lift of a native module", build=_native, sample=_flat, only_on=("jax", "torch")),
    ModuleSpecimen(
        name="Residual of LayerNorm, Dropout, GRU, Lift",
        build=_residual,
        sample=_flat,
        carries=True,
        emits=True,
        learns_statistics=True,
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
    ModuleSpecimen(
        name="CategoricalSampler, masked",
        build=lambda: CategoricalSampler(Rngs(1), 0.1),
        sample=_masked_logits,
        carries=True,
        emits=True,
    ),
    ModuleSpecimen(
        name="NormalSampler, state-independent",
        build=lambda: NormalSampler(Rngs(1), 0.1, action_shape=3, state_dependent_std=False),
        sample=normal_inputs((3,)),
        carries=True,
        emits=True,
        differentiated=True,
    ),
    ModuleSpecimen(
        name="Map of NormalSampler, MultiCategoricalSampler, BernoulliSampler",
        build=_samplers,
        sample=_parameters,
        carries=True,
        emits=True,
    ),
    ModuleSpecimen(
        name="Filter, Scale, Map, Flattener",
        build=_rearranged,
        sample=_bytes_and_joints,
        carries=True,
        emits=True,
        learns_statistics=True,
    ),
    ModuleSpecimen(
        name="Scale, Delay, Filter by a function, Normalizer of tuples and lists",
        build=_tuples_and_lists,
        sample=_pairs,
        carries=True,
        emits=True,
        learns_statistics=True,
    ),
    ModuleSpecimen(
        name="Normalizer, a leaf left alone",
        build=lambda: Normalizer({"camera": None, "deep": {"joints": (4,)}}),
        sample=_bytes_and_joints,
        emits=True,
        learns_statistics=True,
    ),
    ModuleSpecimen(name="Delay", build=_delays, sample=_bytes_and_joints, carries=True),
    ModuleSpecimen(
        name="VariationalBottleneck",
        build=lambda: VariationalBottleneck(2, Rngs(1), 0.3),
        sample=normal_inputs((4,)),
        carries=True,
    ),
    ModuleSpecimen(
        name="AR1VariationalBottleneck",
        build=lambda: AR1VariationalBottleneck(2, Rngs(1), 0.3, prior_correlation=0.9),
        sample=normal_inputs((4,)),
        carries=True,
    ),
    ModuleSpecimen(
        name="Delay, Merge, AR1VariationalBottleneck, Flattener",
        build=_codes,
        sample=_flat,
        carries=True,
        differentiated=True,
    ),
    ModuleSpecimen(
        name="heads of zeros",
        build=_heads,
        sample=_flat,
        carries=True,
        emits=True,
        differentiated=True,
        zeroed=True,
        smooth=True,
    ),
    ModuleSpecimen(
        name="Normalizer at its bound",
        build=_at_its_bound,
        sample=_flat,
        emits=True,
        learns_statistics=True,
        differentiated=True,
        zeroed=True,
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
        name="PopulationGraph",
        build=lambda: graph_of_dense(_F),
        sample=normal_inputs({"x": (_F,)}),
        carries=True,
        differentiated=True,
    ),
    ModuleSpecimen(
        name="PopulationGraph of recurrent, noisy and normalising modules",
        build=lambda: graph_of_modules(_F),
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
