"""Layers under torch.compile, each as one graph, are what they are without: a step, all steps, and the gradients."""

from typing import Any

import pytest
import support
import torch

import multippo as mp

LAYERS = {
    "rnn": lambda rngs: mp.RNN(3, 4, rngs, time_constant=[1, 2, 3, 4], trainable_initial_state=True),
    "layer_norm": lambda rngs: mp.LayerNorm(3),
    "dropout": lambda rngs: mp.Sequential([mp.Dense(3, 4, rngs), mp.Dropout(0.3, rngs)]),
    "residual": lambda rngs: mp.Residual(mp.Sequential([mp.Lift(torch.nn.Linear(3, 3)), mp.Lift(lambda x: x * x)])),
}
# Of bfloat16 operands: nothing of the rounding is left out.
PRODUCTS = {
    "dense": lambda rngs: mp.Dense(3, 4, rngs),
    "lstm": lambda rngs: mp.LSTM(3, 4, rngs),
    "gru": lambda rngs: mp.GRU(3, 4, rngs),
    "convolution": lambda rngs: mp.Conv(3, 2, 2, rngs),
}
DONE = torch.tensor([[0, 1], [1, 0], [1, 1]], dtype=torch.bool)


def results(name: str, device: str = "cpu", **options: Any) -> tuple[Any, ...]:
    """A step, all steps and their gradients; compiled if there are options."""
    with mp.use_backend("torch", device=device), mp.precision("bfloat16" if name in PRODUCTS else "float32"):
        layer = {**LAYERS, **PRODUCTS}[name](mp.Rngs(0))
    support.fill_randomly(layer)
    torch.manual_seed(0)
    xs = (torch.randn(3, 2, 4, 4, 3) if name == "convolution" else torch.randn(3, 2, 3)).to(device)
    state = layer.engine.stop_gradient(layer.initialize_state(2))

    def run(xs: Any) -> tuple[Any, Any]:
        return layer(state, xs[0]).output, layer.unroll(state, xs, DONE.to(device)).output

    torch._dynamo.reset()
    outputs = (torch.compile(run, fullgraph=True, **options) if options else run)(xs)
    trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    loss = sum(out.sin().sum() for out in outputs)
    return *outputs, *torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)


def assert_close(got: Any, expected: Any, atol: float = 1e-5) -> None:
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-5, atol=atol)


@pytest.mark.parametrize("name", [*LAYERS, *PRODUCTS])
def test_traced_but_not_generated(name: str):
    assert_close(results(name, backend="aot_eager"), results(name), atol=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize("name", PRODUCTS)
def test_compiled(name: str):
    assert_close(results(name, backend="inductor"), results(name))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU with CUDA: elsewhere there are no matrix units")
@pytest.mark.parametrize("name", PRODUCTS)
def test_on_a_gpu_it_is_the_same_as_here(name: str):
    assert_close(results(name, "cuda"), results(name))
