"""What every module made of modules does alike: carries, snapshots, resets, noise and statistics go to the children."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

from multippo.arguments import describe
from multippo.networks.locating import locate
from multippo.networks.outputs import returned
from multippo.networks.types import StatefulModule, StatefulModuleOutput

__all__ = ["Apply", "Outs", "Parent", "Run"]

Run = Callable[[Any, Any], StatefulModuleOutput]
"""``run(key, x)``: runs one child on an input."""

Apply = Callable[[Any, Any, Any, Any], StatefulModuleOutput]
"""``apply(child, state, x, rollout_extras)``: one step of a child, or many."""

Outs = dict[Any, StatefulModuleOutput]
"""What came out of each child."""


class Parent(StatefulModule):
    """A module whose state and snapshots are those of its children.

    Attributes:
        keys: The children's keys, in order.
        is_list: Whether state and snapshots are lists in this order; dicts otherwise.
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

    def _start(self, apply: Apply, state: Any, extras: Any) -> tuple[Run, Outs]:
        """A function that runs one child, and the dict in which it leaves what came out."""
        children = self.children_by_key
        outs: Outs = {}

        def run(key: Any, child_input: Any) -> StatefulModuleOutput:
            try:
                child_state = self._part(state, key)
                child_extras = None if extras is None else self._part(extras, key)
            except (KeyError, IndexError, TypeError):
                raise ValueError(self._unfitting(state, extras)) from None
            try:
                outs[key] = returned(children[key], apply(children[key], child_state, child_input, child_extras))
            except Exception as error:
                locate(self, error)
                raise
            return outs[key]

        return run, outs

    def _unfitting(self, state: Any, extras: Any) -> str:
        """What is wrong with a carry, or with snapshots, that has not an entry for every child."""
        expected, kind = self._form(), type(self).__name__
        try:
            for key in self.keys:
                self._part(state, key)
        except (KeyError, IndexError, TypeError):
            return (
                f"{kind} got {describe(state)} as its state; expected {expected}, as initialize_state(batch_size) "
                "makes it and the last call returned it."
            )
        return (
            f"{kind} got {describe(extras)} as its rollout_extras; expected {expected}, as the rollout's calls "
            "returned them, or None."
        )

    def _form(self) -> str:
        """What a carry, or snapshots, must be, in an error's words; in the form that ``_gather`` gives them."""
        if self.is_list:
            return f"a list of {len(self.keys)}, one for each child"
        return f"a dict with the entries {list(self.keys)}"

    def _collect(self, outs: Outs, output: Any) -> StatefulModuleOutput:
        """The parent's output, from those of all children."""
        loss: Any = 0.0
        for key in self.keys:
            loss = loss + outs[key].regularization_loss
        return StatefulModuleOutput(
            next_state=self._gather({key: out.next_state for key, out in outs.items()}),
            output=output,
            regularization_loss=loss,
            metrics={str(key): outs[key].metrics for key in self.keys if outs[key].metrics},
            rollout_extras=self._gather({key: out.rollout_extras for key, out in outs.items()}),
        )

    def _part(self, tree: Any, key: Any) -> Any:
        """One child's entry in what ``_gather`` made."""
        return tree[key]

    def _gather(self, by_key: dict[Any, Any]) -> Any:
        return [by_key[key] for key in self.keys] if self.is_list else {key: by_key[key] for key in self.keys}

    def initialize_state(self, batch_size: int) -> Any:
        """The children's carries."""
        return self._gather({k: child.initialize_state(batch_size) for k, child in self.children_by_key.items()})

    def reset_state(self, prev_state: Any) -> Any:
        """The children's carries, each reset."""
        children = self.children_by_key
        return self._gather({k: child.reset_state(self._part(prev_state, k)) for k, child in children.items()})

    def draw_ahead(self, state: Any, rollout_extras: Any, num_steps: int, replay: bool = False) -> Any:
        """The children's carries, each with its noise drawn."""
        return self._gather(
            {
                key: child.draw_ahead(self._part(state, key), self._part(rollout_extras, key), num_steps, replay)
                for key, child in self.children_by_key.items()
            }
        )

    def update_statistics(self, rollout_extras: Any, valid: Any = None) -> None:
        """Hands every child its own snapshots."""
        for key, child in self.children_by_key.items():
            child.update_statistics(self._part(rollout_extras, key), valid=valid)
