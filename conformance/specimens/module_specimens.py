"""A specimen of every module of the library, alone and composed, and of modules as users write them."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np

import multippo as mp
from multippo.backends.registry import active_engine
from multippo.networks.samplers.base import ActionSampler
from multippo.random import host

from .scripted_environment import NUM_ENVS, NUM_STEPS
from .specimen import ModuleSpecimen, normal_inputs
from .user_modules import CentredTrace, Holder, MovingAverage, NoisyGain

_F = 5
_TREE = {"camera": (2, 3), "joints": (4,)}


def _parallel() -> mp.StatefulModule:
    return mp.Parallel({"keys": mp.LSTM(_F, 3, mp.Rngs(1)), "a.b": mp.Normalizer(_F)})


def _concat() -> mp.StatefulModule:
    # Named against alphabetical order, in which JAX walks the children.
    return mp.Concat(
        joints=mp.Sequential([mp.Normalizer(4), mp.Dense(4, 3, mp.Rngs(1), "tanh")]), body=mp.LSTM(6, 4, mp.Rngs(2))
    )


def _adapter() -> mp.StatefulModule:
    actor = mp.Sequential([mp.Dense(_F, 4, mp.Rngs(1)), mp.NormalTanhSampler(mp.Rngs(2), 0.1)])
    return mp.PPOAdapter(action=actor, value=mp.Sequential([mp.LSTM(_F, 3, mp.Rngs(3)), mp.Dense(3, 1, mp.Rngs(4))]))


def _nested() -> mp.StatefulModule:
    inner = mp.Parallel(
        fast=mp.Dense(6, 3, mp.Rngs(1), "swish"),
        slow=mp.Sequential([mp.LSTM(6, 3, mp.Rngs(2)), mp.LSTM(3, 3, mp.Rngs(3))]),
    )
    joined = mp.Sequential([inner, mp.Concat(slow=mp.Dense(3, 2, mp.Rngs(4)), fast=mp.Normalizer(3))])
    return mp.Sequential([mp.Normalizer(_F), mp.Dense(_F, 6, mp.Rngs(5), "relu"), joined, mp.Splitter(left=2, right=3)])


def _user_defined() -> mp.StatefulModule:
    return Holder(mp.Sequential([NoisyGain(_F, mp.Rngs(1)), MovingAverage(_F, 3), CentredTrace(_F)]))


def _samplers() -> mp.StatefulModule:
    grid = mp.MultiCategoricalSampler([[2], [3]], mp.Rngs(2), 0.1)
    switches = mp.BernoulliSampler(mp.Rngs(3), 0.1, action_shape=(1, 4))
    return mp.Map(arm=mp.NormalSampler(mp.Rngs(1), action_shape=(2, 1)), hand=mp.Map({"a.b": grid, "0": switches}))


def _rearranged() -> mp.StatefulModule:
    taken = mp.Filter({"z": ("deep", "joints"), "bytes": "camera"})
    scaled = mp.Sequential([taken, mp.Scale({"z": 0.5, "bytes": 1 / 255})])
    return mp.Sequential([scaled, mp.Map(bytes=mp.Normalizer((2, 3)), z=mp.LSTM(4, 3, mp.Rngs(1))), mp.Flattener()])


def _tuples_and_lists() -> mp.StatefulModule:
    """Positions in a tuple of a list of a dict, and a function that takes a tuple out."""
    scaled = mp.Scale((0.5, [None, {"camera": -2.0}]))
    example = (np.zeros(4, np.float32), [np.zeros(2, np.float32), {"camera": np.zeros((2, 3), np.float32)}])
    late = mp.Delay(example, 2, (1.0, [-1.0, {"camera": 0.5}]))
    taken = mp.Filter({"goal": (1, 0), "pair": lambda x: (x[1][1]["camera"], x[0])})
    return mp.Sequential([scaled, late, taken, mp.Map(goal=mp.Flattener(), pair=mp.Normalizer(((2, 3), (4,))))])


def _delays() -> mp.StatefulModule:
    """Delays shorter than a rollout, as long as one, and longer."""
    example = {"camera": np.zeros((2, 3), np.uint8), "deep": {"joints": np.zeros(4, np.float32)}}
    delays = [mp.Delay(example, k, {"camera": k, "deep": {"joints": np.arange(4) - k}}) for k in (1, 3, NUM_STEPS)]
    return mp.Parallel({f"by {delay.k_steps}": delay for delay in [*delays, mp.Delay(example, NUM_STEPS + 2)]})


def _codes() -> mp.StatefulModule:
    """Delay, and joined heads of separate networks, one with a noisy code."""
    smooth = mp.AR1VariationalBottleneck(3, mp.Rngs(1), 0.1, 1e-3, 0.5, prior_correlation=0.8)
    code = mp.Sequential([mp.Dense(_F, 6, mp.Rngs(2)), smooth, mp.Dense(3, 2, mp.Rngs(3)), mp.Splitter(a=1, b=1)])
    return mp.Sequential(
        [mp.Delay(np.zeros(_F), 2), mp.Merge(code=code, sum=mp.Parallel(c=mp.LSTM(_F, 2, mp.Rngs(4)))), mp.Flattener(1)]
    )


def _heads() -> mp.StatefulModule:
    """Every layer with a softplus; with zero weights at the point where its two halves meet."""
    code = mp.AR1VariationalBottleneck(1, mp.Rngs(2), 0.3)
    draws = mp.Map(code=code, switches=mp.BernoulliSampler(mp.Rngs(3), 0.1), tanh=mp.NormalTanhSampler(mp.Rngs(4), 0.1))
    return mp.Sequential([mp.Dense(_F, 6, mp.Rngs(1)), mp.Splitter(code=2, switches=2, tanh=2), draws])


def _at_its_bound() -> mp.StatefulModule:
    """Normalizer whose inputs zero weights put exactly at its clip."""
    return mp.Sequential([mp.Dense(_F, 2, mp.Rngs(1)), mp.Lift(lambda x: x + 1.0), mp.Normalizer(2, clip=1.0)])


def _images() -> mp.StatefulModule:
    first = mp.Conv(2, 3, (3, 2), mp.Rngs(1), stride=(2, 1), padding="same", activation="tanh")
    return mp.Sequential([mp.Scale(1 / 255), first, mp.Conv(3, 2, 2, mp.Rngs(2)), mp.MoveAxis(-1, 0), mp.Flattener()])


def _residual() -> mp.StatefulModule:
    inner = mp.Sequential(
        [
            mp.LayerNorm(_F),
            mp.Dropout(0.3, mp.Rngs(1)),
            mp.GRU(_F, _F, mp.Rngs(2)),
            mp.Lift(lambda x: x**2 / (1 + x**2)),
        ]
    )
    return mp.Sequential([mp.Normalizer(_F), mp.Residual(inner)])


def _graph_of_dense() -> mp.PopulationGraph:
    """Two loops, one of two populations, and delays longer than some episodes; declared against the flow."""
    rngs = mp.Rngs(1)
    graph = mp.PopulationGraph(rngs)
    graph.add_output("late", 2, activation="tanh")
    graph.add_population("b", 3, activation="swish")
    graph.add_population("a", 3, activation="tanh")
    graph.add_input("x", _F, output_size=4, compute=mp.Dense(_F, 4, rngs), activation="gelu")
    graph.connect("x", "a")
    graph.connect("a", "b")
    graph.connect("b", "a", delay=1)
    graph.connect("b", "a", delay=3)
    graph.connect("x", "late", delay=5)
    graph.connect("b", "late", delay=2)
    graph.connect("late", "late", delay=2)
    graph.add_output("now", source="b", head=mp.Dense(3, 2, rngs))
    graph.finalize()
    return graph


def _graph_of_modules() -> mp.PopulationGraph:
    """Carries, snapshots, statistics and noise inside a loop, before it and after it; and a graph in the graph."""
    rngs = mp.Rngs(2)
    inner = mp.PopulationGraph(rngs)
    inner.add_input("u", 3)
    inner.add_population("v", 2, activation="tanh")
    inner.connect("u", "v", delay=1)
    inner.connect("v", "v", delay=2, transform="identity")
    inner.add_output("w", source="v")
    inner.finalize()
    graph = mp.PopulationGraph(rngs)
    graph.add_input("x", _F, output_size=3, compute=mp.Sequential([mp.Normalizer(_F), mp.LSTM(_F, 3, rngs)]))
    graph.add_population("loop", 3, compute=mp.Sequential([CentredTrace(3), NoisyGain(3, rngs)]), activation="tanh")
    graph.add_population("nested", input_size=3, output_size=2, compute=mp.Sequential([inner, mp.Filter("w")]))
    graph.connect("x", "loop", transform=mp.Normalizer(3), delay=2)
    graph.connect("loop", "loop", delay=1, transform=mp.LSTM(3, 3, rngs))
    graph.connect("loop", "nested", transform=NoisyGain(3, rngs))
    graph.add_output("action", source="nested", head=mp.NormalTanhSampler(rngs, 0.1))
    graph.add_output("value", source="loop", head=mp.Dense(3, 1, rngs))
    graph.finalize()
    return graph


def _native() -> mp.StatefulModule:
    """Linear layer as the framework makes it, not as the engine does."""
    engine = active_engine()
    if engine.name == "torch":
        return mp.Lift(importlib.import_module("torch").nn.Linear(_F, 4))
    nnx = importlib.import_module("flax.nnx")
    return mp.Lift(nnx.Linear(_F, 4, param_dtype=engine.float_dtype, rngs=nnx.Rngs(0)))


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
    """Logits, and masks of half of the actions, in some rows of all."""
    mask = host.uniform(host.fold_in(key, 1), (NUM_STEPS, NUM_ENVS, 4)) < 0.5
    return {"logits": normal_inputs((4,), scale=3.0)(key), "mask": mask.astype(np.int8)}


_flat = normal_inputs((_F,))
_stateless = ModuleSpecimen
_recurrent = functools.partial(ModuleSpecimen, carries=True)
_drawing = functools.partial(ModuleSpecimen, carries=True, emits=True)
_learning = functools.partial(ModuleSpecimen, emits=True, learns_statistics=True)
_complete = functools.partial(ModuleSpecimen, carries=True, emits=True, learns_statistics=True)

_CHOSEN: tuple[ModuleSpecimen, ...] = (
    _stateless("Dense", lambda: mp.Dense(_F, 4, mp.Rngs(1), "gelu"), _flat, differentiated=True),
    _recurrent("LSTM", lambda: mp.LSTM(_F, 4, mp.Rngs(1)), _flat, differentiated=True),
    _recurrent(
        "LSTM, trainable initial state",
        lambda: mp.LSTM(_F, 4, mp.Rngs(1), trainable_initial_state=True),
        _flat,
        differentiated=True,
    ),
    _recurrent("GRU", lambda: mp.GRU(_F, 4, mp.Rngs(1), trainable_initial_state=True), _flat, differentiated=True),
    _recurrent("RNN", lambda: mp.RNN(_F, 4, mp.Rngs(1), activation="sigmoid"), _flat),
    _recurrent(
        "RNN, trainable time constant",
        lambda: mp.RNN(_F, 4, mp.Rngs(1), time_constant=3.0, trainable_time_constant=True),
        _flat,
        differentiated=True,
    ),
    _stateless("LayerNorm", lambda: mp.LayerNorm(_F), normal_inputs((_F,), scale=0.5, offset=3.0), differentiated=True),
    _stateless("Conv", _images, _bytes, differentiated=True),
    _drawing("Dropout", lambda: mp.Dropout(0.4, mp.Rngs(1)), normal_inputs((2, 3))),
    _stateless("Lift of a function", lambda: mp.Lift(lambda x: x**2), _flat),
    _stateless("Lift of a native module", _native, _flat, only_on=("jax", "torch")),
    _complete("Residual of LayerNorm, Dropout, GRU, Lift", _residual, _flat, differentiated=True),
    _learning("Normalizer", lambda: mp.Normalizer(_F), _flat),
    _learning("Normalizer of a tree", lambda: mp.Normalizer(_TREE), normal_inputs(_TREE)),
    _drawing(
        "NormalTanhSampler, entropy bonus",
        lambda: mp.NormalTanhSampler(mp.Rngs(1), 0.1, min_std=0.01, std_scale=0.8),
        normal_inputs((6,)),
    ),
    # tanh of samples around 6 is 1 to five digits: a replay that inverts tanh is off.
    _drawing(
        "NormalTanhSampler, saturated",
        lambda: mp.NormalTanhSampler(mp.Rngs(1)),
        normal_inputs((6,), scale=0.3, offset=6.0),
    ),
    # Logits far apart: some actions have probability 0 in either precision, others 1.
    _drawing(
        "CategoricalSampler, entropy bonus",
        lambda: mp.CategoricalSampler(mp.Rngs(1), 0.1),
        normal_inputs((4,), scale=20.0),
    ),
    _drawing("CategoricalSampler, masked", lambda: mp.CategoricalSampler(mp.Rngs(1), 0.1), _masked_logits),
    _drawing(
        "NormalSampler, state-independent",
        lambda: mp.NormalSampler(mp.Rngs(1), 0.1, action_shape=3, state_dependent_std=False),
        normal_inputs((3,)),
        differentiated=True,
    ),
    _drawing("Map of NormalSampler, MultiCategoricalSampler, BernoulliSampler", _samplers, _parameters),
    _complete("Filter, Scale, Map, Flattener", _rearranged, _bytes_and_joints),
    _complete("Scale, Delay, Filter by a function, Normalizer of tuples and lists", _tuples_and_lists, _pairs),
    _learning(
        "Normalizer, a leaf left alone",
        lambda: mp.Normalizer({"camera": None, "deep": {"joints": (4,)}}),
        _bytes_and_joints,
    ),
    _recurrent("Delay", _delays, _bytes_and_joints),
    _recurrent("VariationalBottleneck", lambda: mp.VariationalBottleneck(2, mp.Rngs(1), 0.3), normal_inputs((4,))),
    _recurrent(
        "AR1VariationalBottleneck",
        lambda: mp.AR1VariationalBottleneck(2, mp.Rngs(1), 0.3, prior_correlation=0.9),
        normal_inputs((4,)),
    ),
    _recurrent("Delay, Merge, AR1VariationalBottleneck, Flattener", _codes, _flat, differentiated=True),
    _drawing("heads of zeros", _heads, _flat, differentiated=True, zeroed=True, smooth=True),
    _learning("Normalizer at its bound", _at_its_bound, _flat, differentiated=True, zeroed=True),
    _stateless("Splitter", lambda: mp.Splitter(mean=2, rest=1), _flat),
    _complete("Parallel", _parallel, _flat),
    _complete("Concat", _concat, normal_inputs({"body": (6,), "joints": (4,)})),
    _drawing("PPOAdapter", _adapter, _flat, differentiated=True),
    _complete("Sequential of nested containers", _nested, _flat),
    _recurrent("PopulationGraph", _graph_of_dense, normal_inputs({"x": (_F,)}), differentiated=True),
    _complete("PopulationGraph of recurrent, noisy and normalising modules", _graph_of_modules, _flat),
    _complete("user-defined modules", _user_defined, _flat),
)


def plain_samplers() -> list[str]:
    """Public samplers without a specimen above."""
    public = [name for name, one in vars(mp).items() if isinstance(one, type) and issubclass(one, ActionSampler)]
    return [name for name in public if not any(name in specimen.name for specimen in _CHOSEN)]


def _plain(name: str) -> ModuleSpecimen:
    return _drawing(name, lambda: getattr(mp, name)(mp.Rngs(1), 0.1), normal_inputs((4,)))


MODULES = (*_CHOSEN, *map(_plain, plain_samplers()))
