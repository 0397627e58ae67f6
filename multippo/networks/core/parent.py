"""Modules made of modules: carries, snapshots, resets, noise and statistics go to the children."""

from __future__ import annotations

import abc
from typing import Any

from multippo.arguments import describe
from multippo.networks.core.error_paths import note_place
from multippo.networks.core.outputs import check_scalars, recorders
from multippo.networks.types import StatefulModule, StatefulModuleOutput


class Parent(StatefulModule):
    """A module whose state and snapshots are those of its children.

    Attributes:
        keys: The children's keys, in order.
        is_list: State and snapshots are lists in this order; dicts otherwise.
    """

    keys: tuple[Any, ...]
    is_list: bool = False

    @property
    @abc.abstractmethod
    def children_by_key(self) -> dict[Any, StatefulModule]:
        """The children in order."""

    @property
    def stepped_children(self) -> frozenset[Any]:
        """The keys of those children that a replay takes step by step though they could run at once."""
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
    """One call of a parent, of one step or of many: runs the children and collects what they return.

    Args:
        parent: The module whose children are run.
        state: Its carry.
        rollout_extras: Its snapshots, or None.
        done: ``[T, B]`` for many steps, which each child takes before the next child; None for one step.
        root: The module from which errors give paths, where it is not the parent.
    """

    def __init__(self, parent: Any, state: Any, rollout_extras: Any, done: Any = None, root: Any = None) -> None:
        self.parent, self.children, self.done, self.root = parent, parent.children_by_key, done, root or parent
        self.states = parent._split(state)
        self.extras = None if rollout_extras is None else parent._split(rollout_extras, "rollout_extras")
        self.outs: dict[Any, StatefulModuleOutput] = {}

    def run(self, key: Any, child_input: Any) -> Any:
        """Runs one child, and returns its output."""
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
