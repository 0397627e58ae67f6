"""Arguments that would be taken for something else, or fail far from where they were given, are refused by name."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from flax import nnx

import multippo as mp
from multippo.networks.initializers import lecun_normal

NAN = math.nan


def rngs() -> Any:
    return mp.Rngs(0)


def dense(features: int = 1) -> Any:
    return mp.Dense(1, features, rngs())


def zeros(*shape: int) -> Any:
    return torch.zeros(shape)


def run(module: Any, x: Any) -> Any:
    return module(module.initialize_state(1), x)


BOTTLENECKS = (mp.VariationalBottleneck, mp.AR1VariationalBottleneck)
# What is done, and a part of what is said.
REFUSED: list[tuple[Any, str]] = [
    # Sizes, flags, numbers, streams of keys.
    (lambda: mp.Dense(2.5, 1, rngs()), "Dense(in_features=2.5) is not possible: expected an integer"),
    (lambda: mp.Conv(1, 1, (1, 2, 3), rngs()), "Conv(kernel_size=(1, 2, 3)) is not possible: expected one integer, or"),
    (lambda: mp.Conv(1, 1, 1, rngs(), padding="full"), "Conv(padding='full') is not possible: expected an integer"),
    (lambda: mp.Dense(3, 2, rngs(), use_bias="no"), "Dense(use_bias='no') is not possible: expected True"),
    (lambda: mp.LayerNorm(1, epsilon=NAN), "LayerNorm(epsilon=nan) is not possible: expected a number above 0"),
    (lambda: mp.Dropout(1.0, rngs()), "Dropout(rate=1.0) is not possible: expected a number of at least 0 and below 1"),
    (lambda: mp.Dense(4, 2, "tanh"), "rngs='tanh') is not possible: expected a stream of keys"),
    (lambda: mp.CategoricalSampler("tanh"), "rngs='tanh') is not possible: expected a stream of keys"),
    (lambda: mp.Normalizer(3, epsilon=NAN), "Normalizer(epsilon=nan) is not possible: expected a number above 0"),
    *(
        (lambda bad=bad: mp.Normalizer(bad), "expected an int of at least 0, a tuple of ints")
        for bad in ("3", 2.0, None, True, {"a": "b"})
    ),
    *((lambda bad=bad: mp.Normalizer(bad), ") is not possible") for bad in (0, (3, 0), {"a": 3, "b": -1}, {})),
    (lambda: mp.Splitter(), "Splitter got no size"),
    (lambda: mp.Splitter(a=1.5), "Splitter(a=1.5) is not possible: expected an integer of at least 1"),
    (lambda: mp.Flattener(-1), "Flattener(preserve_levels=-1) is not possible: expected an integer of at least 0"),
    *(
        (lambda bad=bad: mp.Scale(bad), "expected a finite number")
        for bad in (None, "2", True, {}, {"a": "2"}, NAN, {"a": math.inf}, 10**400)
    ),
    # Samplers and codes.
    *((lambda kind=kind: kind(0, rngs()), f"{kind.__name__}(latent_size=0) is not possible") for kind in BOTTLENECKS),
    *((lambda kind=kind: kind(2, 0), "(rngs=0) is not possible") for kind in BOTTLENECKS),
    *((lambda kind=kind: kind(2, rngs(), NAN), f"{kind.__name__}(kl_weight=nan)") for kind in BOTTLENECKS),
    *((lambda kind=kind: kind(2, rngs(), min_std=-1.0), "(min_std=-1.0) is not possible") for kind in BOTTLENECKS),
    (lambda: mp.AR1VariationalBottleneck(2, rngs(), prior_correlation=1.0), "expected less than 1"),
    (lambda: mp.VariationalBottleneck(2, rngs(), beta=1.0), "() got an unexpected keyword argument 'beta'. It takes"),
    (lambda: mp.NormalSampler(rngs(), std_scale=0.0), "(std_scale=0.0) is not possible: expected a number above 0"),
    (lambda: mp.NormalSampler(rngs(), initial_std=0.5), "expected None where the standard deviation is part"),
    (lambda: mp.NormalSampler(rngs(), state_dependent_std=False), "state_dependent_std=False) needs action_shape"),
    (lambda: mp.CategoricalSampler(rngs(), NAN), "CategoricalSampler(entropy_weight=nan) is not possible"),
    (lambda: mp.BernoulliSampler(rngs(), action_shape=(1.5,)), ") is not possible: expected an integer of at least 1"),
    (lambda: mp.MultiCategoricalSampler([2, 0], rngs()), ") is not possible: expected integers of at least 1"),
    # Initialisers and activations.
    (
        lambda: mp.Dense(3, 2, rngs(), kernel_init=lambda rngs, shape: np.ones((2, 3))),
        "made an array of shape (2, 3); expected (3, 2)",
    ),
    (lambda: mp.Dense(3, 2, rngs(), kernel_init=np.ones((3, 2))), "Dense(kernel_init=...) is a ndarray"),
    (lambda: mp.Dense(3, 2, rngs(), kernel_init=nnx.initializers.lecun_normal()), "is a function of jax; expected"),
    (lambda: mp.Dense(3, 2, rngs(), bias_init=torch.nn.init.zeros_), "is a function of torch; expected"),
    (lambda: mp.Dense(1, 1, rngs(), "rleu"), "Unknown activation 'rleu'; expected one of elu, gelu"),
    # Sizes of factories.
    (lambda: mp.make_mlp(3, rngs()), "make_mlp(sizes=3) is not possible: expected a list of sizes"),
    (lambda: mp.make_mlp_actor_critic(3, 2, actor_hidden_sizes=3), "actor_hidden_sizes=3 is not possible"),
    (lambda: mp.make_recurrent_actor_critic(3, 2, cell="lstmm"), "Unknown recurrent cell 'lstmm'; expected one of"),
    # Children, and their form.
    *(
        (make, "got no child; it needs at least one")
        for make in (lambda: mp.Sequential([]), mp.Parallel, mp.Concat, mp.Merge, lambda: mp.Parallel({}))
    ),
    (lambda: mp.Sequential([dense(), 3]), "Sequential.layers[1] is a int; expected a StatefulModule"),
    (lambda: mp.Parallel(a=dense(), b=lambda x: x), "Parallel.components['b'] is a function"),
    (lambda: mp.Parallel({"a": dense()}, b=dense()), "takes either one dict or keyword arguments, not both"),
    (lambda: mp.Sequential(a=dense(), b=dense()), "Sequential got layers with the names ['a', 'b']; expected one list"),
    (lambda: mp.Parallel([dense()]), "Parallel got 1 arguments without a name; write Parallel(left=..., right=...)"),
    (lambda: mp.PPOAdapter(dense(), dense()), "PPOAdapter got 2 arguments without a name; write PPOAdapter(action="),
    (lambda: mp.PPOAdapter(action=dense()), "PPOAdapter(value=...) is a NoneType; expected a StatefulModule"),
    (lambda: mp.Filter("robot", "arm"), "write a path as one tuple, Filter(('robot', 'arm'))"),
    (lambda: mp.Filter(), "either one spec, such as 'policy', or keyword arguments"),
    *((lambda bad=bad: mp.Filter(bad), "expected a key, a path of keys") for bad in ({}, (), {"a": ()})),
    # Examples of a Delay.
    (lambda: mp.Delay(np.zeros(1), 1.5), "Delay(k_steps=1.5) is not possible: expected an integer of at least 0"),
    (lambda: mp.Delay({"a": 3}, 1), "Delay(sample_input=...) at 'a' is a int; expected an example"),
    (lambda: mp.Delay({"a": np.zeros(1, np.uint8)}, 1, {"a": 256}), "expected finite numbers of type uint8"),
    (lambda: mp.Delay(np.zeros(3), 1, np.zeros(2)), "that broadcast to (3,)"),
    # Inputs. Those of a wrong shape are in test_shapes_told.
    (lambda: run(dense(), [1.0, 2.0]), "Dense got a list of 2 entries; expected an array with 1"),
    (lambda: run(mp.Flattener(), {"a": np.ones((1, 2)), 1: np.ones((1, 2))}), "The keys ['a', 1] have no common order"),
    (lambda: run(mp.Filter(("a", "x")), {"a": zeros(1, 2)}), "an array of shape (1, 2) at ('a',); expected"),
    (lambda: run(mp.Normalizer({"a": 1, "b": 2}), {"a": zeros(1, 1), "c": zeros(1, 2)}), "leaves ['a', 'c']; expected"),
    (
        lambda: run(mp.Concat(a=dense(), b=mp.Lift(lambda x: x[:, None])), {"a": zeros(1, 1), "b": zeros(1, 1)}),
        "Concat.components['b'] yielded an array of shape (1, 1, 1); expected an array that",
    ),
    (
        lambda: run(mp.Merge(left=mp.Splitter(a=1, b=1), right=mp.Splitter(b=2)), zeros(1, 2)),
        "entry 'b' from components['right'] and from one before",
    ),
    (lambda: run(mp.Conv(3, 2, 4, rngs()), zeros(1, 3, 8, 8)), "image of shape (3, 8, 8); expected (height, width, 3)"),
    (lambda: run(mp.Delay({"a": np.zeros(2), "b": np.zeros(())}, 1), {"a": zeros(1, 2)}), "leaves ['a']; expected"),
    (lambda: run(mp.Delay(np.zeros(2, np.uint8), 1), zeros(1, 2)), "Delay got an input of type torch.float32"),
    (
        lambda: run(mp.CategoricalSampler(rngs()), {"logits": zeros(1, 5), "masks": zeros(1, 5)}),
        "['logits', 'masks']; expected",
    ),
    (
        lambda: run(mp.CategoricalSampler(rngs()), {"logits": zeros(1, 5), "mask": zeros(1, 4)}),
        "an array of shape (1, 4) as the mask",
    ),
    (
        lambda: mp.NormalSampler(rngs())(mp.NormalSampler(rngs()).initialize_state(2), zeros(2, 4), zeros(2, 3)),
        "stored samples of shape (2, 3)",
    ),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[message[:50] for _, message in REFUSED])
def test_what_is_refused(torch_engine, make, message):
    with pytest.raises((TypeError, ValueError)) as refused:
        make()
    assert message in str(refused.value)


def test_a_child_of_another_engine_is_refused(engine):
    other = {"jax": "torch", "torch": "jax"}[engine.name]
    with mp.use_backend(other):
        foreign = dense()
    with pytest.raises(TypeError, match=rf"Sequential.layers\[0\] is a {other} module, but its container is made on"):
        mp.Sequential([foreign])
    with pytest.raises(TypeError, match=r"PPOAdapter\(value=...\) is a"):
        mp.PPOAdapter(action=dense(), value=foreign)


def test_numbers_of_numpy_are_numbers(torch_engine):
    half = np.float32(0.5)
    assert mp.Dropout(half, rngs()).rate == 0.5
    assert mp.VariationalBottleneck(2, rngs(), half).kl_weight == 0.5
    x = torch_engine.asarray(np.ones((1, 3), np.float32))
    for scale in (mp.Scale(half), mp.Scale({"a": np.int64(2), "b": None})):
        given = x if scale.factors == 0.5 else {"a": x, "b": x}
        out = scale((), given).output
        np.testing.assert_allclose(torch_engine.to_numpy(out if scale.factors == 0.5 else out["a"] / 4), 0.5)
    assert mp.Normalizer({"a": 3, 1: 2, "empty": 0}).names == ("1", "a", "empty")
    assert mp.Dense(3, 2, rngs(), use_bias=np.bool_(True), kernel_init=lecun_normal(2.0)).out_features == 2
