"""Layers under torch.compile, each as one graph: a step, all steps, and the gradient."""

from __future__ import annotations

import pytest
import torch
from support import fill_randomly

import multippo as mp

LAYERS = {
    "rnn": lambda rngs: mp.RNN(3, 4, rngs, time_constant=[1, 2, 3, 4], trainable_initial_state=True),
    "layer_norm": lambda rngs: mp.LayerNorm(3),
    "dropout": lambda rngs: mp.Sequential([mp.Dense(3, 4, rngs), mp.Dropout(0.3, rngs)]),
    "residual": lambda rngs: mp.Residual(mp.Sequential([mp.Lift(torch.nn.Linear(3, 3)), mp.Lift(lambda x: x * x)])),
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_compiled_is_eager(torch_engine, make):
    layer = make(mp.Rngs(0))
    fill_randomly(layer)
    torch.manual_seed(0)
    state, xs = torch_engine.stop_gradient(layer.initialize_state(2)), torch.randn(5, 2, 3)
    done = torch.tensor([[0, 1], [1, 0], [1, 0], [0, 0], [0, 1]], dtype=torch.bool)
    trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    for function, inputs in (
        (lambda x: layer(state, x).output, xs[0]),
        (lambda x: layer.unroll(state, x, done).output, xs),
    ):
        torch._dynamo.reset()
        got, expected = torch.compile(function, fullgraph=True, backend="aot_eager")(inputs), function(inputs)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
        pairs = zip(
            *(
                torch.autograd.grad(out.sum(), trained, allow_unused=True, materialize_grads=True)
                for out in (got, expected)
            ),
            strict=True,
        )
        for one, other in pairs:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_compiled_convolution_is_the_eager_one(torch_engine):
    conv = mp.Conv(3, 2, 3, mp.Rngs(0), stride=2, padding="same")
    fill_randomly(conv)
    images = torch.randint(0, 255, (2, 8, 9, 3), dtype=torch.uint8)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: conv((), x).output, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), conv((), images).output, rtol=1e-5, atol=1e-5)
