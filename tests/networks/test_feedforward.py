"""Dense, LayerNorm and Lift: the arithmetic, initial weights, what native modules bring, what is refused."""

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from support import fill_randomly, gradients, to_numpy

import multippo as mp


def test_it_is_the_product_plus_the_bias_under_the_activation(engine):
    layer = mp.Dense(2, 2, mp.Rngs(0), "relu")
    mp.load_portable(layer, {"kernel": np.asarray([[1.0, 2.0], [3.0, -4.0]]), "bias": np.asarray([0.5, 0.0])})
    out = layer((), engine.asarray(np.asarray([[1.0, 1.0], [0.0, 2.0]], np.float32)))
    # [1 1]: 1+3+.5 = 4.5, 2-4 = -2 -> 0; [0 2]: 6+.5 = 6.5, -8 -> 0.
    assert to_numpy(out.output).tolist() == [[4.5, 0.0], [6.5, 0.0]]
    assert out.next_state == () and out.rollout_extras is None and out.regularization_loss == 0.0


def test_the_default_kernel_has_variance_one_over_in(torch_engine):
    kernel = mp.to_portable(mp.Dense(100, 400, mp.Rngs(0)))["kernel"]
    # 40,000 draws: the variance 1/100 is met within 4 sqrt(2 / 40000) = 3 %.
    assert abs(kernel.var() * 100 - 1) < 0.03


def equation(x, scale, bias, epsilon=1e-5):
    """The docstring's, in NumPy."""
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * scale + bias


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("use_scale", [False, True])
@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("epsilon", [1e-5, 0.5])
def test_it_is_the_equation(engine, use_scale, use_bias, epsilon):
    layer = mp.LayerNorm(4, epsilon=epsilon, use_scale=use_scale, use_bias=use_bias)
    weights, x = fill_randomly(layer), np.random.default_rng(1).normal(size=(3, 4))
    assert sorted(weights) == [name for name, used in (("bias", use_bias), ("scale", use_scale)) if used]
    expected = equation(x, weights.get("scale", 1.0), weights.get("bias", 0.0), epsilon)
    out = layer((), engine.asarray(x))
    np.testing.assert_allclose(to_numpy(out.output), expected, rtol=1e-10, atol=1e-12)
    assert out.next_state == () and out.rollout_extras is None


def test_a_mean_far_from_zero_keeps_its_digits(engine):
    x = np.asarray([[4096.0, 4097.0, 4098.0, 4099.0]], np.float32)
    out = mp.LayerNorm(4)((), engine.asarray(x))
    np.testing.assert_allclose(to_numpy(out.output), equation(x.astype(np.float64), 1.0, 0.0), rtol=1e-5)


def test_it_starts_as_the_plain_normalisation(engine):
    assert {name: value.tolist() for name, value in mp.to_portable(mp.LayerNorm(2)).items()} == {
        "bias": [0.0, 0.0],
        "scale": [1.0, 1.0],
    }
    assert all(leaf.trained for leaf in engine.leaves(mp.LayerNorm(2)).values())


DONE = np.zeros((4, 3), bool)


def native(engine, kind="linear"):
    if engine.name == "torch":
        linear = torch.nn.Linear(2, 3)
        return {
            "linear": linear,
            "stack": torch.nn.Sequential(linear, torch.nn.Tanh(), torch.nn.Linear(3, 1)),
            "norm": torch.nn.LayerNorm(2),
            "conv": torch.nn.Conv2d(1, 2, (3, 1)),
        }[kind]
    rngs = nnx.Rngs(0)
    linear = nnx.Linear(2, 3, rngs=rngs)
    return {
        "linear": linear,
        "stack": nnx.Sequential(linear, nnx.tanh, nnx.Linear(3, 1, rngs=rngs)),
        "norm": nnx.LayerNorm(2, rngs=rngs),
        "conv": nnx.Conv(1, 2, (3, 1), rngs=rngs),
    }[kind]


def inputs(engine):
    return engine.asarray(np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32))


def test_a_native_layer_is_called_with_its_own_weights(engine):
    layer, x = mp.Lift(native(engine)), inputs(engine)[0]
    weights = fill_randomly(layer)
    assert {name: value.shape for name, value in weights.items()} == {"bias": (3,), "kernel": (2, 3)}
    out = layer((), x)
    np.testing.assert_allclose(to_numpy(out.output), to_numpy(x) @ weights["kernel"] + weights["bias"], rtol=1e-5)
    assert out.next_state == () and out.rollout_extras is None and layer.initialize_state(3) == ()


@pytest.mark.parametrize(
    ("kind", "shapes"), [("norm", {"bias": (2,), "scale": (2,)}), ("conv", {"bias": (2,), "kernel": (3, 1, 1, 2)})]
)
def test_layers_that_multippo_has_go_by_its_names_and_layouts(engine, kind, shapes):
    weights = mp.to_portable(mp.Lift(native(engine, kind)))
    assert {name: value.shape for name, value in weights.items()} == shapes


def test_it_trains_in_a_container(engine):
    net = mp.Sequential([mp.Lift(native(engine, "stack")), mp.LSTM(1, 2, mp.Rngs(0))])
    values = fill_randomly(net)
    lifted = [name for name in values if name.startswith("layers.0.")]
    assert len(lifted) == 4 and all(leaf.trained for leaf in engine.leaves(net).values())
    xs, done, state = inputs(engine), engine.asarray(DONE), net.initialize_state(3)
    found = gradients(net, lambda net: net.xp.sum(net.unroll(state, xs, done).output))
    assert all(found[name].all() for name in lifted)


def test_a_function_has_no_weights_and_may_take_a_tree(engine):
    layer = mp.Lift(lambda x: {"sum": x["a"] + x["b"]})
    out = layer((), {"a": engine.zeros((1, 2)) + 1, "b": engine.zeros((1, 2)) + 2})
    assert to_numpy(out.output["sum"]).tolist() == [[3.0, 3.0]] and mp.to_portable(layer) == {}


@pytest.mark.parametrize(("engine_name", "other"), [("jax", "torch"), ("torch", "jax")])
def test_a_module_of_the_other_engine_is_refused_by_name(engine_name, other):
    with mp.use_backend(other) as engine:
        module = native(engine)
    message = rf"Lift got a .*Linear; on the engine {engine_name} it takes a"
    with mp.use_backend(engine_name), pytest.raises(TypeError, match=message):
        mp.Lift(module)


def test_a_module_of_flax_that_keeps_a_state_is_refused(jax_engine):
    rngs = nnx.Rngs(0)
    dropout = nnx.Sequential(nnx.Linear(2, 2, rngs=rngs), nnx.Dropout(0.5, rngs=rngs))
    for module in (nnx.BatchNorm(2, rngs=rngs), dropout):
        with pytest.raises(TypeError, match=r"with (a state|noise) of its own.*which.a call would (write|draw)"):
            mp.Lift(module)


def encoder(dropout):
    return torch.nn.TransformerEncoderLayer(2, 1, 4, dropout=dropout, batch_first=True)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: torch.nn.Sequential(torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(2, 2))),
            r"state of its own, 0\.parametrizations\.weight\.0 \(_SpectralNorm\), which a call would write",
        ),
        (lambda: torch.nn.LSTM(2, 2), r"of its own"),
        (lambda: torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5)), r"noise of its own"),
        (torch.nn.RReLU, r"noise of its own, itself \(RReLU\), which a call would draw"),
        (lambda: encoder(0.1), r"noise of its own \(dropout=0\.1\), self_attn \(MultiheadAttention\)"),
        (lambda: mp.Dense(1, 1, mp.Rngs(0)), "Lift got a Dense, a StatefulModule already"),
        (lambda: jax.nn.relu, "Lift got .*, a function of jax; on the engine torch it is"),
        (lambda: torch.nn.Linear, "Lift got the class Linear; expected an instance"),
        (lambda: torch.nn.Linear(2, 2).double(), r"Linear of torch\.float64; expected one of torch\.float32, .*to\("),
    ],
)
def test_what_writes_draws_or_is_of_another_type(torch_engine, make, said):
    with pytest.raises(TypeError, match=said):
        mp.Lift(make())


def test_what_torch_has_that_only_could_draw(torch_engine):
    for make in (
        lambda: encoder(0.0),
        lambda: torch.nn.Dropout(0.0),
        lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2)),
    ):
        layer, x = mp.Lift(make()), inputs(torch_engine)
        assert to_numpy(layer((), x).output).tolist() == to_numpy(layer((), x).output).tolist()
    with torch_engine.precision("float64"):
        assert mp.Lift(torch.nn.Linear(2, 2)).core.weight.dtype == torch.float64
