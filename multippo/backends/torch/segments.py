"""An LSTM over sequences that hold episode ends, by torch's fused kernel.

The kernel knows no resets. So each environment's ``T`` steps are cut after every step where ``done`` holds; the pieces
become rows of one padded batch, each with the carry it starts from, and the outputs are gathered back.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["segmented_lstm"]

Weights = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def segmented_lstm(
    xs: torch.Tensor, h: Any, c: Any, done: torch.Tensor, h0: Any, c0: Any, weights: Weights
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """T steps with resets.

    Args:
        xs: ``[T, B, in]``.
        h: ``[B, H]`` carry before the first step.
        c: ``[B, H]`` carry before the first step.
        done: ``[T, B]`` bool; the carry is reset after the step.
        h0: ``[B, H]`` carry after a reset.
        c0: ``[B, H]`` carry after a reset.
        weights: Input weight ``[4H, in]``, recurrent weight ``[4H, H]``, and the two biases ``[4H]``.

    Returns:
        ``[T, B, H]`` outputs, and the carry after the last step (after its reset, if any).
    """
    if torch.compiler.is_compiling():
        return _compiled(xs, h, c, done, h0, c0, *weights)
    return _segmented(xs, h, c, done, h0, c0, *weights)


def _segmented(
    xs: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    done: torch.Tensor,
    h0: torch.Tensor,
    c0: torch.Tensor,
    *weights: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    time, batch = done.shape
    # One flat order, environment by environment, in which a piece is a run of consecutive rows.
    first = torch.zeros((batch, time), dtype=torch.bool, device=done.device)
    first[:, 0] = True
    first[:, 1:] = done[:-1].T
    starts = first.flatten().nonzero().squeeze(1)
    if len(starts) == batch:
        hs, h, c = _fused(xs, h, c, weights)
    else:
        ends = torch.cat((starts[1:], starts.new_tensor([time * batch])))
        longest = int((ends - starts).max())
        steps = torch.arange(longest, device=done.device)
        # Padding repeats the piece's last row: finite, and never read.
        source = torch.minimum(starts + steps[:, None], ends - 1)
        flat = xs.transpose(0, 1).reshape(time * batch, -1)
        at_start = (starts % time == 0)[:, None]
        owner = starts // time
        hs, cs_last, h_last = _padded(flat[source], at_start, owner, (h, c, h0, c0), ends - starts, weights)
        piece = torch.cumsum(first.flatten(), 0) - 1
        within = torch.arange(time * batch, device=done.device) - starts[piece]
        hs = hs[within, piece].reshape(batch, time, -1).transpose(0, 1)
        last = piece[time - 1 :: time]
        h, c = h_last[last], cs_last[last]
    reset = done[-1][:, None]
    return hs, torch.where(reset, h0, h), torch.where(reset, c0, c)


def _padded(
    xs: torch.Tensor, at_start: Any, owner: Any, carries: Any, lengths: Any, weights: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Runs the pieces; the carry of each is that after its own length, which packing alone returns."""
    h, c, h0, c0 = carries
    h_start = torch.where(at_start, h[owner], h0[owner])
    c_start = torch.where(at_start, c[owner], c0[owner])
    packed = torch.nn.utils.rnn.pack_padded_sequence(xs, lengths.cpu(), enforce_sorted=False)
    order = packed.sorted_indices
    out, h_last, c_last = torch._VF.lstm(  # pyright: ignore[reportPrivateUsage]
        packed.data,
        packed.batch_sizes,
        (h_start[order][None], c_start[order][None]),
        list(weights),
        True,
        1,
        0.0,
        False,
        False,
    )
    unsorted = packed.unsorted_indices
    padded, _ = torch.nn.utils.rnn.pad_packed_sequence(packed._replace(data=out))
    return padded, c_last[0][unsorted], h_last[0][unsorted]


def _fused(xs: torch.Tensor, h: Any, c: Any, weights: tuple[torch.Tensor, ...]) -> tuple[Any, Any, Any]:
    hs, h, c = torch._VF.lstm(  # pyright: ignore[reportPrivateUsage]
        xs, (h[None], c[None]), list(weights), True, 1, 0.0, False, False, False
    )
    return hs, h[0], c[0]


# Under torch.compile the pieces, whose number depends on data, hide in one operator of fixed output shapes.


@torch.library.custom_op("multippo::segmented_lstm", mutates_args=())
def _compiled(
    xs: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    done: torch.Tensor,
    h0: torch.Tensor,
    c0: torch.Tensor,
    weight_ih: torch.Tensor,
    weight_hh: torch.Tensor,
    bias_ih: torch.Tensor,
    bias_hh: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    hs, h, c = _segmented(xs, h, c, done, h0, c0, weight_ih, weight_hh, bias_ih, bias_hh)
    return hs.contiguous(), h.contiguous(), c.contiguous()


@_compiled.register_fake
def _(xs: Any, h: Any, c: Any, done: Any, h0: Any, c0: Any, *weights: Any) -> Any:
    del done, h0, c0, weights
    return xs.new_empty((*xs.shape[:2], h.shape[-1])), h.new_empty(h.shape), c.new_empty(c.shape)


# Defined without ``custom_op``, which runs an operator below autograd, where nothing can be differentiated.
torch.library.define("multippo::segmented_lstm_backward", "(Tensor[] grads, Tensor[] inputs, Tensor done) -> Tensor[]")


@torch.library.impl("multippo::segmented_lstm_backward", "CompositeExplicitAutograd")
def _compiled_backward(grads: list[torch.Tensor], inputs: list[torch.Tensor], done: torch.Tensor) -> list[torch.Tensor]:
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        outputs = _segmented(*leaves[:3], done, *leaves[3:])
    found: Any = torch.autograd.grad(outputs, leaves, grads, allow_unused=True)
    return [
        leaf.new_zeros(leaf.shape) if grad is None else grad.contiguous()
        for grad, leaf in zip(found, leaves, strict=True)
    ]


@torch.library.register_fake("multippo::segmented_lstm_backward")  # pyright: ignore[reportUntypedFunctionDecorator]
def _(grads: Any, inputs: Any, done: Any) -> Any:
    del grads, done
    return [tensor.new_empty(tensor.shape) for tensor in inputs]


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    del output
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, *grads: Any) -> Any:
    xs, h, c, done, *rest = ctx.saved_tensors
    found = torch.ops.multippo.segmented_lstm_backward([grad.contiguous() for grad in grads], [xs, h, c, *rest], done)
    return (*found[:3], None, *found[3:])


_compiled.register_autograd(_backward, setup_context=_save)
