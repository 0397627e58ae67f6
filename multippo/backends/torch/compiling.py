"""Compiled pieces of a training step, with their launches recorded as CUDA graphs in the mode "reduce-overhead".

A graph of launches reads its inputs and writes its results at fixed addresses. torch copies the inputs there
(parameters stay where they are) and overwrites the results in the next call, so results are copied out here. Operators
that wait for the host can't be in a graph: they are marked, and torch launches pieces that hold one without a graph.
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
    """Compiles ``function`` as one graph without breaks.

    Args:
        function: Function from trees of tensors to a tree of tensors.
        graphs: True if CUDA graphs are to save the launches ("reduce-overhead"); no effect without CUDA.
        on_compiled: Receiver of the seconds of each call in which something was compiled.

    Raises:
        ValueError: If this torch can't keep operators out of graphs, and ``graphs`` is True.
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
                # array_api_compat looks namespaces up through a cache; dynamo ignores the cache, and warns of it.
                warnings.filterwarnings("ignore", "Dynamo detected a call to a `functools.lru_cache`", UserWarning)
            result = run(*args)
        first = False
        if counters["stats"]["unique_graphs"] != graphs:
            on_compiled(time.perf_counter() - start)
        return result

    return call


def _with_own_code(function: Any) -> Callable[..., Any]:
    """Function with a copy of the code of another one.

    torch keeps compiled programmes by code object, and compiles one code object only a few times: one method of many
    instances would reach that limit after two or three networks in a process.
    """
    code = function.__code__.replace()
    copy = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
