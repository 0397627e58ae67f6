"""``check_module``, which runs a module and names the rules of the protocol that it breaks."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from multippo.arguments import describe
from multippo.networks.core.captured_weights import captured_weights
from multippo.networks.core.error_paths import refuse_other_module
from multippo.networks.core.outputs import is_engine_array, wrong_scalars
from multippo.networks.summary import check_sample
from multippo.networks.types import StatefulModuleOutput
from multippo.networks.weights.portable import load_portable, to_portable
from multippo.trees import named_leaves, tree_leaves, tree_map

_TOLERANCE = {"float32": 1e-4, "float64": 1e-9}
"""Allowed distance between two ways to the same number, relative to the largest output."""


@dataclasses.dataclass(frozen=True)
class ModuleReport:
    """Findings of ``check_module``. True if there are no errors; prints as a list.

    Attributes:
        errors: Rules of the protocol that the module breaks: training with it would be wrong.
        warnings: Findings that are allowed and seldom meant.
    """

    errors: tuple[str, ...]
    warnings: tuple[str, ...]

    def __bool__(self) -> bool:
        return not self.errors

    def __str__(self) -> str:
        lines = [f"error: {text}" for text in self.errors] + [f"warning: {text}" for text in self.warnings]
        return "\n".join(lines) if lines else "Nothing is wrong with it."


_ERRORS: dict[str, str] = {
    "carry/batch_axis": "initialize_state(B) must return arrays [B, ...], one row for each environment: {}.",
    "carry/repeats": "initialize_state gives another carry each time: {}. Make a key in the constructor, a Variable of "
    "rngs.key(), and split it.",
    "carry/kept": "The call changed the kind of the carry: {}. Keep structure, shapes and types in next_state.",
    "reset/kept": "reset_state changed the kind of the carry: {}. Keep structure, shapes and types in it.",
    "reset/writes_nothing": "reset_state must not write to the module or to the carry it is given, which goes on where "
    "no episode ended: {}. Return a new carry.",
    "call/writes_nothing": "A call must not write to the module or to its arguments: {}. Return what is to be kept in "
    "next_state, and update statistics in update_statistics.",
    "statistics/only_in_update": "Only update_statistics may change a Variable, and nothing but Variables: {}.",
    "call/repeats": "Two calls with equal arguments differ: {}. Draw with self.random, from a key in the carry.",
    "call/rows_apart": "The rows of one environment influence another's: {}. Compute row by row, the loss as well; "
    "take no mean over the batch axis.",
    "unroll/step_by_step": "unroll gives something else than calling step by step, with a reset after each step where "
    "done holds: {}.",
    "replay/output": "Given the rollout_extras that it emitted, the module gives another output than in the rollout: "
    "{}. Emit what cannot be computed again, such as the sample, and use it as it is.",
    "replay/keeps_actions": "Given the rollout_extras of a rollout, the module evaluates another action than the one "
    "taken: {}. Hand rollout_extras on to every module inside, in __call__ and in unroll, and return what they emit.",
    "noise/drawn_ahead": "After draw_ahead something else comes out than without it: {}. Hand every module inside its "
    "own carry and rollout_extras, and gather what they return as initialize_state does.",
    "statistics/of_valid_entries": "update_statistics lets entries count where valid is False: {}. Such entries may "
    "hold anything, NaN as well: select with xp.where, not by a product.",
}
_WARNINGS: dict[str, str] = {
    "reset/forgets": "After reset_state the output depends on the episode before: {}. Unless the carry is to outlive "
    "episodes, let reset_state return a fresh one.",
    "carry/moves": "The carry stays what it was at first: {}. Return the new one as next_state.",
    "extras/used": "Something in rollout_extras changes neither the replay nor the statistics: {}. Hand rollout_extras "
    "on to the module that emitted it, in __call__, unroll and update_statistics; or emit nothing.",
}


def check_module(module: Any, sample_input: Any) -> ModuleReport:
    """Runs a module in rollouts, replays, resets and updates, and reports the rules of the protocol that are broken.

    Checked is that functions capture no weights that would not be trained; that a call returns what the protocol asks
    for; that the carry keeps its structure, shapes and types, in calls and resets; that nothing is written in a call, a
    reset or a replay, and in ``update_statistics`` Variables alone; that environments do not influence each other, in
    outputs and loss; that equal arguments give equal outputs; that a replay, also from another carry and under other
    weights, evaluates the action that was taken; that ``unroll``, values and gradient (by parameters, inputs and
    carry), equals the steps one by one with their resets; that noise drawn ahead is the noise drawn otherwise; that the
    statistics of every module inside move, and that losses of modules inside are handed on. Trained parameters are
    moved a little for the time of the check, since biases of 0 hide mistakes.

    Args:
        module: A StatefulModule on any engine. Its arrays are put back.
        sample_input: Example of one environment's input, a tree of arrays without a batch axis. Floating-point inputs
            are drawn around it; integers from the range of the example's.

    Returns:
        The findings; faults of the module are not raised.

    Raises:
        TypeError: If ``module`` is not a StatefulModule, or ``sample_input`` is not a tree of numbers.
        ModuleNotFoundError: If multippo is not installed, but imported from its folder.

    >>> import numpy as np
    >>> import multippo as mp
    >>> print(check_module(mp.LSTM(3, 2, mp.Rngs(0)), np.zeros(3)))
    Nothing is wrong with it.
    """
    refuse_other_module("check_module", module)
    check_sample("check_module", sample_input)
    before = to_portable(module)
    try:
        return _Checker(module, sample_input).run()
    finally:
        load_portable(module, before)


class _Checker:
    def __init__(self, module: Any, sample_input: Any) -> None:
        self.module, self.engine, self.array = module, module.engine, type(module.engine.zeros((1,)))
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.precision = "float64" if "float64" in str(self.engine.float_dtype) else "float32"
        specimen = suite("specimens.specimen").ModuleSpecimen(
            "module", lambda: module, drawn_around(sample_input), learns_statistics=True
        )
        inspect = lambda out: inspect_output(self.engine, out, self.evidence.num_envs)  # noqa: E731
        self.probing = suite("evidence.module_probe")
        self.evidence = self.probing.ModuleProbe(specimen, self.engine.name, self.precision, stir, inspect)

    def run(self) -> ModuleReport:
        """Runs all stages up to the first with an error, from which later ones would follow."""
        for stage in (
            self._first_carry,
            self._first_call,
            lambda: self.errors.extend(captured_weights(self.module)),
            lambda: self._carries and self._holds("reset/kept") and self._holds("reset/writes_nothing"),
            self._behaviour,
            self._gradient,
            self._inside,
            self._statistics,
        ):
            try:
                stage()
            except Exception as error:
                self._failed(error)
            if self.errors:
                break
        return ModuleReport(tuple(self.errors), tuple(self.warnings))

    # -- what is returned

    def _first_carry(self) -> None:
        num_envs = self.evidence.num_envs
        self.evidence.doing = f"initialize_state({num_envs})"
        with self.evidence.at():
            state = self.module.initialize_state(num_envs)
        foreign = [name for name, leaf in named_leaves(state) if not isinstance(leaf, self.array)]
        if foreign:
            self.errors.append(f"initialize_state returned a leaf {foreign[0]!r} that is not an array of the engine.")
        elif self._holds("carry/batch_axis"):
            self._holds("carry/repeats", found=self.evidence.starts_anew())

    def _first_call(self) -> None:
        state, x = self.evidence.fresh_state(), self.evidence.at_step(0)
        before = self.evidence.untracked_arrays()
        out = self.evidence.call(state, x)
        after = self.evidence.untracked_arrays()
        written = self.evidence.python_writes or {
            name for name, held in after.items() if not np.array_equal(held, before[name], equal_nan=True)
        }
        if written:
            raise self.probing.ProtocolError(_written(written))
        for field in ("output", "rollout_extras"):
            for name, leaf in named_leaves(getattr(out, field)):
                if leaf.dtype.kind == "f" and np.isnan(leaf).any():
                    self.errors.append(f"The {field}{f' {name!r}' if name else ''} holds NaN.")
        if self.errors or not self._holds("carry/kept") or not self._holds("call/writes_nothing"):
            return
        again = self.evidence.call(state, x)
        self._holds("call/repeats", found=suite("evidence.deviations").compare(again[:2], out[:2], axes=("env",)))

    # -- rules that the conformance suite measures

    def _behaviour(self) -> None:
        if not self._holds("call/rows_apart", rounded=True):
            return
        if not (self._holds("unroll/step_by_step", rounded=True) and self._replays()):
            # On an engine that compiles, a number drawn on the host changes only with the programme.
            if not self._holds("call/repeats", rounded=True, found=self.evidence.traced_anew()):
                del self.errors[:-1]
            return
        if self._carries:
            self._holds("replay/keeps_actions", rounded=True)
            self._holds("carry/moves")
            self._holds("reset/forgets", rounded=True)

    def _replays(self) -> bool:
        if self._emits and not self._holds("replay/output", rounded=True):
            return False
        if self.evidence.learnt is not None:
            found = suite("checks.module_checks").unrolls_apart(*self.evidence.learnt[:2])
            self._holds("unroll/step_by_step", rounded=True, found=found)
        return not self.errors

    def _gradient(self) -> None:
        if self.evidence.learnt is None:
            return
        found = suite("evidence.deviations").portable_deviation(*self.evidence.learnt[2:], relative=True)
        if found.worst > 10 * _TOLERANCE[self.precision]:
            said = self._said(found)
            if "nudge_" in said:
                said = f"{found.worst:.2g} off, by the inputs or the carry"
            self.errors.append(
                f"unroll has another gradient than the steps one by one: {said.replace(' inner.', ' ')}."
            )

    def _inside(self) -> None:
        """Checks modules of a user's own for faults that the library's can't have."""
        if self.evidence.overridden_by_own("draw_ahead"):
            self._holds("noise/drawn_ahead", rounded=True, found=self.evidence.drawn_ahead())
        for path in suite("evidence.lost_losses").lost_losses(self.evidence):
            self.warnings.append(
                f"The regularization_loss of {path} is not part of the one that comes out. Return it, added to others."
            )
        for path, module in self.evidence.own:
            for name, value in vars(module).items():
                if isinstance(value, self.array) and "float" in str(value.dtype) and not name.startswith("_"):
                    self.warnings.append(
                        f"The attribute {f'{path}.{name}' if path else name} holds {describe(value)} that is not a "
                        "Param or Variable: it is neither trained nor saved. Assign mp.Param(...) or mp.Variable(...); "
                        "a constant can stay a NumPy array."
                    )

    def _statistics(self) -> None:
        self._holds("statistics/only_in_update")
        if self.errors:
            return
        updated = self.evidence.statistics_after()
        before = self.evidence.arrays
        variables = {name for name, leaf in self.engine.leaves(self.module).items() if not leaf.trained}
        still_ones = {name for name in variables if np.array_equal(updated[name], before[name])}
        is_real = lambda name: before[name].dtype.kind == "f"  # noqa: E731
        for path, still in self.probing.still_statistics(self.module, still_ones, is_real):
            if path:
                self.errors.append(
                    f"update_statistics never moves the statistics of {path}, such as {still}. Return its "
                    "rollout_extras from __call__ and unroll, and hand them to its update_statistics."
                )
            else:
                self.warnings.append(f"update_statistics changed no Variable, although there are some ({still}).")
        if self.errors:
            return
        if self._emits and self.evidence.own:
            self._holds("extras/used")
        if variables - still_ones:
            self._holds("statistics/of_valid_entries", rounded=True)

    # -- helpers

    def _holds(self, name: str, rounded: bool = False, found: Any = None) -> bool:
        """Notes the finding of a check of the conformance suite, made now or before; True without a finding."""
        if found is None:
            (check,) = (check for check in suite("checks.module_checks").MODULE_CHECKS if check.name == name)
            found = check.measure(self.evidence)
        if found.worst <= (self._scaled() if rounded else 0.0):
            return True
        if name in _ERRORS:
            self.errors.append(_ERRORS[name].format(self._said(found)))
        else:
            self.warnings.append(_WARNINGS[name].format(self._said(found)))
        return False

    def _said(self, found: Any) -> str:
        how_far = found.detail or f"off by {found.worst:.2g}"
        return f"{how_far} at {found.where}" if found.where else how_far

    def _scaled(self) -> float:
        """The allowed distance, in proportion to the largest output."""
        unrolled = self.evidence.rollout[1]
        leaves = tree_leaves((unrolled.over_time, unrolled.next_state))
        sizes = [np.abs(leaf[np.isfinite(leaf)]).max(initial=1.0) for leaf in leaves if leaf.dtype.kind == "f"]
        return _TOLERANCE[self.precision] * float(max(sizes, default=1.0))

    @property
    def _carries(self) -> bool:
        return bool(tree_leaves(self.evidence.fresh_state()))

    @property
    def _emits(self) -> bool:
        return bool(tree_leaves(self.evidence.extras))

    def _failed(self, error: Exception) -> None:
        """Notes an exception under the call that raised it, never under a rule."""
        doing, said = self.evidence.doing, " ".join(str(error).split()).rstrip(".")
        if isinstance(error, self.probing.ProtocolError):
            said = str(error)
        elif isinstance(error, TypeError | IndexError) and type(error).__module__ == "jax.errors":
            said = (
                f"{doing} can't be compiled: {type(error).__name__}. No float(), if or NumPy on an array's numbers, "
                "and no shape that depends on them; use xp.where."
            )
            if doing == "A call" and (written := self.evidence.written_uncompiled()):
                said = _written(written)
        else:
            hint = ". (sample_input is one environment's, without a batch axis.)" if doing == "A call" else ""
            said = f"{doing} failed: {type(error).__name__}: {said}{hint}"
        self.errors.append(said)


def _written(attributes: set[str]) -> str:
    return _ERRORS["call/writes_nothing"].format(f"it changed the attribute {min(attributes)}")


def suite(part: str) -> Any:
    """A module of the conformance suite, which lies in another folder until multippo is installed."""
    return importlib.import_module(f"multippo.conformance.{part}")


def stir(module: Any) -> None:
    """Adds noise with a standard deviation of 0.1 to trained parameters."""
    rng = np.random.default_rng(0)
    for leaf in module.engine.leaves(module).values():
        if leaf.trained:
            value = leaf.read()
            leaf.write((value + 0.1 * rng.normal(size=value.shape)).astype(value.dtype))


def drawn_around(sample_input: Any) -> Callable[[Any], Any]:
    """A function of a key that draws inputs ``[T, B, ...]`` like an example."""
    environment = suite("specimens.scripted_environment")

    def draw(key: Any) -> Any:
        rng = np.random.default_rng(np.asarray(key))

        def like(example: Any) -> np.ndarray:
            value = np.asarray(example)
            shape = (environment.NUM_STEPS, environment.NUM_ENVS, *value.shape)
            if value.dtype.kind == "f":
                return (value + rng.normal(size=shape)).astype(value.dtype)
            if value.dtype.kind == "b":
                return rng.random(shape) < 0.5
            low, high = (value.min(), value.max()) if value.size else (0, 0)
            return rng.integers(low, high, shape, endpoint=True).astype(value.dtype)

        return tree_map(like, sample_input)

    return draw


def inspect_output(engine: Any, out: Any, batch: int) -> str | None:
    """The fault of a call's return value, in words, or None.

    Args:
        engine: The module's engine.
        out: Return value of the call.
        batch: Number of environments.
    """
    if not isinstance(out, StatefulModuleOutput):
        return f"A call returned a {type(out).__name__}; it must return a StatefulModuleOutput."
    if not tree_leaves(out.output):
        return f"The output is {out.output!r}; expected an array [B, ...], or a tree of them."
    for field in ("output", "rollout_extras"):
        for name, leaf in named_leaves(getattr(out, field)):
            if not is_engine_array(engine, leaf) or tuple(leaf.shape[:1]) != (batch,):
                what = f"{field}{f' {name!r}' if name else ''}"
                return f"The {what} is {describe(leaf)}; expected an array [B, ...] with B = {batch}."
    return wrong_scalars(engine, out.regularization_loss, out.metrics, batch)
