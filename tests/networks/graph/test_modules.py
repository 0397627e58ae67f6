"""Modules with carries, snapshots, statistics and noise, as compute, transform and head: all of it is routed."""

from __future__ import annotations

import numpy as np
import pytest
from support import assert_trees_close, compiled, fill_randomly, gradients, to_numpy, total

import multippo as mp
from multippo.networks.core.unrolling import step_unroll
from multippo.trees import named_leaves

T, B = 7, 3
DONE = np.zeros((T, B), bool)
DONE[[0, 3, 4, 6], 0] = True
DONE[5, 1] = True


class Charged(mp.StatefulModule):
    """Counts its steps in the carry, which starts at 10; charges its input as loss, and emits it."""

    def __init__(self, weight):
        self.weight = weight
        self.seen = mp.Variable(np.zeros(()))

    def __call__(self, state, x, rollout_extras=None):
        x = x if rollout_extras is None else rollout_extras
        return mp.StatefulModuleOutput(state + 1, x + state, self.weight * x[:, 0], {"steps": state[:, 0]}, x)

    def initialize_state(self, batch_size):
        return self.zeros((batch_size, 1)) + 10

    def reset_state(self, prev_state):
        return self.xp.zeros_like(prev_state) + 10

    def update_statistics(self, rollout_extras, valid=None):
        self.seen[...] = self.seen[...] + self.xp.sum(rollout_extras)


def charged(loop):
    graph = mp.PopulationGraph(mp.Rngs(0))
    graph.add_input("a", 1, compute=Charged(1.0))
    graph.add_population("b", 1, compute=Charged(10.0))
    graph.connect("a", "b", transform=Charged(100.0), delay=1)
    if loop:
        graph.connect("b", "b", transform="identity", delay=1)
    graph.add_output("y", source="b", head=Charged(1000.0))
    graph.finalize()
    return graph


def test_losses_metrics_snapshots_and_statistics_of_all_parts(engine):
    for loop in (False, True):
        graph = charged(loop)
        state, x = graph.initialize_state(2), {"a": engine.zeros((2, 1)) + 1}
        out = graph(state, x)
        # a = 1 + 10; its past is 0, so the transform yields 0 + 10; b = 10 + 10; y = 20 + 10.
        assert to_numpy(out.output["y"]).tolist() == [[30.0]] * 2
        # 1 * 1 for a, 100 * 0 for the transform, 10 * 10 for b, 1000 * 20 for the head.
        assert to_numpy(out.regularization_loss).tolist() == [20101.0] * 2
        parts = ["populations.a", "populations.b", "connections.a->b@1", "outputs.y"]
        assert sorted(out.metrics) == sorted(parts)
        extras = {name: to_numpy(leaf)[0, 0] for name, leaf in named_leaves(out.rollout_extras)}
        assert extras == {
            "populations.a.compute": 1.0,
            "connections.a->b@1.transform": 0.0,
            "populations.b.compute": 10.0,
            "outputs.y.head": 20.0,
        }
        # Replay is handed the snapshot of each part back: with another one for a, a = 5 + 10.
        extras = out.rollout_extras
        extras["populations"]["a"]["compute"] = extras["populations"]["a"]["compute"] + 4
        replayed = graph(state, x, extras)
        assert to_numpy(replayed.next_state["populations"]["a"]["buffer"]).ravel().tolist() == [15.0] * 2
        graph.update_statistics(out.rollout_extras)
        assert float(to_numpy(graph.outputs["y"].head.seen[...])) == 40.0


def test_over_time_as_step_by_step(engine):
    for loop in (False, True):
        graph = charged(loop)
        xs = {"a": engine.asarray(np.random.default_rng(0).normal(size=(T, B, 1)).astype(np.float32))}
        args = (graph.initialize_state(B), xs, engine.asarray(DONE))
        slow = compiled(graph, lambda net, *a: step_unroll(net, *a, None))(*args)
        fast = compiled(graph, lambda net, *a: net.unroll(*a))(*args)
        assert_trees_close(tuple(fast), tuple(slow), 1e-5, f"loop={loop}")
        other = {"a": xs["a"] * 0 + 7}
        replayed = compiled(graph, lambda net, s, x, d, e: net.unroll(s, x, d, e))(
            args[0], other, args[2], slow.rollout_extras
        )
        assert_trees_close(replayed.output, slow.output, 1e-5)


def everything():
    """Every kind of carry, in loops and outside of them."""
    rngs = mp.Rngs(4)
    inner = mp.PopulationGraph(rngs)
    inner.add_input("u", 3)
    inner.add_population("v", 2, activation="tanh")
    inner.connect("u", "v", delay=1)
    inner.connect("v", "v", delay=2)
    inner.add_output("w", source="v")
    inner.finalize()
    graph = mp.PopulationGraph(rngs)
    graph.add_input("x", 4, output_size=3, compute=mp.Sequential([mp.Normalizer(4), mp.LSTM(4, 3, rngs)]))
    noisy = mp.Sequential([mp.Dense(3, 4, rngs), mp.VariationalBottleneck(2, rngs, 0.1)])
    graph.add_population("noisy", input_size=3, output_size=2, compute=noisy)
    graph.add_population(
        "looped", input_size=2, output_size=3, compute=mp.LSTM(2, 3, rngs, trainable_initial_state=True)
    )
    graph.add_population("nested", input_size=3, output_size=2, compute=mp.Sequential([inner, mp.Filter("w")]))
    graph.connect("x", "noisy", transform=mp.Normalizer(3), delay=2)
    graph.connect("noisy", "looped", transform="identity")
    graph.connect("looped", "looped", delay=1, transform=mp.Sequential([mp.Normalizer(3), mp.Dense(3, 2, rngs)]))
    graph.connect("looped", "nested", transform=mp.LSTM(3, 3, rngs))
    graph.add_output("params", source="nested", head=mp.NormalTanhSampler(rngs, 0.1))
    graph.add_output("value", source="looped", head=mp.Dense(3, 1, rngs))
    graph.finalize()
    return graph


@pytest.mark.nightly_if("jax")
def test_every_kind_of_module_over_time_and_its_gradients(engine):
    with engine.precision("float64"):
        graph = everything()
        fill_randomly(graph, scale=0.4)
        xs = {"x": engine.asarray(np.random.default_rng(0).normal(size=(T, B, 4)))}
        state, done = graph.initialize_state(B), engine.asarray(DONE)
        slow = compiled(graph, lambda net, *a: step_unroll(net, *a, None))(state, xs, done)
        # A rollout's unroll is compiled in the test before this one.
        for extras in (None, slow.rollout_extras) if engine.name == "torch" else (slow.rollout_extras,):
            fast = compiled(graph, lambda net, *a: net.unroll(*a))(state, xs, done, extras)
            assert_trees_close(tuple(fast), tuple(slow), 1e-9)
        extras, loss = slow.rollout_extras, lambda o: total(graph.xp, (o.output, o.regularization_loss))
        at_once = gradients(graph, lambda net: loss(net.unroll(state, xs, done, extras)))
        one_by_one = gradients(graph, lambda net: loss(step_unroll(net, state, xs, done, extras)))
        assert_trees_close(at_once, one_by_one, 1e-8)
        assert all(np.any(gradient) for gradient in at_once.values())


def test_noise_drawn_ahead_is_the_noise_and_buffers_stay(engine):
    graph = everything()
    fill_randomly(graph, scale=0.4)
    x = {"x": engine.zeros((B, 4)) + 0.5}
    step = compiled(graph, lambda net, *args: net(*args))
    # Not the first state, whose buffers are all zeros.
    state = step(graph.initialize_state(B), x).next_state
    first = step(state, x)
    ahead = compiled(graph, lambda net, *args: net.draw_ahead(*args, 3))(state, first.rollout_extras)
    assert ahead["populations"]["noisy"]["compute"][1].tape is not None
    assert ahead["outputs"]["params"]["head"].tape is not None
    taped = step(ahead, x)
    assert_trees_close(taped.output, first.output, 1e-6)
    buffer = to_numpy(taped.next_state["populations"]["x"]["buffer"])
    assert buffer.any() and np.array_equal(buffer, to_numpy(first.next_state["populations"]["x"]["buffer"]))
