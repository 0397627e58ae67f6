"""``check_module``: runs a module and says in plain words which rule of the protocol it breaks."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from multippo.networks.types import StatefulModule, StatefulModuleOutput
from multippo.networks.utils import named_leaves, tree_leaves, tree_map

__all__ = ["ModuleReport", "check_module"]

_TOLERANCE = {"float32": 1e-4, "float64": 1e-9}
"""What two ways to the same number may be off by, relative to the largest one."""


@dataclasses.dataclass(frozen=True)
class ModuleReport:
    """What ``check_module`` found. True if there are no errors; prints as a list.

    Attributes:
        errors: Rules of the protocol that the module breaks: training with it would be wrong.
        warnings: What is allowed and seldom meant.
    """

    errors: tuple[str, ...]
    warnings: tuple[str, ...]

    def __bool__(self) -> bool:
        return not self.errors

    def __str__(self) -> str:
        lines = [f"error: {text}" for text in self.errors] + [f"warning: {text}" for text in self.warnings]
        return "\n".join(lines) if lines else "Nothing is wrong with it."


_ERRORS: dict[str, str] = {
    "carry/batch_axis": "A carry leaf from initialize_state(B) has no leading batch axis: {}. Every leaf must be an "
    "array [B, ...], one row for each environment.",
    "carry/kept": "The call changed the kind of the carry: {}. next_state must have the structure, shapes and types of "
    "the state passed in.",
    "reset/kept": "reset_state changed the kind of the carry: {}. It must return the structure, shapes and types of "
    "what it is given, for all environments.",
    "call/writes_nothing": "A call must not write to the module or to its arguments: {}. Return what is to be kept in "
    "next_state, and update statistics in update_statistics.",
    "statistics/only_in_update": "Only update_statistics may change a Variable, and nothing but Variables: {}.",
    "call/rows_apart": "The rows of one environment influence another's: {}. Compute row by row; take no mean over the "
    "batch axis.",
    "unroll/step_by_step": "unroll gives something else than calling step by step, with a reset after each step where "
    "done holds: {}.",
    "replay/output": "Given the rollout_extras that it emitted, the module gives another output than in the rollout: "
    "{}. Emit what cannot be computed again, such as the sample, and use it as it is.",
    "statistics/of_valid_entries": "update_statistics lets entries count where valid is False: {}.",
}
_WARNINGS: dict[str, str] = {
    "reset/forgets": "After reset_state the output depends on the episode before: {}. Unless the carry is to outlive "
    "episodes, let reset_state return a fresh one.",
    "carry/moves": "The carry stays what it was at first: {}. Return the new one as next_state.",
}


def check_module(module: Any, sample_input: Any) -> ModuleReport:
    """Runs a module in rollouts, replays, resets and updates, and compares what comes with what the protocol asks for.

    Looked at are: what a call returns; that the carry keeps its structure, shapes and types, in calls and resets; that
    nothing is written in a call and statistics move in ``update_statistics`` alone; that environments are apart; that
    equal arguments give equal outputs, also in replay; that ``unroll``, values and gradient, is the steps one by one
    with their resets. Trained parameters are moved a little for the time of the check, since biases of 0 hide mistakes.

    Args:
        module: A StatefulModule, on its engine. Its arrays are put back.
        sample_input: Example of one environment's input, a tree of arrays without a batch axis. Floating-point inputs
            are drawn around it; integers from the range of the example's.

    Returns:
        The findings. Nothing is raised for what the module does wrong.

    Raises:
        TypeError: If it is no StatefulModule.
        ModuleNotFoundError: If multippo is not installed, but imported from its folder.

    >>> import numpy as np
    >>> import multippo as mp
    >>> print(check_module(mp.LSTM(3, 2, mp.Rngs(0)), np.zeros(3)))
    Nothing is wrong with it.
    """
    if not isinstance(module, StatefulModule):
        raise TypeError(f"check_module got a {type(module).__name__}; expected a StatefulModule.")
    from multippo.networks.portable import load_portable, to_portable

    before = to_portable(module)
    try:
        return _Checker(module, sample_input).run()
    finally:
        load_portable(module, before)


class _Checker:
    def __init__(self, module: Any, sample_input: Any) -> None:
        evidence_class = _suite("module_evidence").ModuleEvidence

        self.module, self.engine = module, module.engine
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.precision = "float64" if "float64" in str(self.engine.float_dtype) else "float32"
        specimen = _suite("specimens").ModuleSpecimen(
            name="module", build=lambda: module, sample=_drawn_around(sample_input), learns_statistics=True
        )
        self.evidence = evidence_class(specimen, self.engine.name, self.precision, _stir)

    def run(self) -> ModuleReport:
        """Everything; what would only follow from an error already found is left out."""
        stages: tuple[Callable[[], None], ...] = (self._structure, self._kinds, self._behaviour, self._statistics)
        for stage in stages:
            stage()
            if self.errors:
                break
        return ModuleReport(tuple(self.errors), tuple(self.warnings))

    # -- what is returned

    def _structure(self) -> None:
        try:
            with self.evidence.at():
                state = self.module.initialize_state(self._num_envs)
                foreign = [name for name, leaf in named_leaves(state) if not self._is_array(leaf)]
                if foreign:
                    self._error(f"initialize_state returned a leaf {foreign[0]!r} that is no array of the engine.")
                    return
        except Exception as error:
            self._error(f"initialize_state({self._num_envs}) failed: {_text(error)}")
            return
        if not self._holds("carry/batch_axis"):
            return
        attributes = _suite("module_evidence").plain_attributes(self.module)
        try:
            with self.evidence.at(), self.engine.no_grad():
                x = self._at_step(0)
                first, second = (self.module(self.module.initialize_state(self._num_envs), x) for _ in range(2))
        except Exception as error:
            self._error(f"A call failed: {_text(error)}. (sample_input is one environment's, without a batch axis.)")
            return
        written = _suite("module_evidence").written_attributes(self.module, attributes)
        if written:
            self._error(_ERRORS["call/writes_nothing"].format(f"it changed the attribute {min(written)}"))
            return
        if not isinstance(first, StatefulModuleOutput):
            self._error(f"A call returned a {type(first).__name__}; it must return a StatefulModuleOutput.")
            return
        self._fields(first)
        if not self.errors:
            self._repeats(first, second)

    def _fields(self, out: StatefulModuleOutput) -> None:
        batch = self._num_envs
        for field in ("output", "rollout_extras"):
            for name, leaf in named_leaves(getattr(out, field)):
                self._expect_rows(f"{field}{f' {name!r}' if name else ''}", leaf)
        loss = out.regularization_loss
        if not (isinstance(loss, int | float) or (self._is_array(loss) and tuple(loss.shape) in ((), (batch,)))):
            self._error(f"regularization_loss is {_kind(loss)}; expected an array [B], here ({batch},), or a number.")
        if not isinstance(out.metrics, dict):
            self._error(f"metrics is {_kind(out.metrics)}; expected a dict of arrays.")
            return
        for name, leaf in named_leaves(out.metrics):
            if not self._is_array(leaf):
                self._error(f"The metric {name!r} is {_kind(leaf)}; expected an array of the engine.")

    def _expect_rows(self, what: str, leaf: Any) -> None:
        if not self._is_array(leaf) or tuple(leaf.shape[:1]) != (self._num_envs,):
            self._error(f"The {what} is {_kind(leaf)}; expected an array [B, ...] with B = {self._num_envs}.")
        elif "float" in str(leaf.dtype) and np.isnan(self.engine.to_numpy(leaf)).any():
            self._error(f"The {what} holds NaN.")

    def _repeats(self, first: Any, second: Any) -> None:
        compare = _suite("measure").compare

        pair = [tree_map(self._to_numpy, (out.output, out.next_state)) for out in (first, second)]
        found = compare(pair[1], pair[0], axes=("env",))
        if found.worst:
            self._error(
                f"Two calls with equal arguments differ, by {found.worst:.2g} at {found.where}. Draw random numbers "
                "with self.random, from a key in the carry."
            )

    # -- rules that the conformance suite measures

    def _kinds(self) -> None:
        kept = not self._carries or (self._holds("carry/kept") and self._holds("reset/kept"))
        if kept:
            self._holds("call/writes_nothing")

    def _behaviour(self) -> None:
        if not (self._holds("call/rows_apart", self._scaled) and self._holds("unroll/step_by_step", self._scaled)):
            return
        if self._emits:
            self._holds("replay/output", self._scaled)
        if self._carries:
            self._holds("carry/moves")
            self._holds("reset/forgets", self._scaled)
        if not self.errors:
            self._gradient()

    def _gradient(self) -> None:
        portable_deviation = _suite("measure").portable_deviation

        trained = any(leaf.trained for leaf in self.engine.leaves(self.module).values())
        own = type(self.module).unroll is not StatefulModule.unroll
        if not (trained and own and "train" in self.engine.capabilities):
            return
        try:
            fast, slow = (self.evidence.gradient(step_by_step=step_by_step) for step_by_step in (False, True))
        except Exception as error:
            self._error(f"Its gradient can't be taken: {_text(error)}")
            return
        found = portable_deviation(fast, slow, relative=True)
        if found.worst > 10 * _TOLERANCE[self.precision]:
            self._error(f"unroll has another gradient than the steps one by one: {self._said(found)}.")

    def _statistics(self) -> None:
        self._holds("statistics/only_in_update")
        if self.errors or type(self.module).update_statistics is StatefulModule.update_statistics:
            return
        updated = self.evidence.statistics_after()
        variables = [name for name, leaf in self.engine.leaves(self.module).items() if not leaf.trained]
        own = [name for name in variables if self.evidence.arrays[name].dtype.kind == "f"]
        moved = [name for name in variables if not np.array_equal(updated[name], self.evidence.arrays[name])]
        if own and not moved:
            self.warnings.append(
                f"update_statistics changed no Variable, although there are some ({own[0]}). A container must hand "
                "every child its part of rollout_extras."
            )
        elif moved:
            self._holds("statistics/of_valid_entries", lambda: _TOLERANCE[self.precision])

    # -- helpers

    def _holds(self, name: str, allowed: Callable[[], float] | None = None) -> bool:
        """Makes one check of the conformance suite, and notes what it finds."""
        (check,) = (check for check in _suite("module_checks").MODULE_CHECKS if check.name == name)
        try:
            found = check.measure(self.evidence)
            if found.worst <= (0.0 if allowed is None else allowed()):
                return True
            said = self._said(found)
        except Exception as error:
            said = _text(error)
        if name in _ERRORS:
            self._error(_ERRORS[name].format(said))
        else:
            self.warnings.append(_WARNINGS[name].format(said))
        return False

    def _said(self, found: Any) -> str:
        how_far = found.detail or f"off by {found.worst:.2g}"
        return f"{how_far} at {found.where}" if found.where else how_far

    def _scaled(self) -> float:
        """Rounding, in proportion to the largest number that comes out."""
        unrolled = self.evidence.rollout[1]
        leaves = [
            np.abs(leaf) for leaf in tree_leaves((unrolled.over_time, unrolled.next_state)) if leaf.dtype.kind == "f"
        ]
        largest = max((float(np.max(leaf, where=np.isfinite(leaf), initial=1.0)) for leaf in leaves), default=1.0)
        return _TOLERANCE[self.precision] * largest

    @property
    def _num_envs(self) -> int:
        return self.evidence.done.shape[1]

    @property
    def _carries(self) -> bool:
        return bool(tree_leaves(self.evidence.fresh_state()))

    @property
    def _emits(self) -> bool:
        return bool(tree_leaves(self.evidence.extras))

    def _at_step(self, t: int) -> Any:
        to_engine = _suite("engines").to_engine

        return to_engine(self.engine, self.evidence.at_step(t), self.precision)

    def _is_array(self, leaf: Any) -> bool:
        return isinstance(leaf, type(self.engine.zeros((1,))))

    def _to_numpy(self, leaf: Any) -> np.ndarray:
        return np.array(self.engine.to_numpy(leaf))

    def _error(self, text: str) -> None:
        self.errors.append(text)


def _suite(part: str) -> Any:
    """A module of the conformance suite, which is in another folder until multippo is installed."""
    return importlib.import_module(f"multippo.conformance.{part}")


def _stir(module: Any) -> None:
    """Moves trained parameters by a tenth."""
    from multippo.networks.portable import load_portable, to_portable

    rng = np.random.default_rng(0)
    trained = {name for name, leaf in module.engine.leaves(module).items() if leaf.trained}
    arrays = to_portable(module)
    moved = {name: arrays[name] + 0.1 * rng.normal(size=arrays[name].shape) for name in trained}
    load_portable(module, {**arrays, **{name: moved[name].astype(arrays[name].dtype) for name in sorted(trained)}})


def _drawn_around(sample_input: Any) -> Callable[[Any], Any]:
    """Inputs ``[T, B, ...]`` like an example."""
    environment = _suite("environment")

    def draw(key: Any) -> Any:
        rng = np.random.default_rng(np.asarray(key))

        def like(example: Any) -> np.ndarray:
            value = np.asarray(example)
            shape = (environment.NUM_STEPS, environment.NUM_ENVS, *value.shape)
            if value.dtype.kind == "f":
                return (value + rng.normal(size=shape)).astype(value.dtype)
            if value.dtype.kind == "b":
                return rng.random(shape) < 0.5
            return rng.integers(value.min(), value.max(), shape, endpoint=True).astype(value.dtype)

        return tree_map(like, sample_input)

    return draw


def _kind(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"an array of shape {tuple(value.shape)}"
    return f"a {type(value).__name__} ({value!r})"


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
