"""Containers: modules made of modules.

All containers share one piece of routing code, ``Parent``, so that state, snapshots, resets, statistics and time all
go the same way. A container defines the way of inputs to its children and of outputs from them; it works alike on one
step (``[B, ...]``) and on many (``[T, B, ...]``), so it touches trailing axes only.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Iterable, Mapping
from typing import Any

from multippo.arguments import check_size, describe
from multippo.networks.core.error_paths import note_place
from multippo.networks.core.outputs import check_scalars, recorders
from multippo.networks.tree_layers import Filter, Flattener, MoveAxis, Scale
from multippo.networks.types import StatefulModule, StatefulModuleOutput

__all__ = [
    "Concat",
    "Container",
    "Filter",
    "Flattener",
    "Map",
    "Merge",
    "MoveAxis",
    "Parallel",
    "Scale",
    "Sequential",
    "Splitter",
]


class Parent(StatefulModule):
    """A module whose state and snapshots are those of its children.

    Attributes:
        keys: The children's keys, in order.
        is_list: True if state and snapshots are lists in this order, False for dicts.
    """

    keys: tuple[Any, ...]
    is_list: bool = False

    @property
    @abc.abstractmethod
    def children_by_key(self) -> dict[Any, StatefulModule]:
        """The children in order."""

    @property
    def stepped_children(self) -> frozenset[Any]:
        """The keys of the children that a replay takes step by step though they could run at once."""
        return frozenset()

    def _split(self, tree: Any, what: str = "state") -> dict[Any, Any]:
        """The children's entries in a carry or in snapshots, by key.

        Raises:
            ValueError: If there is not an entry for every child.
        """
        try:
            return dict(zip(self.keys, map(tree.__getitem__, self.keys), strict=True))
        except (AttributeError, IndexError, KeyError, TypeError):
            raise ValueError(self._unfitting(tree, what)) from None

    def _join(self, by_key: dict[Any, Any]) -> Any:
        """Inverse of ``_split``, for entries in the order of ``keys``."""
        return list(by_key.values()) if self.is_list else by_key

    def _unfitting(self, tree: Any, what: str) -> str:
        """Error message for a carry, or for snapshots, without an entry for every child."""
        form = self._join(dict.fromkeys(self.keys, ...))
        expected = f"a list of {len(form)}, one for each child" if self.is_list else f"the dict {form}"
        origin = "initialize_state(batch_size) makes it and the last call returned it"
        return (
            f"{type(self).__name__} got {describe(tree)} as its {what}; expected {expected}, as "
            f"{origin if what == 'state' else 'the calls of the rollout returned them, or None'}."
        ).replace("Ellipsis", "...")

    def initialize_state(self, batch_size: int) -> Any:
        """The children's carries."""
        return self._join({k: child.initialize_state(batch_size) for k, child in self.children_by_key.items()})

    def reset_state(self, prev_state: Any) -> Any:
        """The children's carries, each reset."""
        states = self._split(prev_state)
        return self._join({key: child.reset_state(states[key]) for key, child in self.children_by_key.items()})

    def draw_ahead(self, state: Any, rollout_extras: Any, num_steps: int, replay: bool = False) -> Any:
        """The children's carries, each with its noise drawn."""
        states, extras = self._split(state), self._split(rollout_extras, "rollout_extras")
        children = self.children_by_key.items()
        return self._join({k: child.draw_ahead(states[k], extras[k], num_steps, replay) for k, child in children})

    def update_statistics(self, rollout_extras: Any, valid: Any = None) -> None:
        """Hands every child its own snapshots."""
        extras = self._split(rollout_extras, "rollout_extras")
        for key, child in self.children_by_key.items():
            child.update_statistics(extras[key], valid=valid)


class Pass:
    """One call of a parent, of one step or of many, which runs the children and collects their results.

    Args:
        parent: Module whose children are run.
        state: Carry of the parent.
        rollout_extras: Snapshots of the parent, or None.
        done: ``[T, B]`` bool for many steps, which each child takes before the next child; None for one step.
        root: Module from which errors give paths; the parent by default.
    """

    def __init__(self, parent: Any, state: Any, rollout_extras: Any, done: Any = None, root: Any = None) -> None:
        self.parent, self.children, self.done, self.root = parent, parent.children_by_key, done, root or parent
        self.states = parent._split(state)
        self.extras = None if rollout_extras is None else parent._split(rollout_extras, "rollout_extras")
        self.outs: dict[Any, StatefulModuleOutput] = {}

    def run(self, key: Any, child_input: Any) -> Any:
        """Runs one child, and returns its output.

        Raises:
            TypeError: If the child returns something else than a ``StatefulModuleOutput``.
        """
        child, extras = self.children[key], None if self.extras is None else self.extras[key]
        try:
            if self.done is None:
                out = child(self.states[key], child_input, extras)
            else:
                out = child.unroll(self.states[key], child_input, self.done, extras)
            if not isinstance(out, StatefulModuleOutput):
                raise TypeError(
                    f"{type(child).__name__} returned {describe(out)}; expected a StatefulModuleOutput: "
                    "return multippo.StatefulModuleOutput(next_state, output)."
                )
            if recorders:
                check_scalars(child, child_input, out)
        except Exception as error:
            note_place(self.root, error)
            raise
        self.outs[key] = out
        return out.output

    def finish(self, output: Any) -> StatefulModuleOutput:
        """The parent's output, once every child has run."""
        states: dict[Any, Any] = {}
        extras: dict[Any, Any] = {}
        metrics: dict[str, Any] = {}
        loss: Any = 0.0
        for key in self.parent.keys:
            out = self.outs[key]
            states[key], extras[key] = out.next_state, out.rollout_extras
            loss = loss + out.regularization_loss
            if out.metrics:
                metrics[str(key)] = out.metrics
        join = self.parent._join
        return StatefulModuleOutput(join(states), output, loss, metrics, join(extras))


class Container(Parent):
    """Base of containers, with state and snapshots keyed as the children are.

    A subclass calls ``_adopt`` in its constructor, or holds each child as an attribute of its key's name, and
    implements ``_route``.
    """

    attribute: str | None = None

    def _adopt(self, children: Mapping[Any, StatefulModule] | Iterable[StatefulModule], attribute: str) -> None:
        """Stores the children under ``attribute``; a mapping's keys, or positions, become their keys.

        Raises:
            ValueError: If there is not a single child.
            TypeError: If a child is not a StatefulModule, or of another engine; the error names the child.
        """
        named = dict(children) if isinstance(children, Mapping) else dict(enumerate(children))
        kind = type(self).__name__
        if not named:
            raise ValueError(f"{kind} got no child; it needs at least one.")
        for key, child in named.items():
            check_child(self.engine, f"{kind}.{attribute}[{key!r}]", child)
        # A tuple of keys, since NNX sorts attributes when it splits and merges a module.
        self.keys = tuple(named)
        self.is_list = not isinstance(children, Mapping)
        self.attribute = attribute
        setattr(self, attribute, list(named.values()) if self.is_list else named)

    @property
    def children_by_key(self) -> dict[Any, StatefulModule]:
        """The children in order."""
        own = functools.partial(getattr, self)
        held = own if self.attribute is None else own(self.attribute).__getitem__
        return dict(zip(self.keys, map(held, self.keys), strict=True))  # no call for each child, in every step

    @abc.abstractmethod
    def _route(self, children: Pass, x: Any) -> Any:
        """Runs every child once, by ``children.run(key, x)``, and returns the container's output."""

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """Runs the children on one step."""
        children = Pass(self, state, rollout_extras)
        return children.finish(self._route(children, x))

    def unroll(self, state: Any, xs: Any, done: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """Runs each child over all steps before the next one."""
        children = Pass(self, state, rollout_extras, done)
        return children.finish(self._route(children, xs))


def check_child(engine: Any, where: str, child: Any) -> None:
    """Raises a TypeError unless a container's child is a StatefulModule of its engine."""
    if not isinstance(child, StatefulModule):
        raise TypeError(
            f"{where} is a {type(child).__name__}; expected a StatefulModule. "
            "A stateless module of the framework, or a function, can be wrapped: multippo.Lift(...)."
        )
    if child.engine is not engine:
        own, others = engine.name, child.engine.name
        if own == others:
            own, others = (f"{one.name} ({one.device_name()})" for one in (engine, child.engine))
        raise TypeError(
            f"{where} is a {others} module, but its container is made on {own}. "
            "Make both under one multippo.use_backend(...)."
        )


def named_children(
    kind: str,
    modules: Any,
    more: tuple[Any, ...],
    keywords: Mapping[str, Any],
    example: str = "left=..., right=...",
) -> Mapping[str, Any]:
    """Children given either as one positional dict or as keyword arguments.

    Args:
        kind: Name of the container in errors.
        modules: The positional argument, or None.
        more: Further positional arguments, which are refused.
        keywords: The keyword arguments.
        example: Arguments in the right form, for the error.

    Raises:
        TypeError: If something else than one dict is given by position.
        ValueError: If both a dict and keyword arguments are given.
    """
    if more or not isinstance(modules, Mapping | None):
        raise TypeError(
            f"{kind} got {1 + len(more)} arguments without a name; write {kind}({example}), or give one dict for names "
            "that are not identifiers."
        )
    if modules is None:
        return keywords
    if keywords:
        raise ValueError(f"{kind} takes either one dict or keyword arguments, not both; got both.")
    return modules


class Sequential(Container):
    """Runs layers one after another.

    Args:
        layers: List of modules, in order. State and snapshots are lists in the same order.

    Raises:
        TypeError: If ``layers`` is not a list, or a layer is not a StatefulModule, or of another engine.
        ValueError: If the list is empty.
    """

    def __init__(self, layers: Iterable[StatefulModule] = (), *more: Any, **named: Any) -> None:
        if named or more or isinstance(layers, StatefulModule | Mapping | str) or not isinstance(layers, Iterable):
            received = f"layers with the names {list(named)}" if named else f"a {type(layers).__name__}"
            received = f"{1 + len(more)} arguments" if more else received
            raise TypeError(f"Sequential got {received}; expected one list: Sequential([first, second, ...]).")
        self._adopt(list(layers), "layers")

    def _route(self, children: Pass, x: Any) -> Any:
        for key in self.keys:
            x = children.run(key, x)
        return x

    def __getitem__(self, index: int) -> Any:
        """The layer at a position."""
        return self.layers[index]  # pyright: ignore[reportAttributeAccessIssue]

    def __len__(self) -> int:
        return len(self.keys)


class _Named(Container):
    """Base of containers whose children have names.

    Args:
        modules: Dict of modules, for names that are not identifiers.
        **keywords: Modules as keyword arguments.

    Raises:
        TypeError: If something else than one dict is given by position, or a child is not a StatefulModule, or of
            another engine.
        ValueError: If both a dict and keyword arguments are given, or no module.
    """

    def __init__(
        self, modules: Mapping[str, StatefulModule] | None = None, /, *more: Any, **keywords: StatefulModule
    ) -> None:
        self._adopt(named_children(type(self).__name__, modules, more, keywords), "components")


class Parallel(_Named):
    """Runs named modules on the same input; the output is a dict of their outputs.

    Args:
        modules: Dict of modules, for names that are not identifiers.
        **keywords: Modules as keyword arguments.
    """

    def _route(self, children: Pass, x: Any) -> Any:
        return {key: children.run(key, x) for key in self.keys}


class Merge(_Named):
    """Runs named modules that yield dicts on the same input, and joins the dicts to one, without the modules' names.

    Heads that come from separate networks need that; ``Parallel`` keeps the level of names.

    Args:
        modules: Dict of modules, for names that are not identifiers.
        **keywords: Modules as keyword arguments.
    """

    def _route(self, children: Pass, x: Any) -> Any:
        merged: dict[Any, Any] = {}
        for key in self.keys:
            output = children.run(key, x)
            if not isinstance(output, Mapping):
                raise TypeError(
                    f"Merge.components[{key!r}] yielded {describe(output)}; expected a dict, such as a Splitter makes."
                )
            for name in merged.keys() & output.keys():
                raise ValueError(
                    f"Merge got the entry {name!r} from components[{key!r}] and from one before it; rename one, or use "
                    "Parallel."
                )
            merged.update(output)
        return merged


class Concat(_Named):
    """Runs each named module on the entry of its name in a dict input, and joins the outputs on the last axis.

    Outputs are joined in the order in which the modules were given.

    Args:
        modules: Dict of modules, for names that are not identifiers.
        **keywords: Modules as keyword arguments.
    """

    def _route(self, children: Pass, x: Any) -> Any:
        check_entries("Concat", self.keys, x)
        outputs = [children.run(key, x[key]) for key in self.keys]
        for key, output in zip(self.keys, outputs, strict=True):
            if not hasattr(output, "shape") or output.shape[:-1] != outputs[0].shape[:-1]:
                raise ValueError(
                    f"Concat.components[{key!r}] yielded {describe(output)}; expected an array that differs from "
                    f"components[{self.keys[0]!r}]'s, {describe(outputs[0])}, in its last axis alone."
                )
        return self.xp.concat(outputs, axis=-1)


class Map(_Named):
    """Runs each named module on the entry of its name in a dict input; the output is a dict of their outputs.

    Entries without a module go no further. Examples are a sampler for each key of a Dict action space, and an encoder
    for each sensor, whose outputs ``Concat`` would join.

    Args:
        modules: Dict of modules, for names that are not identifiers.
        **keywords: Modules as keyword arguments.
    """

    def _route(self, children: Pass, x: Any) -> Any:
        check_entries("Map", self.keys, x)
        return {key: children.run(key, x[key]) for key in self.keys}


def check_entries(kind: str, keys: Iterable[Any], x: Any) -> None:
    """Raises unless an input is a dict with an entry for each of ``keys``.

    Raises:
        TypeError: If ``x`` is not a dict.
        ValueError: If an entry is missing.
    """
    if not isinstance(x, Mapping):
        raise TypeError(f"{kind} got {describe(x)}; expected a dict with the entries {list(keys)}.")
    if not all(key in x for key in keys):
        raise ValueError(f"{kind} got {describe(x)}; expected {list(keys)}, one for each module.")


class Splitter(StatefulModule):
    """Cuts the last axis into named pieces, in the order of the arguments.

    Args:
        sizes: Dict of each piece's number of features, for names that are not identifiers. Features of the input beyond
            their sum are left out.
        **keywords: Numbers of features as keyword arguments.

    Raises:
        TypeError: If something else than one dict is given by position.
        ValueError: If both a dict and keyword arguments are given, or no size, or one not an integer of at least 1.
    """

    def __init__(self, sizes: Mapping[str, int] | None = None, /, *more: Any, **keywords: int) -> None:
        named = named_children("Splitter", sizes, more, keywords, "mean=2, value=1")
        if not named:
            raise ValueError("Splitter got no size; it needs at least one, such as Splitter(mean=2, value=1).")
        self.sizes = tuple((name, check_size("Splitter", name, size)) for name, size in named.items())

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """Cuts ``[B, F]`` into a dict of ``[B, size]``."""
        needed = sum(size for _, size in self.sizes)
        if not getattr(x, "shape", ()) or x.shape[-1] < needed:
            raise ValueError(
                f"Splitter got {describe(x)}; expected an array with at least {needed} features on the last axis, for "
                f"its sizes {dict(self.sizes)}."
            )
        pieces, start = {}, 0
        for name, size in self.sizes:
            pieces[name] = x[..., start : start + size]
            start += size
        return StatefulModuleOutput(state, pieces)


class Residual(Container):
    """Adds a module's input to its output: ``y = x + f(x)`` (He et al., 2016, arXiv:1512.03385, equation 1).

    ``Residual(Sequential([...]))`` wraps several layers. State and snapshots are lists of one entry, those of ``f``.

    Args:
        module: f, a module whose outputs have the shape of its inputs.

    Raises:
        TypeError: If ``module`` is not a StatefulModule, or of another engine.
    """

    def __init__(self, module: StatefulModule) -> None:
        self._adopt([module], "layers")

    def _route(self, children: Pass, x: Any) -> Any:
        y = children.run(0, x)
        if not hasattr(x, "shape") or getattr(y, "shape", None) != x.shape:
            raise ValueError(
                f"Residual got {describe(x)}, of which its module made {describe(y)}; expected the same shape. "
                "Put a layer that changes it, such as Dense, before or after."
            )
        return x + y
