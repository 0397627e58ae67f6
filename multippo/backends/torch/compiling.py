"""Compiled pieces of a training step, with their launches recorded as CUDA graphs if that is asked for.

A graph of launches reads its inputs and writes its results at fixed addresses. torch copies the inputs there
(parameters stay where they are); what it returns it overwrites in the next call, so here it is copied out. What waits
for the host can't be in one: operators that do are marked so, and torch launches what holds them one by one.
"""

from __future__ import annotations

import contextlib
import time
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

from multippo.trees import tree_map

_KNOWS_UNSAFE = hasattr(torch.Tag, "cudagraph_unsafe")
"""True if operators that wait for the host can be marked."""


def compiled(function: Callable[..., Any], graphs: bool, on_compiled: Callable[[float], None]) -> Callable[..., Any]:
    """``function`` compiled as one graph without breaks.

    Args:
        function: Of trees of tensors, to a tree of tensors.
        graphs: Whether CUDA graphs are to save the launches ("reduce-overhead"). Without CUDA nothing comes of it.
        on_compiled: Gets the seconds of each call in which something was compiled.

    Raises:
        ValueError: If graphs are asked of a torch that can't keep operators out of them.
    """
    if graphs and not _KNOWS_UNSAFE:
        raise ValueError(
            f"compile='reduce-overhead' needs torch 2.9 or later, and this is {torch.__version__}: take compile='on', "
            "or upgrade torch."
        )
    options: dict[str, Any] = {"mode": "reduce-overhead"} if graphs else {}
    run = _timed(torch.compile(_with_own_code(function), fullgraph=True, dynamic=False, **options), on_compiled)
    return _copied_out(run) if graphs else run


def _copied_out(run: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, run(*args))

    return call


def _timed(run: Callable[..., Any], on_compiled: Callable[[float], None]) -> Callable[..., Any]:
    from torch._dynamo.utils import counters

    first = True

    def call(*args: Any) -> Any:
        nonlocal first
        graphs, start = counters["stats"]["unique_graphs"], time.perf_counter()
        with warnings.catch_warnings() if first else contextlib.nullcontext():
            if first:
                # array_api_compat looks namespaces up through a cache; dynamo looks through the cache, and says so.
                warnings.filterwarnings("ignore", "Dynamo detected a call to a `functools.lru_cache`", UserWarning)
            result = run(*args)
        first = False
        if counters["stats"]["unique_graphs"] != graphs:
            on_compiled(time.perf_counter() - start)
        return result

    return call


def _with_own_code(function: Any) -> Callable[..., Any]:
    """A function with a copy of its code.

    torch keeps what it compiled by code object, and compiles one only a few times: one method of many
    instances would come to that after two or three networks in a process.
    """
    code = function.__code__.replace()
    copy = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
