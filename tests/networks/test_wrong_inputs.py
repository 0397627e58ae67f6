"""Arguments that would be taken for something else, or fail far from where they were given, are refused by name."""

from __future__ import annotations

import math
from typing import Any

import flax
import numpy as np
import pytest
import torch

import multippo as mp
from multippo.networks.initializers import lecun_normal

NAN = math.nan


def rngs() -> Any:
    return mp.Rngs(0)


REFUSED = {
    "kernel_init of another shape": (
        lambda: mp.Dense(3, 2, rngs(), kernel_init=lambda rngs, shape: np.ones((2, 3))),
        r"Dense\(kernel_init=...\) made an array of shape \(2, 3\); expected \(3, 2\)",
    ),
    "bias_init of another shape": (
        lambda: mp.Dense(3, 2, rngs(), bias_init=lambda rngs, shape: np.ones(1)),
        r"Dense\(bias_init=...\) made an array of shape \(1,\); expected \(2,\)",
    ),
    "a convolution's kernel": (
        lambda: mp.Conv(1, 2, 3, rngs(), kernel_init=lambda rngs, shape: np.ones((3, 3, 1, 2))),
        r"Conv\(kernel_init=...\) made an array of shape \(3, 3, 1, 2\); expected \(9, 2\)",
    ),
    "an initialiser that is none": (
        lambda: mp.Dense(3, 2, rngs(), kernel_init=np.ones((3, 2))),
        r"Dense\(kernel_init=...\) is a ndarray; expected a function of an Rngs and a shape",
    ),
    "an initialiser of flax's": (
        lambda: mp.Dense(3, 2, rngs(), kernel_init=flax.nnx.initializers.lecun_normal()),
        r"Dense\(kernel_init=...\) is an initialiser of jax's.*initializers.orthogonal",
    ),
    "an initialiser of torch's": (
        lambda: mp.Dense(3, 2, rngs(), bias_init=torch.nn.init.zeros_),
        r"Dense\(bias_init=...\) is an initialiser of torch's",
    ),
    "keys of two kinds": (
        lambda: mp.Flattener()((), {"a": np.ones((1, 2)), 1: np.ones((1, 2))}),
        r"The keys \['a', 1\] have no common order; give a dict keys of one kind",
    ),
    "a flag": (lambda: mp.Dense(3, 2, rngs(), use_bias="no"), r"Dense\(use_bias='no'\) is not possible: expected True"),
    "a convolution's flag": (lambda: mp.Conv(1, 2, 3, rngs(), use_bias=1), r"Conv\(use_bias=1\)"),
    "a norm's flag": (lambda: mp.LayerNorm(3, use_scale=None), r"LayerNorm\(use_scale=None\)"),
    "an LSTM's flag": (lambda: mp.LSTM(3, 2, rngs(), trainable_initial_state="no"), r"LSTM\(trainable_initial_state="),
    "a GRU's flag": (lambda: mp.GRU(3, 2, rngs(), trainable_initial_state=0), r"GRU\(trainable_initial_state=0\)"),
    "forget_bias": (
        lambda: mp.LSTM(3, 2, rngs(), forget_bias=NAN),
        r"LSTM\(forget_bias=nan\) is not possible: expected a finite number.$",
    ),
    "epsilon": (lambda: mp.Normalizer(3, epsilon=NAN), r"Normalizer\(epsilon=nan.*expected both above 0"),
    "clip": (lambda: mp.Normalizer(3, clip=NAN), r"Normalizer\(.*clip=nan.*expected both above 0"),
    "nothing to normalise": (
        lambda: mp.Normalizer(0),
        r"Normalizer\(shape=0\) is not possible: expected at least one number",
    ),
    "an axis of nothing": (lambda: mp.Normalizer((3, 0)), r"Normalizer\(shape=\(3, 0\)\) is not possible"),
    "a negative size": (lambda: mp.Normalizer({"a": 3, "b": -1}), r"Normalizer\(shape=\(-1,\)\) is not possible"),
    "a factor": (lambda: mp.Scale(NAN), r"Scale\(nan\) is not possible: expected a finite number"),
    "a factor in a tree": (lambda: mp.Scale({"a": math.inf}), r"Scale\(\{'a': inf\}\) is not possible"),
    "min_std": (lambda: mp.NormalTanhSampler(rngs(), min_std=NAN), r"NormalTanhSampler\(min_std=nan"),
    "std_scale": (lambda: mp.NormalSampler(rngs(), std_scale=NAN), r"NormalSampler\(.*std_scale=nan"),
    "entropy_weight": (
        lambda: mp.CategoricalSampler(rngs(), NAN),
        r"CategoricalSampler\(entropy_weight=nan\) is not possible: expected a number of at least 0",
    ),
    "a negative one": (lambda: mp.BernoulliSampler(rngs(), -0.1), r"BernoulliSampler\(entropy_weight=-0.1\)"),
    "initial_std without effect": (
        lambda: mp.NormalSampler(rngs(), initial_std=0.5),
        r"NormalSampler\(initial_std=0.5\) has no effect where.*pass state_dependent_std=False",
    ),
    "a sampler's rngs": (lambda: mp.MultiCategoricalSampler([2], 3), r"MultiCategoricalSampler\(rngs=3\)"),
    "kl_weight": (lambda: mp.VariationalBottleneck(2, rngs(), NAN), r"VariationalBottleneck\(kl_weight=nan\)"),
    "sizes": (lambda: mp.make_mlp(3, rngs()), r"make_mlp\(sizes=3\) is not possible: expected a list of sizes"),
    "a size": (lambda: mp.make_mlp([3, 0], rngs()), r"make_mlp\(sizes\[1\]=0\) is not possible"),
    "hidden sizes": (
        lambda: mp.make_mlp_actor_critic(3, 2, actor_hidden_sizes=3, rngs=rngs()),
        r"make_mlp_actor_critic\(actor_hidden_sizes=3\) is not possible: expected a list of sizes",
    ),
    "encoder sizes": (
        lambda: mp.make_recurrent_actor_critic(3, 2, 4, rngs(), encoder_sizes=3),
        r"make_recurrent_actor_critic\(encoder_sizes=3\) is not possible",
    ),
    "keys of two types": (
        lambda: mp.Concat({"a": mp.Dense(3, 2, rngs()), 1: mp.Dense(3, 2, rngs())}),
        r"Concat got the keys \['a', 1\], of several types; expected strings alone, or integers alone",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(engine, case):
    make, message = REFUSED[case]
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_numbers_of_numpy_are_numbers(engine):
    half = np.float32(0.5)
    assert mp.Dropout(half, rngs()).rate == 0.5
    assert mp.VariationalBottleneck(2, rngs(), half).kl_weight == 0.5
    assert mp.CategoricalSampler(rngs(), half).entropy_weight == 0.5
    assert mp.LayerNorm(3, epsilon=half).features == 3
    x = engine.asarray(np.ones((1, 3), np.float32))
    for scale in (mp.Scale(half), mp.Scale({"a": np.int64(2), "b": None})):
        given = x if scale.factors == 0.5 else {"a": x, "b": x}
        out = scale((), given).output
        np.testing.assert_allclose(engine.to_numpy(out if scale.factors == 0.5 else out["a"] / 4), 0.5)
    assert mp.Normalizer({"a": 3, 1: 2, "empty": 0}).names == ("1", "a", "empty")
    assert mp.Dense(3, 2, rngs(), use_bias=np.bool_(True), kernel_init=lecun_normal(2.0)).out_features == 2
    assert mp.NormalSampler(rngs(), action_shape=2, state_dependent_std=False).log_std[...].shape == (2,)


def test_inputs_that_are_no_arrays(engine):
    x = engine.asarray(np.ones((2, 3), np.float32))
    refused = (
        (lambda: mp.Splitter(a=1)((), {"x": x}), r"Splitter got a dict with the entries \['x'\]; expected an array"),
        (lambda: mp.Normalizer(3)((), {"x": x}), r"Normalizer got a dict with the entries \['x'\]; expected an array"),
        (lambda: mp.Flattener()((), {"x": x, "y": 3}), "Flattener got a int .3. in its input; expected arrays"),
        (
            lambda: mp.Dense(3, 2, rngs())((), [1.0, 2.0, 3.0]),
            "Dense got a list of 3 entries; expected an array with 3",
        ),
    )
    for run, message in refused:
        with pytest.raises(TypeError, match=message):
            run()


def test_what_concat_can_not_join(engine):
    x = engine.asarray(np.ones((2, 3), np.float32))
    same = mp.Concat(a=mp.Lift(lambda x: x), b=mp.Lift(lambda x: x))
    for other, what in (({"c": x}, r"a dict with the entries \['c'\]"), (x[:, None], r"an array of shape \(2, 1, 3\)")):
        with pytest.raises(ValueError, match=rf"Concat.components\['b'\] yielded {what}; expected an array that"):
            same([(), ()] if same.is_list else {"a": (), "b": ()}, {"a": x, "b": other})
    with pytest.raises(ValueError, match=r"Concat.components\['a'\] yielded a dict"):
        same({"a": (), "b": ()}, {"a": {"c": x}, "b": x})
    with pytest.raises(ValueError, match=r"Concat got an input with entries \[1, 'a'\]; expected \['a', 'b'\]"):
        same({"a": (), "b": ()}, {"a": x, 1: x})
