"""An LSTM or GRU over sequences that hold episode ends, by torch's fused kernels.

The kernels know no resets. So each environment's ``T`` steps are cut after every step where ``done`` holds; the pieces
become rows of one padded batch, each with its own first carry, and the outputs are gathered back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from multippo.backends.torch import onednn

Weights = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
Carry = tuple[torch.Tensor, ...]

_NUM_CARRIES = {"lstm": 2, "gru": 1}


def parts_of(cell: str, tensors: Sequence[torch.Tensor]) -> Any:
    """Splits a recurrent layer's tensors: inputs, carry, ends, the carry after a reset, weights."""
    n, (xs, *rest) = _NUM_CARRIES[cell], tensors
    return xs, tuple(rest[:n]), rest[n], tuple(rest[n + 1 : 2 * n + 1]), rest[2 * n + 1 :]


def _segmented(cell: str, *tensors: torch.Tensor) -> Carry:
    """Takes T steps of a recurrent layer with resets.

    Args:
        cell: "lstm" or "gru".
        tensors: Inputs ``[T, B, in]``; the carry ``[B, H]`` before the first step; ``done``, ``[T, B]`` bool, where the
            carry is reset after the step; the carry after a reset; and of G gates the input weight ``[G H, in]``, the
            recurrent weight ``[G H, H]``, and the two biases ``[G H]``.

    Returns:
        ``[T, B, H]`` outputs, and the carry after the last step (after its reset, if any).
    """
    xs, carry, done, initial, weights = parts_of(cell, tensors)
    if cell == "lstm" and onednn.takes(xs):
        hs, *last = onednn.lstm(xs, carry, done, initial, weights)
    else:
        hs, last = _cut(cell, xs, carry, done, initial, weights)
    reset = done[-1][:, None]
    return hs, *(torch.where(reset, s0, s) for s, s0 in zip(last, initial, strict=True))


def _cut(
    cell: str, xs: torch.Tensor, carry: Carry, done: torch.Tensor, initial: Carry, weights: Any
) -> tuple[torch.Tensor, Carry]:
    """Outputs ``[T, B, H]`` and carry ``[B, H]`` before a reset after the last step."""
    time, batch = done.shape
    # One flat order, environment by environment, in which a piece is a run of consecutive rows.
    first = torch.ones((batch, time), dtype=torch.bool, device=done.device)
    first[:, 1:] = done[:-1].T
    starts = first.flatten().nonzero().squeeze(1)
    if len(starts) == batch:
        return _fused(cell, xs, None, carry, weights)
    at_start, owner = (starts % time == 0)[:, None], starts // time
    begun = tuple(torch.where(at_start, s[owner], s0[owner]) for s, s0 in zip(carry, initial, strict=True))
    lengths = torch.diff(starts, append=starts.new_tensor([time * batch]))
    steps = torch.arange(int(lengths.max()), device=done.device)[:, None]
    columns = starts + torch.minimum(steps, lengths - 1)  # a short piece repeats its last row, never read
    rows = xs.transpose(0, 1).reshape(time * batch, -1)
    packed = torch.nn.utils.rnn.pack_padded_sequence(rows[columns], lengths.cpu(), enforce_sorted=False)
    order, unsorted = packed.sorted_indices, packed.unsorted_indices
    out, carry = _fused(cell, packed.data, packed.batch_sizes, tuple(s[order] for s in begun), weights)
    padded, _ = torch.nn.utils.rnn.pad_packed_sequence(packed._replace(data=out))
    piece = torch.cumsum(first.flatten(), 0) - 1
    hs = padded[torch.arange(len(rows), device=done.device) - starts[piece], piece]
    return hs.reshape(batch, time, -1).transpose(0, 1), tuple(s[unsorted][piece[time - 1 :: time]] for s in carry)


def _fused(cell: str, xs: torch.Tensor, batch_sizes: Any, carry: Carry, weights: Any) -> tuple[torch.Tensor, Carry]:
    """Runs the kernel of ``nn.LSTM`` or ``nn.GRU`` on whole sequences, or on packed ones."""
    kernel: Callable[..., Any] = getattr(torch._VF, cell)  # pyright: ignore[reportPrivateUsage]
    layers = tuple(s[None] for s in carry)
    hidden = layers if cell == "lstm" else layers[0]
    sequence = (xs, hidden) if batch_sizes is None else (xs, batch_sizes, hidden)
    layout = (False,) if batch_sizes is None else ()  # batch_first, which packed sequences do not take
    hs, *last = kernel(*sequence, list(weights), True, 1, 0.0, False, False, *layout)
    return hs, tuple(s[0] for s in last)


def hidden_operator(way: str, cell: str, run: Callable[..., Carry], tags: tuple[torch.Tag, ...] = ()) -> Any:
    """A recurrent layer over time, for a compiler one operator of fixed output shapes, into which it does not look.

    The operator's backward pass computes the steps again.

    Args:
        way: Beginning of the operator's name.
        cell: "lstm" or "gru".
        run: Function of ``(cell, *tensors)`` to outputs and carry, as ``_segmented``.
        tags: Tags for torch's compiler.
    """
    name, n = f"multippo::{way}_{cell}", _NUM_CARRIES[cell]
    names = ["xs", *["h", "c"][:n], "done", *["h0", "c0"][:n], "weight_ih", "weight_hh", "bias_ih", "bias_hh"]
    taken = ", ".join(f"Tensor {argument}" for argument in names)

    def forward(*tensors: torch.Tensor) -> Carry:
        return tuple(out.contiguous() for out in run(cell, *tensors))

    def shapes(xs: Any, *rest: Any) -> Any:
        return xs.new_empty((*xs.shape[:2], rest[0].shape[-1])), *(s.new_empty(s.shape) for s in rest[:n])

    more: dict[str, Any] = {"tags": tags} if tags else {}  # early versions of torch take no tags
    operator: Any = torch.library.custom_op(
        name, forward, mutates_args=(), schema=f"({taken}) -> ({', '.join(['Tensor'] * (n + 1))})", **more
    )
    operator.register_fake(shapes)

    # ``custom_op`` would run the operator below autograd, where nothing can be differentiated.
    backward = f"{name}_backward"
    torch.library.define(backward, "(Tensor?[] grads, Tensor[] inputs, Tensor done) -> Tensor[]", tags=tags)

    def run_backward(grads: Sequence[torch.Tensor | None], inputs: Sequence[torch.Tensor], done: torch.Tensor) -> Any:
        with torch.enable_grad():
            leaves = [tensor.detach().requires_grad_() for tensor in inputs]
            outputs = run(cell, *leaves[: n + 1], done, *leaves[n + 1 :])
        used = [place for place, grad in enumerate(grads) if grad is not None]
        found: Any = torch.autograd.grad(
            [outputs[place] for place in used], leaves, [grads[place] for place in used], allow_unused=True
        )
        return [
            leaf.new_zeros(leaf.shape) if grad is None else grad.contiguous()
            for grad, leaf in zip(found, leaves, strict=True)
        ]

    def backward_shapes(grads: Any, inputs: Any, done: Any) -> Any:
        del grads, done
        return [tensor.new_empty(tensor.shape) for tensor in inputs]

    def save(ctx: Any, inputs: Any, output: Any) -> None:
        del output
        # The last carry is rarely used, and zeros for its gradient would cost time.
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)

    def differentiate(ctx: Any, *grads: Any) -> Any:
        saved = ctx.saved_tensors
        inputs = [*saved[: n + 1], *saved[n + 2 :]]
        call: Any = getattr(torch.ops.multippo, f"{way}_{cell}_backward")
        found = call([None if grad is None else grad.contiguous() for grad in grads], inputs, saved[n + 1])
        return (*found[: n + 1], None, *found[n + 1 :])

    torch.library.impl(backward, "CompositeExplicitAutograd")(run_backward)
    torch.library.register_fake(backward)(backward_shapes)
    operator.register_autograd(differentiate, setup_context=save)

    def call(*tensors: torch.Tensor) -> Any:
        return operator(*tensors) if torch.compiler.is_compiling() else run(cell, *tensors)

    return call


# The number of pieces depends on data: the host waits for the number, and no graph of launches can hold a wait.
_UNSAFE = (torch.Tag.cudagraph_unsafe,) if hasattr(torch.Tag, "cudagraph_unsafe") else ()
segmented: dict[str, Any] = {cell: hidden_operator("segmented", cell, _segmented, _UNSAFE) for cell in _NUM_CARRIES}
