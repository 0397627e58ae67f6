"""``summary``, a table of a network's modules, shapes, parameters, and ways through replay."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from multippo.networks.containers import Parent
from multippo.networks.core.error_paths import refuse_other_module, step_to
from multippo.networks.recording import Run, copied_with, passing_through
from multippo.networks.types import StatefulModule, StatefulModuleOutput
from multippo.trees import named_leaves, tree_leaves, tree_map


@dataclasses.dataclass(frozen=True)
class ModuleRow:
    """One module of a network.

    Attributes:
        path: Path of the module, such as ``layers[1].action``; empty for the network itself.
        kind: Name of the module's class.
        output: Shapes of the output without the batch axis, by leaf; None without a sample, or if the module did not
            run.
        num_params: Number of trained numbers in the module and below.
        num_variables: Number of tracked numbers in the module and below.
        carry: Number of numbers in the carry of one environment.
        replay: "parallel" where a replay runs all time steps at once, "scan" where it goes step by step; "mixed" for
            a module with parts of both kinds.
    """

    path: str
    kind: str
    output: dict[str, tuple[int, ...]] | None
    num_params: int
    num_variables: int
    carry: int
    replay: str


@dataclasses.dataclass(frozen=True)
class NetworkSummary:
    """Summary of a network; prints as a table.

    Attributes:
        rows: Rows of the network and all modules in it, parents before children.
    """

    rows: tuple[ModuleRow, ...]

    @property
    def num_params(self) -> int:
        """Number of trained numbers of the network, each counted once."""
        return self.rows[0].num_params

    def __str__(self) -> str:
        heads = ("module", "type", "output", "parameters", "variables", "carry", "replay")
        lines = [heads, *(_cells(row) for row in self.rows)]
        shown = [i for i in range(len(heads)) if i != 2 or any(row.output is not None for row in self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
        numbers = (3, 4, 5)
        text = (
            "  ".join(line[i].rjust(widths[i]) if i in numbers else line[i].ljust(widths[i]) for i in shown).rstrip()
            for line in lines
        )
        return "\n".join(text)


def summary(net: Any, sample_input: Any = None) -> NetworkSummary:
    """Lists the modules of a network.

    >>> import numpy as np
    >>> import multippo as mp
    >>> rngs = mp.Rngs(0)
    >>> net = mp.Sequential([mp.Normalizer(3), mp.Dense(3, 4, rngs), mp.LSTM(4, 2, rngs)])
    >>> print(mp.summary(net, np.zeros(3)))
    module     type        output  parameters  variables  carry  replay
    (network)  Sequential  (2,)            72          8      4  mixed
    layers[0]  Normalizer  (3,)             0          8      0  parallel
    layers[1]  Dense       (4,)            16          0      0  parallel
    layers[2]  LSTM        (2,)            56          0      4  scan

    Args:
        net: A StatefulModule.
        sample_input: Example of one environment's input, a tree of arrays without a batch axis, on which the network
            is run once; None to leave outputs out.

    Raises:
        TypeError: If ``net`` is not a StatefulModule, or ``sample_input`` not a tree of numbers.
    """
    refuse_other_module("summary", net)
    if sample_input is not None:
        check_sample("summary", sample_input)
    outputs = {} if sample_input is None else _outputs(net, sample_input)
    return NetworkSummary(tuple(_rows(net, "", outputs, False)))


def check_sample(taker: str, sample_input: Any) -> None:
    """Raises a TypeError unless an example of an input is a tree of numbers; ``taker`` names the function."""
    leaves = named_leaves(sample_input)
    unfit = [(name, leaf) for name, leaf in leaves if np.asarray(leaf).dtype.kind not in "fiub"]
    wrong = [f"{leaf!r} at {name!r}" if name else repr(leaf) for name, leaf in unfit]
    if wrong or not leaves:
        raise TypeError(
            f"{taker} got the sample_input {wrong[0] if wrong else repr(sample_input)}; expected an array of numbers, "
            "or a tree of them: one environment's input, such as np.zeros(3) or env.observation_space.sample()."
        )


def _rows(module: Any, path: str, outputs: dict[int, Any], stepped: bool) -> list[ModuleRow]:
    """The rows of a module and of all below; ``stepped`` is True if the parent calls the module step by step."""
    engine = module.engine
    carry = sum(math.prod(leaf.shape[1:]) for leaf in tree_leaves(module.initialize_state(1)))
    default = type(module).unroll is StatefulModule.unroll
    steps = stepped or (carry > 0 if default else module.scans_in_replay)
    parent = isinstance(module, Parent)
    # A module that runs its children itself calls them in each of its own calls; a parent hands them all steps.
    looped = module.stepped_children if parent else frozenset[Any]()
    below: list[ModuleRow] = []
    for name, child in engine.children(module):
        if isinstance(child, StatefulModule):
            inside = stepped or name in looped if parent else steps
            below += _rows(child, (path + step_to(name)).lstrip("."), outputs, inside)
    kinds = {row.replay for row in below} if parent else set[str]()
    kinds |= {"scan"} if steps else (set[str]() if kinds else {"parallel"})
    sizes = {True: 0, False: 0}
    for leaf in engine.leaves(module).values():
        sizes[leaf.trained] += leaf.read().size
    own = ModuleRow(
        path=path,
        kind=type(module).__name__,
        output=outputs.get(id(module)),
        num_params=sizes[True],
        num_variables=sizes[False],
        carry=carry,
        replay=kinds.pop() if len(kinds) == 1 else "mixed",
    )
    return [own, *below]


def _cells(row: ModuleRow) -> tuple[str, ...]:
    shapes = [f"{name} {shape}".strip() for name, shape in (row.output or {}).items()]
    numbers = (f"{row.num_params:,}", f"{row.num_variables:,}", f"{row.carry:,}")
    return (row.path or "(network)", row.kind, ", ".join(shapes), *numbers, row.replay)


def _outputs(net: Any, sample_input: Any) -> dict[int, dict[str, tuple[int, ...]]]:
    """Shapes of every module's output, by the module's id."""
    engine, found = net.engine, dict[int, dict[str, tuple[int, ...]]]()

    def make(module: Any, copy: Callable[[Any], Any]) -> Any:
        if not isinstance(module, StatefulModule):
            return engine.copy_module(module, copy)
        copied = engine.copy_module(module, copy, passing_through(module, _reported))
        vars(copied)["_report"] = functools.partial(report, id(module))
        return copied

    def report(which: int, output: Any) -> None:
        output = output._asdict() if hasattr(output, "_fields") else output
        found.setdefault(which, {name: tuple(leaf.shape[1:]) for name, leaf in named_leaves(output)})

    def batched(leaf: Any) -> Any:
        array = engine.asarray(leaf)[None]
        floating = engine.xp.isdtype(array.dtype, "real floating")
        return engine.xp.astype(array, engine.float_dtype) if floating else array

    watched = copied_with(net, make)
    x = tree_map(batched, sample_input)
    with engine.no_grad():  # the network may be one for acting alone
        engine.shapes(lambda state, x: tuple(watched(state, x)), net.initialize_state(1), x)
    return found


def _reported(module: Any, x: Any, extras: Any, run: Run) -> StatefulModuleOutput:
    out = run(extras)
    vars(module)["_report"](out.output)
    return out
