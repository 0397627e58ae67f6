"""Products of bfloat16 operands under torch.compile: nothing of the rounding is left out."""

from __future__ import annotations

from typing import Any

import pytest
import support
import torch

import multippo as mp

LAYERS = {
    "dense": lambda rngs: mp.Dense(3, 4, rngs),
    "lstm": lambda rngs: mp.LSTM(3, 4, rngs),
    "gru": lambda rngs: mp.GRU(3, 4, rngs),
    "convolution": lambda rngs: mp.Conv(3, 2, 2, rngs),
}
DONE = torch.tensor([[0, 1], [1, 0], [1, 1]], dtype=torch.bool)


def results(make: Any, **options: Any) -> tuple[Any, ...]:
    """A step, all steps and their gradients; compiled if there are options."""
    with mp.precision("bfloat16"):
        layer = make(mp.Rngs(0))
    support.fill_randomly(layer)
    torch.manual_seed(0)
    xs = torch.randn(3, 2, 3) if "Conv" not in type(layer).__name__ else torch.randn(3, 2, 4, 4, 3)
    state = layer.engine.stop_gradient(layer.initialize_state(2))

    def run(xs: Any) -> tuple[Any, Any]:
        return layer(state, xs[0]).output, layer.unroll(state, xs, DONE).output

    torch._dynamo.reset()
    outputs = (torch.compile(run, fullgraph=True, **options) if options else run)(xs)
    trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    return *outputs, *torch.autograd.grad(sum(out.sin().sum() for out in outputs), trained)


@pytest.mark.parametrize("name", LAYERS)
def test_traced_but_not_generated(torch_engine: Any, name: str):
    for got, expected in zip(results(LAYERS[name], backend="aot_eager"), results(LAYERS[name]), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize("name", LAYERS)
def test_compiled(torch_engine: Any, name: str):
    for got, expected in zip(results(LAYERS[name], backend="inductor"), results(LAYERS[name]), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU with CUDA: elsewhere there are no matrix units")
@pytest.mark.parametrize("name", LAYERS)
def test_on_a_gpu_it_is_the_same_as_here(name: str):
    found = {}
    for device in ("cuda", "cpu"):
        with mp.use_backend("torch", device=device), mp.precision("bfloat16"):
            layer = LAYERS[name](mp.Rngs(0))
            support.fill_randomly(layer)
            shape = (2, 4, 4, 3) if name == "convolution" else (2, 3)
            x = layer.engine.asarray(torch.sin(torch.arange(96.0))[: 2 * 3 if len(shape) == 2 else 96].reshape(shape))
            out = layer(layer.engine.stop_gradient(layer.initialize_state(2)), x).output
            trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
            grads = torch.autograd.grad(out.sin().sum(), trained)
            found[device] = [leaf.detach().cpu() for leaf in (out, *grads)]
    for got, expected in zip(*found.values(), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
