"""Base of populations, connections and outputs of a graph: at most one module, and sizes."""

from __future__ import annotations

from typing import Any

from multippo.arguments import describe
from multippo.networks.containers import Container, check_child
from multippo.networks.types import StatefulModule


class Wrapper(Container):
    """A module around another one, or around nothing, which stands for the identity."""

    def _hold(self, role: str, module: StatefulModule | None, where: str) -> None:
        """Keeps ``module`` as the attribute ``role``.

        Raises:
            TypeError: If it is neither None nor a StatefulModule of this engine.
        """
        if module is not None:
            check_child(self.engine, f"{where}, {role}=...,", module)
        self.keys = () if module is None else (role,)
        setattr(self, role, module)

    @property
    def children_by_key(self) -> dict[Any, StatefulModule]:
        """The module, if there is one."""
        return {key: getattr(self, key) for key in self.keys}


def check_name(what: str, name: Any) -> str:
    """The name of a population or an output.

    Raises:
        TypeError: If it is not a string.
        ValueError: If it is empty, or could be taken for a connection's, such as ``source->target@2``.
    """
    if not isinstance(name, str):
        raise TypeError(f"PopulationGraph got the {what} name {name!r}; expected a string.")
    if not name or "->" in name or "@" in name:
        raise ValueError(
            f"PopulationGraph got the {what} name {name!r}; expected some letters, and neither '->' nor '@'."
        )
    return name


def check_yields(where: str, module: StatefulModule, input_size: int, output_size: int | None) -> None:
    """Runs a module on ``[B, input_size]`` without computing.

    Raises:
        ValueError: If it does not take that, or does not return ``[B, output_size]``.
    """
    engine = module.engine

    def run() -> Any:
        return module(module.initialize_state(1), engine.zeros((1, input_size))).output

    try:
        with engine.no_grad():
            output = engine.shapes(run)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{where} does not take an input of {input_size} features: {error}") from error
    if output_size is not None:
        check_output(where, output, output_size)


def check_output(where: str, output: Any, size: int) -> None:
    """Raises a ValueError unless ``output`` is an array with ``size`` features on its last axis."""
    shape = getattr(output, "shape", ())
    if len(shape) < 2 or shape[-1] != size:
        raise ValueError(f"{where} yields {describe(output)}; expected an array with {size} features on the last axis.")
