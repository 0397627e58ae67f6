"""Reach of a convolution: zeros around its input, and the size of its output."""

from __future__ import annotations

__all__ = ["Padding", "output_size", "pad_sizes"]

Padding = str | tuple[int, int]
"""Of two axes: "valid", "same", or zeros on each side of the rows and of the columns."""


def pad_sizes(size: int, kernel: int, stride: int, padding: str | int) -> tuple[int, int]:
    """Zeros before and after one axis of ``size``.

    "same" makes ``ceil(size / stride)`` positions; of an odd number of zeros the larger half comes after.
    """
    if not isinstance(padding, str):
        return padding, padding
    if padding == "valid":
        return 0, 0
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def output_size(size: int, kernel: int, stride: int, padding: str | int) -> int:
    """Positions of the kernel on one axis: ``floor((size + zeros - kernel) / stride) + 1``; 0 or less if none."""
    return (size + sum(pad_sizes(size, kernel, stride, padding)) - kernel) // stride + 1
