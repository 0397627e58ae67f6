"""Modules with carries, snapshots, statistics and noise, as compute, transform and head: all of it is routed."""

import numpy as np
from support import to_numpy

import multippo as mp
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
