"""Every ``unroll`` is the step-by-step scan, in value and gradient, wherever episodes end; and engines agree."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from support import (
    ENGINES,
    TOLERANCE,
    assert_trees_close,
    both_at,
    fill_randomly,
    gradients,
    on,
    portable_gradients,
    to_numpy,
    total,
)
from zoo import BATCH, EPISODE_ENDS, NETWORKS, TIME, inputs

import multippo as mp
from multippo.networks.core.unrolling import step_unroll
from multippo.networks.types import StatefulModule, StatefulModuleOutput
from multippo.trees import tree_map

# Which networks, at which precision, and whether samples are drawn or the stored ones evaluated: together every module
# both ways. Each case compiles for a while, so there are no more than these.
CASES = {
    "leaves, sampled": ("leaves", "float64", False),
    "leaves, replayed": ("leaves", "float64", True),
    "nested": ("nested", "float64", False),
    "shared_trunk": ("shared_trunk", "float32", True),
}
WAYS = {
    "parallel": lambda module, *args: module.unroll(*args),
    "scan": step_unroll,
}


def random_carry(engine, network):
    """A carry as after some steps: random recurrent states, counts above 0."""
    rng = np.random.default_rng(1)

    def fill(leaf):
        if "float" in str(leaf.dtype):
            return engine.asarray(rng.normal(size=leaf.shape).astype(str(leaf.dtype).removeprefix("torch.")))
        return leaf + 3 if leaf.ndim == 1 else leaf

    return engine.stop_gradient(tree_map(fill, engine.stop_gradient(network.initialize_state(BATCH))))


@functools.cache
def stored_samples(name: str, precision: str) -> Any:
    """Snapshots of a rollout, the same for every engine and way."""
    with on("torch", precision) as engine, engine.no_grad():
        network = NETWORKS[name]()
        fill_randomly(network)
        xs, done = engine.asarray(inputs().astype(precision)), engine.asarray(EPISODE_ENDS["mixed"])
        return to_numpy(step_unroll(network, random_carry(engine, network), xs, done, None).rollout_extras)


@functools.cache
def results(case: str) -> dict[tuple[str, str, str], Any]:
    """Output and gradients by (engine, way, episode ends)."""
    name, precision, replayed = CASES[case]
    samples = stored_samples(name, precision) if replayed else None
    found: dict[tuple[str, str, str], Any] = {}
    with both_at(precision):
        for engine_name in ENGINES:
            with on(engine_name, precision) as engine:
                network = NETWORKS[name]()
                fill_randomly(network)
                for way, function in WAYS.items():
                    for ends, result in run(engine, network, function, samples, precision):
                        found[engine_name, way, ends] = result
    return found


def run(engine, network, function, samples, precision):
    parts = engine.split(network)
    state, xs = random_carry(engine, network), engine.asarray(inputs().astype(precision))
    extras = tree_map(engine.asarray, samples)

    def loss(params, variables, done):
        out = function(engine.merge(parts.definition, params, variables), state, xs, done, extras)
        out = out._replace(regularization_loss=out.regularization_loss + engine.zeros(done.shape))
        return total(engine.xp, out._replace(rollout_extras=None)), out

    compiled = engine.jit(engine.value_and_grad(loss))
    for ends, done in EPISODE_ENDS.items():
        (_, out), grads = compiled(parts.params, parts.variables, engine.asarray(done))
        yield ends, (to_numpy(out), portable_gradients(network, grads))


def assert_results_close(got, expected, tolerance, what):
    for field in StatefulModuleOutput._fields:
        assert_trees_close(getattr(got[0], field), getattr(expected[0], field), tolerance, f"{what} {field}")
    # A sum of T B terms: ten times the tolerance of one.
    assert_trees_close(got[1], expected[1], 10 * tolerance, f"{what} gradients")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("engine_name", ENGINES)
@pytest.mark.nightly_if("jax", "torch-leaves, sampled")
def test_unroll_is_the_scan(case, engine_name):
    found = results(case)
    for ends in EPISODE_ENDS:
        parallel, scan = (found[engine_name, way, ends] for way in WAYS)
        assert_results_close(parallel, scan, TOLERANCE[CASES[case][1]], ends)
        # Only what has no influence (the sampler's key) may be without a gradient.
        assert [name for name, grad in parallel[1].items() if not grad.any() and "initial" not in name] == []


@pytest.mark.parametrize("case", CASES)
@pytest.mark.nightly_if("leaves, sampled")
def test_engines_agree(case):
    found = results(case)
    for ends in EPISODE_ENDS:
        of_jax, of_torch = (found[engine, "parallel", ends] for engine in ENGINES)
        assert_results_close(of_torch, of_jax, TOLERANCE[CASES[case][1]], ends)


def test_episode_ends_matter():
    # Otherwise the tests above would hold for an unroll without resets.
    found = results("nested")
    out, other = (found["jax", "scan", ends][0] for ends in ("none", "mixed"))
    # Environment 1 ends its episode at the first step, environment 0 never.
    assert np.abs(out.output["keys"][1:, 1] - other.output["keys"][1:, 1]).max() > 1e-3
    np.testing.assert_array_equal(out.output["keys"][0], other.output["keys"][0])
    np.testing.assert_array_equal(out.output["keys"][:, 0], other.output["keys"][:, 0])


def test_environments_are_independent(engine):
    network = NETWORKS["separate_trunks"]()
    fill_randomly(network)
    rows = np.asarray([4, 1, 5])
    take = lambda tree, axis: tree_map(  # noqa: E731
        lambda x: engine.asarray(np.take(to_numpy(x), rows, axis)), tree
    )
    state, xs = random_carry(engine, network), engine.asarray(inputs().astype(np.float32))
    done = engine.asarray(EPISODE_ENDS["mixed"])
    unroll = engine.jit(lambda state, xs, done: network.unroll(state, xs, done))
    whole, part = unroll(state, xs, done), unroll(take(state, 0), take(xs, 1), take(done, 1))
    assert_trees_close(part.output, take(whole.output, 1), 1e-6)
    assert_trees_close(part.next_state, take(whole.next_state, 0), 1e-6)


class Leaky(StatefulModule):
    """A recurrent module that has only the default unroll, a loss and a metric of its own."""

    def __init__(self):
        self.leak = mp.Param(np.asarray([0.5, 0.25]))

    def __call__(self, state, x, rollout_extras=None):
        total = self.leak[...] * state + x
        return StatefulModuleOutput(total, total, self.xp.sum(total, axis=-1), {"size": self.xp.sum(x)}, x)

    def initialize_state(self, batch_size):
        return self.zeros((batch_size, 2))

    def reset_state(self, prev_state):
        return self.xp.zeros_like(prev_state)


def test_the_default_unroll_by_hand(engine):
    module = Leaky()
    xs = engine.asarray(np.ones((3, 1, 2), np.float32))
    done = engine.asarray(np.asarray([[False], [True], [False]]))
    out = module.unroll(module.initialize_state(1), xs, done)
    # 1 -> 1 * leak + 1 = 1.5 and 1.25; the episode ends, the carry is 0; 1 again.
    assert to_numpy(out.output)[:, 0].tolist() == [[1.0, 1.0], [1.5, 1.25], [1.0, 1.0]]
    assert to_numpy(out.next_state).tolist() == [[1.0, 1.0]]
    assert to_numpy(out.regularization_loss).tolist() == [[2.0], [2.75], [2.0]]
    assert to_numpy(out.metrics["size"]).tolist() == [2.0, 2.0, 2.0]
    assert out.rollout_extras.shape == (3, 1, 2)


def test_a_reset_after_the_last_step_shows_in_the_carry(engine):
    module = Leaky()
    done = engine.asarray(np.asarray([[False, True]]))
    out = module.unroll(module.initialize_state(2), engine.zeros((1, 2, 2)) + 1, done)
    assert to_numpy(out.next_state).tolist() == [[1.0, 1.0], [0.0, 0.0]]


def test_the_gradient_flows_through_time_and_stops_at_a_reset(engine):
    module, xs = Leaky(), engine.zeros((3, 1, 2)) + 1
    for ends, expected in (([0, 0, 0], 3.0), ([0, 1, 0], 1.0)):
        done = engine.asarray(np.asarray(ends, bool)[:, None])
        # Outputs 1, leak + 1, leak**2 + leak + 1: slopes 0, 1, 2 leak + 1, which is 2 at 0.5; with a reset 0, 1, 0.
        found = gradients(
            module, lambda m, done=done: m.xp.sum(m.unroll(m.initialize_state(1), xs, done).output[..., 0])
        )
        np.testing.assert_allclose(found["leak"], [expected, 0.0], rtol=1e-6)


def test_a_module_without_a_carry_is_folded_into_one_call(engine):
    class Seen(StatefulModule):
        def __call__(self, state, x, rollout_extras=None):
            shapes.append(tuple(x["a"].shape))
            loss = self.xp.sum(x["a"], axis=-1)
            return StatefulModuleOutput(state, x, loss, {"mean": self.xp.mean(loss)}, rollout_extras)

    shapes: list[tuple[int, ...]] = []
    done = engine.asarray(np.zeros((TIME, BATCH), bool))
    xs = {"a": engine.asarray(inputs().astype(np.float32))}
    out = Seen().unroll((), xs, done, {"kept": xs["a"][..., 0]})
    assert shapes == [(TIME * BATCH, 4)]
    np.testing.assert_array_equal(to_numpy(out.output["a"]), to_numpy(xs["a"]))
    np.testing.assert_allclose(to_numpy(out.regularization_loss), to_numpy(xs["a"]).sum(-1), atol=1e-6)
    assert out.rollout_extras["kept"].shape == (TIME, BATCH) and out.metrics["mean"].shape == ()
