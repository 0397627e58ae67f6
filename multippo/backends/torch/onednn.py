"""An LSTM over sequences that hold episode ends, by oneDNN's kernel for whole sequences, forwards and backwards.

The kernel knows no resets, so sequences are cut into pieces after every end, and each group of pieces of similar
lengths has a call, padded to the longest. Operators of ours hide what depends on the ends, so that a recorded gradient
step repeats them; networks of an actor and a critic share the cut.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

_ops: Any = torch.ops.multippo
_aten: Any = torch.ops.aten


def takes(xs: torch.Tensor) -> bool:
    """True if oneDNN has an LSTM for these inputs ``[T, B, in]``."""
    return (
        xs.device.type == "cpu"
        and xs.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and xs.numel() > 0
    )


def lstm(
    xs: torch.Tensor, carry: Any, done: torch.Tensor, initial: Any, weights: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Outputs ``[T, B, H]``, and carry ``[B, H]`` before a reset after the last step; see ``segmented_lstm``."""
    parts = _ops.cut_pieces(done, carry[0].shape[-1])
    hs: Any = _Lstm.apply(xs.contiguous(), *carry, *initial, *weights, *parts)
    return hs, hs[-1], _last_cells(xs, hs, carry, done, initial, weights)


def _last_cells(xs: Any, hs: Any, carry: Any, done: Any, initial: Any, weights: Any) -> torch.Tensor:
    """State ``[B, H]`` of the cell after the last step, from the outputs: of a padded row the kernel returns another.

    With outputs known, the gates of all steps are one product, and ``c' = f c + i g`` is a chain of linear functions,
    which are joined pair by pair.
    """
    (h, c), (h0, c0) = carry, initial
    weight_ih, weight_hh, bias_ih, bias_hh = (weight[: 3 * h.shape[-1]] for weight in weights)
    before = torch.cat([h[None], torch.where(done[:-1, :, None], h0, hs[:-1])])
    i, f, g = torch.chunk(xs @ weight_ih.T + before @ weight_hh.T + (bias_ih + bias_hh), 3, dim=-1)
    ends = torch.cat([done[:-1], torch.zeros_like(done[:1])])
    is_last = (ends.flip(0).cumsum(0).flip(0) == 0)[..., None]  # a step of the last piece
    f = torch.where(is_last, torch.sigmoid(f), 1.0)
    added = torch.where(is_last, torch.sigmoid(i) * torch.tanh(g), 0.0)
    added = torch.cat([torch.where(is_last[0], c, c0)[None], added])
    f = torch.cat([torch.ones_like(f[:1]), f])
    while len(f) > 1:
        if len(f) % 2:
            f, added = torch.cat([torch.ones_like(f[:1]), f]), torch.cat([torch.zeros_like(f[:1]), added])
        added = f[1::2] * added[::2] + added[1::2]
        f = f[1::2] * f[::2]
    return added[0]


def _num_groups(time: int) -> int:
    return (time - 1).bit_length() + 1


def _cut_pieces(done: torch.Tensor, hidden: int) -> list[torch.Tensor]:
    """Groups of pieces, one at most for each doubling of the length.

    Returns:
        Place ``[T B]`` of each row ``t B + b`` among the groups' outputs one after another, and for each of these
        outputs its row, or ``T B`` where it is padding. Then for each group rows ``[longest, pieces]``, of which a
        short piece repeats its last, and rows ``[pieces]`` of the first carries among carries and carries after a reset
        ``[2 B]``. Groups that are not needed are empty.
    """
    time, batch = done.shape
    starts = np.ones((batch, time), bool)
    starts[:, 1:] = done.numpy()[:-1].T
    first = starts.ravel().nonzero()[0]  # environment by environment
    lengths = np.diff(first, append=time * batch)
    doublings = np.ceil(np.log2(lengths)).astype(np.int64)
    first = first % time * batch + first // time
    place = np.empty(time * batch, np.int64)
    groups: list[np.ndarray] = []
    back: list[np.ndarray] = []
    taken, rows = np.zeros(len(first), bool), 0
    for doubling in range(_num_groups(time) - 1, -1, -1):
        chosen = (doublings == doubling) & ~taken
        if not chosen.any():
            continue
        longest = int(lengths[chosen].max())
        # A call costs as much as some rows of padding, which it may save; the wider the layer, the fewer.
        spared = (128 + 2 * lengths) * (64 / hidden) ** 2
        for below in range(doubling - 1, -1, -1):
            more = (doublings == below) & ~taken
            padding = (longest - lengths[more]).sum()
            if more.any() and padding > spared[more].max():
                break
            chosen |= more
        taken |= chosen
        steps = np.arange(longest)[:, None]
        columns = first[chosen] + np.minimum(steps, lengths[chosen] - 1) * batch
        is_own = steps < lengths[chosen]
        place[columns[is_own]] = is_own.ravel().nonzero()[0] + rows
        rows += columns.size
        back.append(np.where(is_own, columns, time * batch).ravel())
        groups.extend([columns, np.where(columns[0] < batch, columns[0], columns[0] % batch + batch)])
    # A tensor each: in a recorded call, what is one tensor stays one.
    empty = [torch.empty(0, dtype=torch.int64) for _ in range(2 * _num_groups(time) - len(groups))]
    return [*map(torch.from_numpy, (place, np.concatenate(back), *groups)), *empty]


def _forward(tensors: list[torch.Tensor], parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """Outputs ``[T, B, H]``, and of each group inputs, first carry, outputs, last carry and oneDNN's workspace."""
    xs, h, c, h0, c0, *weights = (tensor.detach() for tensor in tensors)
    time, batch, hidden = *xs.shape[:2], h.shape[-1]
    flat, hs, cs = xs.view(time * batch, -1), torch.cat([h, h0]), torch.cat([c, c0])
    more = False, [], 2, hidden, 1, True, False, False, True
    saved: list[torch.Tensor] = []
    for columns, begun in zip(parts[2::2], parts[3::2], strict=True):
        if not len(columns):
            saved.extend(torch.empty(0) for _ in range(7))
            continue
        inputs = flat.index_select(0, columns.view(-1)).view(*columns.shape, -1)
        carry = hs.index_select(0, begun), cs.index_select(0, begun)
        with torch.enable_grad():  # else the kernel keeps nothing for the way back
            saved.extend([inputs, *carry, *_aten.mkldnn_rnn_layer.default(inputs, *weights, *carry, *more)])
    outputs = [saved[place].view(-1, hidden) for place in range(3, len(saved), 7) if len(saved[place])]
    return [torch.cat(outputs).index_select(0, parts[0]).view(time, batch, hidden), *saved]


def _backward(
    grad: torch.Tensor,
    tensors: list[torch.Tensor],
    parts: list[torch.Tensor],
    saved: list[torch.Tensor],
    to_carries: bool,
) -> list[torch.Tensor]:
    """Gradients of inputs, carry, carry after a reset (zeros unless ``to_carries``), and weights."""
    xs, h, _, _, _, *weights = tensors
    hidden = h.shape[-1]
    sizes = [columns.numel() for columns in parts[2::2] if len(columns)]
    spread = torch.cat([grad.reshape(-1, hidden), grad.new_zeros((1, hidden))]).index_select(0, parts[1])
    carries = [h.new_zeros((2 * len(h), hidden)) for _ in range(2)]
    to_xs: list[torch.Tensor] = []
    to_weights: list[torch.Tensor] = []
    for k, own in enumerate(spread.split(sizes)):
        inputs, h_k, c_k, output, h_last, c_last, workspace = saved[7 * k : 7 * k + 7]
        given = inputs, *weights, h_k, c_k, output, h_last, c_last, own.view_as(output)
        more = None, None, False, 2, hidden, 1, True, True, False, [], False, workspace
        found = _aten.mkldnn_rnn_layer_backward.default(*given, *more)
        to_xs.append(found[0].view(-1, xs.shape[-1]))
        to_weights = [a + b for a, b in zip(to_weights, found[1:5], strict=True)] if k else list(found[1:5])
        if to_carries:
            for carry, one in zip(carries, found[5:], strict=True):
                carry.index_add_(0, parts[2 * k + 3], one)
    first, after = zip(*(carry.chunk(2) for carry in carries), strict=True)
    return [torch.cat(to_xs).index_select(0, parts[0]).view_as(xs), *first, *after, *to_weights]


class _Lstm(torch.autograd.Function):
    """Outputs ``[T, B, H]`` of inputs, carry, carry after a reset, four weights, and the parts of ``cut_pieces``."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
        hs, *saved = _ops.pieces_lstm(list(tensors[:9]), list(tensors[9:]))
        ctx.save_for_backward(*tensors, *saved)
        ctx.num = len(tensors)
        return hs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        held = ctx.saved_tensors  # read once: a checkpointed function gives them out only once
        tensors, saved = held[: ctx.num], held[ctx.num :]
        found = _ops.pieces_lstm_backward(
            grads[0], list(tensors[:9]), list(tensors[9:]), list(saved), any(ctx.needs_input_grad[1:5])
        )
        return *found, *[None] * (ctx.num - 9)


for _name, _run, _schema in (
    ("cut_pieces", _cut_pieces, "(Tensor done, int hidden)"),
    ("pieces_lstm", _forward, "(Tensor[] tensors, Tensor[] parts)"),
    (
        "pieces_lstm_backward",
        _backward,
        "(Tensor grad, Tensor[] tensors, Tensor[] parts, Tensor[] saved, bool to_carries)",
    ),
):
    torch.library.define(f"multippo::{_name}", f"{_schema} -> Tensor[]")
    torch.library.impl(f"multippo::{_name}", "CompositeExplicitAutograd")(_run)
