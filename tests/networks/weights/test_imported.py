"""Weights of plain torch and flax modules: our layers compute with them what theirs do."""

import re
from typing import Any

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import support
import torch
from flax import nnx

import multippo as mp

FEATURES, HIDDEN, BATCH, STEPS = 3, 4, 2, 5
RNG = np.random.default_rng(0)
SEQUENCE = RNG.normal(size=(STEPS, BATCH, FEATURES)).astype(np.float32)
IMAGE = RNG.normal(size=(BATCH, 6, 5, FEATURES)).astype(np.float32)


def ours(kind: str) -> Any:
    """The layer that takes them; its own weights are others."""
    rngs = mp.Rngs(5)
    layer = {
        "Dense": lambda: mp.Dense(FEATURES, HIDDEN, rngs),
        "LSTM": lambda: mp.LSTM(FEATURES, HIDDEN, rngs),
        "GRU": lambda: mp.GRU(FEATURES, HIDDEN, rngs),
        "RNN": lambda: mp.RNN(FEATURES, HIDDEN, rngs),
        "Conv": lambda: mp.Conv(FEATURES, HIDDEN, (3, 2), rngs),
        "LayerNorm": lambda: mp.LayerNorm(FEATURES),
    }[kind]()
    support.fill_randomly(layer, 7)
    return layer


def computed(layer: Any, kind: str) -> np.ndarray:
    """Outputs ``[T, B, ...]``."""
    engine = layer.engine
    if kind == "Conv":
        return engine.to_numpy(layer((), engine.asarray(IMAGE)).output)
    done = engine.asarray(np.zeros((STEPS, BATCH), bool))
    return engine.to_numpy(layer.unroll(layer.initialize_state(BATCH), engine.asarray(SEQUENCE), done).output)


def random_torch(module: Any) -> Any:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return module


def step_by_step(cell: Any) -> torch.Tensor:
    state, outputs = None, []
    for x in torch.from_numpy(SEQUENCE):
        state = cell(x, state)
        outputs.append(state[0] if isinstance(state, tuple) else state)
    return torch.stack(outputs)


TORCH: dict[str, Any] = {
    "Dense": lambda: torch.nn.Linear(FEATURES, HIDDEN),
    "LSTM": lambda: torch.nn.LSTM(FEATURES, HIDDEN),
    "LSTM cell": lambda: torch.nn.LSTMCell(FEATURES, HIDDEN),
    "GRU": lambda: torch.nn.GRU(FEATURES, HIDDEN),
    "GRU cell": lambda: torch.nn.GRUCell(FEATURES, HIDDEN),
    "RNN": lambda: torch.nn.RNN(FEATURES, HIDDEN),
    "LSTM without bias": lambda: torch.nn.LSTM(FEATURES, HIDDEN, bias=False),
    "Conv": lambda: torch.nn.Conv2d(FEATURES, HIDDEN, (3, 2)),
    "LayerNorm": lambda: torch.nn.LayerNorm(FEATURES),
}


@pytest.mark.parametrize("name", TORCH)
def test_of_torch(torch_engine, name):
    theirs, kind = random_torch(TORCH[name]()), name.split()[0]
    layer = ours(kind)
    assert mp.load_torch_state(layer, theirs.state_dict()) == []
    with torch.no_grad():
        if "cell" in name:
            expected = step_by_step(theirs)
        elif kind == "Conv":
            expected = theirs(torch.from_numpy(IMAGE).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        else:
            expected = theirs(torch.from_numpy(SEQUENCE))
    expected = (expected[0] if isinstance(expected, tuple) else expected).numpy()
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(computed(layer, kind), expected, atol=2e-6)


def unrolled(step: Any, carry: Any) -> np.ndarray:
    outputs = []
    for x in SEQUENCE:
        carry, y = step(carry, jnp.asarray(x))
        outputs.append(np.asarray(y))
    return np.stack(outputs)


ZEROS = jnp.zeros((BATCH, HIDDEN))
FLAX: dict[str, Any] = {
    # kind: (of nnx, of linen, the carry at first)
    "Dense": (lambda r: nnx.Linear(FEATURES, HIDDEN, rngs=r), linen.Dense(HIDDEN), None),
    "LSTM": (lambda r: nnx.LSTMCell(FEATURES, HIDDEN, rngs=r), linen.LSTMCell(HIDDEN), (ZEROS, ZEROS)),
    "LSTM optimized": (
        lambda r: nnx.OptimizedLSTMCell(FEATURES, HIDDEN, rngs=r),
        linen.OptimizedLSTMCell(HIDDEN),
        (ZEROS, ZEROS),
    ),
    "GRU": (lambda r: nnx.GRUCell(FEATURES, HIDDEN, rngs=r), linen.GRUCell(HIDDEN), ZEROS),
    "RNN": (lambda r: nnx.SimpleCell(FEATURES, HIDDEN, rngs=r), linen.SimpleCell(HIDDEN), ZEROS),
    "Conv": (
        lambda r: nnx.Conv(FEATURES, HIDDEN, (3, 2), padding="VALID", rngs=r),
        linen.Conv(HIDDEN, (3, 2), padding="VALID"),
        None,
    ),
    "LayerNorm": (lambda r: nnx.LayerNorm(FEATURES, epsilon=1e-5, rngs=r), linen.LayerNorm(epsilon=1e-5), None),
}


def randomly(tree: Any) -> Any:
    rng = np.random.default_rng(3)
    return jax.tree.map(lambda leaf: jnp.asarray(0.5 * rng.normal(size=leaf.shape), jnp.float32), tree)


@pytest.mark.parametrize("name", FLAX)
@pytest.mark.parametrize("api", ["nnx", "linen"])
def test_of_flax(torch_engine, name, api):
    of_nnx, of_linen, carry = FLAX[name]
    kind = name.split()[0]
    x = IMAGE if kind == "Conv" else SEQUENCE
    if api == "nnx":
        theirs = of_nnx(nnx.Rngs(0))
        nnx.update(theirs, randomly(nnx.state(theirs, nnx.Param)))
        state, call = nnx.state(theirs), theirs
    else:
        arguments = (x,) if carry is None else (carry, x[0])
        state = randomly(of_linen.init(jax.random.key(0), *arguments))
        call = lambda *inputs: of_linen.apply(state, *inputs)  # noqa: E731
    expected = np.asarray(call(x)) if carry is None else unrolled(call, carry)
    layer = ours(kind)
    prefix = {"": "params"} if api == "linen" else None
    assert mp.load_flax_state(layer, state, prefix) == []
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(computed(layer, kind), expected, atol=2e-6)


def test_a_network_layer_by_layer(torch_engine):
    """As rsl_rl keeps an actor-critic, with its normaliser; what is not named stays as it is."""
    rng = np.random.default_rng(1)
    state = {
        "obs_normalizer._mean": torch.tensor([[1.0, 2.0, 3.0]]),
        "obs_normalizer._var": torch.tensor([[4.0, 5.0, 6.0]]),
        "obs_normalizer._std": torch.tensor([[2.0, 5**0.5, 6**0.5]]),
        "obs_normalizer.count": torch.tensor(2**31 + 7),
        **{f"actor.{i}.weight": rng.normal(size=(HIDDEN, size)) for i, size in ((0, 3), (2, HIDDEN))},
        **{f"actor.{i}.bias": rng.normal(size=HIDDEN) for i in (0, 2)},
        "std": np.ones(2),
    }
    actor = mp.Sequential([mp.Dense(3, HIDDEN, mp.Rngs(0)), mp.Dense(HIDDEN, HIDDEN, mp.Rngs(1))])
    network = mp.Sequential([mp.Normalizer(3), mp.Parallel(actor=actor, critic=mp.Dense(3, 1, mp.Rngs(2)))])
    before = mp.to_portable(network)
    names = {f"layers.1.components.actor.layers.{i}": f"actor.{2 * i}" for i in (0, 1)}
    assert mp.load_torch_state(network, state, {"layers.0": "obs_normalizer", **names}) == ["std"]
    after = mp.to_portable(network)
    for i in (0, 1):
        np.testing.assert_array_equal(
            after[f"layers.1.components.actor.layers.{i}.kernel"], state[f"actor.{2 * i}.weight"].T.astype(np.float32)
        )
    np.testing.assert_array_equal(
        after["layers.1.components.critic.kernel"], before["layers.1.components.critic.kernel"]
    )
    assert network.layers[0].count == 2**31 + 7
    np.testing.assert_allclose(torch_engine.to_numpy(network.layers[0].variance), [4.0, 5.0, 6.0], rtol=1e-6)


def test_half_precision_and_initial_states(torch_engine):
    theirs = random_torch(torch.nn.LSTM(FEATURES, HIDDEN)).to(torch.bfloat16)
    layer = mp.LSTM(FEATURES, HIDDEN, mp.Rngs(0), trainable_initial_state=True)
    support.fill_randomly(layer, 2)
    before = mp.to_portable(layer)
    mp.load_torch_state(layer, theirs.state_dict())
    after = mp.to_portable(layer)
    np.testing.assert_array_equal(after["input_kernel"], theirs.weight_ih_l0.detach().float().numpy().T)
    np.testing.assert_array_equal(after["initial_h"], before["initial_h"])


LINEAR = {"weight": np.ones((HIDDEN, FEATURES)), "bias": np.zeros(HIDDEN)}


@pytest.mark.parametrize(
    ("layer", "state", "names", "message"),
    [
        ("net", LINEAR, {"layers.2": ""}, "'layers.2' is not a layer of the network"),
        ("net", {f"pi.{k}": v for k, v in LINEAR.items()}, {"layers.0": "po"}, "'po' is not a module of the torch"),
        ("Dense", {"weight": LINEAR["weight"]}, None, "has ['bias', 'kernel']; the torch state gives ['kernel']"),
        ("net", {**LINEAR, "weight": np.ones((2, 2))}, {"layers.0": ""}, "layers.0.kernel has shape (2, 2)"),
        ("net", torch.nn.LSTM(HIDDEN, HIDDEN, 2).state_dict(), {"layers.1": ""}, "'weight_ih_l1'], which a"),
        ("Dense", torch.nn.Linear(3, 4), None, "pass module.state_dict()"),
        ("Dense", {**LINEAR, "bias": np.ones(4) * 1j}, None, "bias holds complex128"),
        ("LSTM", {"weight_ih": np.ones(16), "weight_hh": np.ones((16, 4))}, None, "does not fit a LSTM: "),
    ],
)
def test_what_does_not_fit_is_named_and_changes_nothing(torch_engine, layer, state, names, message):
    net = lambda: mp.Sequential([ours("Dense"), mp.LSTM(HIDDEN, HIDDEN, mp.Rngs(1))])  # noqa: E731
    network = net() if layer == "net" else ours(layer)
    before = mp.to_portable(network)
    with pytest.raises((TypeError, ValueError)) as refused:
        mp.load_torch_state(network, state, names)
    assert message in str(refused.value)
    support.assert_trees_close(mp.to_portable(network), before, 0.0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"count": float("nan")}, "the count is nan; expected one number from 0 to below 2**60"),
        ({"count": 2**60}, "the count is 1152921504606846976"),
        (
            {"_var": np.array([1.0, -1.0, 1.0])},
            "are [1. 1. 1.] and [ 1. -1.  1.]; expected finite ones, and variances of 0 or more",
        ),
    ],
)
def test_statistics_that_no_inputs_have(torch_engine, changed, message):
    layer = mp.Normalizer(FEATURES)
    state = {"mean": np.ones(FEATURES), "_var": np.ones(FEATURES), "count": 3}
    with pytest.raises(ValueError, match=re.escape(message)):
        mp.load_torch_state(layer, {**state, **changed})
    assert layer.count == 0
    mp.load_torch_state(layer, {"mean": np.ones(FEATURES), "_var": np.ones(FEATURES), "count": 2**60 - 1})
    assert layer.count == 2**60 - 1


def test_sums_of_half_precision_are_not_rounded_to_it(torch_engine):
    """A variance of 100 times 10 000 samples is more than float16 holds; 256 + 1 more than bfloat16 tells apart."""
    normalizer, layer = mp.Normalizer(1), mp.LSTM(1, 1, mp.Rngs(0))
    state = {"mean": np.ones(1, np.float16), "var": np.full(1, 100, np.float16), "count": 10_000}
    mp.load_torch_state(normalizer, state)
    assert mp.to_portable(normalizer)["M2"] == 1e6
    biases = {"bias_ih": jnp.full(4, 256, jnp.bfloat16), "bias_hh": jnp.ones(4, jnp.bfloat16)}
    mp.load_torch_state(layer, {"weight_ih": np.ones((4, 1)), "weight_hh": np.ones((4, 1)), **biases})
    np.testing.assert_array_equal(mp.to_portable(layer)["bias"], 257.0)


KERNEL = {"kernel": np.ones((FEATURES, HIDDEN)), "bias": np.arange(HIDDEN)}


@pytest.mark.parametrize("state", [KERNEL, {"params": KERNEL}, {"params": {**KERNEL, "bias": [0, 1, 2, 3]}}])
def test_the_collection_params_needs_no_name(torch_engine, state):
    layer = mp.Dense(FEATURES, HIDDEN, mp.Rngs(0))
    assert mp.load_flax_state(layer, state) == []
    np.testing.assert_array_equal(mp.to_portable(layer)["bias"], [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("state", "names", "error", "message"),
    [
        (nnx.Linear(3, 4, rngs=nnx.Rngs(0)), None, TypeError, "load_flax_state got a Linear; .* nnx.state(module)"),
        ({"params": KERNEL, "stats": {"n": 1}}, None, ValueError, "no 'kernel'; it has ['params.bias', 'params.kernel"),
        (KERNEL, ["kernel"], TypeError, "names=['kernel'] is not possible: expected a dict"),
    ],
)
def test_trees_of_flax_that_are_refused(torch_engine, state, names, error, message):
    layer = mp.Dense(FEATURES, HIDDEN, mp.Rngs(0))
    with pytest.raises(error, match=".*".join(map(re.escape, message.split(".*")))):
        mp.load_flax_state(layer, state, names)
