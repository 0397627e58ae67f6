"""How exact float32 products are: full by default, and what a run or a user says holds on both engines."""

from typing import Any

import numpy as np
import pytest
import support
import torch

import multippo as mp
from multippo.backends.jax import layers
from multippo.backends.torch import products


def jaxprs(module: Any, *inputs: Any) -> str:
    """What is traced of a module and of its gradient."""
    import jax

    parts = module.engine.split(module)

    def loss(params: Any) -> Any:
        net = module.engine.merge(parts.definition, params, parts.variables)
        return net.xp.sum(net(net.initialize_state(2), *inputs).output)

    return str(jax.make_jaxpr(jax.grad(loss))(parts.params))


LAYERS = {
    "dense": (lambda rngs: mp.Dense(4, 3, rngs), (2, 4)),
    "lstm": (lambda rngs: mp.LSTM(4, 3, rngs), (2, 4)),
    "gru": (lambda rngs: mp.GRU(4, 3, rngs), (2, 4)),
    "rnn": (lambda rngs: mp.RNN(4, 3, rngs), (2, 4)),
    "convolution": (lambda rngs: mp.Conv(4, 3, 2, rngs), (2, 3, 3, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_products_for_gpus_are_traced_in_full_float32(jax_engine: Any, monkeypatch: pytest.MonkeyPatch, name: str):
    import jax

    make, shape = LAYERS[name]
    layer, x = make(mp.Rngs(0)), np.ones(shape, np.float32)
    # Nothing is said on the CPU, where there is no other way.
    monkeypatch.setattr(layers, "platform", lambda: "cpu")
    assert "HIGHEST" not in jaxprs(layer, x)
    monkeypatch.setattr(layers, "platform", lambda: "gpu")
    jax.clear_caches()
    text = jaxprs(layer, x)
    count = text.count("dot_general[") + text.count("conv_general_dilated[")
    assert count >= 2, "a product, and one of the backward pass"
    # Of both operands.
    assert text.count("HIGHEST") == 2 * count
    # Who has told JAX gets what JAX was told.
    with jax.default_matmul_precision("high"):
        text = jaxprs(layer, x)
        assert "HIGHEST" not in text
        assert text.count("precision=None") + text.count("HIGH") > 0


def test_products_of_bfloat16_for_gpus_take_them_and_sum_in_float32(jax_engine: Any, monkeypatch: pytest.MonkeyPatch):
    import jax

    monkeypatch.setattr(layers, "platform", lambda: "gpu")
    jax.clear_caches()
    with mp.precision("bfloat16"):
        text = jaxprs(mp.Dense(4, 3, mp.Rngs(0)), np.ones((2, 4), np.float32))
    assert text.count("preferred_element_type=float32") >= 2
    assert text.count("dot_general[") == text.count("preferred_element_type=float32")
    assert text.count("new_dtype=bfloat16") >= 4


def test_jax_is_told_on_other_devices_alone(jax_engine: Any, monkeypatch: pytest.MonkeyPatch):
    import jax

    monkeypatch.setattr(type(jax_engine), "_here", jax.devices("cpu")[0])
    with mp.matmul_precision("high"):
        assert jax.config.jax_default_matmul_precision is None
        assert jax_engine.numerics()["jax_default_matmul_precision"] == "None"

    class Gpu:
        platform, id, device_kind = "gpu", 0, "Imagined"

        class client:
            platform_version = "cuda 13"

    monkeypatch.setattr(type(jax_engine), "_here", Gpu())
    with mp.matmul_precision("high"):
        assert jax.config.jax_default_matmul_precision == "high"
        found = jax_engine.numerics()
    assert found == {"device": "cuda:0", "device_kind": "Imagined", "jax_default_matmul_precision": "high"}
    assert jax.config.jax_default_matmul_precision is None


def test_torchs_two_switches_are_one(torch_engine: Any):
    before = products._read()
    assert before == ("highest", True), "torch's defaults"
    with mp.matmul_precision("highest"):
        assert products._read() == ("highest", False)
        with mp.matmul_precision("high"):
            assert products._read() == ("high", True)
            expected = {"float32_matmul_precision": "high", "cudnn_allow_tf32": "True"}
            assert expected.items() <= torch_engine.numerics().items()
        assert products._read() == ("highest", False)
    assert products._read() == before


def test_on_cuda_cudnn_follows_the_products(torch_engine: Any):
    cuda, before = torch.device("cuda"), products._read()
    with products.one_precision(cuda):
        assert products._read() == ("highest", False)
    torch.set_float32_matmul_precision("high")  # a user's own choice
    try:
        with products.one_precision(cuda):
            assert products._read() == ("high", True)
    finally:
        torch.set_float32_matmul_precision("highest")
    with products.one_precision(torch.device("cpu")):
        assert products._read() == before


def test_acting_differentiating_and_a_whole_run_enter_it(torch_engine: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(products, "one_precision", lambda device: products.set_switches("highest"))
    seen: list[Any] = []
    with torch_engine.no_grad():
        seen.append(products._read())
    with torch_engine.training(1, 1):
        seen.append(products._read())
    weight = torch.ones((), requires_grad=True)
    torch_engine.value_and_grad(lambda params: (params["w"] * 2, seen.append(products._read())))({"w": weight})
    assert seen == [("highest", False)] * 3


def test_settings_of_single_operations_are_left_alone_or_refused(torch_engine: Any, monkeypatch: pytest.MonkeyPatch):
    def refuse() -> None:
        raise RuntimeError("a mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuse)
    with products.one_precision(torch.device("cuda")):
        pass
    assert torch_engine.numerics()["float32_matmul_precision"] == "set for single operations"
    with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"), mp.matmul_precision("high"):
        pass
    with pytest.raises(ValueError, match=r"'full'.*expected one of 'highest', 'high'"), mp.matmul_precision("full"):
        pass


@pytest.mark.parametrize("name", support.ENGINES)
def test_reduced_products_on_a_gpu(name: str):
    with mp.use_backend(name) as engine:
        if engine.device_name().startswith("cpu"):
            pytest.skip(f"{name} sees no GPU here: reduced products exist on GPUs alone")
        rng = np.random.default_rng(0)
        x, kernel = (rng.normal(size=(256, 256)).astype(np.float32) for _ in range(2))
        layer = mp.Dense(256, 256, mp.Rngs(0), use_bias=False)
        mp.load_portable(layer, {"kernel": kernel})
        exact = x.astype(np.float64) @ kernel.astype(np.float64)
        errors = {}
        for precision in ("highest", "high"):
            with mp.matmul_precision(precision):
                out = engine.to_numpy(layer((), engine.asarray(x)).output)
            errors[precision] = np.abs(out - exact).max()
        # 256 products of size 1: rounding of sums in float32, and of operands to 11 bits.
        assert errors["highest"] < 1e-4 < errors["high"] < 0.1
        # Without a word, full float32.
        assert np.abs(engine.to_numpy(layer((), engine.asarray(x)).output) - exact).max() < 1e-4
