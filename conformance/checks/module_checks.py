"""Level 1 for modules: the rules of the protocol, each engine alone."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from multippo.networks.core.random_state import map_random_states
from multippo.networks.types import PPONetworkOutput
from multippo.trees import named_leaves, tree_leaves, tree_map, tree_structure

from ..evidence.deviations import Deviation, compare, portable_deviation, worst_of
from ..evidence.module_evidence import ModuleEvidence, Unrolled
from .check import Check

_CONSTANTS = ("base_key", "leak_logit")
"""Variables that are not statistics: a random key, a time constant that is not trained."""


def unrolls_apart(fast: Unrolled, slow: Unrolled) -> Deviation:
    """Distance of an unroll from the steps one by one.

    Scalar metrics are left out where they may be means over all inputs of one call, which for a module without a carry
    is the whole unroll.
    """
    scalars = {name for name, leaf in named_leaves(fast.over_time["metrics"]) if not leaf.ndim}

    def without(unrolled: Unrolled) -> Any:
        kept = {name: leaf for name, leaf in named_leaves(unrolled.over_time["metrics"]) if name not in scalars}
        return {**unrolled.over_time, "metrics": kept}

    return worst_of([compare(without(fast), without(slow)), compare(fast.next_state, slow.next_state, axes=("env",))])


def _replay_keeps_actions(evidence: ModuleEvidence) -> Deviation:
    """Distance of the action evaluated from the one taken, from another carry and under other weights too."""
    taken = _actions(evidence.stepped.over_time["output"])
    if not taken:
        return Deviation(0.0)
    # The next environment's carry has other keys, and another past.
    other_state = tree_map(lambda x: np.roll(x, 1, axis=0), evidence.warm_state)
    moved = evidence.replayed(evidence.extras, other_state, evidence.other_arrays)
    return compare(_actions(moved.over_time["output"]), taken)


def _actions(output: Any, path: str = "") -> dict[str, Any]:
    """Actions in an output, by path."""
    if isinstance(output, PPONetworkOutput):
        return {f"{path}actions": output.actions}
    if isinstance(output, Mapping):
        if {"action", "log_likelihood"} <= set(output):
            return {f"{path}action": output["action"]}
        entries = list(output.items())
    else:
        entries = list(enumerate(output)) if isinstance(output, tuple | list) else []
    return {name: found for key, entry in entries for name, found in _actions(entry, f"{path}{key}.").items()}


def _extras_used(evidence: ModuleEvidence) -> Deviation:
    """Fails for an emitted number that is not used: changing it changes neither replay nor statistics."""
    replayed, updated = evidence.replay, evidence.statistics_after()
    leaves, structure = tree_leaves(evidence.extras), tree_structure(evidence.extras)
    for number, (name, leaf) in enumerate(named_leaves(evidence.extras)):
        other = np.array(leaf)
        half = len(other) // 2
        other[:half] = other[half : 2 * half]  # numbers that the module emits elsewhere
        if np.array_equal(other, leaf):
            continue
        changed = structure.unflatten([*leaves[:number], other, *leaves[number + 1 :]])
        if (
            not _reads(evidence.replayed(changed), replayed)
            and not portable_deviation(evidence.statistics_after(extras=changed), updated).worst
        ):
            return Deviation(np.inf, "", f"the leaf {name or '(the array itself)'} is used by neither of them")
    return Deviation(0.0)


def _reads(changed: Unrolled, plain: Unrolled) -> bool:
    """True if anything differs except the snapshots that are handed on."""

    def rest(unrolled: Unrolled) -> Any:
        return {**unrolled.over_time, "rollout_extras": None}, unrolled.next_state

    return compare(rest(changed), rest(plain), axes=()).worst > 0


def _unroll_gradient(evidence: ModuleEvidence) -> Deviation:
    fast, slow = evidence.gradient(step_by_step=False), evidence.gradient(step_by_step=True)
    silent = [name for name, gradient in slow.items() if not np.any(gradient)]
    if silent:
        return Deviation(np.inf, silent[0], "no gradient reaches it, step by step")
    return portable_deviation(fast, slow, relative=True)


def _gradient_by_differences(evidence: ModuleEvidence) -> Deviation:
    slope, expected = evidence.slopes()
    return Deviation(abs(slope - expected) / max(1.0, abs(expected)))


def _call_writes_nothing(evidence: ModuleEvidence) -> Deviation:
    found: list[Deviation] = []
    for phase in evidence.phases:
        arrays, before, after = evidence.written_by_call(phase)
        if evidence.python_writes:
            return Deviation(
                np.inf, min(evidence.python_writes), f"a call in {phase} changed an attribute of the module"
            )
        inputs = compare(after, before, axes=("env",))
        if inputs.worst:
            return Deviation(np.inf, inputs.where, f"a call in {phase} changed its arguments in place")
        found.append(portable_deviation(arrays, evidence.arrays))
    return worst_of(found)


def _call_rows_apart(evidence: ModuleEvidence) -> Deviation:
    """Distance of outputs from being the same for environments in another order, and beside a changed one."""
    state, x = evidence.warm_state, evidence.at_step(0)
    plain = evidence.call(state, x)
    num_envs = evidence.num_envs
    if num_envs == 1:
        return Deviation(0.0)
    order, replaced = np.arange(num_envs)[::-1], np.asarray([1, *range(1, num_envs)])
    found: list[Deviation] = []
    for rows, count in ((order, num_envs), (replaced, num_envs - 1)):
        got = evidence.call(_take(state, rows), _take(x, rows))
        kept = np.arange(num_envs)[-count:]
        a, b = (
            (out.output, out.next_state, np.broadcast_to(out.regularization_loss, (num_envs,))) for out in (got, plain)
        )
        b = _take(b, rows)
        found.append(compare(_take(a, kept), _take(b, kept), axes=("env",)))
    return worst_of(found)


def _carry_batch_axis(evidence: ModuleEvidence) -> Deviation:
    for batch_size in (evidence.num_envs, 1):
        for name, leaf in named_leaves(evidence.fresh_state(batch_size)):
            if leaf.shape[:1] != (batch_size,):
                return Deviation(np.inf, name, f"shape {leaf.shape} with a batch of {batch_size}")
    return Deviation(0.0)


def _carry_kept(evidence: ModuleEvidence) -> Deviation:
    state = evidence.fresh_state()
    return _same_kind(evidence.call(state, evidence.at_step(0)).next_state, state)


def _carry_moves(evidence: ModuleEvidence) -> Deviation:
    if any(leaf.size and np.all(leaf == leaf.flat[0]) for leaf in tree_leaves(evidence.xs)):
        return Deviation(0.0)  # a carry of inputs that are all one number may stay as it is
    # The key of a random state stays, but its count moves. A position in a ring comes back after a few steps.
    states = [named_leaves(map_random_states(lambda state: state.count, state)) for state in evidence.history(0)]
    still = [
        states[0][number][0]
        for number in range(len(states[0]))
        if all(np.array_equal(state[number][1], states[0][number][1]) for state in states)
    ]
    return Deviation(np.inf, still[0], "the carry is the first one still, after steps") if still else Deviation(0.0)


def _reset_kept(evidence: ModuleEvidence) -> Deviation:
    return _same_kind(evidence.reset(evidence.warm_state), evidence.fresh_state())


def _reset_writes_nothing(evidence: ModuleEvidence) -> Deviation:
    arrays, before, after = evidence.written_by_reset()
    argument = compare(after, before, axes=("env",))
    if argument.worst:
        return Deviation(np.inf, argument.where, "reset_state changed its argument in place")
    return portable_deviation(arrays, evidence.arrays)


def _reset_forgets(evidence: ModuleEvidence) -> Deviation:
    """Distance between outputs after a reset from episodes of other inputs, or another length."""
    long = evidence.reset(evidence.warm_state)
    short = _with_noise_of(long, evidence.reset(evidence.history(0)[-2]))
    states = [long, evidence.reset(evidence.history(1)[-1]), short]
    found: list[Deviation] = []
    for t in range(3):
        outs = [evidence.call(state, evidence.at_step(t)) for state in states]
        found.extend(compare(out.output, outs[0].output, axes=("env",)) for out in outs[1:])
        states = [out.next_state for out in outs]
    return worst_of(found)


def _with_noise_of(source: Any, state: Any) -> Any:
    """Carry with the random state of another one, which has drawn another number of times."""
    drawn: list[Any] = []
    map_random_states(lambda random_state: drawn.append(random_state) or random_state, source)
    given = iter(drawn)
    state = map_random_states(lambda _: next(given), state)
    # A module's own keys are words [B, 2]; a count beside them is folded in.
    if any(
        leaf.dtype.kind in "iu" and leaf.shape[1:] == (2,)
        for leaf in tree_leaves(map_random_states(lambda _: (), state))
    ):
        return tree_map(lambda a, b: a if a.dtype.kind in "iu" else b, source, state)
    return state


def _statistics_only_in_update(evidence: ModuleEvidence) -> Deviation:
    assert evidence.rollout and evidence.replay  # runs both, so that their writes are noted
    for run, arrays in evidence.arrays_after.items():
        found = portable_deviation(arrays, evidence.arrays)
        if found.worst:
            return Deviation(found.worst, found.where, f"{run} by unroll wrote to the module")
    if evidence.python_writes:
        return Deviation(np.inf, min(evidence.python_writes), "unroll changed an attribute of the module")
    attributes, before, after = evidence.written_by_update()
    if attributes:
        return Deviation(np.inf, "", f"update_statistics changed the attribute {min(attributes)}, no Variable")
    if (snapshots := compare(after, before)).worst:
        return Deviation(np.inf, snapshots.where, "update_statistics changed rollout_extras in place")
    updated = evidence.statistics_after()
    kept = evidence.trained if evidence.specimen.learns_statistics else set(updated)
    return portable_deviation(*({name: arrays[name] for name in kept} for arrays in (updated, evidence.arrays)))


def _statistics_move(evidence: ModuleEvidence) -> Deviation:
    updated = evidence.statistics_after()
    still = [
        name
        for name, before in evidence.arrays.items()
        if name not in evidence.trained and not name.endswith(_CONSTANTS) and np.array_equal(updated[name], before)
    ]
    return Deviation(np.inf, still[0], "update_statistics left it as it was") if still else Deviation(0.0)


def _statistics_of_valid_entries(evidence: ModuleEvidence) -> Deviation:
    return portable_deviation(evidence.statistics_after(np.nan), evidence.statistics_after(1e3), relative=True)


def _take(tree: Any, rows: np.ndarray) -> Any:
    return tree_map(lambda x: x[rows], tree)


def _same_kind(got: Any, expected: Any) -> Deviation:
    if tree_structure(got) != tree_structure(expected):
        return Deviation(np.inf, "", f"{tree_structure(got)} instead of {tree_structure(expected)}")
    for (name, a), (_, b) in zip(named_leaves(got), named_leaves(expected), strict=True):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return Deviation(np.inf, name, f"{a.shape} {a.dtype} instead of {b.shape} {b.dtype}")
    return Deviation(0.0)


_gradient_check = functools.partial(Check, trains=True, precisions=("float64",))

MODULE_CHECKS: tuple[Check, ...] = (
    Check("unroll/step_by_step", lambda evidence: unrolls_apart(*evidence.rollout)),
    # A wrong gradient is wrong in either type, and compiling two more programmes would take long.
    _gradient_check("unroll/gradient", _unroll_gradient, needs=("differentiated",)),
    _gradient_check("gradient/differences", _gradient_by_differences, needs=("smooth",), tolerance={"float64": 1e-7}),
    Check("replay/output", lambda evidence: unrolls_apart(evidence.replay, evidence.stepped), needs=("emits",)),
    Check("replay/keeps_actions", _replay_keeps_actions, needs=("carries",)),
    Check("extras/used", _extras_used, needs=("emits",), exact=True),
    Check("call/writes_nothing", _call_writes_nothing, exact=True),
    Check("call/rows_apart", _call_rows_apart),
    Check("carry/batch_axis", _carry_batch_axis, needs=("carries",), exact=True),
    Check("carry/kept", _carry_kept, needs=("carries",), exact=True),
    Check("carry/moves", _carry_moves, needs=("carries",), exact=True),
    Check("reset/kept", _reset_kept, needs=("carries",), exact=True),
    Check("reset/writes_nothing", _reset_writes_nothing, needs=("carries",), exact=True),
    Check("reset/forgets", _reset_forgets, needs=("carries",)),
    Check("statistics/only_in_update", _statistics_only_in_update, exact=True),
    Check("statistics/move", _statistics_move, needs=("learns_statistics",), exact=True),
    Check("statistics/of_valid_entries", _statistics_of_valid_entries, needs=("learns_statistics",)),
)
