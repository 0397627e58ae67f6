"""An LSTM over sequences that hold episode ends, by oneDNN's kernel for whole sequences, forwards and backwards.

The kernel knows no resets, so sequences are cut into pieces after every end, and each group of pieces of similar
lengths has a call, padded to the longest. Operators of ours hide what depends on the ends, so that a recorded gradient
step repeats them; networks of an actor and a critic share the cut.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
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
    """Outputs ``[T, B, H]``, and carry ``[B, H]`` before a reset after the last step; see ``segments``."""
    parts = _ops.cut_pieces(done, carry[0].shape[-1])
    xs, *carry = (tensor.contiguous() for tensor in (xs, *carry))
    hs: Any = _Lstm.apply(xs, *carry, *initial, *weights, *parts)
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


def _most_groups(time: int) -> int:
    """One for each doubling of the length."""
    return (time - 1).bit_length() + 1


def _cut_pieces(done: torch.Tensor, hidden: int) -> list[torch.Tensor]:
    """Groups of pieces of similar lengths, whose rows follow one another.

    Returns:
        Steps and pieces ``[G, 2]`` of each group. Then, all empty if no episode ends before the last step, the place
        ``[T B]`` of each row ``t B + b`` among the groups' rows; for each of these the row that it reads (a short piece
        repeats its last), and the one that it is, or ``T B`` for padding; and each piece's first carry among carries
        and carries after a reset ``[2 B]``.
    """
    time, batch = done.shape
    ends = done.numpy()[:-1]
    if not ends.any():
        return [torch.tensor([[time, batch]]), *(torch.empty(0, dtype=torch.int64) for _ in range(4))]
    starts = np.ones((batch, time), bool)
    starts[:, 1:] = ends.T
    first = starts.ravel().nonzero()[0]  # environment by environment
    lengths = np.diff(first, append=time * batch)
    doublings = np.ceil(np.log2(lengths)).astype(np.int64)
    first = first % time * batch + first // time
    place = np.empty(time * batch, np.int64)
    groups: list[tuple[Any, ...]] = []
    taken, rows = np.zeros(len(first), bool), 0
    for doubling in range(_most_groups(time) - 1, -1, -1):
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
        own = np.where(is_own, columns, time * batch)
        begun = np.where(columns[0] < batch, columns[0], columns[0] % batch + batch)
        groups.append(([columns.shape], columns.ravel(), own.ravel(), begun))
    sizes, *parts = map(np.concatenate, zip(*groups, strict=True))
    return [torch.from_numpy(part) for part in (sizes, place, *parts)]


def _by_group(sizes: torch.Tensor, rows: Sequence[torch.Tensor], pieces: Sequence[torch.Tensor]) -> Any:
    """Each group's parts of tensors of all rows, as ``[steps, pieces, F]``, and of tensors of all pieces."""
    shapes = sizes.tolist()
    split = [
        [part.view(*shape, -1) for part, shape in zip(x.split([t * n for t, n in shapes]), shapes, strict=True)]
        for x in (x.reshape(-1, x.shape[-1]) for x in rows)
    ]
    return zip(*split, *(x.split([n for _, n in shapes]) for x in pieces), strict=True)


def _forward(tensors: list[torch.Tensor], parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """Outputs ``[T, B, H]`` and what the way back reads.

    That is, of all groups, inputs, first carries and outputs, empty if nothing was cut; last carries; and for each
    group oneDNN's workspace.
    """
    xs, h, c, h0, c0, *weights = (tensor.detach() for tensor in tensors)
    sizes, place, rows, _, begun = parts
    given = xs, h, c
    if len(place):
        given = (
            xs.flatten(0, 1).index_select(0, rows),
            *(torch.cat(x).index_select(0, begun) for x in ((h, h0), (c, c0))),
        )
    more = False, [], 2, h.shape[-1], 1, True, False, False, True
    with torch.enable_grad():  # else the kernel keeps nothing for the way back
        found = [
            _aten.mkldnn_rnn_layer(x, *weights, *carry, *more) for x, *carry in _by_group(sizes, given[:1], given[1:])
        ]
    outputs, *last, spaces = zip(*found, strict=True)
    spaces = *spaces, *(h.new_empty(0) for _ in range(_most_groups(len(xs)) - len(found)))
    last = map(torch.cat, last)
    if not len(place):
        return [outputs[0], *(h.new_empty(0) for _ in range(4)), *last, *spaces]
    output = torch.cat([x.view(-1, h.shape[-1]) for x in outputs])
    return [output.index_select(0, place).view(*xs.shape[:2], -1), *given, output, *last, *spaces]


def _backward(
    grad: torch.Tensor,
    tensors: list[torch.Tensor],
    parts: list[torch.Tensor],
    saved: list[torch.Tensor],
    to_carries: bool,
) -> list[torch.Tensor]:
    """Gradients of inputs, carry, carry after a reset (zeros unless ``to_carries``), and weights."""
    xs, h, c, _, _, *weights = tensors
    sizes, place, _, own, begun = parts
    hs, *given, h_last, c_last = saved[:7]
    if not len(place):
        given = [xs, h, c, hs]
    else:
        grad = torch.cat([grad.reshape(-1, h.shape[-1]), grad.new_zeros((1, h.shape[-1]))]).index_select(0, own)
    x, *carry, output = given
    more = None, None, False, 2, h.shape[-1], 1, True, True, False, [], False
    groups = _by_group(sizes, (x, output, grad), (*carry, h_last, c_last))
    found = [
        _aten.mkldnn_rnn_layer_backward(x, *weights, h_k, c_k, output, *last, grad, *more, space)
        for (x, output, grad, h_k, c_k, *last), space in zip(groups, saved[7:], strict=False)
    ]
    to_xs, *rest = zip(*found, strict=True)
    to_weights, to_first = [functools.reduce(operator.add, each) for each in rest[:4]], rest[4:]
    if not len(place):
        return [to_xs[0], *(one[0] for one in to_first), torch.zeros_like(h), torch.zeros_like(c), *to_weights]
    to_xs = torch.cat([one.view(-1, xs.shape[-1]) for one in to_xs]).index_select(0, place).view_as(xs)
    carries = [h.new_zeros((2 * len(h), h.shape[-1])) for _ in range(2)]
    if to_carries:
        carries = [to.index_add_(0, begun, torch.cat(one)) for to, one in zip(carries, to_first, strict=True)]
    first, after = zip(*(carry.chunk(2) for carry in carries), strict=True)
    return [to_xs, *first, *after, *to_weights]


class _Lstm(torch.autograd.Function):
    """Outputs ``[T, B, H]`` of inputs, carry, carry after a reset, four weights, and the parts of ``cut_pieces``."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
        saved = _ops.pieces_lstm(list(tensors[:9]), list(tensors[9:]))
        ctx.save_for_backward(*tensors, *saved)
        return saved[0]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        held = ctx.saved_tensors  # read once: a checkpointed function gives them out only once
        to_carries = any(ctx.needs_input_grad[1:5])
        found = _ops.pieces_lstm_backward(grads[0], list(held[:9]), list(held[9:14]), list(held[14:]), to_carries)
        return *found, *[None] * 5


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
