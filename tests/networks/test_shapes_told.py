"""An input of a wrong shape is told at the first call: where in the network, what was received, what was expected."""

from typing import Any

import numpy as np
import pytest
import torch

import multippo as mp
from multippo.errors import one_line
from multippo.networks.samplers.base import ActionSampler

PATH = "Sequential.layers[1].layers[0]"

ARRAY = "shape (5, 7)"
"""What all but a few are given."""


def graph(rngs: mp.Rngs) -> Any:
    made = mp.PopulationGraph(rngs)
    made.add_population("a", input_size=3, output_size=3, input_from="x")
    made.add_output("y", source="a")
    made.finalize()
    return made


def adapter(rngs: mp.Rngs) -> Any:
    return mp.PPOAdapter(action=mp.NormalTanhSampler(rngs, action_shape=3), value=mp.Dense(7, 1, rngs))


MODULES: dict[str, tuple[Any, str, str, str]] = {
    # What makes it; the place below PATH; the input received; what was expected.
    "Dense": (lambda r: mp.Dense(3, 2, r), "", ARRAY, "3 features"),
    "LSTM": (lambda r: mp.LSTM(3, 2, r), "", ARRAY, "3 features"),
    "GRU": (lambda r: mp.GRU(3, 2, r), "", ARRAY, "3 features"),
    "RNN": (lambda r: mp.RNN(3, 2, r), "", ARRAY, "3 features"),
    "LayerNorm": (lambda r: mp.LayerNorm(3), "", ARRAY, "3 features"),
    "Normalizer": (lambda r: mp.Normalizer(3), "", ARRAY, "a batch of (3,)"),
    "Delay": (lambda r: mp.Delay(np.zeros(3), 2), "", ARRAY, "a batch of (3,)"),
    "Conv": (lambda r: mp.Conv(3, 2, 2, r), "", ARRAY, "[B, H, W, 3]"),
    "VariationalBottleneck": (lambda r: mp.VariationalBottleneck(2, r), "", ARRAY, "4 features"),
    "AR1VariationalBottleneck": (lambda r: mp.AR1VariationalBottleneck(2, r), "", ARRAY, "4 features"),
    "NormalTanhSampler": (lambda r: mp.NormalTanhSampler(r), "", ARRAY, "an even number of features"),
    "NormalSampler": (lambda r: mp.NormalSampler(r, action_shape=3), "", ARRAY, "6 on the last axis"),
    "MultiCategoricalSampler": (lambda r: mp.MultiCategoricalSampler([2, 3], r), "", ARRAY, "5 logits"),
    "BernoulliSampler": (lambda r: mp.BernoulliSampler(r, action_shape=3), "", ARRAY, "3 features"),
    "CategoricalSampler": (lambda r: mp.CategoricalSampler(r), "", "shape (5, 7, 1)", "[B, features]"),
    "Dropout": (lambda r: mp.Dropout(0.5, r), "", "entries ['q']", "an array with a batch axis"),
    "Flattener": (lambda r: mp.Flattener(1), "", ARRAY, "dicts, lists or tuples"),
    "Scale": (lambda r: mp.Scale({"a": 2.0}), "", ARRAY, "leaves ['a']"),
    "MoveAxis": (lambda r: mp.MoveAxis(2, 0), "", ARRAY, "with these axes"),
    "Filter": (lambda r: mp.Filter("q"), "", ARRAY, "the entry 'q'"),
    "Splitter": (lambda r: mp.Splitter(a=4, b=4), "", ARRAY, "at least 8 features"),
    "Residual": (lambda r: mp.Residual(mp.Dense(7, 3, r)), "", ARRAY, "the same shape"),
    "Concat": (lambda r: mp.Concat(a=mp.Dense(3, 2, r)), "", ARRAY, "a dict with the entries ['a']"),
    "Map": (lambda r: mp.Map(a=mp.Dense(3, 2, r)), "", ARRAY, "a dict with the entries ['a']"),
    "Merge": (lambda r: mp.Merge(a=mp.Dense(7, 2, r)), "", "shape (5, 2)", "a dict"),
    "Parallel": (lambda r: mp.Parallel(a=mp.Dense(3, 2, r)), ".components['a']", ARRAY, "3 features"),
    "Sequential": (lambda r: mp.Sequential([mp.Dense(3, 2, r)]), ".layers[0]", ARRAY, "3 features"),
    "PPOAdapter": (adapter, ".action", ARRAY, "6 on the last axis"),
    "PopulationGraph": (graph, ".populations['a']", ARRAY, "3 features"),
}


def test_all_modules_are_here():
    public = {name: getattr(mp, name) for name in mp.__all__}
    modules = {name for name, one in public.items() if isinstance(one, type) and issubclass(one, mp.StatefulModule)}
    # What Lift was given is said in a test of its own; so it may be with a new sampler.
    left = modules - set(MODULES) - {"StatefulModule", "Lift"}
    assert not [name for name in left if not issubclass(public[name], ActionSampler)]


def told(module: Any, x: Any) -> str:
    """The message of a network in which ``module`` is at ``PATH``."""
    net = mp.Sequential([mp.Lift(lambda x: x), mp.Sequential([module])])
    with pytest.raises((ValueError, TypeError)) as caught:
        net(net.initialize_state(5), x)
    return one_line(caught.value)


def check(engine: Any, module: Any, below: str, received: str, expected: str) -> None:
    x = engine.zeros((5, 7, 1) if "(5, 7, 1)" in received else (5, 7))
    message = told(module, {"q": x} if "entries" in received else x)
    path, _, said = message.partition(": ")
    before, _, after = said.partition("expected")
    assert path == f"{PATH}{below}"
    assert received in before and expected in after, message


@pytest.mark.parametrize("name", MODULES)
def test_a_wrong_shape_is_told(torch_engine, name):
    make, *parts = MODULES[name]
    check(torch_engine, make(mp.Rngs(0)), *parts)


@pytest.mark.parametrize(
    "make",
    [
        mp.NormalTanhSampler,
        lambda r: mp.NormalSampler(r, action_shape=3, state_dependent_std=False),
        mp.BernoulliSampler,
        mp.CategoricalSampler,
        lambda r: mp.MultiCategoricalSampler([2, 3], r),
    ],
)
def test_samplers_of_what_is_no_batch_of_features(torch_engine, make):
    sampler, zeros = make(mp.Rngs(0)), torch_engine.zeros
    for x, received in (
        (zeros((6,)), "an input of shape (6,)"),
        ((zeros((5, 6)),), "a tuple of 1 entries"),
        ({"a": zeros((5, 6))}, "a dict with the entries ['a']"),
    ):
        assert told(sampler, x).startswith(f"{PATH}: {type(sampler).__name__} got {received}; expected ")
    logits = {"logits": zeros((5, 5)), "mask": None}
    if isinstance(sampler, mp.CategoricalSampler):
        assert "an array of shape (5, 5) as its logits and a NoneType as the mask" in told(sampler, logits)


def test_what_a_lifted_module_was_given(torch_engine):
    zeros, linear = torch_engine.zeros, torch.nn.Linear
    stack = mp.Lift(torch.nn.Sequential(linear(3, 2), linear(2, 1)))
    said = "mat1 and mat2 shapes cannot be multiplied (5x7 and 3x2)."
    assert told(stack, zeros((5, 7))) == f"{PATH}: Lift(Sequential) failed on an array of shape (5, 7): {said}"
    of_leaves = "arrays of shapes {'a': (5, 3), 'b': (5,)}"
    given = {"a": zeros((5, 3)), "b": zeros((5,))}
    assert told(stack, given).startswith(f"{PATH}: Lift(Sequential) failed on {of_leaves}: ")
    for kind in (mp.Lift, mp.Filter):
        missing = f"{PATH}: {kind.__name__}(<lambda>) failed on {of_leaves}: no entry 'c'."
        assert told(kind(lambda x: x["c"]), given) == missing
