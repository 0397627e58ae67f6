"""Parts of a ``PopulationGraph``: populations, connections between them, and its outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multippo.arguments import check_features, check_size, describe
from multippo.networks.activations import Activation, activate, resolve_activation
from multippo.networks.containers import Container, Pass, check_child
from multippo.networks.core.unrolling import shift_in_time
from multippo.networks.tree_layers import Filter
from multippo.networks.types import StatefulModule, StatefulModuleOutput


class Wrapper(Container):
    """A module around another one, or around none for the identity."""

    def _hold(
        self, role: str, module: StatefulModule | None, where: str, input_size: int, output_size: int | None
    ) -> None:
        """Keeps ``module`` as the attribute ``role``.

        Raises:
            TypeError: If ``module`` is neither None nor a StatefulModule of this engine.
            ValueError: If ``module`` does not lead from ``input_size`` to ``output_size`` features.
        """
        self.keys = () if module is None else (role,)
        setattr(self, role, module)
        if module is not None:
            check_child(self.engine, f"{where}, {role}=...,", module)
            check_yields(f"{where}, {role}=...,", module, input_size, output_size)
        elif output_size not in (None, input_size):
            raise ValueError(
                f"{where} has no {role}, but leads from {input_size} features to {output_size}; expected equal sizes, "
                "or a module such as Dense(input_size, output_size, rngs)."
            )

    def _route(self, children: Pass, x: Any) -> Any:
        return children.run(self.keys[0], x) if self.keys else x


def check_name(what: str, name: Any) -> str:
    """The name of a population or an output.

    Raises:
        ValueError: If ``name`` is not a text, or could be taken for a connection's, such as ``source->target@2``.
    """
    if not isinstance(name, str) or not name or "->" in name or "@" in name:
        raise ValueError(f"PopulationGraph got the {what} name {name!r}; expected a text, without '->' and '@'.")
    return name


def check_yields(where: str, module: StatefulModule, input_size: int, output_size: int | None) -> None:
    """Checks that a module leads from ``[B, input_size]`` to ``[B, output_size]``, without computing.

    Raises:
        ValueError: If the module does not take such an input, or does not return such an output.
    """
    engine = module.engine

    def run() -> Any:
        return module(module.initialize_state(1), engine.zeros((1, input_size))).output

    try:
        with engine.no_grad():
            output = engine.shapes(run)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{where} does not take an input of {input_size} features: {error}") from error
    shape = getattr(output, "shape", ())
    if output_size is not None and (len(shape) < 2 or shape[-1] != output_size):
        raise ValueError(
            f"{where} yields {describe(output)}; expected an array with {output_size} features on the last axis."
        )


InputFrom = str | int | tuple[str | int, ...] | Callable[[Any], Any] | None
"""The entry of the observation that a population sees: a key, a path of keys, or a function of the observation."""


class Population(Wrapper):
    """Population of a graph: ``y_t = activation(compute(x_t))``, and the memory of past ``y``.

    ``PopulationGraph.add_population`` makes populations. The carry is that of ``compute`` and, for outgoing connections
    with a delay, ``buffer``, the last ``y`` of the episode ``[B, K, output_size]``, the oldest first and zeros before
    the episode's first; K is the longest of those delays, and all of them read the one buffer.

    Attributes:
        name: Name of the population in the graph.
        input_size: Number of features of the input, a sum.
        output_size: Number of features of the output.
        input_from: Entry of the observation that is added to the input; None for none.
        activation_name: Name of the activation.
        max_outgoing_delay: K in environment steps; set by ``PopulationGraph.finalize``.
    """

    def __init__(
        self,
        name: str,
        input_size: int,
        output_size: int,
        *,
        compute: StatefulModule | None = None,
        activation: Activation = None,
        input_from: InputFrom = None,
    ) -> None:
        self.name = name
        where = f"Population {self.name!r}"
        self.input_size = check_size(where, "input_size", input_size)
        self.output_size = check_size(where, "output_size", output_size)
        self._hold("compute", compute, where, self.input_size, self.output_size)
        self.activation = resolve_activation(self.engine, activation)
        named = getattr(activation, "__name__", type(activation).__name__)
        self.activation_name = activation if activation is None or isinstance(activation, str) else named
        self.input_from = input_from
        self.entry = None if input_from is None else Filter(input_from)
        self.max_outgoing_delay = 0

    def _route(self, children: Pass, x: Any) -> Any:
        check_features(f"Population {self.name!r}", x, self.input_size)
        return activate(f"Population {self.name!r}", self.activation, super()._route(children, x))

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """``[B, input_size]`` to ``[B, output_size]``."""
        out = super().__call__(state, x, rollout_extras)
        if not self.max_outgoing_delay:
            return out
        buffer = state["buffer"]
        newest = self._typed(out.output, buffer)[:, None]
        buffer = self.xp.concat((buffer[:, 1:], newest), axis=1)
        return out._replace(next_state={**out.next_state, "buffer": buffer})

    def unroll(self, state: Any, xs: Any, done: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """``[T, B, input_size]`` to ``[T, B, output_size]``, by the ``unroll`` of ``compute``."""
        out = super().unroll(state, xs, done, rollout_extras)
        if not self.max_outgoing_delay:
            return out
        last = self._shifted(state["buffer"], out.output, done)[done.shape[0] :]
        return out._replace(next_state={**out.next_state, "buffer": self.xp.moveaxis(last, 0, 1)})

    def recall(self, state: Any, delay: int) -> Any:
        """The output ``[B, output_size]``, ``delay`` steps before the step that ``state`` leads into."""
        return state["buffer"][:, self.max_outgoing_delay - delay]

    def recall_over_time(self, state: Any, ys: Any, done: Any, delay: int) -> Any:
        """Results of ``recall`` in each of T steps, ``[T, B, output_size]``, given the outputs ``ys`` of all steps."""
        return self._shifted(state["buffer"][:, self.max_outgoing_delay - delay :], ys, done)[: done.shape[0]]

    def _shifted(self, buffer: Any, ys: Any, done: Any) -> Any:
        return shift_in_time(self.xp, self.xp.moveaxis(buffer, 1, 0), self._typed(ys, buffer), done)

    def _typed(self, y: Any, like: Any) -> Any:
        return y if y.dtype == like.dtype else self.xp.astype(y, like.dtype)

    def observe(self, observation: Any, alone: bool) -> Any:
        """The part of the observation that this population sees, in the engine's floating-point type.

        Args:
            observation: Tree of ``[B, ...]`` or ``[T, B, ...]``.
            alone: True if no other population sees the observation; an array is then taken whole.

        Raises:
            ValueError: If the entry is missing, or an array has to serve several populations.
        """
        is_array = hasattr(observation, "shape")
        if is_array and not callable(self.input_from):
            if not alone:
                raise ValueError(
                    f"PopulationGraph got an observation of shape {tuple(observation.shape)}, but several populations "
                    f"have an input_from; expected a dict with the entry {self.input_from!r}, as "
                    f"Population {self.name!r} asks for."
                )
            seen = observation
        else:
            seen = self.entry((), observation).output  # pyright: ignore[reportOptionalCall]
        check_features(f"Population {self.name!r} (input_from={self.input_from!r})", seen, self.input_size)
        dtype = self.engine.float_dtype
        return seen if self.xp.isdtype(seen.dtype, "real floating") else self.xp.astype(seen, dtype)

    def initialize_state(self, batch_size: int) -> Any:
        """The carry of ``compute``, and a buffer of zeros."""
        state = super().initialize_state(batch_size)
        if self.max_outgoing_delay:
            state["buffer"] = self.zeros((batch_size, self.max_outgoing_delay, self.output_size))
        return state

    def reset_state(self, prev_state: Any) -> Any:
        """The carry of ``compute``, reset, and zeros, since no delay reaches into an earlier episode."""
        state = super().reset_state(prev_state)
        if self.max_outgoing_delay:
            state["buffer"] = self.xp.zeros_like(prev_state["buffer"])
        return state

    def draw_ahead(self, state: Any, rollout_extras: Any, num_steps: int, replay: bool = False) -> Any:
        """The carry with the noise of ``compute`` drawn ahead."""
        return {**state, **super().draw_ahead(state, rollout_extras, num_steps, replay)}


class Connection(Wrapper):
    """Connection of a graph, made by ``PopulationGraph.connect``: ``transform`` of a population's output.

    Attributes:
        name: Name of the connection, ``source->target`` or ``source->target@delay``.
        source: Name of the population that is read.
        target: Name of the population whose input gets the result.
        delay: Delay in environment steps.
        output_size: Number of features of the target's input.
    """

    def __init__(self, source: Population, target: Population, delay: int, transform: StatefulModule | None) -> None:
        self.name = connection_name(source.name, target.name, delay)
        self.source, self.target, self.delay = source.name, target.name, delay
        self.output_size = target.input_size
        self._hold("transform", transform, f"Connection {self.name!r}", source.output_size, self.output_size)


class Readout(Wrapper):
    """Entry of a graph's output, made by ``PopulationGraph.add_output``: ``head`` of a population's output.

    Attributes:
        name: Name of the entry.
        source: Name of the population that is read.
    """

    def __init__(self, name: str, source: Population, head: StatefulModule | None) -> None:
        self.name, self.source = name, source.name
        self._hold("head", head, f"Output {name!r}", source.output_size, None)


def connection_name(source: str, target: str, delay: int) -> str:
    """Name of a connection in carries, snapshots and portable weights."""
    return f"{source}->{target}@{delay}" if delay else f"{source}->{target}"
