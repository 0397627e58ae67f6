"""An LSTM or GRU step by step, in products of bfloat16 operands, as torch's fused kernels have none.

What the kernels for bfloat16 carry from step to step is bfloat16. Here only the operands are: gates, carry and sums are
float32. The input's product is one for all steps. Nothing waits for the host, so a graph of launches can hold it.
"""

from __future__ import annotations

from typing import Any

import torch

from multippo.backends.torch.products import linear_bfloat16, product_bfloat16
from multippo.backends.torch.segments import Carry, Weights, hidden_operator


def lstm_step(x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, weights: Weights) -> tuple[torch.Tensor, torch.Tensor]:
    """One step: ``[B, in]``, ``[B, H]``, ``[B, H]`` to the new ``h`` and ``c``; weights as in ``segmented_lstm``."""
    h, c = _lstm(_projected(x, weights, both=True), (h, c), weights)
    return h, c


def gru_step(x: torch.Tensor, h: torch.Tensor, weights: Weights) -> torch.Tensor:
    """One step: ``[B, in]`` and ``[B, H]`` to the new ``h``."""
    return _gru(_projected(x, weights, both=False), (h,), weights)[0]


def stepped_lstm(
    xs: torch.Tensor, h: Any, c: Any, done: torch.Tensor, h0: Any, c0: Any, weights: Weights
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As ``segmented_lstm``."""
    return _run("lstm", (xs, h, c, done, h0, c0, *weights))


def stepped_gru(
    xs: torch.Tensor, h: Any, done: torch.Tensor, h0: Any, weights: Weights
) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``segmented_gru``."""
    return _run("gru", (xs, h, done, h0, *weights))


def _projected(x: torch.Tensor, weights: Weights, *, both: bool) -> torch.Tensor:
    """The input's part of the gates, with the biases that are added to it."""
    weight_ih, _, bias_ih, bias_hh = weights
    return linear_bfloat16(x, weight_ih, bias_ih + bias_hh if both else bias_ih)


def _lstm(projected: torch.Tensor, carry: Carry, weights: Weights) -> Carry:
    h, c = carry
    i, f, g, o = torch.chunk(projected + product_bfloat16(h, weights[1].T), 4, dim=-1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru(projected: torch.Tensor, carry: Carry, weights: Weights) -> Carry:
    (h,) = carry
    a_r, a_z, a_n = torch.chunk(projected, 3, dim=-1)
    b_r, b_z, b_n = torch.chunk(linear_bfloat16(h, weights[1], weights[3]), 3, dim=-1)
    z = torch.sigmoid(a_z + b_z)
    n = torch.tanh(a_n + torch.sigmoid(a_r + b_r) * b_n)
    return ((1.0 - z) * n + z * h,)


def _stepped(cell: str, *tensors: torch.Tensor) -> Carry:
    n, step = (2, _lstm) if cell == "lstm" else (1, _gru)
    xs, carry, done = tensors[0], tensors[1 : 1 + n], tensors[1 + n]
    initial, weights = tensors[2 + n : 2 + 2 * n], tensors[2 + 2 * n :]
    projected = _projected(xs, weights, both=cell == "lstm")  # pyright: ignore[reportArgumentType]
    hs: list[torch.Tensor] = []
    for t in range(done.shape[0]):
        carry = step(projected[t], carry, weights)  # pyright: ignore[reportArgumentType]
        hs.append(carry[0])
        reset = done[t][:, None]
        carry = tuple(torch.where(reset, s0, s) for s, s0 in zip(carry, initial, strict=True))
    return torch.stack(hs), *carry


def _run(cell: str, tensors: tuple[torch.Tensor, ...]) -> Any:
    # A compiler would unroll the loop into one graph of all steps.
    return _COMPILED[cell](*tensors) if torch.compiler.is_compiling() else _stepped(cell, *tensors)


_COMPILED: dict[str, Any] = {cell: hidden_operator("stepped", cell, _stepped) for cell in ("lstm", "gru")}
