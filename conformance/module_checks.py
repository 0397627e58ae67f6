"""Level 1 for modules: the rules of the protocol, each engine alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from multippo.networks.random_state import map_random_states
from multippo.networks.utils import named_leaves, tree_map, tree_structure

from .checks import Check
from .measure import Deviation, compare, portable_deviation, worst_of
from .module_evidence import ModuleEvidence

__all__ = ["MODULE_CHECKS"]


_CONSTANTS = ("base_key", "leak_logit")
"""Variables that are no statistics: a random key, a time constant that is not trained."""


def _unroll_step_by_step(evidence: ModuleEvidence) -> Deviation:
    fast, slow = evidence.rollout
    return worst_of([compare(fast.over_time, slow.over_time), compare(fast.next_state, slow.next_state, axes=("env",))])


def _replay_output(evidence: ModuleEvidence) -> Deviation:
    replayed, rollout = evidence.replay, evidence.rollout[1]
    return worst_of(
        [
            compare(replayed.over_time, rollout.over_time),
            compare(replayed.next_state, rollout.next_state, axes=("env",)),
        ]
    )


def _unroll_gradient(evidence: ModuleEvidence) -> Deviation:
    fast, slow = evidence.gradient(step_by_step=False), evidence.gradient(step_by_step=True)
    silent = [name for name, gradient in slow.items() if not np.any(gradient)]
    if silent:
        return Deviation(np.inf, silent[0], "no gradient reaches it, step by step")
    return portable_deviation(fast, slow, relative=True)


def _call_writes_nothing(evidence: ModuleEvidence) -> Deviation:
    found: list[Deviation] = []
    for phase in ("rollout", "replay"):
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
    """Environments in another order come out in that order; and none feels what another one meets."""
    state, x = evidence.warm_state, evidence.at_step(0)
    plain = evidence.call(state, x)[0]
    num_envs = evidence.num_envs
    if num_envs == 1:
        return Deviation(0.0)
    order, replaced = np.arange(num_envs)[::-1], np.asarray([1, *range(1, num_envs)])
    found: list[Deviation] = []
    for rows, count in ((order, num_envs), (replaced, num_envs - 1)):
        got = evidence.call(_take(state, rows), _take(x, rows))[0]
        kept = np.arange(num_envs)[-count:]
        pair = ((out.output, out.next_state) for out in (got, plain))
        a, b = next(pair), _take(next(pair), rows)
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
    return _same_kind(evidence.call(state, evidence.at_step(0))[0].next_state, state)


def _carry_moves(evidence: ModuleEvidence) -> Deviation:
    # The key of a random state stays; its step count moves.
    before, after = (
        named_leaves(map_random_states(lambda state: state.count, state))
        for state in (evidence.fresh_state(), evidence.warm_state)
    )
    still = [name for (name, old), (_, new) in zip(before, after, strict=True) if np.array_equal(new, old)]
    return Deviation(np.inf, still[0], "the carry is the first one still, after steps") if still else Deviation(0.0)


def _reset_kept(evidence: ModuleEvidence) -> Deviation:
    return _same_kind(evidence.reset(evidence.warm_state), evidence.fresh_state())


def _reset_forgets(evidence: ModuleEvidence) -> Deviation:
    """After a reset, what comes out does not depend on the episode before."""
    states = [evidence.reset(evidence.lived_through(which)) for which in (0, 1)]
    found: list[Deviation] = []
    for t in range(3):
        outs = [evidence.call(state, evidence.at_step(t))[0] for state in states]
        found.append(compare(outs[1].output, outs[0].output, axes=("env",)))
        states = [out.next_state for out in outs]
    return worst_of(found)


def _statistics_only_in_update(evidence: ModuleEvidence) -> Deviation:
    for run in ("rollout", "replay"):
        getattr(evidence, run)
        found = portable_deviation(evidence.arrays_after_unroll, evidence.arrays)
        if found.worst:
            return Deviation(found.worst, found.where, f"{run} by unroll wrote to the module")
    trained = {name for name, leaf in evidence.engine.leaves(evidence.module).items() if leaf.trained}
    updated = evidence.statistics_after()
    kept = trained if evidence.specimen.learns_statistics else set(updated)
    return portable_deviation(
        {name: updated[name] for name in sorted(kept)}, {name: evidence.arrays[name] for name in sorted(kept)}
    )


def _statistics_move(evidence: ModuleEvidence) -> Deviation:
    updated = evidence.statistics_after()
    trained = {name for name, leaf in evidence.engine.leaves(evidence.module).items() if leaf.trained}
    still = [
        name
        for name, before in evidence.arrays.items()
        if name not in trained and not name.endswith(_CONSTANTS) and np.array_equal(updated[name], before)
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


MODULE_CHECKS: tuple[Check[ModuleEvidence], ...] = (
    Check("unroll/step_by_step", _unroll_step_by_step),
    # A wrong gradient is wrong in either type, and compiling two more programmes takes long.
    Check("unroll/gradient", _unroll_gradient, needs=("differentiated",), trains=True, precisions=("float64",)),
    Check("replay/output", _replay_output, needs=("emits",)),
    Check("call/writes_nothing", _call_writes_nothing, exact=True),
    Check("call/rows_apart", _call_rows_apart),
    Check("carry/batch_axis", _carry_batch_axis, needs=("carries",), exact=True),
    Check("carry/kept", _carry_kept, needs=("carries",), exact=True),
    Check("carry/moves", _carry_moves, needs=("carries",), exact=True),
    Check("reset/kept", _reset_kept, needs=("carries",), exact=True),
    Check("reset/forgets", _reset_forgets, needs=("carries",)),
    Check("statistics/only_in_update", _statistics_only_in_update, exact=True),
    Check("statistics/move", _statistics_move, needs=("learns_statistics",), exact=True),
    Check("statistics/of_valid_entries", _statistics_of_valid_entries, needs=("learns_statistics",)),
)
